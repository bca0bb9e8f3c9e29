"""Gemma 2: soft caps, norms before and after each part, a window in every other layer."""

from __future__ import annotations

import math

from rung.models.architectures import family, gemma
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
WINDOW = 4096
LARGEST = 46  # layers of the 27B model, whose queries llama.cpp scales by hidden / heads


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.LAYER_NAMES | family.POST_NORM_NAMES | gemma.biases(config)


def softcap(config: Settings, key: str, value: float | None) -> float | None:
    """A soft cap: the class's where the key is absent, None where it is null."""
    return None if config.raw(key, value) is None else config.number(key, value)


def scale(config: Settings) -> float:
    """The factor of q.k."""
    return 1.0 / math.sqrt(config.number("query_pre_attn_scalar", 256))


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    count, span = family.layer_count(config, DEFAULTS), family.window(config, WINDOW)
    return gemma.decoder(
        config,
        "gemma2",
        DEFAULTS,
        layers=family.layers(config, count, span, lambda index: index % 2 == 0),
        ropes=(family.config_rope(config, DEFAULTS),),
        activation=family.activation(config.text("hidden_activation", "gelu_pytorch_tanh"), config.where),
        attention_scale=scale(config),
        attention_softcap=softcap(config, "attn_logit_softcapping", 50.0),
        logit_softcap=softcap(config, "final_logit_softcapping", 30.0),
        post_norms=True,
    )


def gguf_scale(meta: Settings, largest: int) -> float:
    """llama.cpp's factor of q.k: by the dimensions of a head, by hidden / heads in the largest model."""
    if meta.integer("block_count") != largest:
        return 1.0 / math.sqrt(family.gguf_width(meta))
    return 1.0 / math.sqrt(max(meta.integer("embedding_length") // meta.uniform("attention.head_count"), 1))


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file."""
    span = meta.integer("attention.sliding_window", WINDOW)
    width = meta.integer(
        "attention.key_length", meta.integer("embedding_length") // meta.uniform("attention.head_count")
    )
    ropes = [family.gguf_rope(meta, Factors(), width)]
    if "rope.freq_base_swa" in meta:
        ropes.append(family.gguf_rope(meta, Factors(), width, base=meta.number("rope.freq_base_swa")))
    count = meta.integer("block_count", most=family.MOST_LAYERS)
    return gemma.gguf_decoder(
        meta,
        "gemma2",
        layers=family.gguf_windows(meta, count, span, every=2, ropes=(0, len(ropes) - 1)),
        ropes=tuple(ropes),
        attention_scale=gguf_scale(meta, LARGEST),
        attention_softcap=meta.number("attn_logit_softcapping", 50.0),
        logit_softcap=meta.number("final_logit_softcapping", 30.0),
        post_norms=True,
    )


ARCHITECTURE = Architecture(
    "gemma2",
    names,
    from_config,
    network="Gemma2",
    gguf="gemma2",
    gguf_names=family.GGUF_NAMES | family.GGUF_POST_NORM_NAMES,
    from_gguf=from_gguf,
    tied=True,
    ends=(1,),
    bos=2,
    adds_bos=True,
)
