"""Where text begins and ends, by a GGUF file's vocabulary; a missing key means what llama.cpp takes it to mean."""

from __future__ import annotations

from collections.abc import Iterable

from rung.core.errors import BadFile
from rung.models.files.gguf import Strings
from rung.models.settings import Settings, token_ids

#: Tokens that end an answer whatever the keys say, by their text.
END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>", "[e~["),
    *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>"),
)
#: Beside all of a set, the token after it ends no answer: it closes a part of one, or is an HTML tag.
_FALSE_ENDS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|calls|>", "<|flush|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
    ({"<|plamo:eos|>"}, "</s>"),
)
#: Ids of special tokens that a file does not give, by the kind of its tokenizer.
DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "gpt2": {"bos": 11, "eos": 11}}
#: Pre-tokenizers whose texts begin with BOS unless the file says otherwise.
_ADD_BOS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
)


def false_ends(texts: Iterable[str]) -> set[str]:
    """Which of the texts of a file's end tokens end no answer there."""
    found = set(texts)
    return {false for others, false in _FALSE_ENDS if others <= found} & found


class Vocabulary:
    """The keys ``tokenizer.ggml.*`` of a GGUF file, for a model of ``size`` tokens.

    Raises ``BadFile`` when the list of tokens has another length than the embedding.
    """

    def __init__(self, meta: Settings, size: int) -> None:
        self._meta = meta
        self._size = size
        self._tokens = meta.raw("tokens")
        self._kind = meta.raw("model", "")
        if self._tokens is not None and not isinstance(self._tokens, Strings):
            raise meta.bad("tokens", type(self._tokens).__name__, "an array of strings")
        if self._tokens is not None and len(self._tokens) != size:
            raise BadFile(
                f"{meta.where} contradicts itself: its vocabulary has {len(self._tokens):,} tokens, "
                f"its embedding {size:,} rows"
            )

    def special(self, name: str) -> int | None:
        """The id of ``bos``, ``eos``, ``eot`` or ``eom``: as given, else llama.cpp's default, else None."""
        ids = token_ids(self._meta.raw(f"{name}_token_id"), self._size)
        default = DEFAULT_IDS.get(str(self._kind), {}).get(name)
        return next(iter(ids or token_ids(default, self._size)), None)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids at which generation stops."""
        tokens = {token for name in ("eos", "eot", "eom") if (token := self.special(name)) is not None}
        if not isinstance(self._tokens, Strings):
            return tuple(sorted(tokens))
        texts = {token: self._tokens[token] for token in tokens | set(self._tokens.find(END_TEXTS).values())}
        false = false_ends(texts.values())
        return tuple(sorted(token for token, text in texts.items() if text not in false))

    @property
    def adds_bos(self) -> bool:
        """Return whether a text begins with BOS."""
        return self._meta.flag("add_bos_token", self._kind == "llama" or self._meta.raw("pre") in _ADD_BOS)
