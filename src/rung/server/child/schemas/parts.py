"""Keywords of JSON schemas that hold of one value together, merged into a part.

A schema is a choice of parts: ``allOf``, references and what stands beside them are merged, ``anyOf`` and ``oneOf`` are
choices. Nothing is left out here and nothing added: a part means what the keywords mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

from rung.server.child.schemas.texts import EXACT_FORMATS, FORMATS, UNENFORCEABLE_FORMATS, PatternError, portable

#: The kinds of values; a number is an integer or has a fraction.
TYPES = ("null", "boolean", "integer", "fraction", "string", "array", "object")
_NAMES = {**{name: (name,) for name in TYPES if name != "fraction"}, "number": ("integer", "fraction")}
#: Integers from here on are not the same to all readers of JSON.
MOST_INTEGER = 2**53 - 1
#: Digits of a fraction that all read alike, and those behind the point.
MOST_DIGITS, _MOST_BEHIND = 15, 22
#: Numbers from here on are no bounds.
_UNBOUNDED = 1e300
#: Items and properties, and characters, at most that a schema may require.
_MOST_COUNT, _MOST_LENGTH = 4096, 2**16
#: The kind of value that a keyword applies to.
APPLIES_TO = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minItems", "maxItems", "items", "prefixItems", "additionalItems"), "array"),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties", "unevaluatedProperties", "propertyNames"), "object"),
}
#: Keywords that cannot be enforced while an answer is written.
UNENFORCEABLE = (
    *("not", "if", "contains", "dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedItems", "$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
)


class SchemaError(ValueError):
    """A schema that is none, or that cannot be enforced."""


class Contradiction(Exception):
    """Keywords that no value meets together; the message says which."""


@dataclass(frozen=True)
class Names:
    """The rules of one schema for the properties of an object. ``evaluates`` says whether ``unevaluatedProperties``
    leaves the properties that it names alone."""

    properties: Mapping[str, Any] = field(default_factory=dict)
    patterns: Mapping[str, Any] = field(default_factory=dict)
    additional: Any = None
    evaluates: bool = True

    def of(self, name: str) -> list[Any]:
        """Return the schemas that it has for a property, in a list that may be empty."""
        if name in self.properties:
            return [self.properties[name]]
        return [] if self.additional is None else [self.additional]


@dataclass(frozen=True)
class Items:
    """The rules of one schema for the items of an array: the first ones, and the others."""

    first: Sequence[Any] = ()
    others: Any = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """Keywords that hold together. ``values`` are all that the value may be, if they are listed; ``applies_to`` are the
    kinds that its keywords apply to; ``chosen`` says which branch of a ``oneOf``, by the number of that; ``tags`` are
    the properties that answers have, and other values need not, so that these branches are apart."""

    types: frozenset[str] = frozenset(TYPES)
    named: bool = False
    applies_to: frozenset[str] = frozenset()
    values: tuple[Any, ...] | None = None
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    multiples: frozenset[Decimal] = frozenset()
    patterns: tuple[str, ...] = ()
    #: Least and most characters, items and properties.
    lengths: tuple[int, int | None] = (0, None)
    counts: tuple[int, int | None] = (0, None)
    sizes: tuple[int, int | None] = (0, None)
    items: tuple[Items, ...] = ()
    names: tuple[Names, ...] = ()
    required: tuple[str, ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()
    tags: tuple[str, ...] = ()

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return the kinds that an answer may have: where none is named, those that its keywords apply to."""
        return self.types if self.named or not self.applies_to else self.types & self.applies_to

    @cached_property
    def identities(self) -> frozenset[str]:
        """Return texts that are the same for equal values, of all values that are listed."""
        return frozenset(identity(each) for each in self.values or ())

    @cached_property
    def mandatory(self) -> tuple[str, ...]:
        """Return the names of properties that every answer has."""
        return tuple(dict.fromkeys(self.required + self.tags))

    @cached_property
    def properties(self) -> list[str]:
        """Return the names of properties that schemas name, in their order."""
        return list(dict.fromkeys([*(name for each in self.names for name in each.properties), *self.required]))

    @cached_property
    def is_open(self) -> bool:
        """Return whether objects have properties that nobody names: where a schema says so, or none names any."""
        rules = [each.additional for each in self.names if each.additional is not None]
        return False not in rules if rules else not self.names and not self.required

    def closed(self) -> Part:
        """Return the part of which objects have no properties but those that its schemas name, as
        ``unevaluatedProperties: false`` says."""
        evaluating = [each for each in self.names if each.evaluates]
        if any(each.additional not in (None, False) for each in evaluating):
            return self
        if len(self.names) == 1 == len(evaluating):
            return replace(self, names=(replace(evaluating[0], additional=False),))
        properties = dict.fromkeys((name for each in evaluating for name in each.properties), True)
        patterns = dict.fromkeys((key for each in evaluating for key in each.patterns), True)
        return replace(self, names=(*self.names, Names(properties, patterns, additional=False)))

    def property_schemas(self, name: str) -> list[Any]:
        """Return the schemas that a property must be of."""
        return [schema for each in self.names for schema in each.of(name)]


