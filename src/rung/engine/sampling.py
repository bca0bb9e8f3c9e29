"""Which token comes next: greedy or drawn.

The order is that of transformers, whose ``generation_config.json`` the defaults come from: repeat penalty,
temperature, top-k, top-p, min-p, then one draw from what is left. At temperature 0 the likeliest token is taken,
with no penalty unless one is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import DeviceError, UsageError
from rung.core.text import close

_FIRST_CANDIDATES = 1024

# name: (lowest, highest, what it must be)
_RANGES = {
    "temperature": (0.0, 1e6, "0 (always the likeliest token) or above"),
    "top_k": (0, 2**31, "0 (all tokens) or a number of tokens"),
    "top_p": (0.0, 1.0, "from 0 to 1"),
    "min_p": (0.0, 1.0, "from 0 to 1"),
    "repeat_penalty": (1e-3, 1e3, "above 0; 1 is no penalty"),
    "seed": (0, 2**64 - 1, "0 or above"),
}

#: An option of ``generate`` as an example shows it.
_EXAMPLES = {
    "max_tokens": "100",
    "temperature": "0.7",
    "top_k": "40",
    "top_p": "0.9",
    "min_p": "0.05",
    "repeat_penalty": "1.1",
    "seed": "1",
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

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repeat_penalty`` 1 are off.
    ``seed`` None draws differently every time. Raises ``UsageError`` for a value that makes no sense.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (_, _, words) in _RANGES.items():
            value = getattr(self, name)
            if not (name == "seed" and value is None) and not _makes_sense(name, value):
                raise UsageError(
                    f"{name.replace('_', '-')} {value!r} makes no sense: it must be {words}.", code="value-out-of-range"
                )

    @classmethod
    def of(cls, defaults: Mapping[str, Any], **options: Any) -> Sampling:
        """The options that are given and not None, else the checkpoint's ``defaults``, else greedy.

        Asking for top-k, top-p or min-p (by options or defaults) without a temperature means temperature 1.
        Defaults that make no sense are left out.
        """
        unknown = sorted(set(options) - set(_RANGES))
        if unknown:
            raise _unknown(unknown[0])
        asked = {name: value for name, value in options.items() if value is not None}
        given = {name: value for name, value in defaults.items() if name in _RANGES and _makes_sense(name, value)}
        values = given | asked
        draws = any(name in values for name in ("top_k", "top_p", "min_p"))
        values.setdefault("temperature", 1.0 if draws else 0.0)
        if values["temperature"] == 0 and "repeat_penalty" not in asked:
            values.pop("repeat_penalty", None)
        if "top_k" in given and "top_k" not in asked:
            values["top_k"] = int(values["top_k"])  # some files have it as a float
        return cls(**values)


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
    """Chooses one token after the other. ``prompt`` are ids that the repeat penalty counts as said."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)
        self._said = set(prompt) if sampling.repeat_penalty != 1 else set()

    def choose(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token's id from f32 logits [vocabulary] (or [1, vocabulary]), which are left as they are.

        Raises ``DeviceError`` for logits that are no numbers.
        """
        logits = self._penalized(logits.reshape(-1))
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise DeviceError(
                "The model computed logits that are no numbers.",
                [f"the likeliest of {logits.size} tokens has the logit {logits[best]}"],
                ["rung run MODEL --format f32", "rung run MODEL --device cpu"],
            )
        token = best if self.sampling.temperature == 0 else self._draw(logits, float(logits[best]))
        if self.sampling.repeat_penalty != 1:
            self._said.add(token)
        return token

    def _penalized(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if not self._said:
            return logits
        said = np.fromiter((token for token in self._said if 0 <= token < logits.size), np.int64)
        out = logits.copy()
        values, penalty = out[said], np.float32(self.sampling.repeat_penalty)
        out[said] = np.where(values > 0, values / penalty, values * penalty)
        return out

    def _draw(self, logits: npt.NDArray[np.float32], highest: float) -> int:
        ids, weights = self._candidates(logits, highest)
        steps = np.cumsum(weights)
        at = int(np.searchsorted(steps, self._random.random() * steps[-1], side="right"))
        return int(ids[min(at, len(ids) - 1)])

    def _candidates(
        self, logits: npt.NDArray[np.float32], highest: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Ids and weights (proportional to probability, the likeliest 1) of the tokens that are left."""
        sampling = self.sampling
        if 0 < sampling.top_k < logits.size:
            ids = _largest(logits, sampling.top_k)
            weights = self._weights(logits[ids], highest)
        elif sampling.top_p < 1 or sampling.min_p > 0:
            ids, weights = self._likeliest(logits, highest)
        else:
            return np.arange(logits.size), self._weights(logits, highest)
        if sampling.top_p < 1:
            total = weights.sum() if 0 < sampling.top_k < logits.size else self._weights(logits, highest).sum()
            before = np.concatenate(([0.0], np.cumsum(weights)[:-1]))
            kept = max(int((before < sampling.top_p * total).sum()), 1)
            ids, weights = ids[:kept], weights[:kept]
        kept = max(int((weights >= sampling.min_p).sum()), 1)  # sorted: the first `kept`
        return ids[:kept], weights[:kept]

    def _likeliest(
        self, logits: npt.NDArray[np.float32], highest: float
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """As many tokens, likeliest first, as top-p and min-p can want; sorting all of 256k takes too long."""
        all_weights = self._weights(logits, highest)
        wanted = self.sampling.top_p * all_weights.sum()
        count = _FIRST_CANDIDATES
        while True:
            ids = _largest(logits, min(count, logits.size))
            weights = all_weights[ids]
            if count >= logits.size or weights.sum() >= wanted or weights[-1] < self.sampling.min_p:
                return ids, weights
            count *= 8

    def _weights(self, logits: npt.NDArray[np.float32], highest: float) -> npt.NDArray[np.float64]:
        scaled: npt.NDArray[np.float64] = np.exp((logits.astype(np.float64) - highest) / self.sampling.temperature)
        return scaled


def _largest(logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """Ids of the ``count`` largest logits, largest first; of equal ones the lower id."""
    ids = np.sort(np.argpartition(logits, logits.size - count)[logits.size - count :])
    order: npt.NDArray[np.int64] = ids[np.argsort(-logits[ids], kind="stable")]
    return order
