"""Decide once, bind, then call: climbs the ladders, checks the rung, and repeats a failed call one rung lower."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rung.core.errors import DeviceLost, NoRung, OutOfMemory
from rung.core.plugins import Plugin
from rung.core.types import YES, Case, Climb, Device, Format, Ladder, Rung, StepClass, StepDown, Verdict, no, resolve
from rung.core.value import FrozenDict
from rung.diagnosis import Match, classify
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.ops import LADDERS
from rung.ops.linear import ON_DEVICE
from rung.ops.rasterize import where
from rung.ops.token_choice import Chosen, Row
from rung.run import cpu_level, self_check
from rung.run.journal import Journal
from rung.run.torch_device import location

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rung.ops.decode_step.parts import Room

#: Functions (encoded, threads) -> state of the packings that are made without torch, which can be imported meanwhile.
PACKERS = {"r16": "rung.kernels.cpu.pack.packing:pack", "mapped": "rung.kernels.cpu.pack.packing:as_stored"}
#: Packings that hold no more than the stored weight, or the only ones of their device.
AS_STORED = ("stored", "webgpu", "mapped")
#: Packings of an embedding that is no tied head.
OF_ITS_OWN = ("stored", "webgpu")
#: Calls with at most this many rows are one class of shapes, calls with more are another.
FEW = 8
_MANY = 256
#: The case of every choice of tokens.
SAMPLE = Case("sample", "f32", "f32", (1, _MANY))


class Binder:
    """Binds ops on one device: the highest rung that takes the case and computes what ``ref`` computes.

    ``packed`` False holds every weight as it is stored, and computes with exact activations unless ``mapped``.
    ``ladders`` replaces the registered ones.
    """

    def __init__(
        self,
        device: Device,
        journal: Journal,
        *,
        dtype: str = "f32",
        threads: int = 1,
        packed: bool = True,
        mapped: bool = False,
        ladders: Mapping[str, Ladder] = LADDERS,
    ) -> None:
        self.device = device
        self.journal = journal
        self.dtype = dtype
        self.threads = threads
        self._packed, self._plain = packed, AS_STORED if mapped else AS_STORED[:2]
        self._ladders = ladders
        self._proofs: dict[tuple[Rung, str], Verdict] = {}
        self._choosing = threading.Lock()
        cpu_level.adopt(device)

    def prove(self, cases: Iterable[Case], apart: bool = False) -> None:
        """Self-checks, in one child process, the rungs that these cases climb to and that have no proof yet.

        ``apart``: rows are looked up in a weight of their own (``OF_ITS_OWN``).
        """
        distinct = list(dict.fromkeys(cases))
        while pairs := [(rung, case) for case in distinct if (rung := self.unproved(case, apart))]:
            self._prove(pairs)

    def _prove(self, pairs: Iterable[tuple[Rung, Case]]) -> None:
        """Keep verdicts; those of a level of CPU instructions that is left for a lower one hold no longer."""

        def step_down(step: StepDown) -> None:
            self._proofs.clear()
            self.journal.step(step)

        found = self_check.prove(self.device, pairs, self.journal.say, step_down)
        self._proofs |= found

    def unproved(self, case: Case, apart: bool) -> Rung | None:
        """Return the rung that the case would climb to and that no self-check has proved here, or None."""
        own = apart and case.op == "embedding"
        rung = self._climb(case, lambda name: not own or name in OF_ITS_OWN).rung
        known = rung is None or rung.name == "ref" or (rung, self_check.class_of(case)) in self._proofs
        return None if known else rung

    def likely(self, case: Case) -> str:
        """Return the name of the rung that the case climbs to as far as is known, empty where there is none."""
        rung = self._climb(case).rung
        return rung.name if rung else ""

    def choose(self, case: Case, packing: Callable[[str], bool] = lambda name: True) -> Climb:
        """The highest rung that takes the case, is not in quarantine, and passes its self-check.

        ``packing`` says which layouts of the weight will do.
        """
        while True:
            climb = self._climb(case, packing)
            rung = climb.rung
            if rung is None or rung.name == "ref":
                return climb
            name = (rung, self_check.class_of(case))
            if name not in self._proofs:
                self._prove([(rung, case)])
            if self._proofs[name]:
                return climb

    def _climb(self, case: Case, packing: Callable[[str], bool] = lambda name: True) -> Climb:
        def allow(rung: Rung) -> Verdict:
            return self._allowed(rung, case) if packing(rung.packing) else no("needs another layout of the weight")

        return self._ladders[case.op].climb(self.device, case, allow)

    def _allowed(self, rung: Rung, case: Case) -> Verdict:
        broken = self.journal.broken(self.device.id, rung, case.format)
        if broken:
            return no(broken, StepClass.BROKEN)
        if case.op in ("linear", "embedding") and not self._packed and rung.packing not in self._plain:
            return no("would hold a wider copy of the weight than the budget allows")
        return self._proofs.get((rung, self_check.class_of(case)), YES)

    def linear(self, encoded: Encoded) -> Linear:
        """The weight, packed for the rungs that multiply it by few and by many rows of activations.

        Takes the best packing that has a rung for both, so that a weight is held once; imports no torch for weights
        that are packed. Raises ``NoRung``.
        """
        rows, columns = encoded.shape
        few_case, many_case = (
            Case("linear", encoded.format.name, self.dtype, (count, rows, columns)) for count in (1, _MANY)
        )
        unpaired: set[str] = set()
        with self._choosing:  # several threads pack weights
            self.prove((few_case, many_case))
            while True:
                few = self.choose(few_case, lambda name: name not in unpaired)
                shared = self.record(few_case, few).packing
                many = self.choose(many_case, shared.__eq__)
                if many.rung is not None:
                    break
                unpaired.add(shared)
            rungs = (self.record(few_case, few), self.record(many_case, many))
        if shared in PACKERS:
            state = resolve(PACKERS[shared])(encoded, self.threads)
        else:
            try:
                state = self.prepare(rungs[0], encoded)
            except Exception as error:
                if not rungs[0].plugin:
                    raise
                self.failed(rungs[0], few_case, error)
                return self.linear(encoded)
        return Linear(self, encoded.format, encoded.shape, (few_case, many_case), rungs, state)

    def prepare(self, rung: Rung, encoded: Encoded) -> Any:
        """Return the state of a rung; those of stored weights compute on the device of what they multiply with."""
        options = {"device": location(self.device.id)} if rung.packing in ON_DEVICE else {}
        return rung.load().prepare(encoded, dtype=self.dtype, threads=self.threads, **options)

    def attention(self, heads: int, kv_heads: int, head_dim: int, cache_dtype: str, **options: Any) -> Attention:
        """Attention of one layer; ``options`` are window and softcap."""
        return Attention(self, heads, kv_heads, head_dim, cache_dtype, FrozenDict(options))

    def rasterizer(self, **options: Any) -> Rasterizer:
        """Splats to pictures; ``options`` are degree and antialiased."""
        return Rasterizer(self, FrozenDict(options))

    def record(self, case: Case, climb: Climb) -> Rung:
        """Notes the choice in the journal and returns it; raises ``NoRung`` with the trail when there is none."""
        self.journal.climbed(self.device.id, case.op, case.format, climb)
        if climb.rung is None:
            raise NoRung(
                f"No rung computes {case.op} in {case.format} on {self.device.name}.",
                [f"{refusal.rung}: {refusal.reason}" for refusal in climb.refusals],
                [f"rung ladder {case.op} {case.format}"],
            )
        return climb.rung

    def failed(self, rung: Rung, case: Case, error: Exception) -> None:
        """Judges an exception of a rung: quarantines it, or raises what it means.

        Raises ``OutOfMemory``, ``DeviceLost``, or the exception itself when it is a bug and no question of
        compatibility. After a return the call may be repeated with what ``choose`` gives now.
        """
        found = classify(error)
        if found is None and rung.plugin:
            reason = f"it raised {type(error).__name__}: {error}"
            Plugin("rung.rungs", f"{rung.op} {rung.name}", rung.plugin).leave_out(reason)
            self.distrust(rung, case, reason)
            return
        if found is None or rung.name == "ref":
            raise error
        if found.signature.step is StepClass.OUT_OF_MEMORY:
            raise _out_of_memory(self.device, case.op, found) from error
        if found.signature.step is StepClass.DEVICE_LOST:
            raise _lost(self.device, found) from error
        self.distrust(rung, case, found.reason)

    def distrust(self, rung: Rung, case: Case, reason: str) -> None:
        """Quarantines a rung for a reason that was found while running; ``ref`` stays."""
        if rung.name == "ref":
            return
        self.journal.quarantine(self.device.id, rung, case.format, reason)
        below = self.choose(case)
        to = below.rung.name if below.rung else "nothing"
        self.journal.step(StepDown(case.op, rung.name, self.device.id, StepClass.BROKEN, reason, to))


def _out_of_memory(device: Device, op: str, found: Match) -> OutOfMemory:
    ways = ["rung run MODEL --context 1024", "rung run MODEL --format q4_k", "rung plan MODEL"]
    if op == "rasterize":
        ways = [f"rung splat train SCENE --out DIR {less}" for less in ("--max-splats 100000", "--max-resolution 800")]
    return OutOfMemory(f"The memory of {device.name} is full.", [found.reason], ways)


def _lost(device: Device, found: Match) -> DeviceLost:
    return DeviceLost(
        f"{device.name} does not answer any more; nothing else runs there in this process.",
        [found.reason],
        ["start again; if it comes back: rung run MODEL --device cpu", "rung devices --probe"],
    )


class Linear:
    """A weight ``shape`` [out, in] bound to rungs for few and many rows, which share one packing of it, ``state``."""

    def __init__(
        self,
        binder: Binder,
        format: Format,
        shape: tuple[int, int],
        cases: tuple[Case, Case],
        rungs: tuple[Rung, Rung],
        state: Any,
    ) -> None:
        self._binder, self.format, self.shape, self.cases = binder, format, shape, cases
        self.rungs, self.state = rungs, state

    @cached_property
    def _implementations(self) -> tuple[Any, Any]:
        """Return those of both rungs, loaded when first called: they import torch, and whole tokens need none."""
        return self.rungs[0].load(), self.rungs[1].load()

    @property
    def packing(self) -> str:
        """The layout that the weight is held in."""
        return self.rungs[0].packing

    def encoded(self) -> Encoded:
        """The weight in its canonical layout, the one on disk."""
        restored: Encoded = self._implementations[0].restore(self.state)
        return restored

    @property
    def without_torch(self) -> bool:
        """Return whether both rungs multiply arrays."""
        return all(rung.without_torch for rung in self.rungs)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        which = 0 if x.shape[0] <= FEW else 1
        try:
            result: Tensor = self._implementations[which].apply(self.state, x)
            return result
        except Exception as error:
            self._failed(which, error)
        return self(x)

    def multiply(self, x: Floats, room: Room | None = None) -> Floats:
        """Return the same for arrays, without torch; in memory of ``room`` where the rung can write there."""
        which = 0 if x.shape[0] <= FEW else 1
        rung = self._implementations[which]
        try:
            if room is not None and hasattr(rung, "multiply_into"):
                y = room.array(x.shape[0], self.shape[0])
                rung.multiply_into(self.state, x, y)
                return y
            result: Floats = rung.multiply(self.state, x)
            return result
        except Exception as error:
            self._failed(which, error)
        if not self.without_torch:  # the rung below knows tensors only
            import torch

            return self(torch.from_numpy(x)).numpy()
        return self.multiply(x, room)

    def decode(self, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the rows [first, last) of a weight that is held as it is stored, in a dtype there, to be read only."""
        own = getattr(self._implementations[1], "decode", None)
        if own is None:
            plain: Tensor = self.state.read(first, last, device, dtype)
            return plain
        try:
            result: Tensor = own(self.state, first, last, device, dtype)
            return result
        except Exception as error:
            self._failed(1, error)
        return self.decode(first, last, device, dtype)

    def _failed(self, which: int, error: Exception) -> None:
        """Bind the rung below one that failed."""
        self._binder.failed(self.rungs[which], self.cases[which], error)
        lower = self._binder.linear(self.encoded())
        self.rungs, self.state = lower.rungs, lower.state
        self.__dict__.pop("_implementations", None)


