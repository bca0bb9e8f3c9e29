"""Tiny random checkpoints of the nine architectures, as transformers saves them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

#: The model types that rung builds; ``gemma3`` is the one with vision, of which only the text runs.
MODEL_TYPES = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "seed_oss")

_SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OWN: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16, "num_key_value_heads": 1},
    "gemma2": {"head_dim": 16, "num_hidden_layers": 4, "sliding_window": 8, "query_pre_attn_scalar": 24},
    "gemma3_text": {
        "head_dim": 16,
        "num_hidden_layers": 7,  # one of every six sees everything
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
    },
    "llama": {},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "phi3": {"original_max_position_embeddings": 512},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "seed_oss": {"head_dim": 32, "attention_out_bias": True},
}
_CLASSES = {
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "llama": "Llama",
    "mistral": "Mistral",
    "phi3": "Phi3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "seed_oss": "SeedOss",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """The configuration of a tiny model: hidden 64, head_dim 16, vocabulary 320, window 8 where there is one."""
    import transformers

    name = _CLASSES[model_type] + ("TextConfig" if model_type == "gemma3_text" else "Config")
    return getattr(transformers, name)(**{**_SMALL, **_OWN[model_type], **overrides})


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A model of transformers (f32, eval, eager attention): seeded, logits that spread by 1 to 3, nothing all ones."""
    import torch
    import transformers

    config = tiny_config(model_type, **overrides)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{_CLASSES[model_type]}ForCausalLM")(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    gemma = model_type.startswith("gemma")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, generator, gemma, bool(config.tie_word_embeddings))
    return model


def _fill(name: str, parameter: Any, generator: Any, gemma: bool, tied: bool) -> None:
    if "norm" in name:
        # gemma adds one to what is stored
        parameter.normal_(0.0 if gemma else 1.0, 0.2, generator=generator)
    elif name.endswith("bias"):
        parameter.normal_(0.0, 0.3, generator=generator)
    elif "embed" in name or "lm_head" in name:
        # after the last norm the hidden state has about unit variance: this spreads the logits by about 2
        narrow = "lm_head" in name or tied
        parameter.normal_(0.0, 2.0 / math.sqrt(parameter.shape[-1]) if narrow else 1.0, generator=generator)
    else:
        parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[-1]), generator=generator)


def mix_signs(model: Any) -> None:
    """Random signs in the last norm: with a tied head every token would otherwise predict itself, surely."""
    import torch

    signs = torch.randint(0, 2, (model.config.hidden_size,), generator=torch.Generator().manual_seed(1)) * 2.0 - 1
    offset = 1.0 if model.config.model_type.startswith("gemma") else 0.0
    with torch.no_grad():
        weight = model.model.norm.weight
        weight.copy_((weight + offset) * signs - offset)


def tiny_checkpoint(folder: Path, model_type: str, dtype: str = "float32", seed: int = 0, **overrides: Any) -> Any:
    """Saves a tiny model into ``folder`` (config.json, generation_config.json, safetensors) and returns it.

    ``dtype`` is the stored one; the model that is returned has the stored values in f32, and its frequencies of rope
    as they are: ``model.to`` would round these too, which no program that loads the file does.
    """
    import torch

    model, stored = tiny_model(model_type, seed, **overrides), getattr(torch, dtype)
    copy.deepcopy(model).to(stored).save_pretrained(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(stored).float()
    return model


def older_generation(folder: Path) -> None:
    """Rewrites config.json with the keys of transformers 4: ``rope_theta``, ``rope_scaling``, ``torch_dtype``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype", "float32")
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        full, sliding = rope["full_attention"], rope["sliding_attention"]
        config["rope_theta"] = full.pop("rope_theta")
        config["rope_local_base_freq"] = sliding["rope_theta"]
        config["rope_scaling"] = full if full.get("rope_type", "default") != "default" else None
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
        config.pop("layer_types", None)
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    path.write_text(json.dumps(config, indent=2))


def gguf_vocabulary(folder: Path, size: int = 320) -> None:
    """Writes a tokenizer.model of kind ``llama`` with ``size`` tokens, which llama.cpp's converter needs."""
    import io

    import sentencepiece

    text = [f"the model number {n} runs on a device with {n * 7 % 101} things and more words" for n in range(400)]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=out,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())
