"""Tokenizers of GGUF files: kinds ``llama`` (SentencePiece scores) and ``gpt2`` (merges).

A missing key means what llama.cpp takes it to mean, and special tokens in text are found as llama.cpp finds
them: one after the other, the longest first, each in whatever text the earlier ones have left.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rung.core.errors import BadFile
from rung.engine.tokenizers.pretokenizers import (
    DEFAULT,
    PRE_TOKENIZERS,
    PreTokenizer,
    byte_letters_to_bytes,
    is_byte_token,
)
from rung.models.vocabulary import DEFAULT_IDS, END_TEXTS, false_ends

SPACE = "▁"
_CACHED_WORDS = 50_000
_LONGEST_CACHED = 64


class ScoreMerger:
    """Token ids of text by merging.

    ``ids`` maps tokens to ids, ``scores`` has a score for each id (higher joins earlier).
    """

    def __init__(self, ids: Mapping[str, int], scores: Sequence[float], unknown: int | None) -> None:
        self._ids = ids
        self._priority = [math.inf if math.isnan(score) else -score for score in scores]
        self._bytes = [self._byte(value, unknown) for value in range(256)]
        self._words: dict[str, tuple[int, ...]] = {}
        self._cut = self._boundaries(ids)

    def _byte(self, value: int, unknown: int | None) -> int | None:
        found = self._ids.get(f"<0x{value:02X}>")
        if found is None and value < 128:
            found = self._ids.get(chr(value))
        return unknown if found is None else found

    @staticmethod
    def _boundaries(ids: Mapping[str, int]) -> re.Pattern[str]:
        # No token holds "x▁" unless x is in `inside`: nothing joins across there, so words can be merged one
        # by one and remembered. The separator itself lands in `inside`, which only costs a cut.
        inside = set(re.findall(f"([^{SPACE}]){SPACE}", "\0".join(ids)))
        return re.compile(f"(?<=[^{re.escape(SPACE + ''.join(sorted(inside)))}])(?={SPACE})")

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, in which spaces have become ``▁`` already."""
        out: list[int] = []
        for word in self._cut.split(text):
            known = self._words.get(word)
            if known is None:
                known = tuple(self._merge(word))
                if len(word) <= _LONGEST_CACHED:
                    if len(self._words) >= _CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = known
            out.extend(known)
        return out

    def _merge(self, word: str) -> list[int]:
        if (whole := self._ids.get(word)) is not None and len(word) == 1:
            return [whole]
        count = len(word)
        end = list(range(1, count + 1))  # symbol i is word[i:end[i]]; 0 once it has been joined to another
        before = list(range(-1, count - 1))
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < count:
                token = self._ids.get(word[left : end[right]])
                if token is not None:
                    heapq.heappush(queue, (self._priority[token], left, right, end[right]))

        for index in range(count - 1):
            offer(index, index + 1)
        while queue:
            _, left, right, stop = heapq.heappop(queue)
            if end[left] != right or end[right] != stop:
                continue  # one of the two has been joined meanwhile
            end[left], end[right] = stop, 0
            if stop < count:
                before[stop] = left
                offer(left, stop)
            offer(before[left], left)
        return self._spell(word, end)

    def _spell(self, word: str, end: list[int]) -> list[int]:
        out: list[int] = []
        start = 0
        while start < len(word):
            piece = word[start : end[start]]
            token = self._ids.get(piece)
            if token is not None:
                out.append(token)
            else:
                spelled = (self._bytes[value] for value in piece.encode("utf-8", "replace"))
                out.extend(value for value in spelled if value is not None)
            start = end[start]
        return out


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BLANKS = " \t\n\v\f\r"

# Of each group the first token that is there, unless the file gives the id.
LAST_OF_A_FILE = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
AROUND_A_HOLE = {
    f"fim_{part}": (
        f"<|fim_{word}|>",
        f"<fim-{word}>",
        f"<fim_{word}>",
        f"<｜fim▁{deepseek}｜>",
        f"<{short}>",
        f"▁<{short}>",
    )
    for part, word, deepseek, short in (
        ("pre", "prefix", "begin", "PRE"),
        ("suf", "suffix", "hole", "SUF"),
        ("mid", "middle", "end", "MID"),
    )
}
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class Special:
    """A token that is found in text as a whole. ``hidden`` ones count only where specials are asked for."""

    text: str
    id: int
    hidden: bool
    strips_right: bool


