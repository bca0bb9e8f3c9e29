"""Encoders of the kind of BERT: BERT, RoBERTa, XLM-RoBERTa, DistilBERT and MPNet, bare or with a head."""

from __future__ import annotations

from dataclasses import dataclass

from rung.core.errors import UnknownArchitecture
from rung.models.networks.describing import Description, Parts, layer_count, model_class, width
from rung.models.networks.values import Shape
from rung.models.settings import Settings


@dataclass(frozen=True)
class _Names:
    """Hold what one family calls its parts: queries, keys, values, output, its norm, the wide layers, the last norm."""

    attention: tuple[str, str, str, str]
    attention_norm: str
    up: str
    down: str
    norm: str


_BERT = _Names(
    tuple(f"attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")),  # type: ignore[arg-type]
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_MPNET = _Names(
    ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"),
    "attention.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_DISTILBERT = _Names(
    ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)


def _layers(parts: Parts, name: str, names: _Names, shape: Shape) -> None:
    hidden, wide = shape.hidden, shape.feed_forward
    for block in parts.blocks(name, shape.layers):
        for part, role in zip(names.attention, ("q", "k", "v", "o"), strict=True):
            block.linear(part, hidden, hidden, role=role)
        block.norm(names.attention_norm, hidden, role="attn_norm")
        block.linear(names.up, hidden, wide, role="up")
        block.linear(names.down, wide, hidden, role="down")
        block.norm(names.norm, hidden, role="mlp_norm")


def _shape(config: Settings, layers: str, hidden: str, heads: str, wide: str) -> Shape:
    count, size = width(config, heads), width(config, hidden)
    return Shape(
        layers=layer_count(config, layers),
        hidden=size,
        heads=count,
        kv_heads=count,
        head_dim=max(size // count, 1),
        feed_forward=width(config, wide),
        vocabulary=width(config, "vocab_size"),
        context=width(config, "max_position_embeddings"),
    )


def _embeddings(at: Parts, shape: Shape, types: int) -> None:
    at.table("word_embeddings", shape.vocabulary, shape.hidden)
    at.table("position_embeddings", shape.context, shape.hidden, "positions")
    if types:
        at.table("token_type_embeddings", types, shape.hidden, "types")
    at.norm("LayerNorm", shape.hidden, role="embed_norm")


def _bare(parts: Parts, config: Settings, names: _Names, *, pooled: bool) -> Shape:
    """The encoder itself; ``pooled`` adds the layer over the first token."""
    shape = _shape(config, "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    relative = names is _MPNET
    _embeddings(parts / "embeddings", shape, 0 if relative else config.integer("type_vocab_size"))
    _layers(parts, "encoder.layer", names, shape)
    if relative:
        buckets = config.integer("relative_attention_num_buckets")
        parts.table("encoder.relative_attention_bias", buckets, shape.heads, "positions")
    if pooled:
        parts.linear("pooler.dense", shape.hidden, shape.hidden)
    return shape


def _labels(config: Settings) -> int:
    names = config.table("id2label")
    return len(names) if names else config.integer("num_labels", 2)


def _unknown(config: Settings, stem: str) -> UnknownArchitecture:
    known = ", ".join(f"{stem}{kind}" for kind in ("Model", "ForMaskedLM", "ForSequenceClassification"))
    return UnknownArchitecture(f"{config.where} asks for the class {model_class(config)[:60]!r}", [f"known: {known}"])


def _bert(config: Settings, parts: Parts) -> Shape:
    kind = model_class(config).removeprefix("Bert")
    if kind == "Model":
        return _bare(parts, config, _BERT, pooled=True)
    if kind not in ("ForMaskedLM", "ForSequenceClassification"):
        raise _unknown(config, "Bert")
    shape = _bare(parts / "bert", config, _BERT, pooled=kind != "ForMaskedLM")
    if kind == "ForMaskedLM":
        head = parts / "cls.predictions"
        head.tensor("bias", "head_bias", shape.vocabulary)
        head.linear("transform.dense", shape.hidden, shape.hidden)
        head.norm("transform.LayerNorm", shape.hidden)
    else:
        parts.linear("classifier", shape.hidden, _labels(config), role="head")
    return shape


def _after_roberta(stem: str, base: str, names: _Names, config: Settings, parts: Parts) -> Shape:
    """RoBERTa, XLM-RoBERTa and MPNet: their heads have the same names."""
    kind = model_class(config).removeprefix(stem)
    if kind == "Model":
        return _bare(parts, config, names, pooled=True)
    if kind not in ("ForMaskedLM", "ForSequenceClassification"):
        raise _unknown(config, stem)
    shape = _bare(parts / base, config, names, pooled=False)
    if kind == "ForMaskedLM":
        parts.tensor("lm_head.bias", "head_bias", shape.vocabulary)
        parts.linear("lm_head.dense", shape.hidden, shape.hidden)
        parts.norm("lm_head.layer_norm", shape.hidden)
    else:
        parts.linear("classifier.dense", shape.hidden, shape.hidden)
        parts.linear("classifier.out_proj", shape.hidden, _labels(config), role="head")
    return shape


def _roberta(config: Settings, parts: Parts) -> Shape:
    return _after_roberta("Roberta", "roberta", _BERT, config, parts)


def _xlm_roberta(config: Settings, parts: Parts) -> Shape:
    return _after_roberta("XLMRoberta", "roberta", _BERT, config, parts)


def _mpnet(config: Settings, parts: Parts) -> Shape:
    return _after_roberta("MPNet", "mpnet", _MPNET, config, parts)


def _distilbert(config: Settings, parts: Parts) -> Shape:
    kind = model_class(config).removeprefix("DistilBert")
    if kind not in ("Model", "ForMaskedLM", "ForSequenceClassification"):
        raise _unknown(config, "DistilBert")
    base = parts if kind == "Model" else parts / "distilbert"
    shape = _shape(config, "n_layers", "dim", "n_heads", "hidden_dim")
    _embeddings(base / "embeddings", shape, 0)
    _layers(base, "transformer.layer", _DISTILBERT, shape)
    if kind == "ForMaskedLM":
        parts.linear("vocab_transform", shape.hidden, shape.hidden)
        parts.norm("vocab_layer_norm", shape.hidden)
        parts.tensor("vocab_projector.bias", "head_bias", shape.vocabulary)
    elif kind == "ForSequenceClassification":
        parts.linear("pre_classifier", shape.hidden, shape.hidden)
        parts.linear("classifier", shape.hidden, _labels(config), role="head")
    return shape


_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_BASE |= {"max_position_embeddings": 512, "type_vocab_size": 2}
DESCRIPTIONS = (
    Description("bert", "encoder", _bert, _BASE | {"vocab_size": 30522}, model="BertModel"),
    Description("roberta", "encoder", _roberta, _BASE | {"vocab_size": 50265}, model="RobertaModel"),
    Description("xlm-roberta", "encoder", _xlm_roberta, _BASE | {"vocab_size": 30522}, model="XLMRobertaModel"),
    Description(
        "mpnet",
        "encoder",
        _mpnet,
        _BASE | {"vocab_size": 30527, "relative_attention_num_buckets": 32},
        model="MPNetModel",
    ),
    Description(
        "distilbert",
        "encoder",
        _distilbert,
        {
            "vocab_size": 30522,
            "max_position_embeddings": 512,
            "n_layers": 6,
            "n_heads": 12,
            "dim": 768,
            "hidden_dim": 3072,
        },
        model="DistilBertModel",
    ),
)
