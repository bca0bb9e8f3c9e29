"""Outlines of diffusers pipelines: the sum of their parts, and what must be resident together."""

import json
import math

import meta_models
import numpy as np
import pytest
from safetensors.numpy import save_file

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.networks.component import describe
from rung.models.outline import open_outline

CLIP_L = meta_models.config("sd-1.5-text-encoder")
PROJECTED = CLIP_L | {"architectures": ["CLIPTextModelWithProjection"]}
T5 = "t5-v1_1-xxl-encoder"
#: Components with the configuration of each; the rest of an index has no weights.
PIPELINES = {
    "StableDiffusionPipeline": {"text_encoder": CLIP_L, "unet": "sd-1.5-unet", "vae": "sd-1.5-vae"},
    "StableDiffusionXLPipeline": {
        "text_encoder": CLIP_L, "text_encoder_2": "sdxl-text-encoder-2", "unet": "sdxl-unet", "vae": "sd-1.5-vae"
    },
    "StableDiffusion3Pipeline": {
        "text_encoder": PROJECTED, "text_encoder_2": "sdxl-text-encoder-2", "text_encoder_3": T5,
        "transformer": "sd3-medium-transformer", "vae": "flux.1-vae",
    },
    "FluxPipeline": {
        "text_encoder": CLIP_L, "text_encoder_2": T5, "transformer": "flux.1-dev-transformer", "vae": "flux.1-vae"
    },
    "LTXPipeline": {"text_encoder": T5, "transformer": "ltx-video-2b-transformer", "vae": "ltx-video-0.9.0-vae"},
    "WanPipeline": {
        "text_encoder": "umt5-xxl-encoder", "transformer": "wan2.1-t2v-14b-transformer", "vae": "wan2.1-vae",
        "transformer_2": "wan2.1-t2v-14b-transformer",
    },
    "LattePipeline": {"text_encoder": T5, "transformer": "latte-1-transformer", "vae": "sd-1.5-vae"},
}  # fmt: skip
WEIGHTLESS = {"scheduler": ["diffusers", "DDIMScheduler"], "tokenizer": ["transformers", "CLIPTokenizer"]}
WEIGHTLESS |= {"safety_checker": [None, None], "requires_safety_checker": True, "image_encoder": [None, None]}


