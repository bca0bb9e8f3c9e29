"""Tiny random pipelines of diffusers, as diffusers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def tokenizer() -> Any:
    """Words to tokens, 64 of them; it ends texts as T5's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["a", "cat", "dog", "runs", "over", "the", "sea", "at", "night", "in", "red", "blue", "snow", "and"]
    vocabulary = {token: number for number, token in enumerate(["<pad>", "</s>", "<unk>", *words])}
    result = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    result.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=result, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=77
    )


def t5(width: int = 64) -> Any:
    """An encoder like T5 1.1's."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=64, d_model=width, d_kv=16, d_ff=128, num_layers=1, num_heads=4, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config).eval()


def clip() -> Any:
    """A text model like Stable Diffusion's."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        projection_dim=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return CLIPTextModel(config).eval()


def vae(channels: int = 4) -> Any:
    """An autoencoder of pictures that makes 2 x 2 pixels of each latent."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(32, 32), latent_channels=channels, norm_num_groups=8, sample_size=32, shift_factor=0.0,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def latte() -> Any:
    """Latte: video from text."""
    from diffusers import DDIMScheduler, LattePipeline, LatteTransformer3DModel

    transformer = LatteTransformer3DModel(
        num_attention_heads=2, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=1,
        cross_attention_dim=64, attention_bias=True, sample_size=8, patch_size=2, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
        caption_channels=64, video_length=4,
    )  # fmt: skip
    return LattePipeline(
        tokenizer=tokenizer(), text_encoder=t5(), vae=vae(), transformer=transformer, scheduler=DDIMScheduler()
    )


def stable_diffusion() -> Any:
    """Pictures, by a UNet that CLIP's tokens steer."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    unet = UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=64, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip
    return StableDiffusionPipeline(
        vae=vae(), text_encoder=clip(), tokenizer=tokenizer(), unet=unet, scheduler=DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def pixart() -> Any:
    """Pictures, by a transformer that T5 steers."""
    from diffusers import DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel

    transformer = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=1, sample_size=8,
        cross_attention_dim=64, caption_channels=64, use_additional_conditions=False,
    )  # fmt: skip
    return PixArtAlphaPipeline(
        tokenizer=tokenizer(), text_encoder=t5(), vae=vae(), transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),
    )  # fmt: skip


def flux() -> Any:
    """Pictures from two encoders; latents are a list of patches."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=(4, 4, 8), guidance_embeds=True,
    )  # fmt: skip
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae(), text_encoder=clip(), tokenizer=tokenizer(),
        text_encoder_2=t5(), tokenizer_2=tokenizer(), transformer=transformer,
    )  # fmt: skip


def ltx() -> Any:
    """Video; its autoencoder decodes time and space at once."""
    from diffusers import (
        AutoencoderKLLTXVideo,
        FlowMatchEulerDiscreteScheduler,
        LTXPipeline,
        LTXVideoTransformer3DModel,
    )

    autoencoder = AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False), decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4, upsample_factor=(1,) * 4,
        timestep_conditioning=False, patch_size=1, patch_size_t=1, encoder_causal=True, decoder_causal=False,
    )  # fmt: skip
    transformer = LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=64,
        num_layers=1, caption_channels=64,
    )  # fmt: skip
    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=autoencoder, text_encoder=t5(), tokenizer=tokenizer(),
        transformer=transformer,
    )  # fmt: skip


def wan() -> Any:
    """Video, with an encoder of many languages; the steps' embedding looks at the dtype of its own weights."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_heads=4, feed_forward_proj="gated-gelu"
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=32, in_channels=16, out_channels=16,
        text_dim=64, freq_dim=64, ffn_dim=64, num_layers=1, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )  # fmt: skip
    autoencoder = AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    return WanPipeline(
        tokenizer=tokenizer(), text_encoder=UMT5EncoderModel(config).eval(), transformer=transformer,
        vae=autoencoder, scheduler=UniPCMultistepScheduler(),
    )  # fmt: skip


PIPELINES = {
    "latte": latte,
    "stable_diffusion": stable_diffusion,
    "pixart": pixart,
    "flux": flux,
    "ltx": ltx,
    "wan": wan,
}


def saved(name: str, folder: Path) -> Path:
    """A tiny pipeline in a folder, the same every time."""
    torch.manual_seed(0)
    PIPELINES[name]().save_pretrained(folder)
    return folder
