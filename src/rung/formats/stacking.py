"""Weights under each other as one with the same values, such as the gate and up projections of an expert."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rung.formats import grouped, table
from rung.formats.codebook4 import scales
from rung.formats.codec import Encoded


def stacked(weights: Sequence[Encoded]) -> Encoded | None:
    """The rows of all weights, in their order; None where no one weight holds them.

    That is so of other formats and other columns, of blocks that would reach from one weight into the next, and where
    ordered columns (GPTQ's ``desc_act``) lie in different orders.
    """
    apart = [_with_own_scales(weight) for weight in weights]
    first, *others = apart
    rows = [weight.shape[0] for weight in apart]
    if any(weight.format != first.format or weight.shape[1] != first.shape[1] for weight in others):
        return None
    if first.format.layout == "flat" and any(count * first.shape[1] % first.format.block for count in rows[:-1]):
        return None
    if any(
        not np.array_equal(weight.parts["order"], first.parts["order"]) for weight in others if "order" in first.parts
    ):
        return None
    parts = {
        name: part if name == "order" else np.concatenate([weight.parts[name] for weight in apart])
        for name, part in first.parts.items()
    }
    return Encoded(first.format, (sum(rows), first.shape[1]), parts)


def _with_own_scales(weight: Encoded) -> Encoded:
    """nf4 and fp4 with float32 scales: nested ones have a mean of the whole weight beside them."""
    if not weight.format.nested:
        return weight
    kind, block, _ = weight.format.name.split(":")
    return Encoded(
        table.codebook(kind, int(block), False),
        weight.shape,
        {"data": weight.parts["data"], "absmax": scales(weight)},
    )


def alike(weights: Sequence[Encoded]) -> list[Encoded]:
    """The same values in one format where groups of columns differ only in length: in groups that divide them all.

    Weights whose formats differ in more are returned as they are.
    """
    kinds = {(weight.format.family, _without_group(weight)) for weight in weights}
    if len(kinds) > 1 or kinds.pop()[0] != "grouped":
        return list(weights)
    group = math.gcd(*(weight.format.block for weight in weights))
    fits = group * grouped.GroupCodec(weights[0].format).bits % 8 == 0
    return [grouped.finer(weight, group) for weight in weights] if fits else list(weights)


def _without_group(weight: Encoded) -> str:
    kind, *options = weight.format.name.split(":")
    return ":".join([kind, *options[1:]])