def write(folder, kind):
    """The configurations of a pipeline, as a repository has them."""
    index = {"_class_name": kind, "_diffusers_version": "0.30.0", **WEIGHTLESS}
    for name, config in PIPELINES[kind].items():
        config = meta_models.config(config) if isinstance(config, str) else config
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config))
        index[name] = ["diffusers" if "_class_name" in config else "transformers", "X"]
    (folder / "model_index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pipeline_is_the_sum_of_its_parts(tmp_path, kind):
    write(tmp_path, kind)
    found = open_outline(tmp_path)
    assert (found.kind, found.card) == ("pipeline", None)
    assert {component.name for component in found.components} == set(PIPELINES[kind])
    for name, config in PIPELINES[kind].items():
        config = meta_models.config(config) if isinstance(config, str) else config
        assert found.component(name).tensors == describe(config, "x").tensors
    assert found.weight_bytes == sum(component.weight_bytes for component in found.components)
    assert open_outline(tmp_path / "model_index.json") == found


@pytest.mark.parametrize("kind", PIPELINES)
def test_text_is_encoded_before_the_denoiser_is_needed(tmp_path, kind):
    write(tmp_path, kind)
    found = open_outline(tmp_path)
    phases = {phase.name: phase.components for phase in found.phases}
    assert list(phases) == ["encode", "denoise", "decode"]
    assert {found.component(name).role for name in phases["encode"]} == {"encoder"}
    assert {found.component(name).role for name in phases["denoise"]} == {"denoiser"}
    assert phases["decode"] == ("vae",)
    assert sorted(name for names in phases.values() for name in names) == sorted(PIPELINES[kind])
    if kind == "WanPipeline":
        assert set(phases["denoise"]) == {"transformer", "transformer_2"}


def test_latte_fits_where_its_phases_do(tmp_path):
    """The largest phase of Latte is its text encoder: 4,762 million weights of 5,903."""
    write(tmp_path, "LattePipeline")
    found = open_outline(tmp_path)
    largest = max(sum(found.component(name).parameters for name in phase.components) for phase in found.phases)
    assert largest == 4_762_310_656
    assert found.parameters == 4_762_310_656 + 1_057_246_880 + 83_653_863


def test_the_safety_checker_is_a_component(tmp_path):
    """Stable-diffusion-v1-5 has one of 304 million weights, and 20 concepts."""
    write(tmp_path, "StableDiffusionPipeline")
    tower = meta_models.config("clip-vision-large")
    config = {"architectures": ["StableDiffusionSafetyChecker"], "model_type": "clip", "projection_dim": 768}
    config["vision_config"] = {key: value for key, value in tower.items() if key != "architectures"}
    (tmp_path / "safety_checker").mkdir()
    (tmp_path / "safety_checker" / "config.json").write_text(json.dumps(config))
    index = json.loads((tmp_path / "model_index.json").read_text())
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    found = open_outline(tmp_path)
    checker = found.component("safety_checker")
    assert checker.parameters == 303_179_776 + 1024 * 768 + 20 * 768 + 20
    assert "safety_checker" in found.phases[-1].components


def test_weights_of_components_are_read_where_they_are(tmp_path):
    write(tmp_path, "StableDiffusionPipeline")
    config = meta_models.config("sd-1.5-vae") | {"block_out_channels": [32, 32], "layers_per_block": 1}
    config["down_block_types"], config["up_block_types"] = ["DownEncoderBlock2D"] * 2, ["UpDecoderBlock2D"] * 2
    (tmp_path / "vae" / "config.json").write_text(json.dumps(config))
    described = describe(config, "x")
    arrays = {t.name: np.zeros(t.shape, np.float16) for t in described.tensors}
    save_file(arrays, tmp_path / "vae" / "diffusion_pytorch_model.fp16.safetensors")
    vae = open_outline(tmp_path).component("vae")
    assert {(t.name, t.role, t.shape) for t in vae.tensors} == {(t.name, t.role, t.shape) for t in described.tensors}
    assert {t.format for t in vae.tensors} == {"f16"}
    assert vae.weight_bytes == 2 * sum(math.prod(t.shape) for t in described.tensors)
    # a component is a model of its own, too
    assert open_outline(tmp_path / "vae").components[0].tensors == vae.tensors


def test_pipelines_that_cannot_be(tmp_path):
    write(tmp_path, "FluxPipeline")
    (tmp_path / "text_encoder_2" / "config.json").unlink()
    with pytest.raises(BadFile, match="lacks text_encoder_2"):
        open_outline(tmp_path)
    index = tmp_path / "model_index.json"
    for content, match in (
        ({"unet": ["diffusers"]}, "not a library and a class"),
        ({"../up": ["diffusers", "X"]}, "no name of a folder"),
        ({"_class_name": "X"}, "names 0 components"),
        ({f"part_{n}": ["diffusers", "X"] for n in range(100)}, "names 100 components"),
    ):
        index.write_text(json.dumps(content))
        with pytest.raises(BadFile, match=match):
            open_outline(tmp_path)


def test_denoisers_that_nobody_described():
    unet = meta_models.config("sd-1.5-unet")
    for change in (
        {"class_embed_type": "timestep"},
        {"down_block_types": ["AttnDownBlock2D"] * 4},
        {"mid_block_type": "UNetMidBlock2D"},
        {"addition_embed_type": "image"},
    ):
        with pytest.raises(UnknownArchitecture, match="x"):
            describe(unet | change, "x")
    for change in ({"block_out_channels": 320}, {"block_out_channels": []}, {"up_block_types": ["UpBlock2D"]}):
        with pytest.raises(BadFile, match=next(iter(change))):
            describe(unet | change, "x")
    with pytest.raises(UnknownArchitecture, match="attention between"):
        describe(meta_models.config("wan2.1-vae") | {"attn_scales": [1.0]}, "x")
    with pytest.raises(BadFile, match="temperal_downsample"):
        describe(meta_models.config("wan2.1-vae") | {"temperal_downsample": [True]}, "x")
