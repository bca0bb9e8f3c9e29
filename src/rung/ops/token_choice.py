"""Settings of a row of logits, and the token that was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.sample.record import MASS

Ids = npt.NDArray[np.int32]

#: Temperatures below this cannot be divided by.
_COLDEST = 1e-30
_NO_IDS: Ids = np.empty(0, np.int32)
_NO_BIAS: npt.NDArray[np.float32] = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Row:
    """Settings of one row; see ``rung.ops.sample``. The defaults take the likeliest token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    previous: Ids = field(default_factory=lambda: _NO_IDS)
    counts: Ids = field(default_factory=lambda: _NO_IDS)
    bias_ids: Ids = field(default_factory=lambda: _NO_IDS)
    bias: npt.NDArray[np.float32] = field(default_factory=lambda: _NO_BIAS)
    mask: npt.NDArray[np.uint64] | None = None
    random: int = 0
    top_logprobs: int | None = None

    @property
    def inverse(self) -> float:
        """Return 1 / temperature; 0 for the likeliest token, which a temperature of almost 0 chooses, too."""
        return 1 / self.temperature if self.temperature > _COLDEST else 0.0

    @property
    def changes(self) -> bool:
        """Return whether logits change before one is chosen."""
        return bool(len(self.previous) or len(self.bias_ids) or self.mask is not None)

    @property
    def plain(self) -> bool:
        """Return whether the highest logit is chosen, and nothing else is requested."""
        return not (self.inverse or self.changes) and self.top_logprobs is None

    @property
    def simple(self) -> bool:
        """Return whether a token is chosen of unchanged logits, by nothing but temperature, top-k, top-p and min-p."""
        return not self.changes and self.top_logprobs is None and (not self.inverse or self.typical_p >= 1)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The token of a row, or an error; log probabilities where they were asked for, of likely tokens by id."""

    token: int = -1
    error: str = ""
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def chosen(
    logits: npt.NDArray[np.float32], token: int, highest: float, total: int, likely: Iterable[int] | None
) -> Chosen:
    """Return the token of a row of ``logits`` with log probabilities, of ``likely`` tokens too; without where None.

    ``highest`` is the highest logit and ``total`` the sum of masses at temperature 1.
    """
    if likely is None:
        return Chosen(token)
    base = highest + math.log(total / MASS)
    return Chosen(token, "", float(logits[token]) - base, tuple((each, float(logits[each]) - base) for each in likely))
