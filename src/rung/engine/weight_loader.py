"""The parts of a model, read from the model's files, encoded where the plan says so, and bound to rungs.

Weights are read, encoded and packed by threads of their own, beside whatever is imported meanwhile. Nothing here
imports torch for weights that are packed: a short prompt is answered without it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from rung import formats
from rung.core.shield import Outcome, Workers
from rung.core.types import Case, Device, Placement, Plan
from rung.core.value import FrozenDict
from rung.engine.scheduling.segments import Segment, SegmentedStep
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.formats.stacking import stacked
from rung.kernels.webgpu import is_webgpu
from rung.models.card import Decoder, ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.decoder_memory import IN_BLOCKS
from rung.models.reader import Reader
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject, is_table
from rung.planning.placement import embedding_device, is_lossless, is_segmented
from rung.planning.weight_plan import WIDER, Weight, compute_dtype, plan_weights, reads_without_torch
from rung.run.binding import Attention, Binder, Embedding, Linear, Step
from rung.run.journal import Journal
from rung.run.torch_device import location

_MANY = 256
#: Threads that pack stored weights at once; each holds a slab of the file. Encoding takes all threads for one weight.
_PACKERS = 8


class WeightLoader:
    """The parts of a decoder, see ``rung.ops.decode_step.parts.Parts``; those of an encoder: ``EncoderLoader``.

    A context manager: reading starts when it is entered and ends at the latest when it is left.

    ``progress`` is called with (bytes of matrices done, bytes in all) from a thread that reads.
    """

    def __init__(
        self,
        card: ModelCard | EncoderCard,
        plan: Plan,
        devices: Sequence[Device],
        reader: Reader,
        journal: Journal,
        progress: Callable[[int, int], None],
    ) -> None:
        self.card, self.plan, self._reader, self._progress = card, plan, reader, progress
        self._done, self._all, self._counting = 0, 0, threading.Lock()
        #: Whether a device of WebGPU and the processor share the layers, each with a rung of whole steps.
        self.segmented = is_segmented(plan.placements)
        self._embeds = embedding_device(plan.placements)
        several = min(plan.threads, _PACKERS) if plan.format == "stored" else 1
        self._threads = Workers(several)
        self._linears: dict[str, Outcome[Linear]] = {}
        self._rows: Outcome[Encoded] | None = None
        by_id = {device.id: device for device in devices}
        subject = Subject.of_card(card)
        format = None if plan.format == "stored" else storage(plan.format)
        lossless = is_lossless(subject, format)
        self._binders: dict[str, Binder] = {}
        self._weights: dict[str, Mapping[str, Weight]] = {}
        for placement in plan.placements:
            device = by_id[placement.device]
            dtype = compute_dtype(device, lossless)
            packed = plan.packing in WIDER
            weights = plan_weights(subject, format, device, dtype, packed)
            self._weights[device.id] = {weight.tensor.role: weight for weight in weights}
            self._binders[device.id] = Binder(
                device, journal, dtype=dtype, threads=plan.threads, packed=packed, mapped=plan.packing == "mapped"
            )
            binder, cases = self._binders[device.id], list(self._cases(weights, placement, dtype))
            binder.prove([*cases, *self._likely_step(binder, cases, placement)], apart=not self._shared)
        self._head: Linear | None = None
        self._rungs: defaultdict[str, set[str]] = defaultdict(set)
        self._ordered: set[str] = set()  # devices where columns of a weight lie in an order of their own

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:  # Ctrl-C: nobody else ends the threads
            self._threads.close()
            raise
        return self

    def _begin(self) -> None:
        """Have every weight read and packed."""
        tied = self.card.tied_head
        multiplied = [
            t for t in self.card.tensors if len(t.shape) > 1 and (not is_table(t.role) or (tied and t.role == "embed"))
        ]
        self._all = sum(tensor.bytes for tensor in multiplied)
        if not self._shared and self.holds("embed"):
            self._all += self.card.tensor("embed").bytes
            self._rows = self._threads.submit(self._encoded, "embed", self._embeds)
        multiplied.sort(key=lambda tensor: -tensor.bytes)  # the threads end at about the same time
        stacks = self._stacks([tensor.role for tensor in multiplied])
        self._linears = {role: self._threads.submit(self._bind_linear, roles) for role, roles in stacks.items()}

    def _stacks(self, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the tensors that are one weight, under each other, by its role; here each is one by itself."""
        return {role: (role,) for role in roles}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()

    @property
    def _shape(self) -> Decoder:
        assert isinstance(self.card, ModelCard), "an encoder has an EncoderLoader"
        return self.card.decoder

    @property
    def _shared(self) -> bool:
        """Return whether rows are looked up in the head's packed weight, and not in a copy of its own or on another
        device."""
        return self.card.tied_head and self._embeds == self.plan.placements[-1].device

    def _cases(self, weights: Sequence[Weight], placement: Placement, dtype: str) -> Iterator[Case]:
        """Every class of cases that this model will ask for on one device."""
        shape = self._shape
        for weight in weights:
            rows, columns = (*weight.tensor.shape, 1)[:2]
            if len(weight.tensor.shape) < 2:
                continue
            for count in (1, _MANY):
                yield Case("linear", weight.format.name, dtype, (count, rows, columns))
            if weight.tensor.role == "embed" and placement.device == self._embeds:
                yield Case("embedding", weight.format.name, dtype, (1, rows, columns))
        for layer in () if self._reads_whole(placement.device) else shape.layers[placement.first : placement.last]:
            for queries in (1, _MANY):
                sizes = (queries, _MANY, shape.heads, shape.kv_heads, shape.head_dim)
                options = {"window": layer.window, "softcap": shape.attention_softcap}
                yield Case("attention", self._read_as, "f32", sizes, FrozenDict(options))

    @property
    def _read_as(self) -> str:
        """Return the dtype in which torch's attention reads a cache."""
        return "f32" if self.plan.cache_dtype == "q8_0" else self.plan.cache_dtype

    def _reads_whole(self, device: str) -> bool:
        """Return whether only whole steps read a cache on a device."""
        return self.segmented or is_webgpu(device) or (self.plan.cache_dtype in IN_BLOCKS and device == "cpu")

    def _torch_device(self, role: str) -> str:
        """The device that computes with a role's tensor: with ``embed``, where it is multiplied, as a tied head."""
        parts = role.split(".")
        return self._device_of(int(parts[1])) if parts[0] == "layers" else self.plan.placements[-1].device

    def _device_of(self, layer: int) -> str:
        return next(p.device for p in self.plan.placements if p.first <= layer < p.last)

    @property
    def without_torch(self) -> bool:
        """Return whether the decoder of these parts runs without torch, as the plan reckons."""
        if self.segmented:
            return True
        placement, *others = self.plan.placements
        weights, device = self._weights[placement.device].values(), self._binders[placement.device].device
        return not others and reads_without_torch(Subject.of_card(self.card), weights, device, self.plan.cache_dtype)

    def holds(self, role: str) -> bool:
        """Return whether the model has that tensor."""
        return any(tensor.role == role for tensor in self.card.tensors)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return where each layer computes, as ``device``."""
        return tuple(map(self.device, range(len(self._shape.layers))))

    def device(self, layer: int) -> str:
        """Return where that layer computes, by torch's name; see ``location``."""
        return location(self._device_of(layer))

    def vector(self, role: str) -> Floats:
        """A norm's weight or a bias: f32, one dimension."""
        return formats.decode(self._reader.read(self.card.tensor(role))).reshape(-1)

    def linear(self, role: str) -> Linear:
        """x [T, in] -> [T, out]; ``head`` gives the embedding's matrix when the head is tied."""
        return self._tied() if role == "head" and self.card.tied_head else self._bind(role)

    def look_up(self) -> Embedding:
        """ids [T] int64 -> the rows of ``embed`` [T, hidden] f32."""
        binder = self._binders[self._embeds]
        if self._rows is None:
            return Embedding(binder, tied=self._tied())
        return Embedding(binder, encoded=self._rows.result())

    def attention(self, layer: int) -> Attention | None:
        """Return the attention of a layer, for one query and many; None where only whole steps read the cache."""
        if self._reads_whole(self._device_of(layer)):
            return None
        shape = self._shape
        return self._binders[self._device_of(layer)].attention(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            self._read_as,
            window=shape.layers[layer].window,
            softcap=shape.attention_softcap,
        )

    def step(self) -> Step | SegmentedStep:
        """Whole tokens, once every linear is bound."""
        placements = self.plan.placements
        if self.segmented:
            return SegmentedStep([Segment(each.first, each.last, self._part_step(each)) for each in placements])
        rungs = set[str]().union(*self._rungs.values())
        return Step(self._binders[placements[0].device], self._step_case(rungs, bool(self._ordered)))

    def _part_step(self, placement: Placement) -> Step:
        """Bind the rung for the layers of one device."""
        device = placement.device
        case = self._step_case(self._rungs[device], device in self._ordered, placement)
        return Step(self._binders[device], case)

    def _step_case(self, rungs: set[str], ordered: bool, part: Placement | None = None) -> Case:
        """Whole tokens whose linears take those rungs for a row; those of a ``part`` of the layers."""
        shape = self._shape
        options = {
            "linears": tuple(sorted(rungs)),
            "head_dim": shape.head_dim,
            "devices": 1 if part else len(self.plan.placements),
            "ordered": ordered,
            **({"part": True} if part else {}),
        }
        layers = part.last - part.first if part else len(shape.layers)
        sizes = (layers, shape.hidden, shape.feed_forward, shape.vocabulary)
        return Case("decode_step", self.plan.cache_dtype, "f32", sizes, FrozenDict(options))

    def _likely_step(self, binder: Binder, cases: Sequence[Case], placement: Placement) -> Iterator[Case]:
        """Whole tokens as they will be if every rung passes its check: to be checked with these, not after them."""
        rungs = {binder.likely(case) for case in cases if case.op == "linear" and case.shape[0] == 1}
        if (len(self.plan.placements) == 1 or self.segmented) and "" not in rungs:
            yield self._step_case(rungs, False, placement if self.segmented else None)

    def _tied(self) -> Linear:
        if self._head is None:
            self._head = self._bind("embed")
        return self._head

    def _bind(self, role: str) -> Linear:
        linear, device = self._linears.pop(role).result(), self._torch_device(role)
        self._rungs[device].add(linear.rungs[0].name)
        if linear.format.layout == "ordered":
            self._ordered.add(device)
        return linear

    def _bind_linear(self, roles: Sequence[str]) -> Linear:
        """The tensors in the format of the plan, as one weight, packed on the device of its layer."""
        device = self._torch_device(roles[0])
        encoded = [self._encoded(role, device) for role in roles]
        whole = encoded[0] if len(encoded) == 1 else stacked(encoded)
        assert whole is not None, "stacked_format has found a format"
        bound = self._binders[device].linear(whole)
        for role in roles:
            self._reader.done(self.card.tensor(role))
        return bound

    def _encoded(self, role: str, device: str) -> Encoded:
        """The tensor in the format of the plan; encoded now when it is stored in another one."""
        tensor = self.card.tensor(role)
        stored = self._reader.read(tensor)
        with self._counting:
            self._done += tensor.bytes
            self._progress(self._done, self._all)
        return formats.convert(stored, self._weights[device][role].format, tensor.name, self.plan.threads)
