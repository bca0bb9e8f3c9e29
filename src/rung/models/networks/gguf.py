"""GGUF files of mixtures of experts: roles by the names that llama.cpp gives, measures from the metadata.

Names and keys: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from __future__ import annotations

import re
from pathlib import Path

from rung.core.errors import BadFile
from rung.models.architectures import family
from rung.models.card import Tensor
from rung.models.files.gguf import Header, read_parts
from rung.models.networks.describing import MOST_EXPERTS
from rung.models.networks.values import OTHER, Component, Outline, Shape, plain
from rung.models.settings import Settings

#: Architectures of GGUF files by the model type that transformers knows them as.
ARCHITECTURES = {
    "llama": "mixtral",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss",
}
_OUTSIDE = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(.+)")
_EXPERT = re.compile(r"ffn_(gate|up|down)\.(\d{1,4})\.weight")
_ROLES = {
    **family.GGUF_NAMES,
    **family.GGUF_QK_NORM_NAMES,
    **family.GGUF_BIAS_NAMES,
    **{f"ffn_{part}_exps.weight": f"experts_{part}" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_exps.bias": f"experts_{part}_bias" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp.weight": f"shared_{part}" for part in ("gate", "up", "down")},
    "ffn_gate_inp.weight": "router",
    "ffn_gate_inp.bias": "router_bias",
    "ffn_gate_inp_shexp.weight": "shared_router",
    "exp_probs_b.bias": "router_bias",
    "post_attention_norm.weight": "mlp_norm",
    "attn_sinks.weight": "sinks",
    "attn_q_a.weight": "q_a",
    "attn_q_a_norm.weight": "q_a_norm",
    "attn_q_b.weight": "q_b",
    "attn_kv_a_mqa.weight": "kv_a",
    "attn_kv_a_norm.weight": "kv_a_norm",
    "attn_kv_b.weight": "kv_b",
    "attn_k_b.weight": "k_b",
    "attn_v_b.weight": "v_b",
}


def experts(path: Path) -> Outline | None:
    """The outline of a GGUF model with experts, None for other models. Raises what reading headers raises."""
    headers = read_parts(path)
    metadata = headers[0].metadata
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES or not metadata.get(f"{kind}.expert_count"):
        return None
    meta = Settings(metadata, headers[0].path.name, f"{kind}.")
    tensors = tuple(_tensors(headers))
    embedding = next((tensor for tensor in tensors if tensor.role == "embed"), None)
    if embedding is None or len(embedding.shape) != 2:
        raise BadFile(
            f"{meta.where} lacks the tensor token_embd.weight",
            ["it holds no language model, or a part of one"],
            code="model-incomplete",
        )
    shape = _shape(meta, embedding.shape[0])
    component = Component("model", ARCHITECTURES[kind], "decoder", tensors, shape)
    return plain(headers[0].path.name, "gguf", str(headers[0].path), component)


def _tensors(headers: tuple[Header, ...]) -> list[Tensor]:
    return [
        Tensor(_role(item.name), item.name, item.shape, item.format, number, item.offset, item.bytes)
        for number, header in enumerate(headers)
        for item in header.tensors
    ]


def _role(name: str) -> str:
    block = _BLOCK.fullmatch(name)
    if not block:
        return _OUTSIDE.get(name, OTHER)
    one = _EXPERT.fullmatch(block[2])
    role = f"experts.{int(one[2])}.{one[1]}" if one else _ROLES.get(block[2])
    return f"layers.{int(block[1])}.{role}" if role else OTHER


def _shape(meta: Settings, vocabulary: int) -> Shape:
    hidden, heads = meta.integer("embedding_length"), meta.uniform("attention.head_count")
    layers = meta.integer("block_count", most=family.MOST_LAYERS)
    width = meta.integer("attention.key_length", max(hidden // heads, 1))
    latent = meta.integer("attention.kv_lora_rank", 0, least=0)
    span = meta.integer("attention.sliding_window", 0, least=0)
    wide = meta.uniform("feed_forward_length", meta.integer("expert_feed_forward_length", 1))
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=meta.uniform("attention.head_count_kv", heads),
        head_dim=meta.integer("attention.key_length_mla", width),
        feed_forward=wide,
        vocabulary=vocabulary,
        context=meta.integer("context_length"),
        experts=meta.integer("expert_count", most=MOST_EXPERTS),
        experts_per_token=meta.integer("expert_used_count", most=MOST_EXPERTS),
        expert_feed_forward=meta.integer("expert_feed_forward_length", wide),
        # gpt-oss alone of these has a window, in every second layer
        windows=tuple(span if span and index % 2 == 0 else None for index in range(layers)),
        latent=latent + meta.integer("rope.dimension_count", 1) if latent else 0,
        value_dim=meta.integer("attention.value_length_mla", meta.integer("attention.value_length", width)),
    )
