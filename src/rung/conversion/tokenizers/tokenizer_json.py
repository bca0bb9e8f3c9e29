"""The tokenizer of a GGUF file as ``tokenizer.json`` and ``tokenizer_config.json``.

Special tokens and splits are as ``rung.engine`` reads them; how each kind looks in JSON is how transformers writes it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from rung.engine.tokenizers.gguf import BYTE, CONTROL, UNKNOWN, USER_DEFINED, GgufTokenizer
from rung.engine.tokenizers.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from rung.models.card import ModelCard

_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_BPE = {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}


def tokenizer_files(card: ModelCard) -> dict[str, bytes]:
    """The two files, and the chat template as a third. Raises ``BadFile`` for a tokenizer that rung does not read."""
    tokenizer = GgufTokenizer(card.metadata, card.name)
    named = {
        f"{name}_token": tokenizer.texts[number]
        for name, key in _NAMES.items()
        if (number := tokenizer.special_id(key)) is not None
    }
    config = named | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.adds_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": card.decoder.context,
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokenizer),
        **(_scored(tokenizer, card) if tokenizer.kind == "llama" else _byte_level(tokenizer, card)),
        "post_processor": _post_processor(tokenizer),
    }
    files = {"tokenizer.json": _json(whole), "tokenizer_config.json": _json(config)}
    return files | ({"chat_template.jinja": card.chat_template.encode()} if card.chat_template else {})


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "replace")


def _added(tokenizer: GgufTokenizer) -> list[dict[str, Any]]:
    """Tokens that are found in text as a whole; those of control are left out of answers."""
    return [
        {"id": number, "content": text, **_ADDED, "special": kind != USER_DEFINED}
        for number, (text, kind) in enumerate(zip(tokenizer.texts, tokenizer.kinds, strict=True))
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]


def _post_processor(tokenizer: GgufTokenizer) -> dict[str, Any] | None:
    """Puts BOS before a text, if the file asks for it."""
    bos = tokenizer.special_id("bos")
    if bos is None or not tokenizer.adds_bos:
        return None
    text = tokenizer.texts[bos]
    first, a, b = ({"SpecialToken": {"id": text, "type_id": 0}}, *({"Sequence": {"id": i, "type_id": 0}} for i in "AB"))
    return {
        "type": "TemplateProcessing",
        "single": [first, a],
        "pair": [first, a, b],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }


# ---- byte-level BPE


def _byte_level(tokenizer: GgufTokenizer, card: ModelCard) -> dict[str, Any]:
    pre: PreTokenizer = PRE_TOKENIZERS.get(str(card.metadata.get("tokenizer.ggml.pre", "")), PRE_TOKENIZERS["default"])
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False} for split in pre.splits
    ]
    vocabulary = {text: number for text, number in tokenizer.ids.items() if not text.startswith("[PAD")}
    merges = [merge.split(" ", 1) for merge in card.metadata.get("tokenizer.ggml.merges", ())]
    options = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre.whole_words}
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTE_LEVEL]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {**_BPE, **options, "vocab": vocabulary, "merges": merges},
    }


# ---- SentencePiece


def _scored(tokenizer: GgufTokenizer, card: ModelCard) -> dict[str, Any]:
    """The scores as merges: of the pairs that make a token, those of the token with the higher score first."""
    unknown = tokenizer.special_id("unknown")
    options = {
        "unk_token": None if unknown is None else tokenizer.texts[unknown],
        "fuse_unk": True,
        "byte_fallback": BYTE in tokenizer.kinds,
        "ignore_merges": False,
    }
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if tokenizer.strips_space else []
    decoders = [_replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    model = {**_BPE, **options, "vocab": tokenizer.ids, "merges": merge_list(tokenizer.ids, card)}
    described: dict[str, Any] = {"decoder": {"type": "Sequence", "decoders": decoders}, "model": model}
    if tokenizer.strips_space:
        steps = [{"type": "Prepend", "prepend": "▁"}, _replace(" ", "▁")]
        return described | {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}
    blank = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return described | {"normalizer": _replace(" ", "▁"), "pre_tokenizer": blank}


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def merge_list(ids: dict[str, int], card: ModelCard) -> list[list[str]]:
    """Return the merges of a tokenizer, pairs of pieces in their order."""
    scores: Sequence[float] = card.metadata.get("tokenizer.ggml.scores") or [0.0] * len(ids)
    scores = list(scores)
    found: list[tuple[float, int, int, list[str]]] = []
    lengths = sorted({len(text) for text in ids} - {0})
    for text, number in ids.items():
        for cut in lengths[: bisect_left(lengths, len(text))]:  # not at every character: a token may be a megabyte
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-scores[number], ids[left], ids[right], [left, right]))
    found.sort(key=lambda item: item[0])
    return [pair for *_, pair in found]
