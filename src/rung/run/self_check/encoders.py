"""Compiled encoders are used once a child process has shown that they give the bytes of ``rung.formats`` here.

A level of CPU instructions at which they do not is left for a lower one, then for NumPy.
"""

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


def prove(requested: Iterable[Format], say: Callable[[str], None] = lambda text: None) -> frozenset[Format]:
    """Return those of the formats that compiled kernels encode here; ``say`` is called with what is compiled, and with
    why others are not.

    Where encoders are wrong at the level of CPU instructions that this process compiles for, and one of them is right
    at a lower one, the process goes there. The outcome is kept on disk, but for a check that ran out of time, memory or
    disk: the machine may have been busy, which is no reason to leave a level.
    """
    distinct = [fmt for fmt in dict.fromkeys(requested) if fmt.name.split(":")[0] in encoding.FORMATS]
    if distinct and not all(map(encoding.compiles, distinct)):
        numba = importlib.util.find_spec("numba") is not None
        reason = "Numba is told to compile nothing" if numba else "Numba is not installed:  pip install 'rung[lean]'"
        say(f"NumPy encodes, which takes longer: {reason}")
        return frozenset()
    while True:
        reasons, wrong = _reasons(distinct, "", say)
        if not _step_down(wrong, say):
            break
    for fmt, reason in reasons.items():
        if reason:
            say(f"NumPy encodes {fmt.name}, which takes longer: the compiled encoder failed its check ({reason})")
    return frozenset(fmt for fmt, reason in reasons.items() if not reason)


def _step_down(wrong: Mapping[Format, str], say: Callable[[str], None]) -> bool:
    """Compile for the next lower level at which one of these encoders is right; return whether there is one."""
    before = target.level().name
    for level in target.lower_levels() if wrong else ():
        if all(_reasons(wrong, level.name, say)[0].values()):
            continue
        target.leave_for(level.name)
        for fmt, reason in wrong.items():
            say(f"The encoder of {fmt.name} is compiled for level {level.name}: at {before} it is wrong ({reason})")
        return True
    return False


def _reasons(
    several: Iterable[Format], level: str, say: Callable[[str], None]
) -> tuple[dict[Format, str], dict[Format, str]]:
    """Why encoders fail their check at a level (this process' own where it is empty), empty where they do not; and the
    same of those that no busy machine explains."""
    reasons = {fmt: json_cache.read(_key(fmt, level)) for fmt in several}
    missing, doubtful = [fmt for fmt, reason in reasons.items() if not isinstance(reason, str)], set()
    if missing:
        at = f" at level {level}" if level else ""
        say(f"Compiling and checking {count(len(missing), 'encoder')}{at} for this machine, {json_cache.how_often()}.")
    jobs = [worker.Job.of("rung.run.self_check.encoders:compare", format=fmt.name) for fmt in missing]
    environment = target.compiled_at(level) if level else {}
    for fmt, outcome in zip(missing, worker.run(jobs, self_check.LIMIT, environment=environment), strict=True):
        reasons[fmt] = str(outcome.value) if outcome.ok else f"{outcome.how}: {outcome.error}"
        if outcome.how == "timeout" or outcome.says_nothing:
            doubtful.add(fmt)
        else:
            json_cache.write(_key(fmt, level), reasons[fmt])
    found = {fmt: str(reason) for fmt, reason in reasons.items()}
    return found, {fmt: reason for fmt, reason in found.items() if reason and fmt not in doubtful}


def _key(fmt: Format, level: str) -> Mapping[str, str]:
    environment = target.compiled_at(level) if level else target.compiled_for()
    compiled_for = environment["NUMBA_CPU_NAME"] + environment["NUMBA_CPU_FEATURES"]
    return {
        "kind": "encoder",
        "format": fmt.name,
        "target": hashlib.sha256(compiled_for.encode()).hexdigest()[:16],
        "level": level or target.level().name,
        "compiler": target.sources_hash(),
        "source": self_check.source_hash(),
    }


def compare(format: str, rows: int = _ROWS, columns: int = _COLUMNS) -> str:
    """Where a compiled encoder, or the compiled measure of its errors, differs from numpy; empty when nowhere."""
    fmt = formats.get(format)
    importance = np.random.default_rng(_SEED).exponential(size=columns).astype(np.float32)
    for kind, values in weights(rows, columns).items():
        for stored in ("f32", "bf16"):
            before = formats.encode(values, formats.get(stored))
            for weighed in (None, importance) if formats.weighs(fmt) else (None,):
                actual = encoding.convert(before, fmt, threads=2, importance=weighed)
                expected = formats.convert(before, fmt, importance=weighed)
                for part, array in expected.parts.items():
                    if not np.array_equal(array, actual.parts[part]):
                        return f"{part} of {kind} weights is another one"
            if not _measured(before, expected):
                return f"the error of {kind} weights is another one"
    return ""


def _measured(before: Encoded, after: Encoded) -> bool:
    exact = formats.decode(before).astype(np.float64)
    expected = np.stack([(values**2).sum(axis=1) for values in (exact, exact - formats.decode(after))], axis=1)
    found = encoding.errors(before, after, 2)
    return found is not None and np.allclose(found, expected, rtol=1e-9, atol=0)


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
