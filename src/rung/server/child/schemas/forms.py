"""JSON schemas, rewritten so that every answer that llguidance lets through is valid.

llguidance writes keywords one after the other and forgets: it does not keep names of properties apart, and an escape
may hide one. So a schema becomes nodes, each a choice of forms of one value, in which

- objects have the properties that are named and no others, unless the schema says otherwise;
- what stands beside references, ``allOf``, ``anyOf`` and ``oneOf`` is merged (``parts``);
- branches without an answer that ends are left out;
- what cannot be enforced is refused by its keyword.

Valid answers may be left out, invalid ones are not let in.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any
from urllib.parse import unquote

from rung.server.child.schemas.names import named
from rung.server.child.schemas.numbers import numbers
from rung.server.child.schemas.parts import (
    TYPES,
    Contradiction,
    Part,
    SchemaError,
    merged,
    part_of,
    type_of,
)

#: Branches of a value, choices of properties, and nodes at most.
_MOST_PARTS, _MOST_CHOICES, _MOST_NODES = 256, 64, 8192
#: Levels that stand in one another before they are written as definitions, and that branches are compared in.
_MOST_INLINE, _MOST_COMPARED = 8, 4
#: Characters of the shortest answer at most.
_MOST_SHORTEST = 2**20
_ENDLESS = "what it requires leads back to itself by `$ref`, so that no answer would end"


@dataclass(kw_only=True)
class _Form:
    """One kind of value: keywords for llguidance, and nodes of what is in it by their names."""

    schema: dict[str, Any]
    properties: dict[str, str] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    additional: str | None = None
    first: list[str] = field(default_factory=list)
    others: str | None = None

    def needed(self) -> list[str]:
        """Return the nodes that every value has."""
        required = self.schema.get("required", ())
        found = [self.properties[name] for name in required if name in self.properties]
        least = self.schema.get("minItems", 0)
        found += self.first[:least]
        if self.others is not None and least > len(self.first):
            found.append(self.others)
        if self.additional is not None and not self.patterns and self.schema.get("minProperties", 0) > len(required):
            found.append(self.additional)
        return found

    def shortest(self, known: Mapping[str, int]) -> int:
        """Return about how many characters the shortest value has, from those of the nodes that it needs."""
        needed = self.needed()
        missing = max(self.schema.get("minItems", 0) - len(self.first) - 1, 0)
        others = missing * known[self.others] if self.others is not None and missing else 0
        names = sum(len(name) + 3 for name in self.schema.get("required", ()))
        return 1 + names + int(self.schema.get("minLength", 0)) + sum(known[each] + 1 for each in needed) + others

    def within(self) -> Iterator[str]:
        """Yield the nodes that values may have."""
        yield from self.properties.values()
        yield from self.patterns.values()
        yield from self.first
        yield from (each for each in (self.additional, self.others) if each is not None)


@dataclass
class _Node:
    """A choice of forms; ``reason`` says why there is none."""

    forms: list[_Form]
    reason: str = ""


def enforceable_schema(text: str) -> str:
    """Return a schema that llguidance can enforce, and whose answers are all valid. Raises ``SchemaError``."""
    try:
        root = json.loads(text)
        nodes = _Nodes(root)
        return json.dumps(_Writer(nodes.found, nodes.root).document())
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


class _Nodes:
    """The nodes of a schema. Raises ``SchemaError`` for what cannot be enforced."""

    def __init__(self, schema: Any) -> None:
        self._schema, self._choices = schema, 0
        self._compared: dict[tuple[int, ...], list[Part]] = {}
        self._waiting: deque[tuple[str, list[Any]]] = deque()
        self.found: dict[str, _Node] = {}
        self.root = self._node([schema])
        while self._waiting:
            name, schemas = self._waiting.popleft()
            self.found[name] = self._build(schemas)

    def _node(self, schemas: Sequence[Any]) -> str:
        """Return the name of the node of what is of all of some schemas."""
        distinct = {json.dumps(each): each for each in schemas if each is not True}
        name = "\n".join(distinct)
        if name not in self.found:
            if len(self.found) >= _MOST_NODES:
                raise SchemaError(f"its `$ref`s lead to more than {_MOST_NODES:,} different values")
            self.found[name] = _Node([])
            self._waiting.append((name, [*distinct.values()]))
        return name

    def _build(self, schemas: Sequence[Any]) -> _Node:
        node = _Node([])
        try:
            parts = self._parts(schemas)
            self._refuse_overlaps(parts)
            for part in parts:
                for kind in _groups(part):
                    try:
                        node.forms += self._forms(part, kind)
                    except Contradiction as error:
                        node.reason = str(error)
        except Contradiction as error:
            node.reason = str(error)
        return node

    def _parts(self, schemas: Sequence[Any], inside: tuple[str, ...] = ()) -> list[Part]:
        """Return the parts of what is of all of some schemas. Raises ``Contradiction`` where there is none."""
        found = [Part()]
        for schema in schemas:
            found = _all_of(found, self._branches(schema, inside))
        return found

    def _branches(self, schema: Any, inside: tuple[str, ...]) -> list[Part]:
        if schema is True:
            return [Part()]
        if schema is False:
            raise Contradiction("a schema is false, which no value meets")
        if not isinstance(schema, dict):
            raise SchemaError("a schema must be an object or a truth value")
        is_anchor = str(schema.get("$id") or "#").startswith("#")  # that of draft 4; else references begin there
        if schema is not self._schema and not is_anchor:
            raise SchemaError("`$id` within a schema is not followed")
        schema = {name: each for name, each in schema.items() if each is not None or name == "const"}
        found = [part_of(schema)]
        if "propertyNames" in schema:
            allowed = self._known_parts([schema["propertyNames"]])
            self._refuse_overlaps(allowed)
            found = [named(found[0], allowed)]
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in inside:
                raise SchemaError(f"`$ref` {reference!r} leads back to itself without a property or an item between")
            found = _all_of(found, self._branches(self._referred(reference), (*inside, reference)))
        for name in ("allOf", "anyOf", "oneOf"):
            if name not in schema:
                continue
            if not isinstance(schema[name], list) or not schema[name]:
                raise SchemaError(f"`{name}` must be a list of schemas")
            more = self._parts(schema[name], inside) if name == "allOf" else self._choice(name, schema[name], inside)
            found = _all_of(found, more)
        return [part.closed() for part in found] if schema.get("unevaluatedProperties") is False else found

    def _choice(self, name: str, schemas: Sequence[Any], inside: tuple[str, ...]) -> list[Part]:
        found, reason = list[Part](), ""
        self._choices += 1
        choice = self._choices
        for number, schema in enumerate(schemas):
            try:
                parts = self._branches(schema, inside)
            except Contradiction as error:
                reason = str(error)
                continue
            chosen = ((choice, number),) if name == "oneOf" else ()
            found += [replace(part, chosen=(*part.chosen, *chosen)) for part in parts]
        if not found:
            raise Contradiction(f"`{name}` has no branch that a value meets: {reason}")
        return self._tagged(found) if name == "oneOf" else found

    def _tagged(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts of a ``oneOf`` so that answers have the property of which each branch lists other values."""
        objects = [part for part in parts if "object" in part.kinds]
        able = [name for name in (objects[0].properties if objects else ()) if self._tells_apart(name, objects)]
        if not able or any(all(name in part.mandatory for part in objects) for name in able):
            return [*parts]
        return [replace(part, tags=(*part.tags, able[0])) if "object" in part.kinds else part for part in parts]

    def _tells_apart(self, name: str, parts: Sequence[Part]) -> bool:
        """Return whether the parts of each branch list values of a property that those of the others do not."""
        branches = dict[str, int]()
        for part in parts:
            _, branch = part.chosen[-1]
            values = self._values(part, name)
            if values is None or any(branches.setdefault(each, branch) != branch for each in values):
                return False
        return len({*branches.values()}) > 1

    def _referred(self, reference: Any) -> Any:
        own = self._schema.get("$id") if isinstance(self._schema, dict) else None
        if own and isinstance(own, str) and isinstance(reference, str):
            own = own.removesuffix("#")
            if own and (reference == own or reference.startswith(f"{own}#")):
                reference = reference.removeprefix(own) or "#"
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f"`$ref` {reference!r} does not begin with #/, and nothing is fetched")
        found = self._schema
        for name in unquote(reference).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise SchemaError(f"`$ref` {reference!r} leads nowhere")
        return found

    def _refuse_overlaps(self, parts: Sequence[Part]) -> None:
        """Raise ``SchemaError`` where an answer of one branch of a ``oneOf`` may be of another, too."""
        chosen = [(part, dict(part.chosen), self._tags(part)) for part in parts if part.chosen]
        for (one, branches, tags), (other, others, theirs) in permutations(chosen, 2):
            if any(values.isdisjoint(theirs.get(name, values)) for name, values in tags.items()):
                continue
            differ = any(branches.get(choice, branch) != branch for choice, branch in others.items())
            if differ and not self._apart(one, other, _MOST_COMPARED):
                raise SchemaError(
                    "`oneOf` cannot be enforced: a value may be of two of its branches. Give each a required property "
                    "with a `const` of its own, or write `anyOf`"
                )

    def _tags(self, part: Part) -> dict[str, frozenset[str]]:
        """Return the properties that every value of a part has and of which the values are listed, with these."""
        names = part.mandatory if part.kinds == {"object"} else ()
        return {name: values for name in names if (values := self._values(part, name)) is not None}

    def _values(self, part: Part, name: str) -> frozenset[str] | None:
        """Return the values of a property of a part; None where they are not listed."""
        within = self._known_parts(part.property_schemas(name))
        if not within or any(each.values is None for each in within):
            return None
        return frozenset[str]().union(*(each.identities for each in within))

    def _apart(self, one: Part, other: Part, depth: int) -> bool:
        """Return whether no answer of one part, which has its kinds and names alone, is of the other."""
        if one.values is not None and other.values is not None and one.identities.isdisjoint(other.identities):
            return True
        return all(self._kind_apart(kind, one, other, depth) for kind in one.kinds & other.types)

    def _kind_apart(self, kind: str, one: Part, other: Part, depth: int) -> bool:
        if kind in ("integer", "fraction"):
            return any(low.most < high.least for low, high in ((one, other), (other, one)))
        ranges = {"string": ("lengths", 2**16), "array": ("counts", 2**16), "object": ("sizes", 2**16)}
        if kind not in ranges:
            return False
        pair = [getattr(each, ranges[kind][0]) for each in (one, other)]
        if any(low[1] is not None and low[1] < high[0] for low, high in (pair, pair[::-1])):
            return True
        return kind == "object" and self._objects_apart(one, other, depth)

    def _objects_apart(self, one: Part, other: Part, depth: int) -> bool:
        if any(each.patterns for each in (*one.names, *other.names)) or not depth:
            return False
        if one.values is None and not one.is_open and not set(other.required) <= set(one.properties):
            return True
        for name in one.mandatory:
            firsts, seconds = (self._known_parts(each.property_schemas(name)) for each in (one, other))
            if all(self._apart(first, second, depth - 1) for first in firsts for second in seconds):
                return True
        return False

    def _known_parts(self, schemas: Sequence[Any]) -> list[Part]:
        """Return the parts of what is of all of some schemas, none where these contradict each other."""
        key = tuple(id(each) for each in schemas)  # they live as long as the whole schema does
        if key not in self._compared:
            self._compared[key] = [Part()]  # for who asks within: any value
            try:
                self._compared[key] = self._parts(schemas)
            except Contradiction:
                self._compared[key] = []
        return self._compared[key]

    def _forms(self, part: Part, kind: str) -> list[_Form]:
        """Return the forms of one kind of value of a part. Raises ``Contradiction`` where there is none."""
        if kind == "any":
            return [_Form(schema={})]
        if kind == "number":
            return [_Form(schema=numbers(part))]
        if kind == "string":
            return [_Form(schema=_strings(part))]
        if kind == "array":
            return [self._array(part)]
        if kind == "object":
            return [*self._objects(part)]
        return [_Form(schema=_listed({"type": kind}, part, kind))]

    def _array(self, part: Part) -> _Form:
        least, most = part.counts
        if most is not None and least > most:
            raise Contradiction("`minItems` is above `maxItems`")
        schema = _listed({"type": "array", "minItems": least}, part, "array")
        if most is not None:
            schema["maxItems"] = most
        first = []
        for index in range(max((len(each.first) for each in part.items), default=0)):
            rules = [each.first[index] if index < len(each.first) else each.others for each in part.items]
            first.append(self._node([each for each in rules if each is not None]))
        others = None
        if most is None or most > len(first):
            others = self._node([each.others for each in part.items if each.others is not None])
        return _Form(schema=schema, first=first, others=others)

    def _objects(self, part: Part) -> Iterator[_Form]:
        patterns = [each for each in part.names if each.patterns]
        if patterns and len(part.names) > 1:
            raise SchemaError("`patternProperties` cannot be enforced beside properties of `allOf`, `anyOf` or `$ref`")
        named = [*patterns[0].properties] if patterns else part.properties
        rules = [each.additional for each in part.names if each.additional is not None]
        # values that are listed have the names that they have, where nothing forbids it
        additional = self._node(rules) if part.is_open or (part.values is not None and False not in rules) else None
        form = _Form(
            schema=_listed({"type": "object", "required": [*part.mandatory]}, part, "object"),
            properties={name: self._node(part.property_schemas(name)) for name in named},
            patterns={key: self._node([each]) for names in patterns for key, each in names.patterns.items()},
            additional=additional,
        )
        yield from _sized(form, part)


