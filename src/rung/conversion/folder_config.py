"""config.json for a model that comes from a GGUF file, in words that transformers 4 and 5 both read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rung.conversion.gguf_keys import differences
from rung.conversion.job import Entry
from rung.conversion.tokenizers.tokenizer_json import tokenizer_files
from rung.core.errors import UnknownArchitecture
from rung.models import architectures
from rung.models.card import Decoder, ModelCard
from rung.models.files.gguf import Numbers
from rung.models.files.jsonfile import read_bounded
from rung.models.settings import Settings

#: What belongs to a model beside its weights and its config.json.
_COPIED = (
    *("generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja", "chat_template.json", "merges.txt", "vocab.json"),
    *("preprocessor_config.json", "processor_config.json"),
)
_LARGEST = 128 * 2**20


def copied(folder: Path) -> dict[str, bytes]:
    """The files of a folder that its model needs beside the weights, without config.json."""
    return {name: read_bounded(folder / name, _LARGEST) for name in companion_files(folder)}


def companion_files(folder: Path) -> list[str]:
    """Their names."""
    return [name for name in _COPIED if (folder / name).is_file()]


def constants(card: ModelCard) -> tuple[tuple[Entry, bytes], ...]:
    """The divisors of frequencies that a GGUF file holds as tensors, which no card lists."""
    from rung.models.architectures.family import FREQUENCY_TENSORS
    from rung.models.files.gguf import read_header

    found = []
    for path in card.files:
        for stored in read_header(Path(path)).tensors:
            if stored.name in FREQUENCY_TENSORS:
                with open(path, "rb") as file:
                    file.seek(stored.offset)
                    entry = Entry(stored.name, stored.format, stored.shape, stored.bytes)
                    found.append((entry, file.read(stored.bytes)))
    return tuple(found)


#: The float formats as torch names them.
TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
#: What Llama 3.1 and 3.2 were made with; a GGUF file has only what comes of it.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXTS = (8192, *(2**power for power in range(4, 18)))


def folder_files(card: ModelCard, dtype: str) -> tuple[dict[str, Any], dict[str, bytes], tuple[str, ...]]:
    """The configuration, the other files, and notes about what transformers will compute otherwise.

    Raises ``UnknownArchitecture`` for what no configuration of transformers says, ``BadFile`` for the tokenizer.
    """
    config = _config(card, dtype)
    kind = card.decoder.model_type
    read = architectures.MODEL_TYPES[kind].from_config(Settings(config, "config.json"))
    wrong, windows = differences(read, card.decoder)
    if wrong:
        raise UnknownArchitecture(
            f"A folder cannot describe {card.name}: its {' and '.join(wrong)} would be another.",
            (),
            ["keep it as a GGUF file:  rung quantize MODEL FILE.gguf --format q4_k_m"],
        )
    generation = {"_from_model_config": True, "eos_token_id": list(card.end_tokens)} | (
        {} if card.bos_token is None else {"bos_token_id": card.bos_token}
    )
    files = {"generation_config.json": json.dumps(generation, indent=2).encode()}
    notes = ["transformers gives layers another window than llama.cpp: far into a text answers may differ"] * windows
    if "tokenizer.ggml.model" in card.metadata:
        files |= tokenizer_files(card)
    else:
        notes.append("the file has no tokenizer, so the folder has none either")
    return config, files, tuple(notes)


def _config(card: ModelCard, dtype: str) -> dict[str, Any]:
    decoder, kind = card.decoder, card.decoder.model_type
    meta = Settings(card.metadata, card.name, f"{card.metadata['general.architecture']}.")
    config = {
        "architectures": [f"{architectures.MODEL_TYPES[kind].network}ForCausalLM"],
        "model_type": kind,
        "dtype": TORCH[dtype],
        "vocab_size": decoder.vocabulary,
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.feed_forward,
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "max_position_embeddings": decoder.context,
        "rms_norm_eps": decoder.norm_epsilon,
        "hidden_act": _ACTIVATIONS[decoder.activation],
        "hidden_activation": _ACTIVATIONS[decoder.activation],
        "tie_word_embeddings": decoder.tied_head,
        "attention_bias": decoder.attention_bias,
        "mlp_bias": any(tensor.role.endswith("gate_bias") for tensor in card.tensors),
        "bos_token_id": card.bos_token,
        "eos_token_id": card.end_tokens[0] if card.end_tokens else None,
        "pad_token_id": card.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if not kind.startswith("gemma"):
        del config["hidden_activation"]
    return config | _rope(card, meta) | _own(decoder, meta)


def _own(decoder: Decoder, meta: Settings) -> dict[str, Any]:
    """Return the keys that only some model types have."""
    kind = decoder.model_type
    found: dict[str, Any] = {}
    if kind in ("gemma2", "gemma3_text"):
        spans = [layer.window for layer in decoder.layers if layer.window]
        found["query_pre_attn_scalar"] = round(decoder.attention_scale**-2)
        found["sliding_window"] = spans[0] if spans else decoder.context
        found["layer_types"] = ["sliding_attention" if x.window else "full_attention" for x in decoder.layers]
        found["attn_logit_softcapping"] = decoder.attention_softcap
        found["final_logit_softcapping"] = decoder.logit_softcap
    if kind == "phi3":
        found["sliding_window"] = meta.raw("attention.sliding_window") or None
        found["partial_rotary_factor"] = decoder.ropes[0].dims / decoder.head_dim
    return found


def _rope(card: ModelCard, meta: Settings) -> dict[str, Any]:
    kind = card.decoder.model_type
    found: dict[str, Any] = {"rope_theta": float(meta.raw("rope.freq_base", 10000.0)), "rope_scaling": None}
    if kind == "gemma3_text":
        found["rope_local_base_freq"] = float(meta.raw("rope.freq_base_swa", 10000.0))
    scaling, factor = meta.raw("rope.scaling.type", "none"), float(meta.raw("rope.scaling.factor", 0.0) or 1.0)
    original = meta.raw("rope.scaling.original_context_length")
    if scaling == "linear" and factor != 1.0:
        found["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    if scaling == "yarn":
        found["rope_scaling"] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    divisors = {entry.name: list(Numbers(data, "f")) for entry, data in constants(card)}
    if "rope_factors_long.weight" in divisors:
        short, long = (divisors[f"rope_factors_{name}.weight"] for name in ("short", "long"))
        found["rope_scaling"] = {"type": "longrope", "short_factor": short, "long_factor": long}
    elif "rope_freqs.weight" in divisors:
        found["rope_scaling"] = _llama3(card.decoder, found["rope_theta"], divisors["rope_freqs.weight"])
    if kind == "phi3":
        found["original_max_position_embeddings"] = original or card.decoder.context
    return found


def _llama3(decoder: Decoder, base: float, divisors: list[float]) -> dict[str, Any]:
    """The parameters of Llama 3.1 that give those divisors. Raises ``UnknownArchitecture`` where none do."""
    factor = round(max(divisors), 4)
    for original in _LLAMA3_CONTEXTS:
        values = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": original, **_LLAMA3}
        if _near(_divisors(values, base, decoder.ropes[0].dims), divisors):
            return values
    raise UnknownArchitecture(
        "The divisors of frequencies in rope_freqs.weight are none of Llama 3.1 that a configuration could say.",
        [f"from {min(divisors):g} to {max(divisors):g}"],
        ["keep it as a GGUF file:  rung quantize MODEL FILE.gguf --format q4_k_m"],
    )


def _divisors(values: Mapping[str, Any], base: float, dims: int) -> list[float]:
    """By how much llama3's scaling divides each frequency; the formula is transformers'."""
    divisors = []
    for index in range(0, dims, 2):
        length = 2 * math.pi * base ** (index / dims)
        turns = values["original_max_position_embeddings"] / length
        smooth = (turns - values["low_freq_factor"]) / (values["high_freq_factor"] - values["low_freq_factor"])
        smooth = min(max(smooth, 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / values["factor"] + smooth))
    return divisors


def _near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(one, other, strict=True))
