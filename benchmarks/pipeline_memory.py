"""Predicted beside measured activations of diffusers pipelines: small ones of random weights, run here on the CPU.

    python benchmarks/pipeline_memory.py [SD XL SD3 FLUX LTX Wan Latte]

Each pipeline makes a picture or a video of its default size in two steps, so that only the channels are fewer than in
the published one. Measured: by how much the resident memory of the process rises at most during one call of the
denoiser (the second) and during the decoding, with weights laid out as rung lays them out. Predicted: activations and
workspace that ``rung check`` says of the same folder on a CPU in f32. With ``MALLOC_MMAP_THRESHOLD_=65536`` in the
environment freed memory goes back at once.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import rung
from rung.pipelines.weights import laid_out

_KL = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
_KL |= {"block_out_channels": [32, 64, 128, 128], "layers_per_block": 2, "norm_num_groups": 8}
_TEXT = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 1000}


def text(width: int, kind: Any = CLIPTextModel) -> Any:
    """A text encoder; the prompt is given as embeddings, so that it is never called."""
    return kind(CLIPTextConfig(hidden_size=width, projection_dim=width, **_TEXT))


def stable_diffusion() -> tuple[Any, dict[str, Any]]:
    """512 x 512, guided."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=64, block_out_channels=(128, 256, 512, 512), cross_attention_dim=256, attention_head_dim=8
    )
    pipe = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(**_KL, sample_size=512), text_encoder=text(256), tokenizer=None, unet=unet,
        scheduler=diffusers.DDIMScheduler(), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    return pipe, {name: torch.zeros(1, 77, 256) for name in ("prompt_embeds", "negative_prompt_embeds")}


