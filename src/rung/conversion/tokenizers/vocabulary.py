"""A folder's tokenizer as the keys of a GGUF file, as llama.cpp's converter writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile
from rung.engine.tokenizers.pretokenizers import PRE_TOKENIZERS
from rung.models.card import ModelCard
from rung.models.files.jsonfile import parse_object, read_bounded

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    """One token: its text with ``▁`` for a space, its score, and its type, whose numbers GGUF shares."""

    text: str
    score: float
    kind: int


def read(data: bytes, name: str) -> list[Piece]:
    """The pieces of a file. Raises ``BadFile`` for one that is not of SentencePiece."""
    try:
        found = [_piece(value) for field, value in _fields(data) if field == 1 and isinstance(value, bytes)]
    except (LookupError, ValueError, struct.error) as error:
        raise BadFile(f"{name} is no vocabulary of SentencePiece: {error}") from error
    if not found:
        raise BadFile(f"{name} holds no vocabulary of SentencePiece")
    return found


def _piece(data: bytes) -> Piece:
    values = dict(_fields(data))
    text, score, kind = values[1], values.get(2, b"\0\0\0\0"), values.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece has fields of other types")
    return Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if at + length > len(data):
            raise ValueError("it ends inside of a field")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


#: The score of tokens that were added to a vocabulary, and of ids without a token.
_ADDED, _NOTHING = -1000.0, -10000.0
_LOOKS_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}
#: Far above the largest tokenizer.json there is (33 MB).
_LARGEST = 128 * 2**20
#: Names of pre-tokenizers that are meant first where several are the same.
_USUAL = ("llama-bpe", "qwen2", "tekken", "gpt-4o", "gpt-2")


def tokenizer_keys(card: ModelCard) -> dict[str, Any]:
    """The keys ``tokenizer.*`` for a folder's tokenizer; none where it has none.

    Raises ``BadFile`` for a tokenizer of another kind than byte-level BPE and SentencePiece, or whose pre-tokenizer
    llama.cpp has no name for.
    """
    if not card.tokenizer:
        return {}
    try:
        return _keys(card)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # they may say anything
        raise BadFile(
            f"The tokenizer of {card.name} is not built as tokenizers build theirs",
            [f"{type(error).__name__}: {str(error)[:120]}"],
            ["keep the model as a folder:  rung quantize MODEL FOLDER --format q4_k"],
        ) from error


def _keys(card: ModelCard) -> dict[str, Any]:
    folder, size = Path(card.path), card.decoder.vocabulary
    config = _object(folder / "tokenizer_config.json")
    whole = _object(folder / "tokenizer.json")
    if (folder / "tokenizer.model").is_file():
        found = _of_pieces(read(read_bounded(folder / "tokenizer.model", _LARGEST), "tokenizer.model"))
        phi3 = card.decoder.model_type == "phi3"
        listed = _added_by_config(folder, config) | (_added(whole) if phi3 else {})
        keys = _scored(_with_added(found, listed, size, believed=phi3))
    elif whole.get("model", {}).get("byte_fallback"):
        keys = _scored(_with_added(_of_merges(whole), _added(whole), size))
    else:
        keys = _byte_level(whole, size)
    if card.decoder.model_type.startswith("gemma"):
        keys["tokenizer.ggml.add_space_prefix"] = False
    elif isinstance(config.get("add_prefix_space"), bool):
        keys["tokenizer.ggml.add_space_prefix"] = config["add_prefix_space"]
    keys |= _special(card, config, whole)
    return keys | ({"tokenizer.chat_template": card.chat_template} if card.chat_template else {})


def _object(path: Path) -> dict[str, Any]:
    return parse_object(read_bounded(path, _LARGEST), path.name, _LARGEST) if path.is_file() else {}


# ---- SentencePiece


def _of_pieces(found: list[Piece]) -> dict[int, Piece]:
    """By id; tokens that the trainer was told of are text like any other to llama.cpp."""
    return {
        number: Piece(piece.text, piece.score, NORMAL if piece.kind == USER_DEFINED else piece.kind)
        for number, piece in enumerate(found)
    }


def _of_merges(whole: Mapping[str, Any]) -> dict[int, Piece]:
    """A SentencePiece vocabulary that has become merges: the earlier a token is merged, the higher its score."""
    model = whole["model"]
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model.get("merges") or ()):
        ranks.setdefault("".join(merge.split(" ", 1) if isinstance(merge, str) else merge), rank)
    unknown = model.get("unk_token")

    def piece(text: str) -> Piece:
        byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        kind = UNKNOWN if text == unknown else BYTE if byte else NORMAL
        return Piece(text, -float(ranks.get(text, len(ranks))) if kind == NORMAL else 0.0, kind)

    return {number: piece(text) for text, number in model["vocab"].items()}


def _added_by_config(folder: Path, config: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Tokens that the older files beside a tokenizer.model add: id to (text, special)."""
    found = {number: (text, False) for text, number in _object(folder / "added_tokens.json").items()}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        found[int(number)] = (token["content"], bool(token.get("special")))
    return found