def _all_of(one: Sequence[Part], other: Sequence[Part]) -> list[Part]:
    """Return the parts of what is of both of two choices. Raises ``Contradiction`` where there is none."""
    found, reason = list[Part](), ""
    if len(one) * len(other) > _MOST_PARTS:
        raise SchemaError(f"its `anyOf`, `oneOf` and `allOf` make more than {_MOST_PARTS} combinations")
    for first in one:
        for second in other:
            try:
                found.append(merged(first, second))
            except Contradiction as error:
                reason = str(error)
    if not found:
        raise Contradiction(reason)
    return found


def _groups(part: Part) -> list[str]:
    """Return the kinds of values that a part lets through, integers and fractions as one, or all as one."""
    if part.kinds == set(TYPES) and not part.applies_to and part.values is None:
        return ["any"]
    names = ["number" if kind in ("integer", "fraction") else kind for kind in TYPES if kind in part.kinds]
    return list(dict.fromkeys(names))


def _listed(schema: dict[str, Any], part: Part, *kinds: str) -> dict[str, Any]:
    """Return a schema of some kinds of values that has those that are listed, if they are."""
    if part.values is None:
        return schema
    values = [each for each in part.values if type_of(each) in kinds]
    limits = {"string": part.lengths, "array": part.counts, "object": part.sizes}
    if (limit := limits.get(kinds[0])) is not None:
        values = [each for each in values if limit[0] <= len(each) <= (math.inf if limit[1] is None else limit[1])]
    if not values:
        raise Contradiction("none of the values of its `enum` or `const` is within its other keywords")
    return {"enum": values, **schema}


