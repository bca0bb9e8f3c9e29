"""T5 and UMT5: an encoder alone (the text encoders of Latte, SD3, FLUX, LTX and Wan), or with its decoder."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, layer_count, model_class, width
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_ENCODER = ("T5EncoderModel", "UMT5EncoderModel")
_BOTH = ("T5ForConditionalGeneration", "UMT5ForConditionalGeneration")


def _attention(at: Parts, config: Settings, prefix: str = "") -> None:
    hidden, inner = width(config, "d_model"), width(config, "num_heads") * width(config, "d_kv")
    for name in ("q", "k", "v"):
        at.linear(name, hidden, inner, bias=False, role=prefix + name)
    at.linear("o", inner, hidden, bias=False, role=f"{prefix}o")


def _stack(parts: Parts, config: Settings, count: int, *, crossed: bool, biases: bool) -> None:
    """One of the two stacks. ``biases``: every layer has its table of relative positions, not the first alone."""
    hidden, wide = width(config, "d_model"), width(config, "d_ff")
    gated = config.text("feed_forward_proj").startswith("gated-")
    for index, block in enumerate(parts.blocks("block", count)):
        attention = block / "layer.0"
        _attention(attention / "SelfAttention", config)
        if biases or index == 0:
            rows = config.integer("relative_attention_num_buckets")
            attention.table("SelfAttention.relative_attention_bias", rows, width(config, "num_heads"), "positions")
        attention.norm("layer_norm", hidden, bias=False, role="attn_norm")
        if crossed:
            _attention(block / "layer.1" / "EncDecAttention", config, "cross_")
            (block / "layer.1").norm("layer_norm", hidden, bias=False, role="cross_norm")
        last = block / ("layer.2" if crossed else "layer.1")
        for name, role in (("wi_0", "gate"), ("wi_1", "up")) if gated else (("wi", "up"),):
            last.linear(f"DenseReluDense.{name}", hidden, wide, bias=False, role=role)
        last.linear("DenseReluDense.wo", wide, hidden, bias=False, role="down")
        last.norm("layer_norm", hidden, bias=False, role="mlp_norm")
    parts.norm("final_layer_norm", hidden, bias=False)


def _t5(config: Settings, parts: Parts, *, biases: bool) -> Shape:
    kind = model_class(config)
    if kind not in (*_ENCODER, *_BOTH):
        raise UnknownArchitecture(
            f"{config.where} asks for the class {kind[:60]!r}", [f"known: {', '.join((*_ENCODER, *_BOTH))}"]
        )
    layers = layer_count(config, "num_layers")
    after = layer_count(config, "num_decoder_layers", layers) if kind in _BOTH else 0
    hidden, heads = width(config, "d_model"), width(config, "num_heads")
    parts.table("shared", width(config, "vocab_size"), hidden)
    _stack(
        (parts / "encoder").side("encoder") if after else parts / "encoder",
        config,
        layers,
        crossed=False,
        biases=biases,
    )
    if after:
        _stack((parts / "decoder").side("decoder"), config, after, crossed=True, biases=biases)
        if not config.flag("tie_word_embeddings", True):  # T5 1.1 and Flan: the head is a weight of its own
            parts.linear("lm_head", hidden, width(config, "vocab_size"), bias=False, role="head")
    context = config.integer("n_positions", 512)
    return Shape(
        layers=after or layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=width(config, "d_kv"),
        feed_forward=width(config, "d_ff"),
        vocabulary=width(config, "vocab_size"),
        context=context,
        encoder_layers=layers if after else 0,
        encoder_context=context if after else 0,
        biased=True,
        kept="wo",
    )


def _plain(config: Settings, parts: Parts) -> Shape:
    return _t5(config, parts, biases=False)


def _multilingual(config: Settings, parts: Parts) -> Shape:
    return _t5(config, parts, biases=True)


def _role(config: Settings) -> str:
    return "encoder" if model_class(config) in _ENCODER else "encoder-decoder"


_COMMON = {"d_model": 512, "d_kv": 64, "relative_attention_num_buckets": 32, "tie_word_embeddings": True}
DESCRIPTIONS = (
    Description(
        "t5",
        _role,
        _plain,
        _COMMON | {"vocab_size": 32128, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "feed_forward_proj": "relu"},
        model="T5ForConditionalGeneration",
    ),
    Description(
        "umt5",
        _role,
        _multilingual,
        _COMMON
        | {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
        model="UMT5ForConditionalGeneration",
    ),
)
