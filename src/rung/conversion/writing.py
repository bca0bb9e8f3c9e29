"""Does a job: reads, encodes, measures and writes a tensor at a time, and goes on where an earlier run stopped."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rung import formats
from rung.conversion.job import Job, Step, index_of
from rung.conversion.resumable_writer import Partial, Planned
from rung.conversion.tensor_pieces import Assembly, Cost, Elsewhere, Piece, cost, divide
from rung.core.files import state_of
from rung.core.shield import Outcome, Workers
from rung.core.types import Format
from rung.core.version import __version__
from rung.formats import Encoded
from rung.kernels.cpu.encode import encoding
from rung.models.reader import Reader
from rung.run.self_check import encoders

Progress = Callable[[str, int, int], None]
#: Bytes of f32 that an adapter is added to at once.
_SLAB = 32 << 20
#: Bytes of tensors, as they are stored, that wait to be written while others are encoded elsewhere: nodes do not wait
#: for the disk.
_UNWRITTEN = 64 << 20
#: Bytes of weights from which on it is worth to load compiled encoders, or to compile them once.
_COMPILED = 128 << 20


@dataclass(frozen=True)
class Written:
    """One tensor of the result: the step that made it, its bytes there, and what it cost; None where nothing was
    lost."""

    step: Step
    bytes: int
    cost: Cost | None


def write(
    job: Job,
    target: Path,
    threads: int,
    progress: Progress = lambda label, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
    elsewhere: Elsewhere | None = None,
) -> list[Written]:
    """Writes the result of a job to ``target``, and returns what became of each tensor.

    ``progress`` hears (tensor, bytes of the source done, bytes in all). ``elsewhere`` encodes instead of this process.
    Memory stays at about the largest tensor, as it is stored before and after, with the one before it: that is written,
    and made safe, while the next one is encoded. Raises ``CannotEncode``, ``BadFile``, ``DiskFull``, ``UsageError``.
    """
    files, places = job.layout()
    with Partial(target, files, _work(job, files)) as partial:
        if partial.resumed:
            on_note(f"going on where an earlier run stopped: {len(partial.done)} of {len(job.steps)} tensors are done")
        for entry, data in job.constants:
            partial.put(*places[entry.name], data)
        left = [(number, step) for number, step in enumerate(job.steps) if number not in partial.done]
        if elsewhere is None:
            compiled = _compiled([step for _, step in left], on_note)
            _write_steps(job, left, compiled, partial, places, threads, progress)
        else:
            _write_from(job, left, elsewhere, partial, places, threads, progress)
        progress("syncing", job.weight_bytes, job.weight_bytes)
        partial.finish({**job.small, **index_of(files, places)} if not job.single else {})
        return [_written(job, number, partial.done[number]) for number in range(len(job.steps))]


def _write_steps(
    job: Job,
    left: Sequence[tuple[int, Step]],
    compiled: frozenset[Format],
    partial: Partial,
    places: Mapping[str, tuple[int, int]],
    threads: int,
    progress: Progress,
) -> None:
    """Write the tensors that are ``left``: each one while the next one is encoded and the one after that is read."""
    total = job.weight_bytes
    done = total - sum(step.tensor.bytes for _, step in left)
    waiting: Outcome[None] | None = None
    with Reader(job.card) as reader, Workers(1) as readers, Workers(1) as writer:
        for index, (number, step) in enumerate(left):
            progress(step.name, done, total)
            for _, following in left[index + 1 : index + 2]:
                # nobody waits for it: what fails there fails again where the tensor is read
                readers.submit(reader.ahead, following.tensor)
            after, record = _one(job, step, reader, compiled, threads)
            reader.done(step.tensor)
            if waiting is not None:
                waiting.result()
            waiting = writer.submit(_put, job, number, after, record, partial, places)
            done += step.tensor.bytes
        if waiting is not None:
            waiting.result()


def _write_from(
    job: Job,
    left: Sequence[tuple[int, Step]],
    elsewhere: Elsewhere,
    partial: Partial,
    places: Mapping[str, tuple[int, int]],
    threads: int,
    progress: Progress,
) -> None:
    """Write the tensors that are ``left``, whose pieces are encoded elsewhere."""
    total = job.weight_bytes
    done = total - sum(step.tensor.bytes for _, step in left)
    assembly, waiting = Assembly(), deque[tuple[int, Outcome[None]]]()
    with Reader(job.card) as reader, Workers(1) as writer:

        def several() -> Iterator[Piece]:
            for number, step in left:
                yield from divide(job, number, step, prepared(step, reader.read(step.tensor), threads))

        for piece, found in elsewhere(several()):
            progress(piece.name, done, total)
            if (whole := assembly.add(piece, found)) is not None:
                step = job.steps[piece.number]
                written = writer.submit(_put, job, piece.number, *whole, partial, places)
                waiting.append((whole[0].nbytes, written))
                while waiting and (waiting[0][1].done or _is_too_much([size for size, _ in waiting])):
                    waiting.popleft()[1].result()
                reader.done(step.tensor)
                done += step.tensor.bytes
        for _, outcome in waiting:
            outcome.result()


def _is_too_much(sizes: Sequence[int]) -> bool:
    """Return whether tensors of these bytes are more than may wait to be written: several, and many bytes."""
    return len(sizes) > 1 and sum(sizes) > _UNWRITTEN


def names_compiled(job: Job) -> list[str]:
    """Return the formats whose encoders it is worth to compile for a job; none for little work."""
    matrices = [step for step in job.steps if len(step.tensor.shape) > 1]
    if sum(step.tensor.bytes for step in matrices) < _COMPILED:
        return []
    return list(dict.fromkeys(step.format.name for step in matrices))


def _compiled(steps: Sequence[Step], on_note: Callable[[str], None]) -> frozenset[Format]:
    """The formats whose compiled encoders are used; none for little work."""
    matrices = [step for step in steps if len(step.tensor.shape) > 1]
    if sum(step.tensor.bytes for step in matrices) < _COMPILED:
        return frozenset()
    return encoders.prove((step.format for step in matrices), on_note)


def _one(
    job: Job, step: Step, reader: Reader, compiled: frozenset[Format], threads: int
) -> tuple[Encoded, dict[str, Any]]:
    """One tensor as it is to be stored, and its record."""
    before = prepared(step, reader.read(step.tensor), threads)
    convert = encoding.convert if step.format in compiled else formats.convert
    role = step.tensor.role
    if job.rounder is not None and len(step.tensor.shape) > 1 and job.rounder.takes(role, step.format):
        after = job.rounder.encode(role, before, step.format, step.tensor.name)
    else:
        after = convert(before, step.format, step.tensor.name, threads, job.importance.get(role))
    if step.format.name in ("f32", before.format.name):
        return after, {}
    lost = cost(before, after, threads, step.format in compiled)
    return after, {"cost": lost.to_json()} if lost.noise else {}


def _put(
    job: Job,
    number: int,
    after: Encoded,
    record: Mapping[str, Any],
    partial: Partial,
    places: Mapping[str, tuple[int, int]],
) -> None:
    """Writes one tensor and its record."""
    step = job.steps[number]
    for entry, array in zip(job.style.entries(step), job.style.arrays(step, after), strict=True):
        partial.put(*places[entry.name], np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    partial.record(number, record)


def _written(job: Job, number: int, record: Mapping[str, Any]) -> Written:
    step = job.steps[number]
    size = sum(entry.bytes for entry in job.style.entries(step))
    return Written(step, size, Cost(**record["cost"]) if "cost" in record else None)


def prepared(step: Step, stored: Encoded, threads: int = 1) -> Encoded:
    """The weights as the result is to have them, still in the source's format (f32 where they are changed)."""
    if step.merges:
        stored = added(stored, step, threads)
    if step.heads and stored.format.layout != "rows":
        stored = formats.encode(formats.decode(stored), formats.get("f32"), step.tensor.name)
    if step.heads:
        # a bias is one row of the file, and one value for each row of its weight
        data = stored.parts["data"]
        bias = len(step.tensor.shape) == 1
        rows = data.reshape(step.tensor.shape[0], -1) if bias else data
        rows = rows[order_of_heads(len(rows), step.heads, step.interleave)]
        stored = Encoded(stored.format, stored.shape, {"data": rows.reshape(data.shape)})
    if step.shift:
        values = formats.decode(stored) + np.float32(step.shift)
        stored = formats.encode(values, formats.get("f32"), step.tensor.name)
    return stored