def merged(one: Part, other: Part) -> Part:
    """Return the part of values that two parts let through. Raises ``Contradiction``."""
    types = one.types & other.types
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = tuple(each for each in one.values if identity(each) in other.identities)
    if values is not None:
        values = tuple(each for each in values if type_of(each) in types)
        types &= {type_of(each) for each in values}
    if not types:
        raise Contradiction("its `type`, `enum` and `const` leave no value" if values == () else _kinds(one, other))
    return Part(
        types=types,
        named=one.named or other.named,
        applies_to=one.applies_to | other.applies_to,
        values=values,
        least=max(one.least, other.least),
        above=max(one.above, other.above),
        most=min(one.most, other.most),
        below=min(one.below, other.below),
        multiples=one.multiples | other.multiples,
        patterns=tuple(dict.fromkeys(one.patterns + other.patterns)),
        lengths=_both(one.lengths, other.lengths),
        counts=_both(one.counts, other.counts),
        sizes=_both(one.sizes, other.sizes),
        items=one.items + other.items,
        names=one.names + other.names,
        required=tuple(dict.fromkeys(one.required + other.required)),
        chosen=one.chosen + other.chosen,
        tags=tuple(dict.fromkeys(one.tags + other.tags)),
    )


def _kinds(one: Part, other: Part) -> str:
    first, second = ("/".join(name for name in TYPES if name in each.types) for each in (one, other))
    return f"a value cannot be {first} and {second}: two `type`s"


def _both(one: tuple[int, int | None], other: tuple[int, int | None]) -> tuple[int, int | None]:
    limits = [each for each in (one[1], other[1]) if each is not None]
    return max(one[0], other[0]), min(limits, default=None)


def identity(value: Any) -> str:
    """Return a text that is the same for values that JSON schemas take for the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(identity(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(sorted(json.dumps(name) + ':' + identity(each) for name, each in value.items()))}}}"
    return json.dumps(value)


def type_of(value: Any) -> str:
    """Return the kind of a value."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "fraction"
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def part_of(schema: Mapping[str, Any]) -> Part:
    """Return the keywords of a schema that stand in it alone. Raises ``SchemaError`` for one that is wrong or cannot be
    enforced, and ``Contradiction``."""
    _refuse_unenforceable(schema)
    kinds = {APPLIES_TO[name] for name in schema if name in APPLIES_TO}
    found = Part(applies_to=frozenset(each for name in kinds for each in _NAMES[name]))
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if unknown := [each for each in types if not isinstance(each, str) or each not in _NAMES]:
            raise SchemaError(f"`type` {unknown[0]!r} is none")
        if not types:
            raise SchemaError("`type` must name a kind of value")
        found = replace(found, types=frozenset(kind for each in types for kind in _NAMES[each]), named=True)
    for values in _listed(schema):
        found = merged(found, Part(values=tuple(values), named=True))
    return replace(
        found,
        **_bounds(schema),
        patterns=tuple(_patterns(schema, found)),
        lengths=_limits(schema, "minLength", "maxLength"),
        counts=_limits(schema, "minItems", "maxItems"),
        sizes=_limits(schema, "minProperties", "maxProperties"),
        items=_items(schema),
        names=_names(schema),
        required=tuple(_texts(schema, "required")),
    )


def _refuse_unenforceable(schema: Mapping[str, Any]) -> None:
    for name in UNENFORCEABLE:
        if name in schema:
            raise SchemaError(f"`{name}` cannot be enforced while an answer is written")
    if schema.get("unevaluatedProperties", False) is not False:
        raise SchemaError("`unevaluatedProperties` cannot be enforced but as false")
    if schema.get("uniqueItems", False) is not False and _limits(schema, "minItems", "maxItems")[1] not in (0, 1):
        raise SchemaError("`uniqueItems` cannot be enforced: every item would have to remember all before it")


