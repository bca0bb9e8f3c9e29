"""Tokenizers of Hugging Face folders: ``tokenizer.json``, or a bare SentencePiece ``tokenizer.model``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, SoftwareMissing
from rung.engine.tokenizers.pretokenizers import byte_letters_to_bytes, is_byte_token

SPACE = "▁"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_CONFIG_BYTES = 64 * 2**20


def read_config(folder: Path) -> dict[str, Any]:
    """``tokenizer_config.json`` with the named tokens of ``special_tokens_map.json`` below it, as plain texts."""
    config = {**_read_object(folder / "special_tokens_map.json"), **_read_object(folder / "tokenizer_config.json")}
    for name in _NAMED:
        value = config.get(name)
        config[name] = value.get("content") if isinstance(value, dict) else value
    return config


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.stat().st_size > _MOST_CONFIG_BYTES:
        raise BadFile(f"{path} is too large for what it is", [f"{path.stat().st_size} bytes"])
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is no JSON", [str(error)], code="json-invalid") from error
    if not isinstance(found, dict):
        raise BadFile(f"{path} holds no JSON object", code="json-invalid")
    return found


def _added(config: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Tokens that ``tokenizer_config.json`` adds: id to (text, special)."""
    out: dict[int, tuple[str, bool]] = {}
    listed = config.get("added_tokens_decoder")
    for number, token in listed.items() if isinstance(listed, dict) else ():
        if number.isdigit() and isinstance(token, dict) and isinstance(token.get("content"), str):
            out[int(number)] = (token["content"], bool(token.get("special")))
    return out


