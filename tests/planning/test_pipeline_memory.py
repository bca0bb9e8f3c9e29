"""Compare the memory of pipelines beside their weights with traces of the modules of diffusers in 16 bits."""

import json

import pytest

from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.models.networks.component import describe
from rung.models.networks.pipeline import usual
from rung.models.outline import open_outline
from rung.planning.check import check
from rung.planning.check_result import Question
from rung.planning.network_spec import Subject
from tests.models import meta_models

MB = 2**20
#: Megabytes alive at once in a pass of the published configuration at its usual size, by ``rung.trace``.
TRACED = {
    "sd-1.5-unet": 130.0, "sdxl-unet": 315.0, "sd3-medium-transformer": 317.9, "sd3.5-large-transformer": 503.3,
    "sd3.5-medium-transformer": 341.9, "flux.1-dev-transformer": 463.6, "ltx-video-2b-transformer": 925.1,
    "ltx-video-13b-transformer": 1850.2, "wan2.1-t2v-1.3b-transformer": 1521.2, "wan2.1-t2v-14b-transformer": 3550.4,
    "wan2.2-ti2v-5b-transformer": 647.0, "latte-1-transformer": 927.4, "sd-1.5-vae": 384.0, "flux.1-vae": 1536.0,
    "ltx-video-0.9.0-vae": 5541.2, "ltx-video-0.9.1-vae": 5535.8, "wan2.1-vae": 4043.8, "wan2.2-vae": 4285.0,
    "t5-v1_1-xxl-encoder": 96.0, "umt5-xxl-encoder": 96.0,
}  # fmt: skip
#: Configurations that no factor was fitted to.
OTHERS = {
    "UNet2DConditionModel": {
        "sample_size": 32, "block_out_channels": [64, 128, 256], "cross_attention_dim": 96, "layers_per_block": 1,
        "down_block_types": ["CrossAttnDownBlock2D"] * 2 + ["DownBlock2D"],
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 2,
    },
    "SD3Transformer2DModel": {
        "sample_size": 64, "num_layers": 2, "num_attention_heads": 5, "attention_head_dim": 64,
        "joint_attention_dim": 96, "caption_projection_dim": 320, "pooled_projection_dim": 64,
    },
    "FluxTransformer2DModel": {
        "num_layers": 1, "num_single_layers": 2, "num_attention_heads": 3, "attention_head_dim": 128,
        "joint_attention_dim": 96, "pooled_projection_dim": 64,
    },
    "LTXVideoTransformer3DModel": {
        "num_layers": 2, "num_attention_heads": 6, "attention_head_dim": 64, "cross_attention_dim": 384,
        "caption_channels": 96,
    },
    "WanTransformer3DModel": {
        "num_layers": 2, "num_attention_heads": 6, "attention_head_dim": 128, "ffn_dim": 2048, "text_dim": 96,
    },
    "LatteTransformer3DModel": {
        "sample_size": 32, "patch_size": 2, "num_layers": 2, "num_attention_heads": 6, "attention_head_dim": 64,
        "in_channels": 4, "out_channels": 8, "caption_channels": 96, "cross_attention_dim": 384, "video_length": 8,
        "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "num_embeds_ada_norm": 1000,
        "activation_fn": "gelu-approximate",
    },
    "AutoencoderKL": {
        "sample_size": 128, "block_out_channels": [32, 96, 128], "layers_per_block": 1, "latent_channels": 8,
        "down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3,
    },
    "AutoencoderKLLTXVideo": {
        name: [16, 32, 64, 64] for name in ("block_out_channels", "decoder_block_out_channels")
    } | {name: [1, 1, 1, 1, 1] for name in ("layers_per_block", "decoder_layers_per_block")},
}  # fmt: skip


def estimated(config, width=2, kind="pipeline"):
    subject = Subject.of_component(describe(config, "x"), kind, "x")
    return subject.activation_bytes(512, width=width)


def traced(config, dtype="float16"):
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    from rung.hub.networks.modules import fed, module_of
    from rung.run.trace import trace

    batch = describe(config, "x").shape.inputs
    module, inputs = fed(module_of(config, "x").to(getattr(torch, dtype)), 512, batch)
    return trace(module, **inputs).peak_activations


@pytest.mark.parametrize("name", TRACED)
def test_published_configurations(name):
    assert estimated(meta_models.config(name)) == pytest.approx(TRACED[name] * MB, rel=0.09)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_the_figures_above_are_those_of_traces(name):
    assert traced(meta_models.config(name)) == pytest.approx(TRACED[name] * MB, rel=0.01)


@pytest.mark.parametrize("name", OTHERS)
def test_configurations_that_nothing_was_fitted_to(name):
    config = {"_class_name": name, **OTHERS[name]}
    assert estimated(config) == pytest.approx(traced(config), rel=0.15)


def test_sizes_are_those_of_the_configuration():
    assert (usual("UNet2DConditionModel", {"sample_size": 96}).height, usual("X", {}).frames) == (96, 16)
    vae = {"sample_size": [256, 512], "block_out_channels": [1, 2, 3, 4]}
    assert (usual("AutoencoderKL", vae).height, usual("AutoencoderKL", vae).width) == (32, 64)
    assert usual("LatteTransformer3DModel", {"video_length": 8}).frames == 8
    for odd in (True, -1, "64", 10**9, [1], None):
        assert usual("UNet2DConditionModel", {"sample_size": odd}).height == 64


def test_a_processor_computes_in_f32():
    unet = meta_models.config("sd-1.5-unet")
    assert estimated(unet, width=4) == 2 * estimated(unet)


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "LTXVideoTransformer3DModel"])
def test_what_is_f32_always_is_not_doubled(name):
    config = {"_class_name": name, **OTHERS[name]}
    assert estimated(config, width=4) == pytest.approx(traced(config, "float32"), rel=0.05)


def pipeline(tmp_path, kind, gigabytes=24):
    index = {"_class_name": kind, "vae": ["diffusers", "AutoencoderKL"], "unet": ["diffusers", "X"]}
    for name, config in (("vae", meta_models.config("sd-1.5-vae")), ("unet", meta_models.config("sd-1.5-unet"))):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    card = catalog.device("3090")
    question = Question(formats=("f16",), memory=FrozenDict({"*": gigabytes * 2**30}))
    choice = check(open_outline(tmp_path), [card], question).choices[0]
    return {phase.name: phase.memory for phase in choice.phases}["decode"]


def test_what_a_pipeline_decodes_at_once(tmp_path):
    """Latte fourteen frames; in f32 where that fits, in slices where they do not, and their pictures beside them."""
    plain = pipeline(tmp_path, "StableDiffusionPipeline")
    assert plain.activations == 2 * TRACED["sd-1.5-vae"] * MB
    assert pipeline(tmp_path, "LattePipeline").activations == 14 * plain.activations
    pictures = 14 * 3 * 512 * 512 * 4
    for gigabytes, at_once in ((7, 7), (5, 4), (3, 2), (2, 1)):
        sliced = pipeline(tmp_path, "LattePipeline", gigabytes)
        assert sliced.activations == at_once * plain.activations + 4 * pictures
        assert sliced.most < gigabytes * 2**30 < sliced.most + at_once * plain.activations
