"""rung's own folders: what ``rung quantize --as rung`` and ``save_pretrained`` of layers of ``rung.nn`` write.

The parts of a weight, ``rung.formats.parts``, are tensors after ``.stored.``: the codes under the name of their format,
the others under their own. ``quantization_config`` says which layers have which format. Where rows do not lie apart
(nf4), the shape is the network's alone to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rung import formats
from rung.core.errors import BadFile, UnknownFormat
from rung.core.types import EMPTY, Format
from rung.formats.choice import Choice
from rung.models.checkpoints import Weight
from rung.models.checkpoints.values import Header, Raw, StoredWeight, contradiction, need, shaped
from rung.models.settings import Settings

if TYPE_CHECKING:
    from rung.formats import Encoded

_STORED, _WEIGHT = ".stored.", ".weight"
_KEYS = ("quant_method", "format", "skip", "embeddings", "compute_dtype", "keep", "threshold", "expected_kl")
_NEWER = ("pip install --upgrade rung   # a newer rung may have written it",)
#: Types of parts -> safetensors' names of them.
DTYPES = {"uint8": "U8", "int8": "I8", "int32": "I32", "float32": "F32"}


@dataclass(frozen=True)
class Site:
    """Hold what a network has under the name of a weight: its ``shape`` [out, in], the names that its layer may have
    there (by age and kind of the checkpoint), and whether that is an embedding or an output head."""

    shape: tuple[int, int]
    names: tuple[str, ...]
    outer: bool


def quantization_choice(config: Mapping[str, Any], where: str) -> Choice:
    """Read a quantization config. Raises ``BadFile`` for a mapping that is none."""
    settings = Settings(config, f"{where}: quantization_config")
    if unknown := sorted(config.keys() - set(_KEYS)):
        raise BadFile(f"{settings.where} has the key {unknown[0][:60]}", [f"rung knows {', '.join(_KEYS)}"], _NEWER)
    skip, kept = config.get("skip"), Settings(settings.table("keep"), settings.where)
    try:
        return Choice.named(
            settings.text("format", "nf4"),
            skip if isinstance(skip, str) else settings.texts("skip"),
            settings.text("embeddings") if "embeddings" in settings else None,
            {pattern: kept.text(pattern) for pattern in kept.values},
        )
    except UnknownFormat as error:
        raise BadFile(f"{settings.where} names a format that there is none of", [error.cause], _NEWER) from error


def gather(
    choice: Choice, headers: Iterable[Header], site: Callable[[str], Site | None]
) -> tuple[list[Weight], list[Header]]:
    """The quantized weights among the tensors of a checkpoint, and the tensors that are stored as they are.

    ``site(name)`` is what the network has under the name of a weight; None for what is no matrix of it. Raises
    ``BadFile`` where tensors contradict the config or the network.
    """
    groups: dict[str, dict[str, Header]] = {}
    plain: list[Header] = []
    sites: dict[str, Site] = {}
    for header in headers:
        stem, stored, part = header.name.rpartition(_STORED)
        stem = stem if stored else header.name.removesuffix(_WEIGHT)
        found = site(stem + _WEIGHT) if stem != header.name else None
        if found is not None:
            sites[stem] = found
        if found is not None and stored:
            groups.setdefault(stem, {})[part] = header
        else:
            plain.append(header)
    known = {name for found in sites.values() for name in found.names}
    formats_by_stem = {stem: choice.of(found.names, found.outer, known) for stem, found in sites.items()}
    for header in plain:
        if chosen := formats_by_stem.get(header.name.removesuffix(_WEIGHT)):
            raise contradiction(header.name, f"it is stored as {header.dtype}", f"expected: {chosen.name}")
    return [_weight(stem, parts, sites[stem], formats_by_stem[stem]) for stem, parts in groups.items()], plain


def _weight(stem: str, parts: Mapping[str, Header], site: Site, fmt: Format | None) -> Weight:
    """The weight of those parts in that format; None: it is to stay as it is. Raises ``BadFile``."""
    name = stem + _WEIGHT
    there = f"there is {', '.join(header.name for header in parts.values())}"
    if fmt is None or not fmt.divides(site.shape[1]):
        raise contradiction(name, there, f"expected: {fmt.name if fmt else 'as it is'} of {list(site.shape)}")
    expected = {formats.part_name(fmt, part): part for part in formats.parts(fmt, site.shape)}
    need(name, parts, *expected)
    if parts.keys() - expected.keys():
        raise contradiction(name, there, f"expected: {', '.join(expected)}")
    for key, (shape, dtype) in zip(expected, formats.parts(fmt, site.shape).values(), strict=True):
        shaped(name, parts[key], shape, (DTYPES[dtype],))
    named = tuple((part, parts[key].name) for key, part in expected.items())
    return Weight(name, StoredWeight(site.shape, fmt.name, EMPTY), named)


def read(stored: StoredWeight, parts: Mapping[str, Raw], name: str) -> Encoded:
    """See ``values.Method``: the parts themselves."""
    from rung.formats import Encoded

    shape = (stored.shape[0], stored.shape[1])
    return Encoded(formats.get(stored.format), shape, {part: raw.values for part, raw in parts.items()})