class JsonTokenizer:
    """A ``tokenizer.json`` through the ``tokenizers`` package. Raises ``BadFile`` for one it cannot load."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._config = config
        self._model_type = _read_object(path.parent / "config.json").get("model_type")
        self.notes: list[str] = []
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise BadFile(f"{path} is no tokenizer that can be loaded", [str(error)]) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_tokens()
        self._start_words_once()
        self.size: int = self._tokenizer.get_vocab_size()
        self._specials = {number: token.special for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._spelling, self.strips_space = self._decoder()

    def _add_tokens(self) -> None:
        from tokenizers import AddedToken

        present = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        for _, (text, special) in sorted(_added(self._config).items()):
            if text not in present:
                self._tokenizer.add_tokens([AddedToken(text, special=special, normalized=not special)])
                present.add(text)
        for name in _NAMED:
            value = self._config.get(name)
            if isinstance(value, str) and value not in present and self._tokenizer.token_to_id(value) is not None:
                self._tokenizer.add_special_tokens([AddedToken(value, special=True, normalized=False)])

    def _start_words_once(self) -> None:
        """Llama's class puts a space before the text only, where older files put one after special tokens too."""
        from tokenizers import pre_tokenizers

        if str(self._config.get("tokenizer_class", "")).removesuffix("Fast") != "LlamaTokenizer":
            return
        if self._config.get("legacy", False) or self._model_type not in (None, "llama"):
            return
        if "Prepend" in _state(self._tokenizer.normalizer):
            self._tokenizer.normalizer = None
            self._tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)

    def _decoder(self) -> tuple[str, bool]:
        state = _state(self._tokenizer.decoder)
        if "ByteLevel" in state:
            return "letters", False
        if not state:
            return "words", True
        if "Metaspace" in state or SPACE in state:
            strips = '"Strip"' in state or ("Metaspace" in state and '"never"' not in state)
            return "spaces", strips
        raise BadFile("The decoder of tokenizer.json is none that rung knows", [state[:200]])

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of ``text`` without BOS; control tokens in it are ids only if ``special``."""
        self._tokenizer.encode_special_tokens = not special
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids put before a text: what the configuration says, else what the file's post-processor does."""
        if "add_bos_token" in self._config:
            bos = self.id_of(self._config.get("bos_token") or "")
            return (bos,) if self._config["add_bos_token"] and bos is not None else ()
        return self._around[0]

    @property
    def suffix(self) -> tuple[int, ...]:
        """The ids put behind a text that nothing follows, by the same rules."""
        if "add_eos_token" in self._config:
            eos = self.id_of(self._config.get("eos_token") or "")
            return (eos,) if self._config["add_eos_token"] and eos is not None else ()
        return self._around[1]

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the file's post-processor puts before and behind a text."""
        probe = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(probe) + 1):
            end = start + len(probe)
            if probe and whole[start:end] == probe:
                return tuple(whole[:start]), tuple(whole[end:])
        return (), ()

    def id_of(self, text: str) -> int | None:
        """The id of a token by its text."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def is_hidden(self, token: int) -> bool:
        """Return whether the token is a control token, which is no text."""
        return self._specials.get(token, False)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""  # an id between the vocabulary's end and the padded size of the model
        if self._specials.get(token, False) or (token in self._specials and self._spelling == "letters"):
            return str(text).encode("utf-8", "replace")
        if self._spelling == "letters":
            return byte_letters_to_bytes(text)
        if self._spelling == "words":
            return f" {text}".encode("utf-8", "replace")
        if (value := is_byte_token(text)) is not None:
            return bytes([value])
        return str(text).replace(SPACE, " ").encode("utf-8", "replace")


def _state(part: Any) -> str:
    """The JSON of a part of a tokenizer, an empty string if there is none."""
    return "" if part is None else json.dumps(json.loads(part.__getstate__()), ensure_ascii=False)


class PieceTokenizer:
    """A bare ``tokenizer.model`` through SentencePiece itself.

    Raises ``SoftwareMissing`` without the ``sentencepiece`` package, ``BadFile`` for a file it cannot load.
    """

    # A second normalizer message after the first: the later value wins when the file is parsed. Field 3
    # (normalizer), two bytes: its field 3 (add_dummy_prefix) is 0.
    _NO_PREFIX = b"\x1a\x02\x18\x00"

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.notes: list[str] = []
        self._config = config
        self._proto = path.read_bytes()
        self._pieces = self._load(self._proto, path)
        self._inner: Any = None
        self._path = path
        count = self._pieces.get_piece_size()
        self._added = dict(_added(config))
        for text, number in _read_object(path.parent / "added_tokens.json").items():
            if isinstance(number, int):
                self._added.setdefault(number, (text, True))
        self._ids = {text: number for number, (text, _) in self._added.items()}
        self._controls = {
            self._pieces.id_to_piece(number): number
            for number in range(count)
            if self._pieces.is_control(number) and number not in self._added
        }
        self.size = max([count, *(number + 1 for number in self._added)])
        self.strips_space = self._pieces.encode("a") != self._without_prefix().encode("a")

    def _load(self, proto: bytes, path: Path) -> Any:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise SoftwareMissing(
                f"{path} needs the sentencepiece package",
                ["the folder has no tokenizer.json"],
                ["pip install 'rung[run]'"],
            ) from error
        try:
            return SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, OSError, ValueError) as error:
            raise BadFile(f"{path} is no SentencePiece model", [str(error)]) from error

    def _without_prefix(self) -> Any:
        if self._inner is None:
            self._inner = self._load(self._proto + self._NO_PREFIX, self._path)
        return self._inner

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of ``text`` without BOS; control tokens in it are ids only if ``special``."""
        out: list[int] = []
        for start, part in self._parts(text, special):
            if isinstance(part, int):
                out.append(part)
            else:
                pieces = self._pieces if start == 0 else self._without_prefix()
                out += pieces.encode(part)
        return out

    def _parts(self, text: str, special: bool) -> list[tuple[int, str | int]]:
        import re

        tokens = {content: number for number, (content, control) in self._added.items() if special or not control}
        if special:
            tokens |= self._controls
        if not tokens:
            return [(0, text)] if text else []
        longest_first = sorted(tokens, key=len, reverse=True)
        parts: list[tuple[int, str | int]] = []
        end = 0
        for found in re.finditer("|".join(map(re.escape, longest_first)), text):
            if found.start() > end:
                parts.append((end, text[end : found.start()]))
            parts.append((found.start(), tokens[found[0]]))
            end = found.end()
        if end < len(text):
            parts.append((end, text[end:]))
        return parts

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids put before a text: BOS, unless the configuration says otherwise or there is none."""
        bos = self.id_of(self._config.get("bos_token") or "")
        bos = self._pieces.bos_id() if bos is None else bos
        return (bos,) if self._config.get("add_bos_token", True) and bos >= 0 else ()

    @property
    def suffix(self) -> tuple[int, ...]:
        """The ids put behind a text that nothing follows: EOS where the configuration says so."""
        eos = self._pieces.eos_id()
        return (eos,) if self._config.get("add_eos_token", False) and eos >= 0 else ()

    def id_of(self, text: str) -> int | None:
        """The id of a token by its text."""
        if text in self._ids:
            return self._ids[text]
        found = int(self._pieces.piece_to_id(text))
        return found if self._pieces.id_to_piece(found) == text else None

    def is_hidden(self, token: int) -> bool:
        """Return whether the token is a control token, which is no text."""
        if token in self._added:
            return self._added[token][1]
        return token < self._pieces.get_piece_size() and bool(self._pieces.is_control(token))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        if token in self._added:
            return self._added[token][0].encode("utf-8", "replace")
        if token >= self._pieces.get_piece_size():
            return b""
        text = self._pieces.id_to_piece(token)
        if (value := is_byte_token(text)) is not None and self._pieces.is_byte(token):
            return bytes([value])
        return str(text).replace(SPACE, " ").encode("utf-8", "replace")
