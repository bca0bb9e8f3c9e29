"""Layers of one model on several machines: the first has the embedding, its layers and the head, others layers alone.

::

    Scheduler ─► SplitDecoder ─ embed, own layers ─► Stage ─► Stage ─┐     hidden states of a batch, f32
                      ▲                                              │
                      └─ head ◄──────────────────────────────────────┘

A stage keeps the contract of ``rung.ops.decode_step`` for its layers: their weights, and their keys and values in a
pool whose blocks have the numbers that they have in the pool of the first one, which alone knows sequences. Whoever
joins the machines gives ``Forward``; batches must come to every stage in the order in which they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import UsageError
from rung.core.types import Device, Plan
from rung.engine.decoder import Decoder
from rung.engine.planning import make_plan
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.formats.codec import Floats
from rung.models.card import Decoder as Shape
from rung.models.card import ModelCard
from rung.ops.decode_step.parts import SequenceRows
from rung.ops.decode_step.weights import LayerStack
from rung.run.journal import Journal

#: Sends a batch and its hidden states; returns a function that waits for those behind the last layer.
Forward = Callable[[bytes, bytes], Callable[[], bytes]]
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
#: Stands for a block that was given back, or positions that nobody reads.
_NO_BLOCK = -1


@dataclass(frozen=True)
class Split:
    """The part of the first machine: layers before ``last``, how to reach the others, and batches under way at once."""

    last: int
    forward: Forward
    depth: int = 2


def part_of(card: ModelCard, first: int, last: int) -> ModelCard:
    """Return the card of the layers [first, last), which count from 0; with layer 0 come embedding, norm and head.

    Raises ``UsageError`` for layers that the model does not have.
    """
    layers = card.decoder.layers
    if not 0 <= first < last <= len(layers):
        raise UsageError(
            f"{card.name} has layers 0 to {len(layers)}, not {first} to {last}.", code="value-out-of-range"
        )
    tensors = []
    for tensor in card.tensors:
        found = _LAYER.fullmatch(tensor.role)
        if found is None and first == 0:
            tensors.append(tensor)
        elif found is not None and first <= int(found[1]) < last:
            tensors.append(replace(tensor, role=f"layers.{int(found[1]) - first}.{found[2]}"))
    return replace(card, decoder=replace(card.decoder, layers=layers[first:last]), tensors=tuple(tensors))


def pack(batch: Sequence[SequenceRows], copies: Sequence[tuple[int, int, int]]) -> bytes:
    """Return a batch without its hidden states, as a stage reads it: int64 words in little endian."""
    words = [len(batch), len(copies)]
    for each in batch:
        assert isinstance(each.cache, Cache)
        words += [len(each.tokens), each.start, len(each.cache.blocks)]
        for blocks in each.cache.blocks:
            words += [len(blocks), *(_NO_BLOCK if block is None else block for block in blocks)]
    for copy in copies:
        words += copy
    return np.array(words, "<i8").tobytes()


class _Table:
    """The block tables of a sequence whose cache another machine keeps the books of; see ``parts.Cache``."""

    def __init__(self, pool: BlockPool, groups: Sequence[npt.NDArray[np.int64]]) -> None:
        self._tables = []
        for member, blocks in zip(pool.members, groups, strict=True):
            table = np.zeros(pool.per_sequence, np.int64)
            table[: len(blocks)] = member.entry(0) + np.maximum(blocks, 0) * member.block_bytes
            self._tables.append(table)

    def table(self, group: int) -> int:
        """Return the address of the block table of a group."""
        return int(self._tables[group].ctypes.data)


def _unpack(data: bytes, pool: BlockPool) -> tuple[list[SequenceRows], list[tuple[int, int, int]]]:
    """Return the rows of a batch without their tokens, and the blocks that were copied before."""
    words = np.frombuffer(data, "<i8")
    sequences, copies, at = int(words[0]), int(words[1]), 2
    batch = []
    for _ in range(sequences):
        count, start, groups = (int(word) for word in words[at : at + 3])
        at += 3
        blocks = []
        for _ in range(groups):
            end = at + 1 + int(words[at])
            blocks.append(words[at + 1 : end])
            at = end
        table: Any = _Table(pool, blocks)
        batch.append(SequenceRows(range(count), start, table, 0))
    return batch, [tuple(row) for row in words[at:].reshape(copies, 3).tolist()]


class Stage:
    """Layers of a model on this machine, without its embedding and its head. One thread calls at a time."""

    def __init__(self, plan: Plan, weights: LayerStack, pool: BlockPool, step: Any) -> None:
        self.plan, self._pool = plan, pool
        self._rung = _parts_of(step, plan)
        self._state = self._rung.prepare(weights, pool, threads=plan.threads)
        self._hidden = weights.shape.hidden

    @property
    def same_bytes(self) -> bool:
        """Return whether a row's hidden states do not depend on the other rows of a batch."""
        return bool(self._rung.same_bytes(self._state))

    def compute(self, batch: bytes, hidden: bytes) -> bytes:
        """Return hidden states behind these layers, f32 [rows, hidden], of those before them; write the cache."""
        rows, copies = _unpack(batch, self._pool)
        for copy in copies:
            self._pool.copy(*copy)
        self._pool.copies.clear()
        before = np.frombuffer(hidden, np.float32).reshape(-1, self._hidden)
        behind: Floats = self._rung.through(self._state, rows, before)
        return behind.tobytes()


