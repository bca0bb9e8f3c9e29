"""Check a rung of sample: tokens of seeded rows with every setting, against sorted probabilities in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.types import Case, Rung
from rung.kernels.cpu.sample.record import MASS
from rung.ops.proof import SEED
from rung.ops.token_choice import Row

VOCABULARY = 4 * 1024 + 83
#: Draws of each setting.
_DRAWS = 16
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "typical_p": 0.8},
    {"temperature": 1.5, "top_k": 500, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.9},
    {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"temperature": 1.0, "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
)


def check(rung: Rung, case: Case, location: str) -> str:
    """Compare every token; rows with a NaN and with an empty mask are refused."""
    generator = np.random.default_rng(SEED)
    logits = generator.standard_normal((_DRAWS, VOCABULARY), dtype=np.float32) * 3
    previous, counts = np.arange(0, VOCABULARY, 7, dtype=np.int32), np.arange(0, VOCABULARY, 7, dtype=np.int32) % 3
    ids, bias = np.arange(5, 90, 5, dtype=np.int32), np.linspace(-4, 8, 17, dtype=np.float32)
    mask = generator.integers(0, 2**63, -(-VOCABULARY // 64), dtype=np.uint64)
    implementation = rung.load()
    state = implementation.prepare(threads=2)
    for settings in _SETTINGS:
        more: dict[str, Any] = {"previous": previous, "counts": counts} if "repeat_penalty" in settings else {}
        if settings.get("typical_p"):
            more = {"bias_ids": ids, "bias": bias, "mask": mask}
        rows = [Row(**settings, **more, random=int(each)) for each in generator.integers(0, 2**63, _DRAWS)]
        for index, found in enumerate(implementation.apply(state, logits, rows)):
            expected = _token(logits[index], rows[index])
            if found.error or found.token != expected:
                return f"{settings} chooses {found.error or found.token} instead of {expected}"
    return _errors(implementation, state, logits) or _logprobs(implementation, state, logits)


def _errors(implementation: Any, state: Any, logits: npt.NDArray[np.float32]) -> str:
    broken = logits[:3].copy()
    broken[0, -1] = np.nan
    rows = [Row(), Row(mask=np.zeros(-(-VOCABULARY // 64), np.uint64)), Row()]
    found = [each.error for each in implementation.apply(state, broken, rows)]
    return "" if found == ["not-numbers", "nothing-allowed", ""] else f"errors are {found}"


def _logprobs(implementation: Any, state: Any, logits: npt.NDArray[np.float32]) -> str:
    (found,) = implementation.apply(state, logits[:1], [Row(top_logprobs=3)])
    values = logits[0].astype(np.float64)
    exact = values - values.max() - np.log(np.exp(values - values.max()).sum())
    order = np.argsort(-values, kind="stable")[:3].tolist()
    near = [token for token, _ in found.top_logprobs] == order and all(
        abs(logprob - exact[token]) < 1e-6 for token, logprob in (*found.top_logprobs, (found.token, found.logprob))
    )
    return "" if near else f"log probabilities are {found}"


def _token(logits: npt.NDArray[np.float32], row: Row) -> int:
    """Return the token by the contract's steps."""
    x = logits.astype(np.float64)
    x[row.bias_ids] = (logits[row.bias_ids] + row.bias).astype(np.float64)
    values = x[row.previous].astype(np.float32)
    values = np.where(values < 0, values * np.float32(row.repeat_penalty), values / np.float32(row.repeat_penalty))
    less = row.counts * row.frequency_penalty + (row.counts > 0) * row.presence_penalty
    x[row.previous] = (values - less).astype(np.float32)
    if row.mask is not None:
        x[np.unpackbits(row.mask.view(np.uint8), count=len(x), bitorder="little") == 0] = -np.inf
    if row.temperature == 0:
        return int(x.argmax())
    mass = np.rint(np.exp((x - x.max()) / row.temperature) * MASS)
    order = np.argsort(-x, kind="stable")
    if row.top_k:
        mass[x < x[order[row.top_k - 1]]] = 0
    if row.top_p < 1:
        mass[order[np.cumsum(mass[order]) - mass[order] >= row.top_p * mass.sum()]] = 0
    mass[mass < row.min_p * MASS] = 0
    if row.typical_p < 1:
        part = mass / mass.sum()
        surprise = -np.log(np.where(part > 0, part, 1e-30))
        distance = np.abs(surprise - (part * surprise).sum())
        order = np.argsort(distance, kind="stable")
        last = int((np.cumsum(mass[order]) < row.typical_p * mass.sum()).sum())
        mass[distance > distance[order[last]]] = 0
    steps = np.cumsum(mass)
    return int(np.searchsorted(steps, row.random / 2**64 * steps[-1], side="right"))
