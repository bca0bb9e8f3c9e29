"""Hybrids with layers of Mamba 2: Nemotron-H and its successors, and Granite 4. Names as in transformers 5.

A layer of Mamba keeps a state of fixed size: ``cached_numbers`` has its numbers, and its window is one token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rung.models.networks.describing import MOST_EXPERTS, Description, width
from rung.models.networks.parts import Parts
from rung.models.networks.text.dense import Style, attention, outside
from rung.models.networks.text.experts import decoder_shape
from rung.models.networks.text.sparse import stacked_experts, with_experts
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_MOST_KERNEL = 64
_PLAIN = Style(bias="attention_bias", output_bias="attention_bias")


@dataclass(frozen=True)
class Mixer:
    """The measures of a layer of Mamba 2: ``heads`` of ``head`` numbers, each with ``state`` numbers beside it."""

    heads: int
    head: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    bias: bool

    def describe(self, at: Parts, hidden: int) -> int:
        """Describe the tensors; return the numbers that the layer keeps."""
        inner = self.heads * self.head
        mixed = inner + 2 * self.groups * self.state
        for name in ("dt_bias", "A_log", "D"):
            at.tensor(name, "table", self.heads)
        at.tensor("conv1d.weight", "conv", mixed, 1, self.kernel)
        if self.conv_bias:
            at.tensor("conv1d.bias", "bias", mixed)
        at.linear("in_proj", hidden, inner + mixed + self.heads, bias=self.bias)
        at.norm("norm", inner, bias=False)
        at.linear("out_proj", inner, hidden, bias=self.bias)
        return inner * self.state + mixed * self.kernel


def _with_caches(shape: Shape, kept: list[int], attends: list[bool]) -> Shape:
    """The shape whose layers keep so many numbers: those that attend for each token, the others once."""
    return replace(shape, cached_numbers=tuple(kept), windows=tuple(None if whole else 1 for whole in attends))


# ---- Nemotron


def _pattern(config: Settings, layers: int) -> str:
    """One letter a layer: M for Mamba, ``*`` for attention, E for experts, ``-`` for a plain feed-forward part."""
    found = config.text("hybrid_override_pattern")
    if len(found) != layers or set(found) - set("M*E-"):
        raise config.bad("hybrid_override_pattern", found, f"{layers} letters of M, *, E and -")
    return found


def _nemotron(config: Settings, parts: Parts) -> Shape:
    """Each layer is one part alone, before it a norm."""
    shape = decoder_shape(config)
    pattern = _pattern(config, shape.layers)
    if "E" in pattern:
        keys = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
        shape = with_experts(config, shape, *keys)
    heads, head, groups, state = (
        width(config, key) for key in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    )
    kernel = config.integer("conv_kernel", most=_MOST_KERNEL)
    mixer = Mixer(
        heads, head, groups, state, kernel, config.flag("use_conv_bias", True), config.flag("use_bias", False)
    )
    parts.table("model.embeddings", shape.vocabulary, shape.hidden)
    parts.norm("model.norm_f", shape.hidden, bias=False)
    if not config.flag("tie_word_embeddings", False):
        parts.linear("lm_head", shape.hidden, shape.vocabulary, bias=False, role="head")
    kept = []
    for letter, block in zip(pattern, parts.blocks("model.layers", shape.layers), strict=True):
        block.norm("norm", shape.hidden, bias=False, role="attn_norm" if letter in "M*" else "mlp_norm")
        at = block / "mixer"
        kept.append(_nemotron_part(at, config, shape, mixer, letter))
    return _with_caches(shape, kept, [letter == "*" for letter in pattern])


def _nemotron_part(at: Parts, config: Settings, shape: Shape, mixer: Mixer, letter: str) -> int:
    """Describe the part of a layer; return the numbers that it keeps."""
    if letter == "M":
        return mixer.describe(at, shape.hidden)
    if letter == "*":
        attention(at, config, shape, _PLAIN)
        return 2 * shape.kv_heads * shape.head_dim
    if letter == "-":
        _plain_wide(at, shape.hidden, shape.feed_forward, config.flag("mlp_bias", False))
        return 0
    latent = config.raw("moe_latent_size")
    inner = shape.hidden if latent is None else width(config, "moe_latent_size")
    at.linear("gate", shape.hidden, shape.experts, bias=False, role="router")
    at.tensor("gate.e_score_correction_bias", "router_bias", shape.experts, format="f32")
    at.tensor("experts.up_proj", "experts_up", shape.experts, shape.expert_feed_forward, inner)
    at.tensor("experts.down_proj", "experts_down", shape.experts, inner, shape.expert_feed_forward)
    if latent is not None:
        at.linear("fc1_latent_proj", shape.hidden, inner, bias=False)
        at.linear("fc2_latent_proj", inner, shape.hidden, bias=False)
    shared = width(config, "moe_shared_expert_intermediate_size")
    _plain_wide(at / "shared_experts", shape.hidden, shared, config.flag("mlp_bias", False), "shared_")
    return 0


def _plain_wide(at: Parts, hidden: int, wide: int, bias: bool, prefix: str = "") -> None:
    """A feed-forward part without a gate."""
    at.linear("up_proj", hidden, wide, bias=bias, role=f"{prefix}up")
    at.linear("down_proj", wide, hidden, bias=bias, role=f"{prefix}down")


# ---- Granite 4


def _granite(config: Settings, parts: Parts) -> Shape:
    """Attention or Mamba, then a dense part, beside experts where there are some."""
    shape = replace(decoder_shape(config), feed_forward=width(config, "shared_intermediate_size"))
    if config.integer("num_local_experts", 0, least=0, most=MOST_EXPERTS):
        shape = with_experts(config, shape, "num_local_experts", "num_experts_per_tok", "intermediate_size")
    kinds = config.raw("layer_types")
    known = {"attention": True, "full_attention": True, "mamba": False, "linear_attention": False}
    if not isinstance(kinds, list) or len(kinds) != shape.layers or not all(kind in known for kind in kinds):
        raise config.bad("layer_types", kinds, f"a list of {shape.layers} of {', '.join(known)}")
    attends = [known[kind] for kind in kinds]
    outside(parts, config, shape, _PLAIN)
    kept = []
    for whole, block in zip(attends, parts.blocks("model.layers", shape.layers), strict=True):
        for name, role in _PLAIN.norms:
            block.norm(name, shape.hidden, bias=False, role=role)
        if whole:
            attention(block / "self_attn", config, shape, _PLAIN)
            kept.append(2 * shape.kv_heads * shape.head_dim)
        else:
            kept.append(_granite_mixer(config).describe(block / "mamba", shape.hidden))
        if shape.experts:
            stacked_experts(block / "block_sparse_moe", shape, "router")
        block.linear("shared_mlp.input_linear", shape.hidden, 2 * shape.feed_forward, bias=False, role="gate_up")
        block.linear("shared_mlp.output_linear", shape.feed_forward, shape.hidden, bias=False, role="down")
    return _with_caches(shape, kept, attends)


def _granite_mixer(config: Settings) -> Mixer:
    heads, head, groups, state = (width(config, f"mamba_{key}") for key in ("n_heads", "d_head", "n_groups", "d_state"))
    kernel = config.integer("mamba_d_conv", most=_MOST_KERNEL)
    conv_bias, bias = config.flag("mamba_conv_bias", True), config.flag("mamba_proj_bias", False)
    return Mixer(heads, head, groups, state, kernel, conv_bias, bias)


_NEMOTRON: dict[str, Any] = {"tie_word_embeddings": False, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8}
_NEMOTRON |= {"ssm_state_size": 128, "conv_kernel": 4, "moe_latent_size": None}
_GRANITE = {"tie_word_embeddings": False, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1}
_GRANITE |= {"mamba_d_state": 256, "mamba_d_conv": 4}
DESCRIPTIONS = (
    Description("nemotron_h", "decoder", _nemotron, _NEMOTRON),
    Description("granitemoehybrid", "decoder", _granite, _GRANITE),
)
