"""From what a person or a driver writes to the product that is meant, or a refusal with the names that are near."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rung.core.errors import UnknownDevice
from rung.core.text import GB, close, count
from rung.hardware.catalog.rows import Product, architectures, instances, products

#: Names that people give to several chips; the newest product of the name is not what all of them mean.
SHARED = {
    "titan x": ("GeForce GTX TITAN X", "NVIDIA TITAN X Pascal"),
    "rtx 4000": ("Quadro RTX 4000", "RTX 4000 Ada", "RTX 4000 SFF Ada", "RTX PRO 4000 Blackwell"),
    "rtx 5000": ("Quadro RTX 5000", "RTX 5000 Ada", "RTX PRO 5000 Blackwell"),
    "rtx 6000": ("Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000 Blackwell"),
    "titan": ("GeForce GTX TITAN X", "NVIDIA TITAN X Pascal", "NVIDIA TITAN Xp", "NVIDIA TITAN V", "NVIDIA TITAN RTX"),
}
_MAKERS = re.compile(
    r"\b(core(?= i\d)|nvidia|geforce|amd|intel|tesla|quadro|radeon|instinct|apple|graphics|corporation)\b"
)
#: What drivers write beside a name and the catalog does not.
_LOOSE = re.compile(r"\b(\d+ core gpu|radv \w+|generation|series|hbm3e?|gpu)\b")
_MEMORY = re.compile(r"\b(\d+) ?gi?b\b")
#: Words that tell boards with one chip apart.
_BOARDS = re.compile(r"\b(\d+gb|pcie|sxm\d?|nvl)\b")
_SERIES = re.compile(
    r"(?:gtx|rtx|rx|arc|pro|gt|core 2 quad|core|ryzen \d|epyc|xeon (?:platinum|gold|silver)|xeon|celeron|atom"
    r"|threadripper|pentium gold|pentium) (?=.*\d)"
)

#: What processors write around their names: ``AMD Ryzen 7 5800X 8-Core Processor``, ``Core i5-8250U CPU @ 1.60GHz``.
_AROUND = re.compile(
    r"^\d+th gen |(?<=xeon|quad| duo) cpu\b|( cpu)? \d+( \d+)?ghz$|( \w+ core)? processor$| (with|w) radeon .*| apu$"
)
#: Names of processors without the class that stands in them: ``ryzen 5800x``, ``8250u``.
_CLASSES = ((re.compile(r"ryzen \d (\w+)"), r"ryzen \1"), (re.compile(r"i\d (\d+[a-wyz]\w*)"), r"\1"))
#: The largest memory that a machine is said to have, in bytes.
_MOST_MEMORY = 8192 * GB

#: ``2x3090``: two of a kind.
_SEVERAL = re.compile(r"(\d{1,2})\s*[x*]\s*(.+)")
_MOST = 64


@dataclass(frozen=True)
class Match:
    """The product that a name means, the bytes of its memory, and a line where the name alone left a choice."""

    product: Product
    memory: int
    note: str = ""


def find(name: str) -> Product | None:
    """The product of that name, as a driver or a person writes it: ``NVIDIA GeForce RTX 2080 Ti``, ``2080ti``."""
    try:
        found = _match(name)
    except UnknownDevice:
        return None
    return found.product if found else None


def match(name: str) -> Match:
    """The product that ``name`` means; where several are sold under it, the commonest, with a note that says so.

    Raises ``UnknownDevice``: with the list when the name fits different chips, else with the names that are near.
    """
    if found := _match(name):
        return found
    raise _unknown(name, normal(name))


def _match(name: str) -> Match | None:
    """Return the product, or None where no name of the catalog has these words; raise where different ones have."""
    if cloud := _cloud().get(normal(name)):
        product, memory, number = cloud
        found = match(f"{product} {memory}GB" if memory else product)
        note = f"{name} has {number} of these; this is one" if number > 1 else ""
        return Match(found.product, found.memory, note)
    key = normal(name)
    if exact := _by_name().get(_joined(key)):
        return _variant(exact, exact.memory, key)
    short = _short(key)
    if several := _shared().get(_bare(short)):
        raise _ambiguous(name, several)
    if known := _by_short().get(_joined(short)):
        return _variant(known, known.memory, key)
    if (bare := _AROUND.sub("", key)) != key and find(bare):
        return match(bare)
    if stated := _MEMORY.search(key):
        return _sized(name, key.replace(stated[0], " "), int(stated[1]) * GB)
    return _guess(name, key)


def several(name: str) -> list[str]:
    """The names that ``3090+3060`` and ``2x3090`` are made of; any other name alone. Raises ``UnknownDevice``."""
    file = name.endswith(".toml") and "+" not in name and not _SEVERAL.fullmatch(name)
    if file or find(name.removeprefix("sim:")):  # Ryzen AI Max+ 395 is one
        return [name]
    names: list[str] = []
    for part in (part.strip() for part in name.removeprefix("sim:").split("+")):
        found = _SEVERAL.fullmatch(part)
        count, one = (int(found[1]), found[2]) if found else (1, part)
        if not 1 <= count <= _MOST:
            raise UnknownDevice(f"{part!r} is no number of devices from 1 to {_MOST}.")
        names += [one] * count
    return names


def normal(name: str) -> str:
    """Lower case, words of letters, digits and plus signs with one space between them."""
    return " ".join(re.sub(r"\(r\)|\(tm\)|[^a-z0-9+]+", " ", name.lower()).split())


def _sized(name: str, rest: str, memory: int) -> Match | None:
    """A name with a memory size in it: the product without it, if it is sold in that size."""
    base = _short(normal(rest))
    same = [p for p in products() if _joined(base) in _short_forms(p)]
    fits = same + [p for p in products() if p not in same and _bare(base) == _bare(_base(p))]
    if not fits:
        return _guess(name, normal(name))
    for product in fits:
        if memory in product.sizes or (product.any_size and 0 < memory <= _MOST_MEMORY):
            return Match(product, memory)
    sizes = sorted({s for product in fits for s in product.sizes})
    raise UnknownDevice(
        f"{base} is not sold with {_gb(memory)}.",
        [f"it is sold with {' and '.join(_gb(size) for size in sizes)}"],
        [f"rung devices {quoted(fits[0].name)}"],
    )


def _variant(product: Product, memory: int, key: str) -> Match:
    """The product with a note, when its name alone does not say which of several variants is meant."""
    if _MEMORY.search(key) and memory == product.memory and len(product.sizes) == 1:
        return Match(product, memory)
    if product.any_size:
        named = f"{normal(product.name)} {max(1, memory // GB // 2)}gb"
        note = f"{product.name} with {_gb(memory)} of memory taken; another size is named so: {quoted(named)}"
        return Match(product, memory, note)
    others = []
    if len(product.sizes) > 1:
        others.append(" and ".join(_gb(size) for size in product.sizes if size != memory))
    full = {_joined(normal(n)) for n in (product.name,)} | {_joined(_short(normal(product.name)))}
    if _joined(key) not in full:
        others += [p.name for p in products() if p is not product and _base(p) == _base(product)]
    note = f"{product.name} with {_gb(memory)} taken; there is also {', '.join(others)}" if others else ""
    return Match(product, memory, note)


def _gb(memory: int) -> str:
    return f"{memory / GB:g} GB"


def _guess(name: str, query: str) -> Match | None:
    """Part of a name: the one product it fits, variants of one product, or None; raise where it fits several."""
    if key := _architectures().get(_joined(query)):
        number = sum(1 for p in products() if p.arch == key)
        raise UnknownDevice(
            f"{key} is an architecture; the catalog has {count(number, 'product')} with it.",
            ways_out=[f"rung devices --catalog {key}"],
        )
    fits, begins = _of_words(query)
    words = set(_short(query).split())
    if fits and all(_joined(_base(p)) == _joined(_base(fits[0])) and words >= set(_base(p).split()) for p in fits):
        return _variant(fits[0], fits[0].memory, query)
    if len(fits) > 1:
        raise _ambiguous(name, [p.name for p in fits])
    if 1 < len(begins) < 12:
        raise _ambiguous(name, begins)
    if len(query) > 2 and len(within := [p.name for p in products() if query in _whole(p)]) > 1:
        raise _ambiguous(name, within)
    return None


def _of_words(query: str) -> tuple[list[Product], list[str]]:
    """Return the products that have all words of a name, and the names of those that have it inside of a word."""
    short = _short(query)
    words = set(short.split())
    fits = [p for p in products() if words and words <= set(_words(p))]
    return fits, [p.name for p in products() if short and len(query) > 2 and any(short in w for w in _words(p))]


def _unknown(name: str, query: str) -> UnknownDevice:
    """Return the refusal of a name, with those that look like it: comparing it with all is slow."""
    fits, begins = _of_words(query)
    short = _short(query)
    forms = {form: p.name for p in products() for form in (*_short_spaced(p), _whole(p))}
    swapped = [form for form in forms if _letters(form) == _letters(short)]  # 3006 for 3060
    alike = swapped + close(short, forms) + close(query, forms)
    close_by = [*(p.name for p in fits), *begins[:1], *(forms[form] for form in alike)]
    near = list(dict.fromkeys(close_by))[:3]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    ways = [f"rung devices {quoted(near[0])}"] if near else []
    return UnknownDevice(
        f"The catalog has no device called {name!r}.{hint}", ways_out=[*ways, "rung devices --catalog"]
    )


def _ambiguous(name: str, several: Iterable[str]) -> UnknownDevice:
    listed = list(several)
    shown = ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "")
    all_of_them = [f"rung devices --catalog {quoted(normal(name))}"] if len(listed) > 12 else []
    return UnknownDevice(
        f"{name!r} fits {len(listed)} different products.",
        [f"it fits: {shown}"],
        [f"rung devices {quoted(listed[0])}", *all_of_them],
    )


def quoted(name: str) -> str:
    """The name as one word of a command line."""
    return f'"{name}"' if " " in name else name


def forms(product: Product) -> frozenset[str]:
    """Every form, without spaces, that means this product and no other: whole name, short forms, aliases."""
    whole = {_joined(normal(name)) for name in (product.name, *product.aliases)}
    return frozenset(whole | _short_forms(product))


@functools.cache
def _by_name() -> Mapping[str, Product]:
    return {_joined(normal(name)): p for p in reversed(products()) for name in (p.name, *p.aliases)}


@functools.cache
def _by_short() -> Mapping[str, Product]:
    return {form: p for p in reversed(products()) for form in _short_forms(p)}


@functools.cache
def _cloud() -> Mapping[str, tuple[str, int, int]]:
    return {normal(name): value for name, value in instances().items()}


@functools.cache
def _architectures() -> Mapping[str, str]:
    return {_joined(normal(key)): key for key in architectures()}


@functools.cache
def _shared() -> Mapping[str, tuple[str, ...]]:
    return {form: several for name, several in SHARED.items() for form in (_bare(name), _joined(name))}


def _bare(short: str) -> str:
    return _joined(_SERIES.sub("", short, count=1) if _SERIES.match(short) else short)


@functools.cache
def _short_spaced(product: Product) -> tuple[str, ...]:
    found = []
    for name in (product.name, *product.aliases):
        short = _short(normal(name))
        found += [short, _SERIES.sub("", short, count=1)] if _SERIES.match(short) else [short]
        found += [pattern.sub(form, short) for pattern, form in _CLASSES if pattern.fullmatch(short)]
    return tuple(dict.fromkeys(found))


def _short_forms(product: Product) -> frozenset[str]:
    return frozenset(_joined(form) for form in _short_spaced(product) if form)


@functools.cache
def _words(product: Product) -> tuple[str, ...]:
    return tuple(word for form in _short_spaced(product) for word in form.split())


@functools.cache
def _whole(product: Product) -> str:
    return normal(product.name)


@functools.cache
def _base(product: Product) -> str:
    """The short name without memory size and board: what variants of one product share."""
    return " ".join(_BOARDS.sub(" ", _short(normal(product.name))).split())


def _short(name: str) -> str:
    """The normal form without the maker's words, SXM2 to SXM5 alike."""
    bare = _LOOSE.sub(" ", _MAKERS.sub(" ", name))
    return " ".join(re.sub(r"\bsxm\d\b", "sxm", bare).split())


def _letters(name: str) -> list[str]:
    """Return the letters and digits of a name in order of the alphabet: those of one with two swapped are the same."""
    return sorted(_joined(name))


def _joined(name: str) -> str:
    return name.replace(" ", "")
