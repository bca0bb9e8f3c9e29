"""The parts of an encoder, read from the model's files, encoded where the plan says so, and bound to rungs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rung import formats
from rung.core.types import Case, Placement
from rung.engine.weight_loader import WeightLoader
from rung.formats.codec import Floats
from rung.formats.stacking import stacked_format
from rung.models.card import Encoder
from rung.models.cards.encoder import EncoderCard
from rung.ops.encoder.weights import EncoderWeights
from rung.planning.network_spec import is_table
from rung.planning.weight_plan import Weight, encoder_case
from rung.run.binding import Binder
from rung.run.torch_device import torch_name

#: Rows of a linear: few and many.
_ROWS = (1, 256)


class EncoderLoader(WeightLoader):
    """See ``rung.ops.encoder.weights.EncoderParts``."""

    @property
    def _encoder(self) -> Encoder:
        assert isinstance(self.card, EncoderCard)
        return self.card.encoder

    @property
    def device_name(self) -> str:
        """torch's name of where everything computes."""
        return torch_name(self.plan.placements[0].device)

    def table(self, role: str) -> Floats:
        """The rows of ``positions`` or ``types`` in the format of the plan, f32."""
        weights = self._weights[self.plan.placements[0].device]
        tensor = self.card.tensor(role)
        return formats.decode(formats.convert(self._reader.read(tensor), weights[role].format, tensor.name, 1))

    def holds(self, role: str) -> bool:
        """Return whether the model has that tensor, or one is made of others."""
        return role in self._linears or super().holds(role)

    def _stacks(self, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Let q, k and v of a layer be one weight where they are packed alike: a product of more rows takes less."""
        weights = self._weights[self.plan.placements[0].device]
        found: dict[str, tuple[str, ...]] = {}
        for role in roles:
            layer = role.rpartition(".")[0]
            several = tuple(f"{layer}.{each}" for each in "qkv")
            if role not in several or not set(several) <= set(roles):
                found[role] = (role,)
                continue
            whole = stacked_format([(weights[each].format, weights[each].tensor.shape) for each in several])
            if whole == weights[role].format and all(weights[each].packing == "r16" for each in several):
                found[f"{layer}.qkv"] = several
            else:
                found[role] = (role,)
        return found

    def encode(self) -> Encode:
        """Texts, once every linear is bound."""
        return Encode(self._binders[self.plan.placements[0].device], encoder_case(self._encoder))

    def _cases(self, weights: Sequence[Weight], placement: Placement, dtype: str) -> Iterator[Case]:
        for weight in weights:
            if weight.tensor.role == "embed":
                yield Case("embedding", weight.format.name, dtype, (1, *weight.tensor.shape))
            elif weight.multiplies and not is_table(weight.tensor.role):
                for count in _ROWS:
                    yield Case("linear", weight.format.name, dtype, (count, *weight.tensor.shape))

    def _likely_step(self, binder: Binder, cases: Sequence[Case]) -> Iterator[Case]:
        yield encoder_case(self._encoder)


class Encode:
    """Texts on one rung of ``encoder``; see there. Prepared again one rung lower when a call fails."""

    def __init__(self, binder: Binder, case: Case) -> None:
        self._binder, self.case = binder, case
        self._choose()

    def _choose(self) -> None:
        self.rung = self._binder.record(self.case, self._binder.choose(self.case))
        self._implementation = self.rung.load()

    def prepare(self, weights: EncoderWeights, threads: int) -> None:
        """Bind weights."""
        self._bound = (weights, threads)
        self._state: Any = self._implementation.prepare(weights, threads=threads)

    def apply(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden] of all texts."""
        try:
            hidden: Floats = self._implementation.apply(self._state, texts)
            return hidden
        except Exception as error:
            self._binder.failed(self.rung, self.case, error)
        self._choose()
        self.prepare(*self._bound)
        return self.apply(texts)
