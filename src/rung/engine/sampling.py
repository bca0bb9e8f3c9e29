"""Which token comes next: greedy or drawn.

The order is that of transformers, whose ``generation_config.json`` the defaults come from: bias, penalties,
temperature, top-k, top-p, min-p, typical-p, then one draw from what is left; ``rung.ops.sample`` computes it. At
temperature 0 the likeliest token is taken, with no repeat penalty unless one is asked for.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import DeviceError, UsageError
from rung.core.text import close
from rung.ops.sample.numpy_sample import random_bits
from rung.ops.token_choice import Chosen, Row

#: The tokens that may follow an answer: uint64 words, bit t % 64 of word t // 64 is that of token t; None: all.
TokenMask = Callable[[Sequence[int]], npt.NDArray[np.uint64] | None]
#: The next tokens of an answer, each the only one that a mask would let through, or one of those that end it.
Forced = Callable[[Sequence[int]], Sequence[int]]

#: Bytes of a seed that is drawn: few, so that it can be typed again.
_SEED_BYTES = 4
#: OpenAI's: enough to forbid a token, or to force it.
_MOST_BIAS = 100

# name: (lowest, highest, what it must be)
_RANGES = {
    "temperature": (0.0, 1e6, "0 (always the likeliest token) or above"),
    "top_k": (0, 2**31, "0 (all tokens) or a number of tokens"),
    "top_p": (0.0, 1.0, "from 0 to 1"),
    "min_p": (0.0, 1.0, "from 0 to 1"),
    "typical_p": (0.0, 1.0, "from 0 to 1; 1 is off"),
    "repeat_penalty": (1e-3, 1e3, "above 0; 1 is no penalty"),
    "presence_penalty": (-2.0, 2.0, "from -2 to 2"),
    "frequency_penalty": (-2.0, 2.0, "from -2 to 2"),
    "seed": (0, 2**64 - 1, "0 or above"),
    "top_logprobs": (0, 100, "a number of tokens up to 100"),
}
#: The settings that rows have under the same names.
_OF_ROWS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
)

#: An option of ``generate`` as an example shows it.
_EXAMPLES = {
    "max_tokens": "100",
    "temperature": "0.7",
    "top_k": "40",
    "top_p": "0.9",
    "min_p": "0.05",
    "typical_p": "0.95",
    "repeat_penalty": "1.1",
    "presence_penalty": "0.5",
    "frequency_penalty": "0.5",
    "logit_bias": "{13: -5}",
    "seed": "1",
    "logprobs": "True",
    "top_logprobs": "5",
    "stop": r'["\n"]',
}
#: What transformers, llama.cpp and OpenAI's API call the same.
_ELSEWHERE = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "do_sample": "temperature",
    "stop_strings": "stop",
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0, ``typical_p`` 1, ``repeat_penalty`` 1,
    ``presence_penalty`` 0 and ``frequency_penalty`` 0 are off. ``logit_bias`` is added to the logits of tokens, by id.
    ``seed`` None draws differently every time. ``logprobs`` asks for the log probability of each token of the answer,
    ``top_logprobs`` for those of so many of the likeliest tokens at its place too.
    Raises ``UsageError`` for a value that makes no sense.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        for name, (_, _, words) in _RANGES.items():
            value = getattr(self, name)
            if not (name == "seed" and value is None) and not _makes_sense(name, value):
                raise _no_sense(name, value, words)
        if not isinstance(self.logprobs, bool):
            raise _no_sense("logprobs", self.logprobs, "True or False")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def counts_tokens(self) -> bool:
        """Return whether logits depend on which tokens were said."""
        return self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_tokens(self, vocabulary: int) -> None:
        """Raise ``UsageError`` where a bias is of a token that the vocabulary has not."""
        highest = max(self.logit_bias, default=0)
        if highest >= vocabulary:
            raise UsageError(
                f"logit_bias has token {highest}, and there are {vocabulary:,} tokens.", code="value-out-of-range"
            )

    @classmethod
    def of(cls, defaults: Mapping[str, Any], **options: Any) -> Sampling:
        """The options that are given and not None, else the checkpoint's ``defaults``, else greedy.

        Asking for top-k, top-p, min-p or typical-p (by options or defaults) without a temperature means temperature 1.
        Defaults that make no sense are left out.
        """
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if unknown:
            raise _unknown(unknown[0])
        requested = {name: value for name, value in options.items() if value is not None}
        of_model = {name: value for name, value in defaults.items() if name in _RANGES and _makes_sense(name, value)}
        values = of_model | requested
        draws = any(name in values for name in ("top_k", "top_p", "min_p", "typical_p"))
        values.setdefault("temperature", 1.0 if draws else 0.0)
        if values["temperature"] == 0 and "repeat_penalty" not in requested:
            values.pop("repeat_penalty", None)
        if "top_k" in of_model and "top_k" not in requested:
            values["top_k"] = int(values["top_k"])  # some files have it as a float
        return cls(**values)


def _no_sense(name: str, value: Any, words: str) -> UsageError:
    return UsageError(
        f"{name.replace('_', '-')} {value!r} makes no sense: it must be {words}.", code="value-out-of-range"
    )


def _biases(biases: Any) -> dict[int, float]:
    """Return biases by id, which JSON writes as texts. Raises ``UsageError`` for what are none."""
    items: list[tuple[Any, Any]] = list(biases.items()) if isinstance(biases, Mapping) else [(biases, None)]
    found: dict[int, float] = {}
    for token, bias in items:
        whole = isinstance(token, (int, str)) and not isinstance(token, bool) and str(token).isdecimal()
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool) and abs(bias) <= _MOST_BIAS
        if not (whole and number and int(token) < 2**31):
            raise _no_sense("logit_bias", biases, "numbers from -100 to 100 by token id")
        found[int(token)] = float(bias)
    return found


def _unknown(name: str) -> UsageError:
    """Return the refusal of an option that does not exist, with the one that is meant where that is clear."""
    meant = _ELSEWHERE.get(name) or next(iter(close(name, _EXAMPLES, most=1)), None)
    shown = meant or "max_tokens"
    return UsageError(
        f"There is no option {name!r} of generation." + (f" Did you mean {meant}?" if meant else ""),
        [f"options: {', '.join(_EXAMPLES)}"],
        [f'model.generate("Why is the sky blue?", {shown}={_EXAMPLES[shown]})'],
        code="name-unknown",
    )


def _makes_sense(name: str, value: Any) -> bool:
    lowest, highest, _ = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    whole = isinstance(lowest, int)
    return lowest <= value <= highest and (not whole or value == int(value))


class Sampler:
    """Choose the tokens of one answer.

    ``prompt`` are ids that the repeat penalty counts as said. Draws depend on the seed, on ``choice`` (the number of
    this answer among those to one prompt) and on the position in the answer, and on nothing else. ``seed`` is the one
    that is drawn with: the setting's, else a new one; None where nothing is drawn. ``mask`` is called with the tokens
    of the answer and returns those that may follow, as ``rung.ops.sample`` has them, or None for all; one that has a
    method ``forced`` of the type ``Forced`` is not called for these. ``logprobs`` has the tokens chosen so far where
    log probabilities are requested.
    """

    def __init__(
        self, sampling: Sampling, prompt: Iterable[int] = (), choice: int = 0, mask: TokenMask | None = None
    ) -> None:
        self.sampling = sampling
        seed = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(_SEED_BYTES), "little")
        self.seed = seed if sampling.temperature > 0 else None
        self.logprobs: list[Chosen] = []
        self._choice, self._mask = choice, mask
        self._forced: Forced | None = None if self.wants_logprobs else getattr(mask, "forced", None)
        self._tokens_so_far = (
            _CountedTokens(prompt if sampling.repeat_penalty != 1 else ()) if sampling.counts_tokens else None
        )
        fixed: dict[str, Any] = {name: getattr(sampling, name) for name in _OF_ROWS}
        if sampling.logit_bias:
            fixed["bias_ids"] = np.array(list(sampling.logit_bias), np.int32)
            fixed["bias"] = np.array(list(sampling.logit_bias.values()), np.float32)
        if self.wants_logprobs:
            fixed["top_logprobs"] = sampling.top_logprobs
        self._fixed = fixed

    @property
    def wants_logprobs(self) -> bool:
        """Return whether log probabilities are asked for."""
        return self.sampling.logprobs or self.sampling.top_logprobs > 0

    def rows_ahead(self, position: int, count: int) -> list[Row]:
        """Return the settings of ``count`` tokens from a position of the answer on, where they are known before the
        tokens are and ``Row.simple``; else none."""
        if self._mask is not None or self._tokens_so_far is not None or not Row(**self._fixed).simple:
            return []
        return [Row(**self._fixed, random=self._bits(position + number)) for number in range(count)]

    def _bits(self, position: int) -> int:
        return 0 if self.seed is None else random_bits(self.seed, self._choice, position)

    def rows(self, answer: Sequence[int], guesses: Sequence[int] = ()) -> list[Row]:
        """Return the settings for the token after ``answer``, and for those after each of ``guesses``.

        ``answer`` goes on from the last call's. A guess that the mask forbids is the last one with a row before it.
        """
        if self._tokens_so_far is not None:
            self._tokens_so_far.count(answer)
        found = []
        for number in range(len(guesses) + 1):
            before = guesses[:number]
            more: dict[str, Any] = {} if self._tokens_so_far is None else self._tokens_so_far.arrays(before)
            mask = None if self._mask is None else self._mask([*answer, *before])
            found.append(Row(**self._fixed, **more, mask=mask, random=self._bits(len(answer) + number)))
            if mask is not None and number < len(guesses) and not _allows(mask, guesses[number]):
                break
        return found

    def forced(self, answer: Sequence[int]) -> Sequence[int]:
        """Return tokens that follow an answer whatever their logits are; none where those have to be known."""
        return () if self._forced is None else self._forced(answer)

    def note(self, position: int, chosen: Chosen) -> None:
        """Keep the log probabilities of the token at a position of the answer."""
        if self.wants_logprobs:
            self.logprobs[position:] = [chosen]


def _allows(mask: npt.NDArray[np.uint64], token: int) -> bool:
    return token // 64 < len(mask) and bool(int(mask[token // 64]) >> token % 64 & 1)


class _CountedTokens:
    """Tokens that were said, each once, and how often each was in the answer."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._prompt = tuple(dict.fromkeys(prompt))
        self._counted: int | None = None  # tokens of the answer; None: an interrupt came while they were counted

    def _forget_answer(self) -> None:
        self._places = {token: index for index, token in enumerate(self._prompt)}
        self._tokens, self._counts = array("i", self._prompt), array("i", bytes(4 * len(self._prompt)))

    def count(self, answer: Sequence[int]) -> None:
        """Count the tokens of an answer, which goes on from the last call's."""
        counted, self._counted = self._counted, None
        if counted is None:
            self._forget_answer()
        for token in answer[counted or 0 :]:
            index = self._places.setdefault(token, len(self._places))
            if index == len(self._tokens):
                self._tokens.append(token)
                self._counts.append(0)
            self._counts[index] += 1
        self._counted = len(answer)

    def arrays(self, more: Sequence[int]) -> dict[str, npt.NDArray[np.int32]]:
        """Return copies, as ``Row`` names them, with ``more`` tokens of the answer."""
        new = [token for token in dict.fromkeys(more) if token not in self._places]
        tokens = np.array(self._tokens + array("i", new), np.int32)
        counts = np.array(self._counts + array("i", bytes(4 * len(new))), np.int32)
        for token in more:
            index = self._places.get(token)
            counts[len(self._tokens) + new.index(token) if index is None else index] += 1
        return {"previous": tokens, "counts": counts}


