"""Folders of pipelines at their real shapes with random weights: published configurations, written a tensor at a time.

The configurations are those that the tests hold outlines against (``tests/models/configs``).
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch

_CONFIGS = Path(__file__).parent.parent / "tests" / "models" / "configs"
_POOL = 1 << 24
_CLIP, _T5 = ("CLIPTextModel", "sd-1.5-text-encoder"), ("T5EncoderModel", "t5-v1_1-xxl-encoder")
_STABLE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "timestep_spacing": "leading"}
_KL = ("AutoencoderKL", "sd-1.5-vae")
#: Of each kind the class, its scheduler with what it is configured with, and of each network the class and the
#: configuration, with what that differs in.
KINDS: dict[str, tuple[str, tuple[str, dict[str, Any]], dict[str, tuple[Any, ...]]]] = {
    "latte": (
        "LattePipeline",
        ("DDIMScheduler", {"beta_schedule": "linear", "clip_sample": False}),
        {"text_encoder": _T5, "transformer": ("LatteTransformer3DModel", "latte-1-transformer"), "vae": _KL},
    ),
    "sd": (
        "StableDiffusionPipeline",
        ("DDIMScheduler", _STABLE),
        {"text_encoder": _CLIP, "unet": ("UNet2DConditionModel", "sd-1.5-unet"), "vae": _KL},
    ),
    "xl": (
        "StableDiffusionXLPipeline",
        ("EulerDiscreteScheduler", _STABLE),
        {
            "text_encoder": _CLIP,
            "text_encoder_2": ("CLIPTextModelWithProjection", "sdxl-text-encoder-2"),
            "unet": ("UNet2DConditionModel", "sdxl-unet"),
            "vae": (*_KL, {"sample_size": 1024, "scaling_factor": 0.13025, "force_upcast": True}),
        },
    ),
    "wan": (
        "WanPipeline",
        ("UniPCMultistepScheduler", {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}),
        {
            "text_encoder": ("UMT5EncoderModel", "umt5-xxl-encoder"),
            "transformer": ("WanTransformer3DModel", "wan2.1-t2v-1.3b-transformer"),
            "vae": ("AutoencoderKLWan", "wan2.1-vae"),
        },
    ),
    "ltx": (
        "LTXPipeline",
        ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}),
        {
            "text_encoder": _T5,
            "transformer": ("LTXVideoTransformer3DModel", "ltx-video-2b-transformer"),
            "vae": ("AutoencoderKLLTXVideo", "ltx-video-0.9.0-vae"),
        },
    ),
}


def write_folder(folder: Path, kind: str) -> None:
    """The pipeline of a kind, with weights in bfloat16; its tokenizers know few words."""
    import diffusers

    from rung.hub.diffusers.pipelines import Folder

    name, (scheduler, options), networks = KINDS[kind]
    getattr(diffusers, scheduler)(**options).save_pretrained(folder / "scheduler")
    index: dict[str, Any] = {"_class_name": name, "scheduler": ["diffusers", scheduler]}
    for part, (class_name, config, *more) in networks.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        found = json.loads((_CONFIGS / f"{config}.json").read_text()) | (more[0] if more else {})
        (folder / part / "config.json").write_text(json.dumps(found))
        index[part] = ["diffusers" if "_class_name" in found else "transformers", class_name]
        if part.startswith("text_encoder"):
            words = part.replace("text_encoder", "tokenizer")
            tokenizer(found.get("max_position_embeddings", 512)).save_pretrained(folder / words)
            index[words] = ["transformers", "PreTrainedTokenizerFast"]
    (folder / "model_index.json").write_text(json.dumps(index))
    opened = Folder(folder)
    for part in networks:
        network = opened.network(part)
        stem = "model" if index[part][0] == "transformers" else "diffusion_pytorch_model"
        print(f"writing {part}: {sum(math.prod(p.shape) for p in network.parameters()) / 1e6:,.0f} million", flush=True)
        write_weights(folder / part / f"{stem}.safetensors", network)


def write_weights(path: Path, network: torch.nn.Module) -> None:
    """The network's tensors in bfloat16: ones for norms, normal values of deviation 0.02 for the rest."""
    pool = (torch.randn(_POOL, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)
    tensors = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
    tensors.pop("encoder.embed_tokens.weight", None)  # T5's shared one
    header, end = {}, 0
    for name, value in tensors.items():
        begin, end = end, end + 2 * value.numel()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, value in tensors.items():
            ones = (value.dim() == 1 and name.endswith("weight")) or name.endswith("gamma")
            left, start = value.numel(), zlib.crc32(name.encode()) % (_POOL // 2)
            while left:
                part = torch.ones(left, dtype=torch.bfloat16) if ones else pool[start : start + left]
                file.write(part.view(torch.uint8).numpy().tobytes())
                left, start = left - len(part), 0


def tokenizer(longest: int) -> Any:
    """Words of the prompt; a pipeline's own is not needed for random weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        word: at for at, word in enumerate(["<pad>", "</s>", "<unk>", "a", "cat", "runs", "over", "the", "sea"])
    }
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=longest
    )