class GgufTokenizer:
    """The tokenizer in the metadata of a GGUF file.

    ``metadata`` has the file's original keys. Raises ``BadFile`` when the vocabulary is missing or contradictory.
    """

    def __init__(self, metadata: Mapping[str, Any], model: str = "this file") -> None:
        self._meta = metadata
        self._model = model
        self.notes: list[str] = []
        self.kind = str(metadata.get("tokenizer.ggml.model", ""))
        self._pre = self._pre_tokenizer()
        self.texts = self._texts()
        self.size = len(self.texts)
        self.ids = {text: number for number, text in enumerate(self.texts)}
        self.kinds = self._numbers("token_type", NORMAL)
        self._name_ends()
        self._specials = self._special_tokens()

    # ---- metadata

    def _get(self, key: str, default: Any = None) -> Any:
        return self._meta.get(f"tokenizer.ggml.{key}", default)

    def _pre_tokenizer(self) -> PreTokenizer:
        if self.kind not in ("llama", "gpt2", "gemma4"):
            found = f"of kind {self.kind!r}" if self.kind else "missing"
            raise BadFile(
                f"The tokenizer of {self._model} is {found}",
                ["rung reads GGUF tokenizers of kinds llama and gpt2"],
            )
        if self.kind == "llama":
            return DEFAULT
        name = "gemma4" if self.kind == "gemma4" else str(self._get("pre", "") or "")
        if not name:
            self.notes.append("the file names no pre-tokenizer: the default one is used, which may cost quality")
        elif name not in PRE_TOKENIZERS:
            self.notes.append(f"pre-tokenizer {name!r} is not known: the default one is used, which may cost quality")
        return PRE_TOKENIZERS.get(name, DEFAULT)

    def _list(self, key: str) -> list[Any] | None:
        values = self._get(key)
        if values is None:
            return None
        if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping)):
            raise BadFile(f"tokenizer.ggml.{key} of {self._model} is no array")
        return list(values.tolist()) if hasattr(values, "tolist") else list(values)

    def _texts(self) -> list[str]:
        texts = self._list("tokens")
        if not texts:
            raise BadFile(f"{self._model} has no vocabulary", ["tokenizer.ggml.tokens is missing or empty"])
        if set(map(type, texts)) - {str}:
            raise BadFile(f"tokenizer.ggml.tokens of {self._model} holds values that are no strings")
        return [text or f"[EMPTY_{number}]" for number, text in enumerate(texts)]

    def _numbers(self, key: str, default: float) -> list[Any]:
        values = self._list(key)
        if values is None:
            return [default] * self.size
        if len(values) < self.size:
            raise BadFile(
                f"tokenizer.ggml.{key} of {self._model} is too short",
                [f"{len(values)} values for {self.size} tokens"],
            )
        if set(map(type, values)) - {int, float}:
            raise BadFile(f"tokenizer.ggml.{key} of {self._model} holds values that are no numbers")
        return values[: self.size]

    def special_id(self, name: str) -> int | None:
        """The id of ``bos``, ``eos``, ``unknown``, ``padding``, ``eot`` ..., as given or as llama.cpp takes it."""
        default = DEFAULT_IDS.get(self.kind, {}).get(name)
        for value in (self._get(f"{name}_token_id"), default):
            if isinstance(value, int) and 0 <= value < self.size:
                return value
        return None

    @property
    def adds_bos(self) -> bool:
        """Return whether text starts with the BOS token."""
        if self._pre.raw and self._pre.adds_bos:
            return True  # files that say otherwise are wrong
        return bool(self._get("add_bos_token", self.kind == "llama" or self._pre.adds_bos))

    @property
    def adds_eos(self) -> bool:
        """Return whether the EOS token stands behind a text that nothing follows."""
        return bool(self._get("add_eos_token", False))

    # ---- special tokens

    def _name_ends(self) -> None:
        """Finds the tokens that end an answer, and gives tokens that look like control tokens that type."""
        ends = {self.ids[text] for text in END_TEXTS if text in self.ids}
        controls = set(ends)
        for key, texts in (LAST_OF_A_FILE | AROUND_A_HOLE).items():
            token = self.special_id(key)
            named = [self.ids[text] for text in texts if text in self.ids and token is None][:1]
            controls.update(named)
            if key in LAST_OF_A_FILE:
                ends.update(named if token is None else [token])
        for number in controls:
            self.kinds[number] = CONTROL
        for text in _SHOWN:
            if text in self.ids:
                self.kinds[self.ids[text]] = USER_DEFINED
        ends.update(token for name in ("eos", "eot", "eom") if (token := self.special_id(name)) is not None)
        false = false_ends(self.texts[number] for number in ends)
        for text in false:
            self.kinds[self.ids[text]] = USER_DEFINED if text == "<|end|>" else NORMAL
        self.end_tokens = frozenset(number for number in ends if self.texts[number] not in false)

    def _special_tokens(self) -> list[Special]:
        name = str(self._meta.get("general.name", "")).lower()
        strips = "phi-3" in name or "phi3" in name
        found = [
            Special(text, number, kind != USER_DEFINED, strips and text not in ("<unk>", "<s>", "<|endoftext|>"))
            for number, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True))
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
        return sorted(found, key=lambda special: -len(special.text.encode("utf-8", "replace")))

    def is_hidden(self, token: int) -> bool:
        """Return whether the token is a control token, which is no text."""
        return self.kinds[token] in (CONTROL, UNKNOWN)

    # ---- text and tokens

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of ``text`` without BOS; control tokens in it are ids only if ``special``."""
        present = [token for token in self._specials if token.text in text]
        parts: list[str | int] = [text] if text else []
        for token in present:
            if special or not token.hidden:
                parts = [piece for part in parts for piece in _cut(part, token)]
        if self.kind != "llama":
            return self._encode_by_merges(parts, bool(present))
        out: list[int] = []
        after_special = True
        for part in parts:
            if isinstance(part, int):
                out.append(part)
            else:
                prefix = " " if after_special and self.strips_space else ""
                out += self._scores.encode((prefix + part).replace(" ", SPACE))
            after_special = isinstance(part, int)
        return out

    def _encode_by_merges(self, parts: list[str | int], next_to_specials: bool) -> list[int]:
        tokenizer = self._merges_around_specials if next_to_specials else self._merges
        out: list[int] = []
        for part in parts:
            if isinstance(part, int):
                out.append(part)
            else:
                text = part.replace(" ", SPACE) if self._pre.raw else part
                out += tokenizer.encode(text, add_special_tokens=False).ids
        return out

    @property
    def strips_space(self) -> bool:
        """Return whether text gets a space in front, which decoding takes away again."""
        return self.kind == "llama" and bool(self._get("add_space_prefix", True))

    @cached_property
    def _scores(self) -> ScoreMerger:
        return ScoreMerger(self.ids, self._numbers("scores", 0.0), self.special_id("unknown"))

    @cached_property
    def _merges(self) -> Any:
        return self._with_splits(self._pre)

    @cached_property
    def _merges_around_specials(self) -> Any:
        other = self._pre.as_llama_cpp()
        return self._merges if other == replace(self._pre, around_specials=()) else self._with_splits(other)

    def _with_splits(self, pre: PreTokenizer) -> Any:
        from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

        tokenizer = Tokenizer(self._merging_model)
        steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
        if not pre.raw:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        return tokenizer

    @cached_property
    def _merging_model(self) -> Any:
        from tokenizers import models

        options = {"ignore_merges": self._pre.whole_words, "byte_fallback": self._pre.raw, "fuse_unk": False}
        pairs = self._merge_pairs()
        try:
            return models.BPE(vocab=self.ids, merges=pairs, **options)
        except Exception:  # the package raises nothing narrower when a merge makes no token
            ids = self.ids
            pairs = [pair for pair in pairs if pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids]
            return models.BPE(vocab=ids, merges=pairs, **options)

    def _merge_pairs(self) -> list[Any]:
        merges = self._list("merges")
        if merges is None:
            raise BadFile(f"{self._model} has a tokenizer of kind {self.kind} without tokenizer.ggml.merges")
        if set(map(type, merges)) - {str}:
            raise BadFile(f"tokenizer.ggml.merges of {self._model} holds values that are no strings")
        pairs = [tuple(merge.split(" ", 1)) for merge in dict.fromkeys(merges)]
        return pairs if set(map(len, pairs)) <= {2} else [pair for pair in pairs if len(pair) == 2]

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text, kind = self.texts[token], self.kinds[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode("utf-8", "replace")
        if kind == BYTE and (value := is_byte_token(text)) is not None:
            return bytes([value])
        if self.kind == "llama" or self._pre.raw:
            return text.replace(SPACE, " ").encode("utf-8", "replace")
        return byte_letters_to_bytes(text)


def _cut(part: str | int, special: Special) -> list[str | int]:
    if isinstance(part, int):
        return [part]
    out: list[str | int] = []
    rest = part
    while rest:
        left, found, right = rest.partition(special.text)
        if left:
            out.append(left)
        if not found:
            break
        out.append(special.id)
        rest = right.lstrip(_BLANKS) if special.strips_right else right
    return out
