"""Checkpoints of Gemma PyTorch (github.com/google/gemma_pytorch, ``gemma/model.py``) in transformers' names.

They have no configuration: what is not in the shapes of the tensors is what that program's ``gemma/config.py`` says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rung.core.errors import BadFile

_HEAD_DIM, _CONTEXT, _LARGEST_LAYERS = 256, 8192, 46
_EOS, _END_OF_TURN, _BOS = 1, 107, 2
#: What goes beside the weights unless the checkpoint's folder has it.
TOKENIZER_FILES: dict[str, bytes] = {
    "tokenizer_config.json": json.dumps(
        {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
        | {"pad_token": "<pad>", "add_bos_token": True, "add_eos_token": False}
    ).encode()
}


def recognized(tensors: Mapping[str, Any]) -> bool:
    """Return whether the names are those of Gemma PyTorch."""
    return "embedder.weight" in tensors and "model.layers.0.self_attn.qkv_proj.weight" in tensors


def translated(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration and the tensors by transformers' names; q, k and v apart, int8 weights multiplied out.

    Raises ``BadFile`` for shapes that no Gemma 1 or 2 has.
    """
    angles = tensors.get("freqs_cis")
    width = _HEAD_DIM if angles is None else 2 * angles.shape[1]
    inner = tensors["model.layers.0.self_attn.o_proj.weight"].shape[1]
    together = tensors["model.layers.0.self_attn.qkv_proj.weight"].shape[0]
    heads, shared = inner // width, (together - inner) // (2 * width)
    if inner % width or together != (heads + 2 * shared) * width or shared < 1:
        raise BadFile(f"self_attn.qkv_proj.weight has {together} rows and o_proj {inner} columns, as in no Gemma")
    found: dict[str, Any] = {}
    for name, value in tensors.items():
        if name == "freqs_cis" or name.startswith(("local_freqs_cis", "global_freqs_cis")) or "scaler" in name:
            continue
        scaler = tensors.get(f"{name}_scaler")
        if scaler is not None:
            value = (value.float() * scaler.float()[:, None]).to(scaler.dtype)
        if name.endswith("self_attn.qkv_proj.weight"):
            parts = value.split([inner, shared * width, shared * width])
            found |= {name.replace("qkv", letter): part for letter, part in zip("qkv", parts, strict=True)}
        else:
            found["model.embed_tokens.weight" if name == "embedder.weight" else name] = value
    context = _CONTEXT if angles is None else angles.shape[0] // 2
    return _config(found, heads, shared, width, context), found


def _config(found: Mapping[str, Any], heads: int, shared: int, width: int, context: int) -> dict[str, Any]:
    vocabulary, hidden = found["model.embed_tokens.weight"].shape
    layers = sum(name.endswith("self_attn.q_proj.weight") for name in found)
    second = "model.layers.0.pre_feedforward_layernorm.weight" in found
    if any(name.endswith("q_norm.weight") or "query_norm" in name for name in found):
        raise BadFile("It is a checkpoint of Gemma 3; rung converts those of Gemma 1 and 2.")
    config = {
        "architectures": ["Gemma2ForCausalLM" if second else "GemmaForCausalLM"],
        "model_type": "gemma2" if second else "gemma",
        "dtype": str(found["model.embed_tokens.weight"].dtype).removeprefix("torch."),
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": found["model.layers.0.mlp.gate_proj.weight"].shape[0],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": width,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "bos_token_id": _BOS,
        "eos_token_id": [_EOS, _END_OF_TURN] if vocabulary > _END_OF_TURN else _EOS,
        "pad_token_id": 0,
    }
    if second:
        scalar = hidden // heads if layers == _LARGEST_LAYERS else width
        config |= {"query_pre_attn_scalar": scalar, "sliding_window": 4096}
        config |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return config
