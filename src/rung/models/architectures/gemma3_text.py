"""Gemma 3, text: norms on q and k, a window in five of six layers, and a rope of its own in those.

A configuration of type ``gemma3`` (with vision) holds this one under ``text_config``.
"""

from __future__ import annotations

from rung.core.errors import BadFile
from rung.models.architectures import family, gemma, gemma2
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder, Layer, Rope
from rung.models.settings import Settings

DEFAULTS = gemma2.DEFAULTS | {"vocab_size": 262208, "max_position_embeddings": 131072}
FULL, SLIDING = 0, 1
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
LARGEST = 62


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.LAYER_NAMES | family.POST_NORM_NAMES | family.QK_NORM_NAMES | gemma.biases(config)


def _ropes(config: Settings) -> tuple[Rope, Rope]:
    """The ropes of layers that see everything, and of those with a window; only the first is scaled by old files."""
    parameters = Settings(config.table("rope_parameters"), config.where)
    full = dict(parameters.table("full_attention")) | dict(config.table("rope_scaling"))
    sliding = dict(parameters.table("sliding_attention"))
    width, length = family.head_dim(config, DEFAULTS), family.context(config, DEFAULTS)
    bases = (
        full.get("rope_theta") or config.raw("rope_theta") or GLOBAL_BASE,
        sliding.get("rope_theta") or config.raw("rope_local_base_freq") or LOCAL_BASE,
    )
    first, second = (
        family.rope_of(config, values, base, width, length) for values, base in zip((full, sliding), bases, strict=True)
    )
    return first, second


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration (of its ``text_config``)."""
    count, span = family.layer_count(config, DEFAULTS), family.window(config, gemma2.WINDOW)
    every = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    # with the places of windows marked by 1 the layers that have one are known even where there is no window
    marks = family.layers(config, count, 1, lambda index: (index + 1) % every != 0)
    return gemma.decoder(
        config,
        "gemma3_text",
        DEFAULTS,
        layers=tuple(Layer(span, SLIDING) if mark.window else Layer(None, FULL) for mark in marks),
        ropes=_ropes(config),
        activation=family.activation(config.text("hidden_activation", "gelu_pytorch_tanh"), config.where),
        attention_scale=gemma2.scale(config),
        attention_softcap=gemma2.softcap(config, "attn_logit_softcapping", None),
        logit_softcap=gemma2.softcap(config, "final_logit_softcapping", None),
        qk_norm=True,
        post_norms=True,
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file: the rope of layers with a window is not stretched."""
    width = family.gguf_width(meta)
    ropes = [family.gguf_rope(meta, Factors(), width)]
    count = meta.integer("block_count", most=family.MOST_LAYERS)
    layers: tuple[Layer, ...] = (Layer(None, FULL),) * count
    if meta.raw("attention.sliding_window", 0) != 0:
        span = meta.integer("attention.sliding_window")
        layers = family.gguf_windows(meta, count, span, every=6, ropes=(FULL, SLIDING))
        local = meta.number("rope.freq_base_swa", LOCAL_BASE)
        ropes.append(family.gguf_rope(meta, Factors(), width, base=local, factor=1.0))
    cap = meta.raw("final_logit_softcapping", 0.0)
    if not isinstance(cap, (int, float)):
        raise BadFile(f"{meta.where}: final_logit_softcapping is no number")
    return gemma.gguf_decoder(
        meta,
        "gemma3_text",
        layers=layers,
        ropes=tuple(ropes),
        attention_scale=gemma2.gguf_scale(meta, LARGEST),
        logit_softcap=meta.number("final_logit_softcapping") if cap else None,
        qk_norm=True,
        post_norms=True,
    )


ARCHITECTURE = Architecture(
    "gemma3_text",
    names,
    from_config,
    network="Gemma3",
    gguf="gemma3",
    gguf_names=family.GGUF_NAMES | family.GGUF_POST_NORM_NAMES | family.GGUF_QK_NORM_NAMES,
    from_gguf=from_gguf,
    tied=True,
    ends=(1,),
    bos=2,
    adds_bos=True,
)