class Embedding:
    """Rows of a weight by token id. Shares the state of a tied head; otherwise holds the weight itself, through WebGPU
    on the GPU as kernels there read it."""

    def __init__(self, binder: Binder, encoded: Encoded | None = None, tied: Linear | None = None) -> None:
        self._binder, self._tied = binder, tied
        source = tied if tied is not None else encoded
        assert source is not None
        self.case = Case("embedding", source.format.name, binder.dtype, (1, *source.shape))
        self._encoded = encoded
        self._bind()

    def _bind(self) -> None:
        if self._tied is not None and self._tied.packing in ("stored", "mapped"):
            self._encoded, self._tied = self._tied.encoded(), None  # the same bytes, not a copy
        packings = OF_ITS_OWN if self._tied is None else (self._tied.packing,)
        climb = self._binder.choose(self.case, packings.__contains__)
        if climb.rung is None and self._tied is not None:  # the head's packing cannot be read: a copy of its own
            self._encoded, self._tied = self._tied.encoded(), None
            return self._bind()
        self.rung = self._binder.record(self.case, climb)
        self._implementation = self.rung.load()
        if self._tied is not None:
            self.state = self._tied.state  # kept when the head steps down to another packing
        else:
            assert self._encoded is not None
            self.state = self._binder.prepare(self.rung, self._encoded)
        return None

    def rows(self, ids: Sequence[int]) -> Floats:
        """Return f32 [T, in] of these tokens, without torch."""
        try:
            rows: Floats = self._implementation.rows(self.state, ids)
            return rows
        except Exception as error:
            self._binder.failed(self.rung, self.case, error)
        self._bind()
        return self.rows(ids)

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, in]."""
        try:
            result: Tensor = self._implementation.look_up(self.state, ids)
            return result
        except Exception as error:
            self._binder.failed(self.rung, self.case, error)
        self._bind()
        return self(ids)


class Attention:
    """The attention of a layer: one rung for a single query, one for many."""

    def __init__(
        self, binder: Binder, heads: int, kv_heads: int, head_dim: int, cache_dtype: str, options: FrozenDict[Any]
    ) -> None:
        self._binder = binder
        self.cases = tuple(
            Case("attention", cache_dtype, "f32", (queries, _MANY, heads, kv_heads, head_dim), options)
            for queries in (1, _MANY)
        )
        self._bind()

    def _bind(self) -> None:
        self.rungs = tuple(self._binder.record(case, self._binder.choose(case)) for case in self.cases)
        self.__dict__.pop("_implementations", None)

    @cached_property
    def _implementations(self) -> tuple[Any, ...]:
        """Return those of both rungs, loaded when first called, as a linear's."""
        return tuple(rung.load() for rung in self.rungs)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        """See ``rung.ops.attention``."""
        result: Tensor = self._call("apply", q, keys, values, options)
        return result

    def attend(self, q: Floats, keys: Floats, values: Floats, **options: Any) -> Floats:
        """Return the same for arrays, without torch."""
        result: Floats = self._call("attend", q, keys, values, options)
        return result

    def _call(self, name: str, q: Any, keys: Any, values: Any, options: Mapping[str, Any]) -> Any:
        which = 0 if q.shape[0] == 1 else 1
        try:
            return getattr(self._implementations[which], name)(q, keys, values, **options)
        except Exception as error:
            self._binder.failed(self.rungs[which], self.cases[which], error)
        self._bind()
        return self._call(name, q, keys, values, options)


