"""BERT: encoders with absolute positions and LayerNorms behind each sum (MiniLM, BGE, E5, GTE of the first kind).

Names in GGUF files: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from __future__ import annotations

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.architectures.encoders import EncoderArchitecture
from rung.models.architectures.family import MOST_LAYERS
from rung.models.card import Encoder
from rung.models.pooling import pooling_of_gguf
from rung.models.settings import Settings

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
_LINEARS = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "o",
    "intermediate.dense": "up",
    "output.dense": "down",
}
_NORMS = {
    "attention.output.LayerNorm": "attn_norm",
    "output.LayerNorm": "mlp_norm",
    "embeddings.LayerNorm": "embed_norm",
}
_GGUF = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "attn_output_norm": "attn_norm",
    "ffn_up": "up",
    "ffn_down": "down",
    "layer_output_norm": "mlp_norm",
    "token_embd_norm": "embed_norm",
}


def _both(names: dict[str, str], weight: str = "weight", bias: str = "bias") -> dict[str, str]:
    """Return the names of weights and biases of modules."""
    found = {f"{name}.{weight}": role for name, role in names.items()}
    return found | {f"{name}.{bias}": f"{role}_bias" for name, role in names.items()}


_NAMES = {
    "embeddings.word_embeddings.weight": "embed",
    "embeddings.position_embeddings.weight": "positions",
    "embeddings.token_type_embeddings.weight": "types",
    **_both(_LINEARS),
    **_both(_NORMS),
    **_both(_NORMS, "gamma", "beta"),  # checkpoints that were made with TensorFlow
}
_GGUF_NAMES = {
    "token_embd.weight": "embed",
    "position_embd.weight": "positions",
    "token_types.weight": "types",
    **_both(_GGUF),
}


def _heads(where: str, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise BadFile(f"{where}: {heads} heads do not divide a hidden size of {hidden}")
    return heads


def from_config(config: Settings) -> Encoder:
    """The encoder of a Hugging Face configuration; absent keys mean what ``BertConfig`` takes them to mean."""
    positions = config.text("position_embedding_type", "absolute")
    if positions != "absolute" or config.raw("is_decoder"):
        found = "a decoder" if config.raw("is_decoder") else f"positions of the kind {positions[:40]!r}"
        raise UnknownArchitecture(
            f"{config.where} describes BERT with {found}, which rung does not build", code="architecture-unsupported"
        )
    activation = config.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UnknownArchitecture(
            f"{config.where} asks for the activation {activation[:40]!r}", [f"known: {', '.join(_ACTIVATIONS)}"]
        )
    hidden = config.integer("hidden_size", 768)
    return Encoder(
        model_type="bert",
        layers=config.integer("num_hidden_layers", 12, most=MOST_LAYERS),
        hidden=hidden,
        heads=_heads(config.where, hidden, config.integer("num_attention_heads", 12)),
        feed_forward=config.integer("intermediate_size", 3072),
        vocabulary=config.integer("vocab_size", 30522),
        context=config.integer("max_position_embeddings", 512),
        types=config.integer("type_vocab_size", 2),
        norm_epsilon=config.number("layer_norm_eps", 1e-12),
        activation=_ACTIVATIONS[activation],
    )


def from_gguf(meta: Settings) -> Encoder:
    """The encoder of a GGUF file; vocabulary and token types are known from the tensors and set later.

    llama.cpp pools by mean where the file does not say.
    """
    hidden = meta.integer("embedding_length")
    pooling = pooling_of_gguf(meta)
    return Encoder(
        model_type="bert",
        layers=meta.integer("block_count", most=MOST_LAYERS),
        hidden=hidden,
        heads=_heads(meta.where, hidden, meta.uniform("attention.head_count")),
        feed_forward=meta.uniform("feed_forward_length"),
        vocabulary=0,
        context=meta.integer("context_length"),
        types=0,
        norm_epsilon=meta.number("attention.layer_norm_epsilon"),
        activation="gelu",
        pooling=pooling.kind or "mean",
        normalize=pooling.normalize,
    )


ENCODER = EncoderArchitecture(
    "bert",
    bases=("bert.",),
    layer="encoder.layer.",
    names=_NAMES,
    skipped=("pooler.", "cls.", "classifier.", "embeddings.position_ids", "dropout."),
    from_config=from_config,
    gguf="bert",
    gguf_names=_GGUF_NAMES,
    from_gguf=from_gguf,
)
