"""Define what the denoisers of diffusers have in common: embedders of time and text, attention, feed-forward parts."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Parts, width
from rung.models.networks.values import Shape
from rung.models.settings import Settings

#: Width of the sinusoids that stand for a time step.
TIME = 256


def projection(at: Parts, inner: int, outer: int) -> None:
    """``TimestepEmbedding``, ``PixArtAlphaTextProjection``: two linear layers."""
    at.linear("linear_1", inner, outer)
    at.linear("linear_2", outer, outer)


def attention(
    at: Parts, hidden: int, *, context: int = 0, bias: bool = True, output_bias: bool = True, norm: int = 0
) -> None:
    """``Attention``: keys and values come from ``context`` (0: from the hidden states); ``norm`` is that of q and k."""
    if norm:
        at.norm("norm_q", norm, bias=False, role="q_norm")
        at.norm("norm_k", norm, bias=False, role="k_norm")
    at.linear("to_q", hidden, hidden, bias=bias, role="q")
    at.linear("to_k", context or hidden, hidden, bias=bias, role="k")
    at.linear("to_v", context or hidden, hidden, bias=bias, role="v")
    at.linear("to_out.0", hidden, hidden, bias=output_bias, role="o")


def added(at: Parts, hidden: int, *, norm: int = 0, last: bool = False) -> None:
    """The part of joint attention that belongs to the text; the last block gives none of it out."""
    if norm:
        at.norm("norm_added_q", norm, bias=False, role="q_norm")
        at.norm("norm_added_k", norm, bias=False, role="k_norm")
    for name in ("q", "k", "v"):
        at.linear(f"add_{name}_proj", hidden, hidden, role=name)
    if not last:
        at.linear("to_add_out", hidden, hidden, role="o")


def feed_forward(at: Parts, hidden: int, wide: int, *, gated: bool = False) -> None:
    """``FeedForward``: ``wide`` numbers in between, twice as many where one half gates the other (GEGLU)."""
    at.linear("net.0.proj", hidden, wide * (2 if gated else 1), role="up")
    at.linear("net.2", wide, hidden, role="down")


def is_gated(config: Settings) -> bool:
    """Return whether the activation of ``FeedForward`` gates one half of its input with the other.

    As ``diffusers.models.attention.FeedForward`` reads ``activation_fn``. Raises ``UnknownArchitecture`` for another.
    """
    name = config.text("activation_fn")
    if name not in ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu"):
        raise UnknownArchitecture(f"{config.where} asks for the activation {name[:40]!r}, which rung does not know")
    return name in ("geglu", "swiglu")


def shape_of(config: Settings, layers: int, wide: int = 0) -> Shape:
    """The measures of a transformer with ``num_attention_heads`` of ``attention_head_dim``."""
    heads, each = width(config, "num_attention_heads"), width(config, "attention_head_dim")
    hidden = heads * each
    return Shape(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=each, feed_forward=wide or 4 * hidden
    )