def _strings(part: Part) -> dict[str, Any]:
    least, most = part.lengths
    if most is not None and least > most:
        raise Contradiction("`minLength` is above `maxLength`")
    found = _listed({"type": "string"}, part, "string")
    found |= {"minLength": least} if least else {}
    found |= {} if most is None else {"maxLength": most}
    found |= {"pattern": part.patterns[0]} if part.patterns else {}
    if more := part.patterns[1:]:
        found["allOf"] = [{"type": "string", "pattern": each} for each in more]
    return found


def _sized(form: _Form, part: Part) -> Iterator[_Form]:
    """Yield the forms of an object that together have from ``minProperties`` to ``maxProperties`` properties."""
    optional = [name for name in form.properties if name not in part.mandatory]
    least, most = max(part.sizes[0] - len(part.mandatory), 0), part.sizes[1]
    more = None if most is None else most - len(part.mandatory)
    if more is not None and (more < least or more < 0):
        raise Contradiction("`required` or `minProperties` needs more than `maxProperties`")
    if part.values is not None or (not least and more is None):
        yield form
    elif form.additional is not None or form.patterns:
        yield _sized_open(form, part, least, more, optional)
    elif least > len(optional):
        raise Contradiction("`minProperties` is more than the properties that are named")
    else:
        yield from _sized_closed(form, least, len(optional) if more is None else min(more, len(optional)), optional)