def stable_diffusion_xl() -> tuple[Any, dict[str, Any]]:
    """1024 x 1024, guided."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=128, block_out_channels=(64, 128, 256), cross_attention_dim=256, attention_head_dim=(2, 4, 8),
        transformer_layers_per_block=(1, 1, 2), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=32, projection_class_embeddings_input_dim=128 + 6 * 32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    pipe = diffusers.StableDiffusionXLPipeline(
        vae=diffusers.AutoencoderKL(**_KL, sample_size=1024, force_upcast=True), text_encoder=text(128),
        text_encoder_2=text(128, CLIPTextModelWithProjection), tokenizer=None, tokenizer_2=None, unet=unet,
        scheduler=diffusers.DDIMScheduler(), add_watermarker=False,
    )  # fmt: skip
    embeddings = {name: torch.zeros(1, 77, 256) for name in ("prompt_embeds", "negative_prompt_embeds")}
    return pipe, embeddings | {f"{n}pooled_prompt_embeds": torch.zeros(1, 128) for n in ("", "negative_")}


def stable_diffusion_3() -> tuple[Any, dict[str, Any]]:
    """1024 x 1024, guided."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=128, num_layers=2, num_attention_heads=8, attention_head_dim=64, joint_attention_dim=256,
        caption_projection_dim=512, pooled_projection_dim=128,
    )  # fmt: skip
    pipe = diffusers.StableDiffusion3Pipeline(
        vae=diffusers.AutoencoderKL(**_KL, sample_size=1024, latent_channels=16, shift_factor=0.0),
        transformer=transformer,
        text_encoder=text(128, CLIPTextModelWithProjection), text_encoder_2=text(128, CLIPTextModelWithProjection),
        text_encoder_3=None, tokenizer=None, tokenizer_2=None, tokenizer_3=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    embeddings = {name: torch.zeros(1, 333, 256) for name in ("prompt_embeds", "negative_prompt_embeds")}
    return pipe, embeddings | {f"{n}pooled_prompt_embeds": torch.zeros(1, 128) for n in ("", "negative_")}


def flux() -> tuple[Any, dict[str, Any]]:
    """1024 x 1024."""
    transformer = diffusers.FluxTransformer2DModel(
        num_layers=1, num_single_layers=2, num_attention_heads=4, attention_head_dim=128, joint_attention_dim=256,
        pooled_projection_dim=128, guidance_embeds=True,
    )  # fmt: skip
    pipe = diffusers.FluxPipeline(
        vae=diffusers.AutoencoderKL(**_KL, sample_size=1024, latent_channels=16, shift_factor=0.0),
        transformer=transformer,
        text_encoder=text(128), text_encoder_2=None, tokenizer=None, tokenizer_2=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    return pipe, {"prompt_embeds": torch.zeros(1, 512, 256), "pooled_prompt_embeds": torch.zeros(1, 128)}


def ltx() -> tuple[Any, dict[str, Any]]:
    """161 frames of 512 x 704, guided."""
    transformer = diffusers.LTXVideoTransformer3DModel(
        num_layers=2, num_attention_heads=8, attention_head_dim=32, cross_attention_dim=256, caption_channels=256
    )
    narrow = dict.fromkeys(("block_out_channels", "decoder_block_out_channels"), (16, 32, 64, 64))
    counts = dict.fromkeys(("layers_per_block", "decoder_layers_per_block"), (1, 1, 1, 1, 1))
    pipe = diffusers.LTXPipeline(
        vae=diffusers.AutoencoderKLLTXVideo(**narrow, **counts), transformer=transformer, text_encoder=None,
        tokenizer=None, scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )  # fmt: skip
    embeddings: dict[str, Any] = {n: torch.zeros(1, 128, 256) for n in ("prompt_embeds", "negative_prompt_embeds")}
    return pipe, embeddings | {f"{n}_attention_mask": torch.ones(1, 128) for n in ("prompt", "negative_prompt")}


def wan() -> tuple[Any, dict[str, Any]]:
    """81 frames of 480 x 832; the two inputs of guidance go through one after the other."""
    transformer = diffusers.WanTransformer3DModel(
        num_layers=1, num_attention_heads=2, attention_head_dim=128, ffn_dim=1024, text_dim=256
    )
    pipe = diffusers.WanPipeline(
        vae=diffusers.AutoencoderKLWan(base_dim=16), transformer=transformer, text_encoder=None, tokenizer=None,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip
    return pipe, {name: torch.zeros(1, 512, 256) for name in ("prompt_embeds", "negative_prompt_embeds")}


def latte() -> tuple[Any, dict[str, Any]]:
    """16 frames of 512 x 512, guided."""
    transformer = diffusers.LatteTransformer3DModel(
        sample_size=64, patch_size=2, num_layers=1, num_attention_heads=4, attention_head_dim=64, in_channels=4,
        out_channels=8, cross_attention_dim=256, caption_channels=256, norm_type="ada_norm_single",
        norm_elementwise_affine=False, video_length=16, num_embeds_ada_norm=1000, activation_fn="gelu-approximate",
    )  # fmt: skip
    pipe = diffusers.LattePipeline(
        vae=diffusers.AutoencoderKL(**_KL, sample_size=512), transformer=transformer, text_encoder=None,
        tokenizer=None, scheduler=diffusers.DDIMScheduler(),
    )  # fmt: skip
    embeddings: dict[str, Any] = {n: torch.zeros(1, 120, 256) for n in ("prompt_embeds", "negative_prompt_embeds")}
    return pipe, embeddings | {"clean_caption": False, "mask_feature": False, "negative_prompt": None}


PIPELINES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "SD": stable_diffusion, "XL": stable_diffusion_xl, "SD3": stable_diffusion_3, "FLUX": flux, "LTX": ltx,
    "Wan": wan, "Latte": latte,
}  # fmt: skip


def memory(key: str) -> int:
    """Resident bytes of this process: now (VmRSS) or at most since ``forget`` (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def watched(call: Callable[..., Any], found: list[int]) -> Callable[..., Any]:
    """The call, which adds to ``found`` by how many bytes the memory rises at most."""

    @functools.wraps(call)
    def through(*args: Any, **kwargs: Any) -> Any:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = memory("VmRSS")
        result = call(*args, **kwargs)
        found.append(memory("VmHWM") - before)
        return result

    return through


def measure(name: str) -> None:
    """Prints two rows: the denoiser and the decoding."""
    torch.manual_seed(0)
    pipe, inputs = PIPELINES[name]()
    with tempfile.TemporaryDirectory() as folder:
        pipe.save_pretrained(folder)
        use = rung.check(folder, ["cpu"], formats=("f32",)).choices[0]
    predicted = {phase.name: phase.memory.activations + phase.memory.workspace for phase in use.phases}
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    for weight in (*denoiser.parameters(), *pipe.vae.parameters()):
        weight.data = laid_out(weight.data)
    denoised: list[int] = []
    decoded: list[int] = []
    denoiser.forward = watched(denoiser.forward, denoised)
    pipe.vae.decode = watched(pipe.vae.decode, decoded)
    pipe.set_progress_bar_config(disable=True)
    with torch.inference_mode():
        pipe(**inputs, num_inference_steps=2)
    for phase, measured in (("denoise", denoised[-1]), ("decode", max(decoded))):
        error = predicted[phase] / measured - 1
        print(
            f"| {name} | {phase} | {predicted[phase] / 2**20:.0f} | {measured / 2**20:.0f} | {error:+.0%} |", flush=True
        )


def main() -> None:
    """Measures the pipelines that are named, or all."""
    print("| pipeline | phase | predicted MB | measured MB | error |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or PIPELINES:
        measure(name)


if __name__ == "__main__":
    main()
