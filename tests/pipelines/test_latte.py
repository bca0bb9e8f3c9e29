"""Latte at its real shape, planned without weights: T5-XXL, a denoiser of 1.06 billion, an autoencoder."""

import json

import pytest

from rung.core.errors import DoesNotFit
from rung.engine import planning
from rung.hardware import catalog
from rung.hub.diffusers.pipelines import Folder
from rung.models.outline import open_outline
from rung.pipelines.generate import Pipeline, Settings
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.pipeline import plan_phases
from tests.tiny_pipelines import tokenizer

pytest.importorskip("diffusers")

PARTS = {
    "text_encoder": {
        "model_type": "t5", "architectures": ["T5EncoderModel"], "vocab_size": 32128, "d_model": 4096, "d_kv": 64,
        "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu",
    },
    "transformer": {
        "_class_name": "LatteTransformer3DModel", "num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4,
        "out_channels": 8, "num_layers": 28, "cross_attention_dim": 1152, "attention_bias": True, "sample_size": 64,
        "patch_size": 2, "activation_fn": "gelu-approximate", "num_embeds_ada_norm": 1000, "norm_eps": 1e-6,
        "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "caption_channels": 4096, "video_length": 16,
    },
    "vae": {
        "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
        "latent_channels": 4, "sample_size": 512, "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    },
}  # fmt: skip
INDEX = {
    "_class_name": "LattePipeline",
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "LatteTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
GB = 2**30


@pytest.fixture(scope="module")
def latte(tmp_path_factory):
    """A folder with its configurations."""
    from diffusers import DDIMScheduler

    folder = tmp_path_factory.mktemp("latte")
    (folder / "model_index.json").write_text(json.dumps(INDEX))
    for name, config in PARTS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    tokenizer().save_pretrained(folder / "tokenizer")
    DDIMScheduler(beta_schedule="linear", clip_sample=False).save_pretrained(folder / "scheduler")
    return folder


@pytest.fixture(scope="module")
def networks(latte):
    """Return the needs of each network for 16 frames of 512 x 512."""
    cpu = next(one for one in planning.proven_devices(lambda device: None) if one.kind == "cpu")
    return Pipeline(Folder(latte), cpu).rehearse([Settings("a cat runs", steps=2)])


def test_its_networks_have_their_published_sizes(networks):
    sizes = {network.name: round(network.parameters / 1e6) for network in networks}
    assert sizes == {"text_encoder": 4762, "transformer": 1057, "vae": 84}


@pytest.mark.parametrize("card", ["2080 Ti", "GTX 1080 Ti", "RTX 2070", "RTX 3070", "RTX 4060", "GTX 1080", "P4"])
def test_it_fits_cards_of_8_and_11_gb(networks, card):
    device = catalog.device(card)
    assert device.memory < 11.5 * GB
    plan = plan_phases("Latte", networks, device, device.budget)
    assert [phase.name for phase in plan.phases] == ["encode", "denoise", "decode"]
    assert all(phase.memory.most <= device.budget for phase in plan.phases)
    ways = {name: way for phase in plan.phases for name, way in phase.held.items()}
    assert ways["text_encoder"].dtype in ("f32", "bf16")  # never f16, in which T5 overflows
    assert ways["text_encoder"].quantized
    assert ways["vae"].dtype == "f32"


@pytest.mark.parametrize("card", ["P2200", "T4", "2080 Ti", "RTX 3090"])
@pytest.mark.parametrize("format", ["nf4", "int8", "bf16"])
def test_what_check_says_from_headers_is_what_is_planned(networks, latte, card, format):
    device = catalog.device(card)
    said = check(open_outline(latte), [device], Question(formats=(format,))).choices[0]
    try:
        plan = plan_phases("Latte", networks, device, device.budget, format)
    except DoesNotFit:
        assert not said.fits
        return
    assert said.fits
    for phase, planned in zip(said.phases, plan.phases, strict=True):
        assert phase.memory.most == pytest.approx(planned.memory.most, rel=0.03)
        assert [(way.dtype, way.at_once) for way in phase.held.values()] == [
            (way.dtype, way.at_once) for way in planned.held.values()
        ]


def test_it_fits_8_gb_of_this_machine(networks):
    device = next(one for one in planning.proven_devices(lambda device: None) if one.kind == "cpu")
    plan = plan_phases("Latte", networks, device, 8 * GB)
    assert plan.most < 7 * GB
    assert plan.storage("text_encoder").format == "int8"
    assert plan.storage("vae").at_once < 14
