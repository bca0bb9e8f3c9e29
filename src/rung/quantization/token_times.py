"""Predict how long a device multiplies each matrix for a token, and how many tokens a second a mixture gives there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rung.core.types import Device, Format
from rung.models.card import ModelCard, Tensor
from rung.planning.network_spec import Subject
from rung.planning.speed import PROMPT, groups, rates, seconds_of_products
from rung.planning.weight_plan import alike, compute_dtype, plan_weights


class TokenTimes:
    """The times of a model on a device, with the kernels that a plan takes there."""

    def __init__(self, card: ModelCard, device: Device) -> None:
        self.device, self._subject = device, Subject.of_card(card)
        self._places = {tensor.role: index for index, tensor in enumerate(card.tensors)}

    def seconds(self, tensor: Tensor, fmt: Format) -> float | None:
        """Return how long a matrix takes for a token, 0 where it is only looked up in. None: no kernel takes it."""
        changed = self._stored(self._subject, {tensor.role: fmt})
        index = self._places[tensor.role]
        weight = alike(changed, None, self.device, compute_dtype(self.device, False), True, ((index,),))[0].weight
        if not weight.rung:
            return None
        return seconds_of_products(groups([(weight, 1)], changed), self.device)

    def tokens_per_second(self, chosen: Mapping[str, Format]) -> float:
        """Return the tokens a second of a mixture, by role, after a prompt of the usual length."""
        changed = self._stored(self._subject, chosen)
        weights = plan_weights(changed, None, self.device, compute_dtype(self.device, False), True)
        parts = groups([(weight, 1) for weight in weights], changed)
        context = min(changed.shape.context or PROMPT, 2 * PROMPT)
        return rates(parts, changed, self.device, context, "f16", PROMPT).decode

    def _stored(self, subject: Subject, chosen: Mapping[str, Format]) -> Subject:
        tensors = (
            replace(each, format=chosen[each.role].name, bytes=chosen[each.role].bytes(each.shape), source=None)
            if each.role in chosen
            else each
            for each in subject.tensors
        )
        return replace(subject, tensors=tuple(tensors))