def _listed(schema: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the lists of values that a value must be in."""
    for name in ("enum", "const"):
        if name in schema:
            values = schema[name] if name == "enum" else [schema[name]]
            if not isinstance(values, list) or not values:
                raise SchemaError("`enum` must be a list of values")
            for each in values:
                _refuse_unwritable(each, name)
            yield values


def _refuse_unwritable(value: Any, keyword: str) -> None:
    """Raise ``SchemaError`` for a value that not all readers of JSON would find in an answer."""
    if isinstance(value, dict):
        for each in value.values():
            _refuse_unwritable(each, keyword)
    elif isinstance(value, list):
        for each in value:
            _refuse_unwritable(each, keyword)
    elif isinstance(value, str):
        if any((each < " " and each not in "\b\f\n\r\t") or each == "\x7f" for each in value):
            raise SchemaError(f"`{keyword}` has a control character, which answers do not have")
    elif isinstance(value, int | float) and not abs(value) <= MOST_INTEGER:
        if isinstance(value, float) or abs(value) >= 2**63 or int(float(value)) != value:
            raise SchemaError(f"`{keyword}` has a number beyond {MOST_INTEGER:,}, which readers of JSON round")
    elif isinstance(value, float) and not _is_kept(value):
        raise SchemaError(f"`{keyword}` has a number of more than {MOST_DIGITS} digits, which is rounded")


def _is_kept(value: float) -> bool:
    """Return whether a fraction is written as it is: llguidance reads its digits, then where the point is."""
    _, digits, exponent = Decimal(str(abs(value))).as_tuple()
    whole, behind = int("".join(map(str, digits))), -int(exponent)
    if len(digits) > MOST_DIGITS + 2 or behind > _MOST_BEHIND:
        return False
    return behind <= 0 or float(whole) / 10.0**behind == abs(value)


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    least, most = _number(schema, "minimum", -math.inf), _number(schema, "maximum", math.inf)
    found: dict[str, Any] = {"least": least, "most": most}
    for name, bound, edge in (("exclusiveMinimum", "above", least), ("exclusiveMaximum", "below", most)):
        if name in schema:  # a truth value was draft 4's
            value = schema[name]
            if value is not False:
                found[bound] = edge if value is True else _number(schema, name, edge)
    if "multipleOf" in schema:
        value = _number(schema, "multipleOf", 1)
        if not 0 < value <= MOST_INTEGER:
            raise SchemaError(f"`multipleOf` must be above 0 and at most {MOST_INTEGER:,}")
        found["multiples"] = frozenset({_decimal(value)})
    return found


def _decimal(value: float) -> Decimal:
    """Return a number as it is written. Raises ``SchemaError`` for one whose digits a float does not keep."""
    scaled, digits = float(value), 0
    while not scaled.is_integer() and digits < 9:
        scaled, digits = scaled * 10, digits + 1
    exact = Decimal(str(value))
    if scaled >= 2**32 or Decimal(int(scaled)).scaleb(-digits) != exact:
        raise SchemaError(f"`multipleOf` {value} has too many digits")
    return exact


def _number(schema: Mapping[str, Any], name: str, default: float) -> float:
    value = schema.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise SchemaError(f"`{name}` must be a number")
    return value if abs(value) < _UNBOUNDED else math.inf if value > 0 else -math.inf


def _limits(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    """Return the least and the most of a count; a most above what can be enforced is lowered to it."""
    for name in (low, high):
        value = schema.get(name, 0)
        is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _UNBOUNDED
        if not is_count or value != int(value):
            raise SchemaError(f"`{name}` must be a whole number of 0 or more")
    least, most = int(schema.get(low, 0)), schema.get(high)
    able = _MOST_LENGTH if low == "minLength" else _MOST_COUNT
    if least > able:
        raise SchemaError(f"`{low}` is more than {able:,}, which cannot be enforced")
    return least, None if most is None else min(int(most), able)


def _patterns(schema: Mapping[str, Any], part: Part) -> Iterator[str]:
    for name in ("pattern", "format"):
        if not isinstance(schema.get(name, ""), str):
            raise SchemaError(f"`{name}` must be a text")
    if "pattern" in schema:
        yield _portable(schema["pattern"], "pattern")
    form = schema.get("format")
    if form is None or "string" not in part.kinds:
        return
    # other formats are notes for readers; of values that are listed the schema says itself that they are of it
    if part.values is None and form in UNENFORCEABLE_FORMATS:
        raise SchemaError(f"`format` {form!r} cannot be enforced; known are {', '.join(FORMATS)}")
    if form in FORMATS and (part.values is None or form in EXACT_FORMATS):
        yield FORMATS[form]


def _portable(pattern: str, keyword: str) -> str:
    try:
        return portable(pattern)
    except PatternError as error:
        raise SchemaError(f"`{keyword}` {pattern[:60]!r}: {error}") from None


def _items(schema: Mapping[str, Any]) -> tuple[Items, ...]:
    first, others = schema.get("prefixItems", []), schema.get("items")
    if isinstance(others, list):  # that of drafts before 2020-12
        first, others = others, schema.get("additionalItems")
    if not isinstance(first, list):
        raise SchemaError("`prefixItems` must be a list of schemas")
    return (Items(first, others),) if first or others is not None else ()


def _names(schema: Mapping[str, Any]) -> tuple[Names, ...]:
    present = [name for name in ("properties", "patternProperties") if name in schema]
    for name in present:
        if not isinstance(schema[name], dict):
            raise SchemaError(f"`{name}` must be an object of schemas")
    patterns = {_portable(key, "patternProperties"): each for key, each in schema.get("patternProperties", {}).items()}
    additional = schema.get("additionalProperties")
    return (Names(schema.get("properties", {}), patterns, additional),) if present or additional is not None else ()


def _texts(schema: Mapping[str, Any], name: str) -> list[str]:
    found = schema.get(name, [])
    if isinstance(found, bool) and name == "required":  # that of draft 3
        raise SchemaError("`required` must be a list of names; a truth value was draft 3's")
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise SchemaError(f"`{name}` must be a list of names")
    return found
