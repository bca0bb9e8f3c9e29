"""The metadata of a GGUF file that is made of a folder, as llama.cpp's converter writes it.

What a file cannot say is found by reading the metadata back: the decoder that comes of it is held against the folder's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rung.conversion.job import Entry
from rung.core.errors import UnknownArchitecture
from rung.core.types import Format
from rung.models import architectures
from rung.models.architectures.family import FREQUENCY_TENSORS, Architecture, Factors
from rung.models.card import Decoder, ModelCard
from rung.models.files.gguf import pair
from rung.models.settings import Settings
from rung.planning.gguf_mixtures import Mixture

#: ``general.file_type``: llama.cpp's numbers (``llama_ftype``) of formats and mixtures.
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq2_xxs": 19,
    "iq2_xs": 20,
    "q2_k_s": 21,
    "iq3_xs": 22,
    "iq3_xxs": 23,
    "iq1_s": 24,
    "iq4_nl": 25,
    "iq3_s": 26,
    "iq3_m": 27,
    "iq2_s": 28,
    "iq2_m": 29,
    "iq4_xs": 30,
    "iq1_m": 31,
    "bf16": 32,
    "tq1_0": 36,
    "tq2_0": 37,
    "q4_k": 15,
    "q5_k": 17,
}
#: Of files whose tensors have no type in common that llama.cpp has a number for.
_GUESSED = 1024
#: How far frequencies of a rotary embedding may be apart: both sides compute them in f32, one by powers.
_NEAR = 1e-5


def architecture_of(card: ModelCard) -> Architecture:
    """How GGUF files of a model's type are read: Mistral's are Llama's."""
    own = architectures.MODEL_TYPES[card.decoder.model_type]
    return architectures.GGUF[own.gguf or "llama"]


def config_of(card: ModelCard) -> Settings:
    """The part of a folder's configuration that describes the text decoder."""
    top = Settings(card.metadata, f"{card.name}/config.json")
    return Settings(top.table("text_config"), top.where) if top.raw("model_type") == "gemma3" else top


def file_type(target: Format | Mixture) -> int:
    """llama.cpp's number for the file."""
    return FILE_TYPES.get(target.name, _GUESSED)


def rope_values(config: Settings) -> dict[str, Any]:
    """The parameters of the rotary embedding (of layers that see everything) of either generation of configurations."""
    values = dict(config.table("rope_scaling") or config.table("rope_parameters"))
    values = dict(values.get("full_attention") or values)
    parameters = config.table("rope_parameters").get("full_attention") or config.table("rope_parameters")
    values["rope_theta"] = values.get("rope_theta") or parameters.get("rope_theta") or config.raw("rope_theta")
    values["rope_type"] = values.get("rope_type") or values.get("type") or "default"
    return values


def keys(card: ModelCard, target: Format | Mixture) -> tuple[dict[str, Any], list[tuple[Entry, bytes]]]:
    """The metadata by key, without the tokenizer's, and the tensors of divisors of frequencies.

    Raises ``UnknownArchitecture`` for a model that a GGUF file of its type cannot describe.
    """
    model, config, decoder = architecture_of(card), config_of(card), card.decoder
    values = rope_values(config)
    found = _shape(decoder, config) | _rope(decoder, values, config) | _own(decoder, values, config)
    metadata = {
        "general.architecture": model.gguf,
        "general.type": "model",
        "general.name": card.name,
        "general.size_label": _size_label(card.parameters),
        "general.file_type": file_type(target),
        "general.quantization_version": 2,
    } | {f"{model.gguf}.{key}": value for key, value in found.items()}
    factors = _factors(decoder, values, config)
    constants = [
        (Entry(name, "f32", (len(divisors),), 4 * len(divisors)), np.array(divisors, "<f4").tobytes())
        for name, kind in FREQUENCY_TENSORS.items()
        if (divisors := getattr(factors, kind))
    ]
    return metadata, constants


