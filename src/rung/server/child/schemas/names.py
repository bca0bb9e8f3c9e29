"""Names that ``propertyNames`` allows, as rules for properties: those that are listed, or a pattern of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rung.server.child.schemas.parts import Names, Part, SchemaError


def named(part: Part, allowed: Sequence[Part]) -> Part:
    """Restrict the names of properties of a part, as one schema has it, to the texts of some others. Raises
    ``SchemaError`` where that cannot be enforced."""
    texts = [each for each in allowed if "string" in each.types]
    if any(each.values is None and not each.patterns and each.lengths == (0, None) for each in texts):
        return part
    if all(each.values is not None for each in texts):
        listed = Names(dict.fromkeys(_listed(texts), True), additional=False, evaluates=False)
        return replace(part, names=(*part.names, listed))
    own = part.names[0] if part.names else Names()
    if own.properties or own.patterns:
        raise SchemaError("`propertyNames` cannot be enforced beside `properties` or `patternProperties` but as `enum`")
    within = True if own.additional is None else own.additional
    names = Names(patterns={_pattern(texts): within}, additional=False, evaluates=own.additional is not None)
    return replace(part, names=(names,))


def _listed(texts: Sequence[Part]) -> Iterator[str]:
    for part in texts:
        if part.patterns:
            raise SchemaError("`propertyNames` cannot be enforced with `pattern` or `format` beside `enum`")
        least, most = part.lengths
        names = (each for each in part.values or () if isinstance(each, str))
        yield from (each for each in names if least <= len(each) <= (math.inf if most is None else most))


def _pattern(texts: Sequence[Part]) -> str:
    """Return a pattern of all texts of the only part."""
    has_lengths = texts[0].lengths != (0, None)
    if len(texts) > 1 or len(texts[0].patterns) + has_lengths > 1:
        raise SchemaError(
            "`propertyNames` can be enforced with one `pattern`, one `format` or lengths, not with several"
        )
    if texts[0].patterns:
        return texts[0].patterns[0]
    least, most = texts[0].lengths
    return rf"^[\x00-\U0010ffff]{{{least},{'' if most is None else most}}}$"