def _parts_of(step: Any, plan: Plan) -> Any:
    """Return the implementation of a bound step. Raises ``UsageError`` for a rung that has all layers or none."""
    found = step.rung.load()
    if not hasattr(found, "embed"):
        raise UsageError(
            f"{plan.model} cannot lie on several machines: {step.rung.name} computes it, which has all layers.",
            ["layers are divided where numba.step computes them"],
            ["rung ladder decode_step"],
        )
    return found


def plan_part(
    card: ModelCard, first: int, last: int, devices: Sequence[Device] | None = None, **options: Any
) -> tuple[Plan, tuple[Device, ...]]:
    """Return the plan for the layers [first, last) on the processor of this machine, or that of ``devices``.

    ``options`` are those of ``make_plan``. Raises ``DoesNotFit`` and what it raises.
    """
    known = ("format", "memory", "context", "parallel", "threads", "cache_type", "reserved")
    named = {name: options[name] for name in known if options.get(name) is not None}
    return make_plan(part_of(card, first, last), device=options.get("device") or "cpu", devices=devices, **named)


def load_stage(card: ModelCard, first: int, last: int, options: dict[str, Any]) -> Stage:
    """Plan, read and bind the layers [first, last) on the processor of this machine; ``first`` is not 0.

    ``options`` are those of ``rung.load`` that the first machine has, with its context and its sequences at once: its
    blocks and those here have the same numbers. Raises what planning and reading raise.
    """
    from rung.kernels.cpu import target
    from rung.run import cpu_level

    part = part_of(card, first, last)
    plan, devices = plan_part(card, first, last, **options)
    for each in devices:
        cpu_level.adopt(each)
    target.configure()
    from rung.engine.weight_loader import WeightLoader
    from rung.models.reader import Reader

    journal = Journal(lambda step: None, lambda note: None)
    with (
        Reader(part) as reader,
        WeightLoader(part, plan, devices, reader, journal, lambda done, total: None) as parts,
    ):
        weights = LayerStack.bind_layers(part.decoder, parts, plan.context)
        step = parts.step()
        pool = pool_of_part(card.decoder, first, last, plan, step.block)
        return Stage(plan, weights, pool, step)


def pool_of_part(shape: Shape, first: int, last: int, plan: Plan, block: int) -> BlockPool:
    """Return the memory of caches of some layers of a model, on the processor."""
    devices = ["cpu"] * len(shape.layers)
    return BlockPool(shape, plan.context, plan.cache_dtype, devices, block, sequences=plan.parallel, part=(first, last))


class SplitStep:
    """A step of ``rung.ops.decode_step`` whose further layers other machines have."""

    def __init__(self, step: Any, plan: Plan, split: Split) -> None:
        self.rung, self._parts, self._split = step.rung, _parts_of(step, plan), split
        self._pool: Any = None

    @property
    def block(self) -> int:
        """See there."""
        return int(self._parts.block)

    def prepare(self, weights: Any, pool: Any, *, threads: int) -> Any:
        """See there."""
        self._pool = pool
        return self._parts.prepare(weights, pool, threads=threads)

    def same_bytes(self, state: Any) -> bool:
        """See there: the others have weights of the same kinds."""
        return bool(self._parts.same_bytes(state))

    def rows_without_torch(self, state: Any) -> int | None:
        """See there: no number needs torch."""
        return None

    def look_ahead(self, state: Any) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def choose(self, state: Any, rows: SequenceRows, settings: Sequence[Any]) -> Sequence[int]:
        """Return nothing: tokens are chosen from the logits."""
        return ()

    def apply(self, state: Any, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] of a batch."""
        return self.submit(state, batch)()

    def submit(self, state: Any, batch: Sequence[SequenceRows]) -> Callable[[], Floats]:
        """Compute the layers here and send a batch on; return a function that waits for the others and gives logits."""
        hidden = self._parts.through(state, batch, self._parts.embed(state, batch))
        copies, self._pool.copies = self._pool.copies, []
        wait = self._split.forward(pack(batch, copies), hidden.tobytes())

        def finish() -> Floats:
            behind = np.frombuffer(wait(), np.float32).reshape(hidden.shape)
            found: Floats = self._parts.head(state, batch, behind)
            return found

        return finish


class SplitDecoder(Decoder):
    """A decoder of ``SplitStep``: up to ``depth`` batches are under way at once, in different machines."""

    step: SplitStep

    def __init__(self, weights: Any, pool: BlockPool, step: SplitStep, threads: int, parallel: int, depth: int) -> None:
        super().__init__(weights, pool, step, threads, 0, parallel)
        self.depth = depth

    def submit(self, batch: Sequence[tuple[Cache, Sequence[int], int, Floats | None]]) -> Callable[[], Floats]:
        """Begin to compute the next tokens of each cache; return a function that gives what ``compute`` gives."""
        return self.step.submit(self._state, self.rows_of(batch))