def added(stored: Encoded, step: Step, threads: int) -> Encoded:
    """The weight in f32 with its changes added; as it is stored where they add nothing."""
    if step.whole is not None:
        return formats.encode(step.whole.reshape(stored.shape), formats.get("f32"), step.tensor.name)
    rows, columns = stored.shape
    out, same = np.empty((rows, columns), np.float32), True
    height = max(1, _SLAB // (4 * columns))
    for first in range(0, rows, height):
        before = after = formats.decode(stored, slice(first, first + height), threads)
        for change in step.changes:
            after = change.added_to(after, first)
        same = same and np.array_equal(before, after)
        out[first : first + height] = after
    return stored if same else formats.encode(out, formats.get("f32"), step.tensor.name)


def order_of_heads(rows: int, heads: int, interleave: bool) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Which row comes where: of each head's two halves in turn (``interleave``), or the way back."""
    shape = (heads, 2, -1) if interleave else (heads, -1, 2)
    return np.arange(rows).reshape(shape).swapaxes(1, 2).reshape(-1)


def _work(job: Job, files: tuple[Planned, ...]) -> str:
    """A hash of everything that the result depends on."""
    digest = hashlib.sha256(f"{__version__} {state_of(map(Path, job.card.files))}".encode())
    for step in job.steps:
        digest.update(f"{step.tensor.name} {step.name} {step.format.name} {step.heads} {step.shift}\n".encode())
        for change in step.changes:
            digest.update(f"{change.scale}".encode() + change.down.tobytes() + change.up.tobytes())
            digest.update(b"" if change.magnitude is None else change.magnitude.tobytes())
        digest.update(b"" if step.whole is None else step.whole.tobytes())
    for file in files:
        digest.update(file.head)
    for name, data in job.small.items():
        digest.update(name.encode() + data)
    for role, importance in job.importance.items():
        digest.update(role.encode() + importance.tobytes())
    digest.update(b"" if job.rounder is None else job.rounder.digest.encode())
    return digest.hexdigest()
