"""Text to token ids and back, for every kind of file, and prompts with a hole (``infill``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rung.core.errors import BadFile, UsageError
from rung.engine.tokenizers.folder import JsonTokenizer, PieceTokenizer, read_config
from rung.engine.tokenizers.gguf import AROUND_A_HOLE, LAST_OF_A_FILE, GgufTokenizer
from rung.engine.tokenizers.pretokenizers import Characters
from rung.models.card import ModelCard
from rung.models.cards.folder import NetworkCard


class _Backend(Protocol):
    notes: list[str]
    size: int

    @property
    def strips_space(self) -> bool: ...
    def encode(self, text: str, special: bool) -> list[int]: ...
    def is_hidden(self, token: int) -> bool: ...
    def piece(self, token: int) -> bytes: ...


class Tokenizer:
    """Token ids of text and text of token ids.

    ``bos`` is the id put before a text, or None; ``adds_bos`` says whether ``encode(bos=True)`` puts it there;
    ``end_tokens`` end an answer; ``size`` is the number of tokens; ``named`` has the texts of ``bos_token``,
    ``eos_token`` ... as chat templates want them; ``notes`` is what a user should hear once.
    """

    def __init__(
        self,
        backend: _Backend,
        *,
        prefix: Iterable[int] = (),
        suffix: Iterable[int] = (),
        bos: int | None = None,
        end_tokens: Iterable[int] = (),
        named: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.bos = bos
        self.adds_bos = bool(self._prefix)
        self.end_tokens = frozenset(end_tokens)
        self.named = dict(named or {})
        self.notes = tuple(backend.notes)
        self.size = backend.size

    # ---- where tokenizers come from

    @classmethod
    def from_card(cls, card: ModelCard | NetworkCard) -> Tokenizer:
        """The tokenizer of a model. Raises ``BadFile``, or ``SoftwareMissing`` for what reads it."""
        if card.tokenizer == "gguf" and isinstance(card, ModelCard):
            return cls.from_gguf(card.metadata, card.name, card.end_tokens)
        if not card.tokenizer:
            raise BadFile(
                f"{card.name} has no tokenizer",
                ["neither tokenizer.json nor tokenizer.model is in the folder"],
                ["hf download ORG/REPO tokenizer.json tokenizer_config.json"],
                code="model-incomplete",
            )
        return cls.from_file(card.tokenizer, card.end_tokens, card.bos_token if card.add_bos else None)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], model: str = "this file", ends: Iterable[int] = ()) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata, under the original keys. ``ends`` are further end tokens."""
        backend = GgufTokenizer(metadata, model)
        bos = backend.special_id("bos")
        numbers = {f"{name}_token": backend.special_id(key) for name, key in _GGUF_NAMES.items()}
        return cls(
            backend,
            prefix=[bos] if bos is not None and backend.adds_bos else [],
            suffix=[eos] if (eos := backend.special_id("eos")) is not None and backend.adds_eos else [],
            bos=bos,
            end_tokens={*backend.end_tokens, *ends},
            named={name: backend.texts[number] for name, number in numbers.items() if number is not None},
        )

    @classmethod
    def from_file(cls, path: str | Path, ends: Iterable[int] = (), bos: int | None = None) -> Tokenizer:
        """The tokenizer of a folder, given the path of its ``tokenizer.json`` or ``tokenizer.model``.

        ``bos`` is the id before a text where neither the file nor its configuration tells.
        """
        path = Path(path)
        if not path.is_file():
            raise BadFile(f"{path} is not there", code="path-unknown")
        config = read_config(path.parent)
        kind = PieceTokenizer if path.suffix == ".model" else JsonTokenizer
        backend: JsonTokenizer | PieceTokenizer = kind(path, config)
        prefix = backend.prefix or ((bos,) if bos is not None and "add_bos_token" not in config else ())
        named = {name: text for name, text in config.items() if name.endswith("_token") and isinstance(text, str)}
        known = backend.id_of(named.get("bos_token", ""))
        first = prefix[0] if prefix else known
        return cls(backend, prefix=prefix, suffix=backend.suffix, bos=first, end_tokens=ends, named=named)

    # ---- text to ids

    def encode(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        """Return the ids of ``text``, by default as a prompt that the model continues.

        ``special``: control tokens written in the text (as chat templates write them) become their ids; with False,
        for text of strangers, they are text like any other. ``bos``: put before it what this model wants before a
        text, which for some models is nothing; False for a text that goes on after something.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no bytes
        ids = self._backend.encode(text, special)
        return [*self._prefix, *ids] if bos else ids

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of a text that nothing follows: with what this model wants before and behind a text.

        Control tokens written in it are text like any other.
        """
        return [*self.encode(text, special=False), *self._suffix]

    @property
    def around(self) -> int:
        """Return how many tokens ``encode_whole`` puts around a text."""
        return len(self._prefix) + len(self._suffix)

    # ---- ids to text

    def piece(self, token: int) -> bytes:
        """The bytes of one token, possibly part of a character; of a control token its name."""
        return self._backend.piece(token) if 0 <= token < self.size else b""

    def is_control(self, token: int) -> bool:
        """Return whether the token is a control token, which is no part of an answer's text."""
        return 0 <= token < self.size and self._backend.is_hidden(token)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ``ids``; names of control tokens are in it only if ``special``.

        A character that the ids leave unfinished becomes U+FFFD.
        """
        stream = self.stream(start=True, special=special)
        return "".join(stream.push(token) for token in ids) + stream.flush()

    def stream(self, *, start: bool = False, special: bool = False) -> TokenStream:
        """A decoder of one token after the other.

        ``start``: the tokens begin a text, so the space that encoding put before it goes; otherwise they go on
        after something.
        """
        return TokenStream(self, strip=start and self._backend.strips_space, special=special)


_GGUF_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "separator", "pad": "padding", "mask": "mask"}


class TokenStream:
    """Whole characters from tokens that come one by one. Made by ``Tokenizer.stream``."""

    def __init__(self, tokenizer: Tokenizer, *, strip: bool, special: bool) -> None:
        self._tokenizer = tokenizer
        self._strip = strip
        self._special = special
        self._characters = Characters()

    def push(self, token: int) -> str:
        """The characters that ``token`` completes, maybe none."""
        if not self._special and self._tokenizer.is_control(token):
            return ""
        data = self._tokenizer.piece(token)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._characters.feed(data)

    def flush(self) -> str:
        """U+FFFD if the tokens end inside a character, else an empty string."""
        return self._characters.flush()


#: Text before a file where the vocabulary has no token for that, as llama.cpp has it.
_SNIPPET = "\n\n--- snippet ---\n\n"


def infill_ids(
    tokenizer: Tokenizer, prefix: str, suffix: str, prompt: str = "", extra: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """Return the ids of a prompt whose answer stands between ``prefix`` with ``prompt`` behind it and ``suffix``.

    ``extra`` are other files (``filename``, ``text``) that stand before, in the repository's form of Qwen2.5-Coder
    (arXiv 2409.12186) as llama.cpp writes it. Raises ``UsageError`` for a vocabulary without tokens for that.
    """
    around = {name: _find(tokenizer, texts) for name, texts in AROUND_A_HOLE.items()}
    if missing := [name for name, token in around.items() if token is None]:
        raise UsageError(
            "The model fills no holes: its vocabulary has no tokens for what stands before and after one.",
            [f"missing: {', '.join(missing)}"],
            ["a model of code, such as Qwen2.5-Coder"],
        )
    before, after, hole = (token for token in around.values() if token is not None)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False)

    start = [] if tokenizer.bos is None else tokenizer.encode("", bos=True)
    files = _files(tokenizer, extra) if extra else []
    return [*files, *start, before, *encode(prefix), *encode(prompt), after, *encode(suffix), hole]


def _files(tokenizer: Tokenizer, extra: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of other files, and of the beginning of the one with the hole."""
    repository, separator = (_find(tokenizer, LAST_OF_A_FILE[name]) for name in ("fim_rep", "fim_sep"))

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False)

    found = [] if repository is None else [repository, *encode("myproject\n")]
    for file in extra:
        head = encode(_SNIPPET) if separator is None else [separator, *encode(f"{file['filename']}\n")]
        found += [*head, *encode(file["text"])]
    return found if separator is None else [*found, separator, *encode("filename\n")]


def _find(tokenizer: Tokenizer, texts: Sequence[str]) -> int | None:
    """Return the token of the first text that is one token."""
    for text in texts:
        ids = tokenizer.encode(text, bos=False)
        if len(ids) == 1:
            return ids[0]
    return None