class Rasterizer:
    """Splats to pictures, and the gradients of splats."""

    def __init__(self, binder: Binder, options: FrozenDict[Any]) -> None:
        self._binder, self._case = binder, Case("rasterize", "f32", "f32", (_MANY, _MANY, _MANY), options)
        self._bind()

    def _bind(self) -> None:
        self.rung = self._binder.record(self._case, self._binder.choose(self._case))
        self._implementation, self._where = self.rung.load(), where(self.rung, self._binder.device.id)

    def __call__(self, *arguments: Any) -> Any:
        """See ``rung.ops.rasterize``."""
        try:
            return self._implementation.apply(*arguments, **self._where)
        except Exception as error:
            self.step_down(error)
        return self(*arguments)

    def step_down(self, error: Exception) -> None:
        """Step down after a failure on the way back, which may then be repeated. Raises as ``Binder.failed``."""
        self._binder.failed(self.rung, self._case, error)
        self._bind()

    def distrust(self, reason: str) -> None:
        """Leaves a rung whose numbers are no good for the one below; ``ref`` is kept."""
        self._binder.distrust(self.rung, self._case, reason)
        self._bind()


class Sample:
    """Rows of logits to their next tokens."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._bind()

    def _bind(self) -> None:
        self.rung = self._binder.record(SAMPLE, self._binder.choose(SAMPLE))
        self._implementation: Any = None  # loaded when first called, as a linear's

    def __call__(self, logits: Floats, rows: Sequence[Row]) -> list[Chosen]:
        """See ``rung.ops.sample``."""
        try:
            if self._implementation is None:
                self._implementation = self.rung.load()
                self._state = self._implementation.prepare(threads=self._binder.threads)
            found: list[Chosen] = self._implementation.apply(self._state, logits, rows)
            return found
        except Exception as error:
            self._binder.failed(self.rung, SAMPLE, error)
        self._bind()
        return self(logits, rows)


class Step:
    """Batches of tokens on one rung of ``decode_step``; see there. Prepared again one rung lower when a call fails."""

    def __init__(self, binder: Binder, case: Case) -> None:
        self._binder, self.case = binder, case
        self._choose()

    def _choose(self) -> None:
        self.rung = self._binder.record(self.case, self._binder.choose(self.case))
        self._implementation = self.rung.load()

    @property
    def block(self) -> int:
        """Return the positions of a block of the cache that the rung wants."""
        return int(self._implementation.block)

    def same_bytes(self, state: Step) -> bool:
        """Return whether logits do not depend on what is computed beside them."""
        return bool(self._implementation.same_bytes(self._state))

    def prepare(self, weights: Any, pool: Any, *, threads: int) -> Step:
        """Bind weights and caches; the state is this object itself, because it changes when a rung fails."""
        self._bound = (weights, pool, threads)
        self._state = self._implementation.prepare(weights, pool, threads=threads)
        return self

    def rows_without_torch(self, state: Step) -> int | None:
        """Return how many rows a batch may have without torch; None for any number."""
        rows: int | None = self._implementation.rows_without_torch(self._state)
        return rows

    def look_ahead(self, state: Step) -> int:
        """Return how many tokens the rung chooses at most before it comes back; 0 where it gives logits alone."""
        return int(self._implementation.look_ahead(self._state))

    def choose(self, state: Step, rows: Any, settings: Sequence[Row]) -> Sequence[int]:
        """Return the next tokens by their settings, or none where the rung failed and another one goes on."""
        try:
            found: Sequence[int] = self._implementation.choose(self._state, rows, settings)
            return found
        except Exception as error:
            self._step_down(error)
        return ()

    def apply(self, state: Step, batch: Sequence[Any]) -> Floats:
        """Return logits [outputs, vocabulary] of a batch of ``SequenceRows``."""
        return self._call("apply", batch)

    def through(self, state: Step, batch: Sequence[Any], hidden: Floats) -> Floats:
        """Return hidden states behind the layers that are bound, of those before them."""
        return self._call("through", batch, hidden)

    def finish(self, state: Step, batch: Sequence[Any], hidden: Floats) -> Floats:
        """Return logits [outputs, vocabulary] of hidden states before the layers that are bound."""
        return self._call("finish", batch, hidden)

    def _call(self, name: str, *arguments: Any) -> Floats:
        try:
            result: Floats = getattr(self._implementation, name)(self._state, *arguments)
            return result
        except Exception as error:
            self._step_down(error)
        return self._call(name, *arguments)

    def _step_down(self, error: Exception) -> None:
        self._binder.failed(self.rung, self.case, error)
        self._choose()
        weights, pool, threads = self._bound
        self.prepare(weights, pool, threads=threads)