class CheckedMask:
    """A mask that raises ``UsageError`` where another one gives what is no mask, or are no tokens, of a vocabulary."""

    def __init__(self, mask: TokenMask, vocabulary: int) -> None:
        self._mask, self._vocabulary = mask, vocabulary
        self._unchecked: Forced | None = getattr(mask, "forced", None)
        #: See ``Sampler``.
        self.forced: Forced | None = None if self._unchecked is None else self._checked_tokens

    def __call__(self, answer: Sequence[int]) -> npt.NDArray[np.uint64] | None:
        """Return the words of the other one, or None. Raises ``UsageError``."""
        found, words = self._mask(answer), -(-self._vocabulary // 64)
        if found is not None and (getattr(found, "dtype", None) != np.uint64 or found.shape != (words,)):
            raise UsageError(f"mask must return None or {words} words of uint64, for {self._vocabulary:,} tokens.")
        return found

    def _checked_tokens(self, answer: Sequence[int]) -> Sequence[int]:
        assert self._unchecked is not None
        found = list(self._unchecked(answer))
        if not all(isinstance(each, int) and 0 <= each < self._vocabulary for each in found):
            raise UsageError(f"mask.forced must return tokens, which are integers from 0 to {self._vocabulary - 1:,}.")
        return found


def likeliest(logits: npt.NDArray[np.float32]) -> list[Chosen]:
    """Choose the token with the largest logit of each row [rows, vocabulary]."""
    found = []
    for row in logits:
        best = int(row.argmax())  # the first NaN where there is one
        found.append(Chosen(best) if math.isfinite(row[best]) else Chosen(error="not-numbers"))
    return found


def logprob_of(logits: npt.NDArray[np.float32], token: int, top: int) -> Chosen:
    """Return a token with its log probability by a row of logits [vocabulary], and the ``top`` likeliest ones.

    Raises ``DeviceError`` for logits that are no numbers.
    """
    values = logits.astype(np.float64)
    highest = values.max()
    if not math.isfinite(highest):
        raise refusal(Chosen(error="not-numbers"))
    base = highest + math.log(np.exp(values - highest).sum())
    likely = np.argsort(-values, kind="stable")[:top] if top else ()
    return Chosen(
        token, "", float(values[token] - base), tuple((int(each), float(values[each] - base)) for each in likely)
    )


def refusal(chosen: Chosen) -> DeviceError | UsageError:
    """Return the error of a row that has one."""
    if chosen.error == "nothing-allowed":
        return UsageError("No token is allowed here.", ["every token is masked"], ["a grammar that can be met"])
    return DeviceError(
        "The model computed logits that are no numbers.",
        ["one of them is NaN or infinite, or all are -inf"],
        ["rung run MODEL --format f32", "rung run MODEL --device cpu"],
    )


def logprob_entry(chosen: Chosen, piece: Callable[[int], bytes]) -> dict[str, Any]:
    """Return a token's log probabilities as ``result["logprobs"]`` has them, in OpenAI's words with ids beside.

    ``piece`` gives the bytes of a token.
    """

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        data = piece(token)
        return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": logprob}

    likely = [entry(*each) for each in chosen.top_logprobs]
    return {**entry(chosen.token, chosen.logprob), "top_logprobs": likely}