def _added(whole: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Tokens that tokenizer.json adds: id to (text, special)."""
    return {token["id"]: (token["content"], bool(token.get("special"))) for token in whole.get("added_tokens") or ()}


def _with_added(
    found: dict[int, Piece], added: Mapping[int, tuple[str, bool]], size: int, believed: bool = False
) -> list[Piece]:
    """All ``size`` tokens, those that were added in their places; ``believed``: special are those said to be."""
    for number, (text, special) in added.items():
        if special or (not believed and _looks_special(text)):
            found[number] = Piece(text, _ADDED, CONTROL)
        else:
            found[number] = Piece(text.replace("▁", " "), _ADDED, USER_DEFINED)
    return [found.get(number) or Piece(f"[PAD{number}]", _NOTHING, UNUSED) for number in range(size)]


def _scored(listed: list[Piece]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece.text for piece in listed],
        "tokenizer.ggml.scores": [float(piece.score) for piece in listed],
        "tokenizer.ggml.token_type": [piece.kind for piece in listed],
    }


def _looks_special(text: str) -> bool:
    """Return whether a token is one of control although its file does not say so; llama.cpp's converter thinks the
    same."""
    return text in _LOOKS_SPECIAL or any(text.startswith(left) and text.endswith(right) for left, right in _BRACKETS)


# ---- byte-level BPE


def _byte_level(whole: Mapping[str, Any], size: int) -> dict[str, Any]:
    model = whole.get("model") or {}
    if model.get("type") != "BPE":
        raise BadFile(
            f"tokenizer.json is of the kind {str(model.get('type'))[:40]}",
            ["GGUF files of these models hold byte-level BPE and SentencePiece"],
        )
    texts, added = {number: text for text, number in model["vocab"].items()}, _added(whole)
    texts |= {number: text for number, (text, _) in added.items()}
    tokens, kinds = [], []
    for number in range(size):
        text = texts.get(number, f"[PAD{number}]")
        kind = NORMAL if number in texts else UNUSED
        if number in added:
            kind = CONTROL if added[number][1] or _looks_special(text) else USER_DEFINED
        tokens.append(text.replace("▁", " ") if kind == USER_DEFINED else text)
        kinds.append(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer(whole, bool(model.get("ignore_merges"))),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [_merge(merge) for merge in model.get("merges") or ()],
    }


def _merge(merge: str | list[str]) -> str:
    """A merge as ``left right``; a blank inside of one is written as byte-level BPE spells it."""
    return merge if isinstance(merge, str) else " ".join(part.replace(" ", "Ġ") for part in merge)


def _pre_tokenizer(whole: Mapping[str, Any], whole_words: bool) -> str:
    """llama.cpp's name for how the file cuts text, known by its regular expressions."""
    pre_tokenizer = whole.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    splits = [step["pattern"].get("Regex", "") for step in steps if step.get("type") == "Split"]
    splits += [
        split
        for split in PRE_TOKENIZERS["gpt-2"].splits
        for step in steps
        if step.get("type") == "ByteLevel" and step.get("use_regex", True)
    ]
    named = [name for name, pre in PRE_TOKENIZERS.items() if pre.splits == tuple(splits) and not pre.raw]
    if not named:
        raise BadFile(
            "llama.cpp has no name for the way in which tokenizer.json cuts text",
            [f"its expressions: {' then '.join(splits)[:200]}"],
            ["keep the model as a folder:  rung quantize MODEL FOLDER --format q4_k"],
        )
    alike = [name for name in named if PRE_TOKENIZERS[name].whole_words == whole_words] or named
    return min(alike, key=lambda name: _USUAL.index(name) if name in _USUAL else len(_USUAL))


# ---- what both have


def _special(card: ModelCard, config: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of special tokens, and which of them begin and end a text."""
    by_text = {text: number for number, (text, _) in _added(whole).items()}
    found: dict[str, Any] = {}
    for name, key in _NAMED.items():
        entry = config.get(f"{name}_token")
        text = entry.get("content") if isinstance(entry, Mapping) else entry
        number: Any = by_text.get(text) if isinstance(text, str) else None
        if number is None:
            token_id = card.metadata.get(f"{name}_token_id")
            number = token_id[0] if isinstance(token_id, list | tuple) and token_id else token_id
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < card.decoder.vocabulary:
            found[f"tokenizer.ggml.{key}_token_id"] = number
    first, last = _around(whole)
    for name, text in (("bos", first), ("eos", last)):
        around = by_text.get(text) if text else None
        own = found.get(f"tokenizer.ggml.{name}_token_id")
        if around is not None and around == own:
            found[f"tokenizer.ggml.add_{name}_token"] = True
        elif isinstance(config.get(f"add_{name}_token"), bool):
            found[f"tokenizer.ggml.add_{name}_token"] = config[f"add_{name}_token"]
    return found


def _around(whole: Mapping[str, Any]) -> tuple[str, str]:
    """The special tokens that the post-processor puts before and after a text, "" for none."""
    processor = whole.get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        single = step.get("single") or []
        if step.get("type") == "TemplateProcessing" and len(single) > 1:
            ends = (item.get("SpecialToken", {}).get("id", "") for item in (single[0], single[-1]))
            first, last = ends
            return first, last
    return "", ""
