"""Weights under each other as one with the same values, such as the gate and up projections of an expert."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rung.core.types import Format
from rung.formats import table
from rung.formats.codec import Encoded
from rung.formats.families import grouped
from rung.formats.families.codebook4 import scales


def stacked(weights: Sequence[Encoded]) -> Encoded | None:
    """The rows of all weights, in their order; None where no one weight holds them.

    That is so where ``stacked_format`` has none, and where ordered columns (GPTQ's ``desc_act``) lie in different
    orders.
    """
    apart = [_with_own_scales(weight) for weight in weights]
    first, *others = apart
    if stacked_format([(weight.format, weight.shape) for weight in weights]) is None:
        return None
    if any(
        not np.array_equal(weight.parts["order"], first.parts["order"]) for weight in others if "order" in first.parts
    ):
        return None
    parts = {
        name: part if name == "order" else np.concatenate([weight.parts[name] for weight in apart])
        for name, part in first.parts.items()
    }
    return Encoded(first.format, (sum(weight.shape[0] for weight in apart), first.shape[1]), parts)


def stacked_format(weights: Sequence[tuple[Format, tuple[int, ...]]]) -> Format | None:
    """The format of weights [rows, columns] under each other; None for other formats, other columns, and blocks that
    would reach from one weight into the next."""
    first, columns = _own_scales(weights[0][0]), weights[0][1][1]
    if any(_own_scales(format) != first or shape[1] != columns for format, shape in weights):
        return None
    if first.layout == "flat" and any(shape[0] * columns % first.block for _, shape in weights[:-1]):
        return None
    return first


def _own_scales(format: Format) -> Format:
    """nf4 and fp4 with float32 scales: nested ones have a mean of the whole weight beside them."""
    if not format.nested:
        return format
    kind, block, _ = format.name.split(":")
    return table.codebook(kind, int(block), False)


def _with_own_scales(weight: Encoded) -> Encoded:
    if not weight.format.nested:
        return weight
    parts = {"data": weight.parts["data"], "absmax": scales(weight)}
    return Encoded(_own_scales(weight.format), weight.shape, parts)


def alike(weights: Sequence[Encoded]) -> list[Encoded]:
    """The same values in one format where groups of columns differ only in length: in groups that divide them all.

    Weights whose formats differ in more are returned as they are.
    """
    shared = common([weight.format for weight in weights])
    if shared is None or shared.family != "grouped":
        return list(weights)
    return [grouped.finer(weight, shared.block) for weight in weights]


def common(formats: Sequence[Format]) -> Format | None:
    """The format that ``alike`` brings weights to; None where they stay different."""
    if len(set(formats)) == 1:
        return formats[0]
    kinds = {(format.family, _without_group(format)) for format in formats}
    if len(kinds) > 1 or formats[0].family != "grouped":
        return None
    group, bits = math.gcd(*(format.block for format in formats)), grouped.GroupCodec(formats[0]).bits
    ordered = formats[0].layout == "ordered"
    return (
        table.grouped(formats[0].name.split(":")[0], group, grouped.scale_of(formats[0]), ordered)
        if group * bits % 8 == 0
        else None
    )


def _without_group(format: Format) -> str:
    kind, *options = format.name.split(":")
    return ":".join([kind, *options[1:]])