def _sized_open(form: _Form, part: Part, least: int, more: int | None, optional: Sequence[str]) -> _Form:
    if least > 1:
        raise SchemaError(
            "`minProperties` cannot be enforced for two or more properties that are not named: nothing keeps their "
            "names apart"
        )
    if optional:
        raise SchemaError(
            "`minProperties` and `maxProperties` cannot be enforced beside properties that are not required, where "
            "others are allowed"
        )
    if more == 0:
        return replace(form, additional=None, patterns={})
    limits = {"minProperties": len(part.mandatory) + least} if least else {}
    limits |= {} if part.sizes[1] is None else {"maxProperties": part.sizes[1]}
    return replace(form, schema=form.schema | limits)


def _sized_closed(form: _Form, least: int, most: int, optional: Sequence[str]) -> Iterator[_Form]:
    count = math.comb(len(optional), most) * math.comb(most, least)
    if count > _MOST_CHOICES:
        raise SchemaError(
            f"`minProperties` and `maxProperties` of {len(optional)} properties that are not required make more than "
            f"{_MOST_CHOICES} choices"
        )
    for able in combinations(optional, most):
        left = {name: node for name, node in form.properties.items() if name in able or name not in optional}
        for chosen in combinations(able, least):
            required = [*form.schema["required"], *chosen]
            yield replace(form, schema=form.schema | {"required": required}, properties=left)


