"""Compiled encoders are used once a child process has shown that they give the bytes of ``rung.formats`` here."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.text import count
from rung.core.types import Format
from rung.formats import Encoded
from rung.hardware import json_cache
from rung.kernels.cpu import target
from rung.kernels.cpu.encode import encoding
from rung.run import self_check, worker

#: Rows of the weights that are compared; every block of nf4 divides their columns.
_ROWS, _COLUMNS = 19, 4096
_SEED = 20_261_122


def prove(wanted: Iterable[Format], say: Callable[[str], None] = lambda text: None) -> frozenset[Format]:
    """Return those of the formats that compiled kernels encode here; ``say`` hears what is compiled, and why others are
    not.

    The outcome is kept on disk, but for a check that ran out of time, memory or disk.
    """
    asked = [fmt for fmt in dict.fromkeys(wanted) if fmt.name.split(":")[0] in encoding.FORMATS]
    if asked and not all(map(encoding.compiles, asked)):
        numba = importlib.util.find_spec("numba") is not None
        reason = "Numba compiles for no AVX2" if numba else "Numba is not installed:  pip install 'rung[lean]'"
        say(f"NumPy encodes, which takes longer: {reason}")
        return frozenset()
    kept = {fmt: json_cache.read(_key(fmt)) for fmt in asked}
    reasons = {fmt: reason for fmt, reason in kept.items() if isinstance(reason, str)}
    missing = [fmt for fmt in asked if fmt not in reasons]
    if missing:
        say(f"Compiling and checking {count(len(missing), 'encoder')} for this machine, {json_cache.how_often()}.")
        jobs = [worker.Job.of("rung.run.self_check.encoders:compare", format=fmt.name) for fmt in missing]
        for fmt, outcome in zip(missing, worker.run(jobs, self_check.LIMIT), strict=True):
            reasons[fmt] = str(outcome.value) if outcome.ok else f"{outcome.how}: {outcome.error}"
            if outcome.how != "timeout" and not outcome.says_nothing:
                json_cache.write(_key(fmt), reasons[fmt])
    for fmt, reason in reasons.items():
        if reason:
            say(f"NumPy encodes {fmt.name}, which takes longer: the compiled encoder failed its check ({reason})")
    return frozenset(fmt for fmt, reason in reasons.items() if not reason)


def _key(fmt: Format) -> Mapping[str, str]:
    features = hashlib.sha256(",".join(sorted(target.features())).encode()).hexdigest()[:16]
    return {
        "kind": "encoder",
        "format": fmt.name,
        "target": features,
        "compiler": target.sources_hash(),
        "source": self_check.source_hash(),
    }


def compare(format: str) -> str:
    """Where a compiled encoder, or the compiled measure of its errors, differs from numpy; empty when nowhere."""
    fmt = formats.get(format)
    importance = np.random.default_rng(_SEED).exponential(size=_COLUMNS).astype(np.float32)
    for kind, values in weights(_ROWS, _COLUMNS).items():
        for stored in ("f32", "bf16"):
            before = formats.encode(values, formats.get(stored))
            for weighed in (None, importance) if formats.weighs(fmt) else (None,):
                made = encoding.convert(before, fmt, threads=2, importance=weighed)
                wanted = formats.convert(before, fmt, importance=weighed)
                for part, array in wanted.parts.items():
                    if not np.array_equal(array, made.parts[part]):
                        return f"{part} of {kind} weights is another one"
            if not _measured(before, wanted):
                return f"the error of {kind} weights is another one"
    return ""


def _measured(before: Encoded, after: Encoded) -> bool:
    exact = formats.decode(before).astype(np.float64)
    wanted = np.stack([(values**2).sum(axis=1) for values in (exact, exact - formats.decode(after))], axis=1)
    found = encoding.errors(before, after, 2)
    return found is not None and np.allclose(found, wanted, rtol=1e-9, atol=0)


def weights(rows: int, columns: int) -> dict[str, npt.NDArray[np.float32]]:
    """Seeded weights of several kinds; rows of one kind differ in size."""
    generator = np.random.default_rng(_SEED)
    normal = generator.standard_normal((rows, columns))
    sizes = 10.0 ** np.linspace(-12, 3, rows)[:, None]
    mixed = np.where(generator.random((rows, columns)) < 0.5, -0.0, 0.0)
    kinds = {
        "normal": normal * 0.02,
        "heavy-tailed": generator.standard_t(3, (rows, columns)),
        "tied": np.round(normal * 4) / 4,
        "shifted": normal + 3,
        "sparse": np.where(generator.random((rows, columns)) < 0.97, mixed, normal),
        "constant": np.broadcast_to(sizes * np.where(np.arange(rows)[:, None] % 2, -1, 1), (rows, columns)),
        "zero": np.where(np.arange(rows)[:, None] % 2, -0.0, 0.0) * np.ones(columns),
        "tiny and large": normal * sizes,
    }
    return {kind: np.ascontiguousarray(values, np.float32) for kind, values in kinds.items()}