def pairs(metadata: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The metadata as a file has it."""
    return tuple(pair(key, value) for key, value in metadata.items())


def _shape(decoder: Decoder, config: Settings) -> dict[str, Any]:
    found = {
        "block_count": len(decoder.layers),
        "context_length": decoder.context,
        "embedding_length": decoder.hidden,
        "feed_forward_length": decoder.feed_forward,
        "attention.head_count": decoder.heads,
        "attention.head_count_kv": decoder.kv_heads,
        "attention.layer_norm_rms_epsilon": decoder.norm_epsilon,
    }
    if "head_dim" in config or decoder.head_dim * decoder.heads != decoder.hidden:
        found |= {"attention.key_length": decoder.head_dim, "attention.value_length": decoder.head_dim}
    return found


def _rope(decoder: Decoder, values: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    base = float(values["rope_theta"] or 10000.0)
    if decoder.model_type not in ("gemma", "gemma2") or base != 10000.0:
        found["rope.freq_base"] = base
    if values["rope_type"] in ("linear", "yarn"):
        found["rope.scaling.type"] = values["rope_type"]
        found["rope.scaling.factor"] = float(values["factor"])
    if values["rope_type"] == "yarn":
        found["rope.scaling.original_context_length"] = int(values["original_max_position_embeddings"])
    return found


def _own(decoder: Decoder, values: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """Return the keys that only files of some model types have."""
    kind = decoder.model_type
    spans = [layer.window for layer in decoder.layers if layer.window]
    if kind in ("llama", "mistral"):
        return {"vocab_size": decoder.vocabulary, "rope.dimension_count": decoder.head_dim}
    if kind == "phi3":
        original = config.integer("original_max_position_embeddings", 4096)
        found: dict[str, Any] = {
            "rope.dimension_count": decoder.ropes[0].dims,
            "rope.scaling.original_context_length": int(values.get("original_max_position_embeddings") or original),
            "attention.sliding_window": spans[0] if spans else 0,
        }
        return found | ({"rope.scaling.attn_factor": decoder.ropes[0].magnitude} if values.get("long_factor") else {})
    found = {}
    if kind == "gemma3_text":
        parameters = config.table("rope_parameters").get("sliding_attention") or {}
        local = parameters.get("rope_theta") or config.raw("rope_local_base_freq") or 10000.0
        found["rope.freq_base_swa"] = float(local)
    if kind in ("gemma2", "gemma3_text") and spans:
        found["attention.sliding_window"] = spans[0]
    if decoder.attention_softcap:
        found["attn_logit_softcapping"] = decoder.attention_softcap
    if decoder.logit_softcap:
        found["final_logit_softcapping"] = decoder.logit_softcap
    return found


def _factors(decoder: Decoder, values: Mapping[str, Any], config: Settings) -> Factors:
    """Divisors of frequencies: those of Llama 3.1 computed, those of longrope as the configuration has them."""
    if values.get("long_factor"):
        short, long = (tuple(map(float, values[f"{kind}_factor"])) for kind in ("short", "long"))
        return Factors(short=short, long=long)
    if values["rope_type"] != "llama3":
        return Factors()
    dims, base = decoder.ropes[0].dims, float(values["rope_theta"] or 10000.0)
    plain = [base ** (-2 * index / dims) for index in range(dims // 2)]
    scaled = decoder.ropes[0].inverse_frequencies
    return Factors(plain=tuple(before / after for before, after in zip(plain, scaled, strict=True)))


def unsaid(card: ModelCard, metadata: Mapping[str, Any], constants: list[tuple[Entry, bytes]]) -> tuple[str, ...]:
    """Return notes on facts of the model that the file cannot say and a reader would not know: windows of attention.

    Raises ``UnknownArchitecture`` where the file would describe another model.
    """
    model = architecture_of(card)
    factors = Factors(
        **{FREQUENCY_TENSORS[entry.name]: tuple(np.frombuffer(data, "<f4").tolist()) for entry, data in constants}
    )
    assert model.from_gguf is not None, "an architecture with a GGUF name reads GGUF"
    read = model.from_gguf(Settings(metadata, card.name, f"{model.gguf}."), factors)
    wrong, windows = differences(read, card.decoder)
    if wrong:
        raise UnknownArchitecture(
            f"A GGUF file cannot describe {card.name}: its {' and '.join(wrong)} would be another.",
            (),
            ["keep it as a folder:  rung quantize MODEL FOLDER --format q4_k"],
        )
    note = "GGUF files of this type say nothing of windows: above the window's length answers may differ"
    return (note,) if windows else ()


def differences(read: Decoder, own: Decoder) -> tuple[list[str], bool]:
    """Return the differences that a reader of the new file would compute with, and whether windows differ within the
    context."""
    names = ("activation", "attention_scale", "attention_softcap", "logit_softcap", "embedding_scale", "norm_epsilon")
    wrong = [name.replace("_", " ") for name in names if not _alike(getattr(read, name), getattr(own, name))]
    if not all(_alike_ropes(read, own, layer) for layer in range(len(own.layers))):
        wrong.append("rotary embedding")
    windows = ((a.window or own.context, b.window or own.context) for a, b in zip(read.layers, own.layers, strict=True))
    return wrong, any(min(a, own.context) != min(b, own.context) for a, b in windows)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _alike_ropes(read: Decoder, own: Decoder, layer: int) -> bool:
    a, b = read.ropes[read.layers[layer].rope], own.ropes[own.layers[layer].rope]
    one = (*a.inverse_frequencies, *a.long_inverse_frequencies, a.magnitude)
    other = (*b.inverse_frequencies, *b.long_inverse_frequencies, b.magnitude)
    return len(one) == len(other) and np.allclose(one, other, rtol=_NEAR, atol=0)


def _size_label(parameters: int) -> str:
    """``2.5B``, ``135M``, ``45K``: at least two figures."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters > unit or letter == "K":
            scaled = parameters / unit
            return f"{scaled:.{1 if round(scaled) < 10 else 0}f}{letter}"
    raise AssertionError("K is the last one")