class _Writer:
    """Write nodes as a schema, without those of which no value ends."""

    def __init__(self, nodes: dict[str, _Node], root: str) -> None:
        self._nodes, self._root = nodes, root
        shortest = self._find_shortest()
        self._ending = shortest.keys()
        if root not in shortest:
            raise SchemaError(self._why(root, set()))
        if shortest[root] > _MOST_SHORTEST:
            raise SchemaError(f"what it requires makes its shortest answer longer than {_MOST_SHORTEST:,} characters")
        self._defined: dict[str, int] = {}
        self._find_defined()

    def _find_shortest(self) -> dict[str, int]:
        """Return the characters of the shortest value of each node that has a value that ends."""
        found, changes = dict[str, int](), True
        while changes:
            changes = False
            for name, node in reversed(self._nodes.items()):
                ends = [form.shortest(found) for form in node.forms if found.keys() >= set(form.needed())]
                if ends and min(ends) < found.get(name, math.inf):
                    found[name], changes = min(ends), True
        return found

    def _why(self, name: str, visited: set[str]) -> str:
        """Return why a node has no value."""
        node = self._nodes[name]
        if name in visited:
            return _ENDLESS
        for form in node.forms:
            for needed in form.needed():
                if needed not in self._ending:
                    return self._why(needed, {*visited, name})
        return node.reason or _ENDLESS

    def _find_defined(self) -> None:
        """Find the nodes that are written once and referred to: those that are in several places, in themselves, or
        deep in others."""
        uses, waiting = Counter[str](), [(self._root, 0)]
        while waiting:
            name, depth = waiting.pop()
            uses[name] += 1
            within = [each for form in self._forms(name) for each in form.within() if each in self._ending]
            if within and (uses[name] > 1 or depth == _MOST_INLINE) and name not in self._defined:
                self._defined[name] = len(self._defined)
                depth = 0
            if uses[name] == 1:
                waiting += [(each, depth % _MOST_INLINE + 1) for each in within]

    def _forms(self, name: str) -> list[_Form]:
        return [form for form in self._nodes[name].forms if self._ending >= set(form.needed())]

    def document(self) -> dict[str, Any]:
        """Return the schema."""
        definitions = {str(number): self._written(name) for name, number in self._defined.items()}
        return {**self._schema(self._root), **({"$defs": definitions} if definitions else {})}

    def _schema(self, name: str) -> dict[str, Any]:
        if name in self._defined:
            return {"$ref": f"#/$defs/{self._defined[name]}"}
        return self._written(name)

    def _written(self, name: str) -> dict[str, Any]:
        found = [self._of_form(form) for form in self._forms(name)]
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _of_form(self, form: _Form) -> dict[str, Any]:
        if form.schema.get("type") == "object":
            return {**form.schema, **self._object(form)}
        if form.schema.get("type") == "array":
            return {**form.schema, **self._array(form)}
        return form.schema

    def _object(self, form: _Form) -> dict[str, Any]:
        is_open = form.additional in self._ending
        properties: dict[str, Any] = {}
        for name, node in form.properties.items():
            if node in self._ending:
                properties[name] = self._schema(node)
            elif is_open or form.patterns:
                properties[name] = False
        found: dict[str, Any] = {"properties": properties, "additionalProperties": False}
        if form.patterns:
            found["patternProperties"] = {
                key: self._schema(node) if node in self._ending else False for key, node in form.patterns.items()
            }
        if form.additional is not None and is_open:
            found["additionalProperties"] = self._schema(form.additional)
        return found

    def _array(self, form: _Form) -> dict[str, Any]:
        first = list[Any]()
        for node in form.first:
            if node not in self._ending:
                return {"prefixItems": first, "items": False, "maxItems": len(first)}
            first.append(self._schema(node))
        found: dict[str, Any] = {"prefixItems": first} if first else {}
        others = form.others
        return {**found, "items": self._schema(others) if others is not None and others in self._ending else False}
