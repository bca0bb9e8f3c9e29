"""Numbers of a part as keywords that llguidance enforces as JSON schemas mean them.

llguidance reads the digits of a fraction inexactly where there are many, and lets an edge through that is excluded: so
bounds have few digits, rounded inwards, and are never excluded.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from rung.server.child.schemas.parts import MOST_DIGITS, MOST_INTEGER, Contradiction, Part, SchemaError

#: Multiples at most that are listed.
_MOST_LISTED = 256
#: The finest step of a bound, as a power of ten.
_FINEST = -18


def numbers(part: Part) -> dict[str, Any]:
    """Return a schema of the numbers that a part lets through. Raises ``Contradiction`` for none, and ``SchemaError``
    for numbers that readers of JSON would round."""
    whole = "fraction" not in part.kinds
    if max(part.least, part.above) > MOST_INTEGER or min(part.most, part.below) < -MOST_INTEGER:
        raise SchemaError(f"`minimum` or `maximum` is beyond {MOST_INTEGER:,}, where readers of JSON round")
    if part.values is not None:
        return {"enum": [each for each in part.values if _is_within(each, part)] or _none("`enum` or `const`")}
    if not whole and not any(math.isfinite(each) for each in (part.least, part.above, part.most, part.below)):
        return {"type": "number"} | ({"multipleOf": _plain(_multiple(part))} if part.multiples else {})
    low, high = (_whole_bounds if whole else _bounds)(part)
    if low > high:
        _none("`minimum` and `maximum`")
    found = {"type": "integer" if whole else "number", "minimum": _plain(low), "maximum": _plain(high)}
    return found if not part.multiples else _multiples(found, low, high, _multiple(part))


def _none(keywords: str) -> list[Any]:
    raise Contradiction(f"no number is within its {keywords} and its other keywords")


def _plain(value: Decimal) -> float:
    return float(value) if value % 1 else int(value)


def _is_within(value: Any, part: Part) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    within = part.least <= value <= part.most and part.above < value < part.below
    return within and not any(Decimal(str(value)) % multiple for multiple in part.multiples)


def _whole_bounds(part: Part) -> tuple[Decimal, Decimal]:
    least, above = max(part.least, -MOST_INTEGER), max(part.above, -MOST_INTEGER - 1)
    most, below = min(part.most, MOST_INTEGER), min(part.below, MOST_INTEGER + 1)
    return Decimal(max(math.ceil(least), math.floor(above) + 1)), Decimal(min(math.floor(most), math.ceil(below) - 1))


def _bounds(part: Part) -> tuple[Decimal, Decimal]:
    """Return the least and the largest number, to so many digits."""
    low, high = max(part.least, part.above, -MOST_INTEGER), min(part.most, part.below, MOST_INTEGER)
    return _rounded(low, low == part.above, ROUND_CEILING), _rounded(high, high == part.below, ROUND_FLOOR)


def _rounded(bound: float, is_excluded: bool, rounding: str) -> Decimal:
    value = Decimal(str(bound))
    step = Decimal(1).scaleb(max(value.adjusted() - MOST_DIGITS + 1, _FINEST) if value else 1 - MOST_DIGITS)
    found = value.quantize(step, rounding) if value else value
    if is_excluded and found == value:
        found += step if rounding == ROUND_CEILING else -step
    return found


def _multiple(part: Part) -> Decimal:
    """Return a number of which multiples are multiples of all that are named."""
    if len(part.multiples) == 1:
        return next(iter(part.multiples))
    if any(each % 1 for each in part.multiples):
        raise SchemaError("several `multipleOf` with fractions cannot be enforced together")
    return Decimal(math.lcm(*(int(each) for each in part.multiples)))


def _multiples(schema: dict[str, Any], low: Decimal, high: Decimal, multiple: Decimal) -> dict[str, Any]:
    """Return a schema of numbers, but of multiples alone; few are listed."""
    first, last = math.ceil(low / multiple), math.floor(high / multiple)
    if last - first >= _MOST_LISTED:
        return {**schema, "multipleOf": _plain(multiple)}
    values = [number * multiple for number in range(first, last + 1)]
    kept = [_plain(each) for each in values if schema["type"] == "number" or not each % 1]
    return {"enum": kept or _none("`multipleOf`, `minimum` and `maximum`")}
