"""Tiny random checkpoints of the eight architectures in transformers, and the same weights as parts of a decoder."""

from __future__ import annotations

import torch
import transformers

from rung.models.card import Decoder, Layer, Rope
from rung.ops.attention.ref import RUNG as REF_ATTENTION

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "phi3": ("Phi3", {"partial_rotary_factor": 0.5}),
    "gemma": ("Gemma", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "gemma3_text": (
        "Gemma3Text",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "sliding_window_pattern": 3},
    ),
}
LAYER_ROLES = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.q_proj.weight": "q",
    "self_attn.k_proj.weight": "k",
    "self_attn.v_proj.weight": "v",
    "self_attn.qkv_proj.weight": "qkv",
    "self_attn.o_proj.weight": "o",
    "self_attn.q_proj.bias": "q_bias",
    "self_attn.k_proj.bias": "k_bias",
    "self_attn.v_proj.bias": "v_bias",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.gate_up_proj.weight": "gate_up",
    "mlp.down_proj.weight": "down",
}
POST_NORM_ROLES = {
    "post_attention_layernorm.weight": "attn_post_norm",
    "pre_feedforward_layernorm.weight": "mlp_norm",
    "post_feedforward_layernorm.weight": "mlp_post_norm",
}


def checkpoint(kind: str, **more) -> torch.nn.Module:
    """A random model of transformers, f32, with weights large enough that its choices differ."""
    name, special = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **special, **more})
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25 if parameter.dim() == 1 else 0.15)
    return model


def roles(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of ``model`` by rung's roles."""
    gemma_norms = model.config.model_type in ("gemma2", "gemma3_text")
    names = LAYER_ROLES | (POST_NORM_ROLES if gemma_norms else {})
    found = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("model.layers."):
            _, _, index, rest = name.split(".", 3)
            found[f"layers.{index}.{names[rest]}"] = tensor
        else:
            found[
                {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}[name]
            ] = tensor
    return found


def shape(model: torch.nn.Module, context: int = 256, interleaved: bool = False) -> Decoder:
    """The description of ``model``; the ropes are those that transformers has computed."""
    config = model.config
    gemma = config.model_type.startswith("gemma")
    rotary = model.model.rotary_emb
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    if config.model_type in ("mistral",):
        kinds = ["sliding_attention"] * config.num_hidden_layers
    two = config.model_type == "gemma3_text"
    names = ["full_attention", "sliding_attention"] if two else [""]
    ropes = []
    for name in names:
        prefix = f"{name}_" if name else ""
        frequencies = getattr(rotary, f"{prefix}inv_freq")
        magnitude = getattr(rotary, f"{prefix}attention_scaling")
        ropes.append(Rope(2 * len(frequencies), interleaved, tuple(frequencies.tolist()), float(magnitude)))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scalar = getattr(config, "query_pre_attn_scalar", None) or head_dim
    return Decoder(
        model_type=config.model_type,
        layers=tuple(
            Layer(config.sliding_window if kind == "sliding_attention" else None, names.index(kind) if two else 0)
            for kind in kinds
        ),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        feed_forward=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=context,
        norm_epsilon=config.rms_norm_eps,
        norm_offset=1.0 if gemma else 0.0,
        activation="gelu_tanh" if gemma else "silu",
        attention_scale=scalar**-0.5,
        ropes=tuple(ropes),
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        attention_softcap=getattr(config, "attn_logit_softcapping", None),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
        qk_norm=config.model_type in ("qwen3", "gemma3_text"),
        post_norms=config.model_type in ("gemma2", "gemma3_text"),
        attention_bias=config.model_type == "qwen2",
        tied_head=bool(config.tie_word_embeddings),
    )


class Rows:
    """An embedding in plain f32."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, ids):
        return self.weight[ids]

    def rows(self, ids):
        return self.weight[list(ids)].numpy()


class PlainParts:
    """Parts of a decoder as plain f32 matrices and the reference attention."""

    def __init__(self, weights: dict[str, torch.Tensor], attend=REF_ATTENTION.apply) -> None:
        self.weights = weights
        self.attend = attend

    def holds(self, role):
        return role in self.weights

    def linear(self, role):
        weight = self.weights.get(role, self.weights["embed"]) if role == "head" else self.weights[role]
        return lambda x: torch.nn.functional.linear(x, weight)

    def look_up(self):
        return Rows(self.weights["embed"])

    def vector(self, role):
        return self.weights[role].numpy()

    def attention(self, layer):
        return self.attend

    def device(self, layer):
        return "cpu"
