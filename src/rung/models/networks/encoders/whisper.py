"""Whisper: an encoder of sound over two convolutions, and a decoder of text that looks at all of it."""

from __future__ import annotations

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, layer_count, model_class, width
from rung.models.networks.values import Shape
from rung.models.settings import Settings


def _attention(at: Parts, hidden: int, prefix: str = "") -> None:
    """Keys have no bias."""
    for name in ("k", "v", "q"):
        at.linear(f"{name}_proj", hidden, hidden, bias=name != "k", role=prefix + name)
    at.linear("out_proj", hidden, hidden, role=f"{prefix}o")


def _stack(parts: Parts, count: int, hidden: int, wide: int, *, crossed: bool) -> None:
    for block in parts.blocks("layers", count):
        _attention(block / "self_attn", hidden)
        block.norm("self_attn_layer_norm", hidden, role="attn_norm")
        if crossed:
            _attention(block / "encoder_attn", hidden, "cross_")
            block.norm("encoder_attn_layer_norm", hidden, role="cross_norm")
        block.linear("fc1", hidden, wide, role="up")
        block.linear("fc2", wide, hidden, role="down")
        block.norm("final_layer_norm", hidden, role="mlp_norm")
    parts.norm("layer_norm", hidden)


def _whisper(config: Settings, parts: Parts) -> Shape:
    if model_class(config) != "WhisperForConditionalGeneration":
        raise UnknownArchitecture(
            f"{config.where} asks for the class {model_class(config)[:60]!r}",
            ["known: WhisperForConditionalGeneration"],
        )
    hidden, positions = width(config, "d_model"), width(config, "max_source_positions")
    encoder, decoder = (parts / "model.encoder").side("encoder"), (parts / "model.decoder").side("decoder")
    encoder.conv("conv1", width(config, "num_mel_bins"), hidden, 3)
    encoder.conv("conv2", hidden, hidden, 3)
    encoder.table("embed_positions", positions, hidden, "positions")
    layers = layer_count(config, "encoder_layers")
    _stack(encoder, layers, hidden, width(config, "encoder_ffn_dim"), crossed=False)
    context, heads = width(config, "max_target_positions"), width(config, "decoder_attention_heads")
    decoder.table("embed_tokens", width(config, "vocab_size"), hidden)
    decoder.table("embed_positions", context, hidden, "positions")
    after = layer_count(config, "decoder_layers")
    _stack(decoder, after, hidden, width(config, "decoder_ffn_dim"), crossed=True)
    if not config.flag("tie_word_embeddings", True):
        parts.linear("proj_out", hidden, width(config, "vocab_size"), bias=False, role="head")
    return Shape(
        layers=after,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        feed_forward=width(config, "decoder_ffn_dim"),
        vocabulary=width(config, "vocab_size"),
        context=context,
        encoder_layers=layers,
        encoder_context=positions,
    )


DESCRIPTIONS = (
    Description(
        "whisper",
        "encoder-decoder",
        _whisper,
        {"vocab_size": 51865, "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4}
        | {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "decoder_attention_heads": 6}
        | {"max_source_positions": 1500, "max_target_positions": 448, "tie_word_embeddings": True},
        model="WhisperForConditionalGeneration",
    ),
)
