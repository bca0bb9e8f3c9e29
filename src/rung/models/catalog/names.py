"""From what a person types to a model of the catalog, or a refusal with the names that it fits."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.errors import ModelNotFound, UsageError
from rung.core.text import close
from rung.models.catalog.rows import KnownModel, known_models

#: Longer names are no names of models.
_LONGEST = 120
#: Words that say how a model was trained or packed, not which one it is.
_LOOSE = frozenset(
    ("instruct", "it", "chat", "base", "pt", "hf", "gguf", "latest", "text", "model", "sft", "dpo", "qat")
)
#: A format after the name, as file names and ollama's tags have it: ``qwen3:4b-q4_K_M``.
_FORMAT = re.compile(r"[\s:_.@-]+(i?q\d+(?:[_-]\w+)?|tq\d_0|bf16|fp?16|fp?32|int8|nf4|fp4|mxfp4)$", re.IGNORECASE)
_WIDTHS = {"fp16": "f16", "fp32": "f32"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([mbt])")
#: Sizes as names have them: 8b, 270m, 8x7b, a3b, e4b.
_SIZES = re.compile(r"[ae]?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[mbt]")
_UNITS = {"m": 10**6, "b": 10**9, "t": 10**12}
#: What is no name but a path, an address or a file.
_PATH = re.compile(r"[./~\\]|.*:/|.*/.*/|.*\.(?:gguf|safetensors|bin|pt|pth|ckpt|json)$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Match:
    """Hold what a name means: a row of the table, or, with ``model`` None, a dense model of ``size`` weights.

    ``format`` is the format that stood after the name, in rung's words, or empty; ``notes`` say what was taken where
    the name left something open.
    """

    name: str
    model: KnownModel | None
    size: int = 0
    format: str = ""
    notes: tuple[str, ...] = ()


def find(name: str) -> Match | None:
    """Return the model of a name, or None where the catalog has none of it.

    Raises ``UsageError`` for a name that fits several models alike, ``ModelNotFound`` for a size that a known family
    does not have.
    """
    if len(name) > _LONGEST or _PATH.match(name):
        return None
    bare, format = split_format(name)
    found = _match(bare)
    return None if found is None else Match(found.name, found.model, found.size, format, found.notes)


def find_near(name: str) -> list[str]:
    """Return the names of the catalog that look most like ``name``, best first."""
    key = "" if _PATH.match(name) else _key(_words(split_format(name[:_LONGEST])[0]))
    models = {spelling: model.name for spelling, model in reversed(list(_exact().items()))}
    return list(dict.fromkeys(models[spelling] for spelling in close(key, models, most=6)))[:3] if key else []


def split_format(name: str) -> tuple[str, str]:
    """Return the name without a format at its end, and that format in rung's words or an empty text.

    >>> split_format("qwen3:4b-q4_K_M"), split_format("llama-3.1-8b")
    (('qwen3:4b', 'q4_k_m'), ('llama-3.1-8b', ''))
    """
    found = _FORMAT.search(name)
    if not found:
        return name, ""
    format = found[1].lower().replace("-", "_")
    return name[: found.start()], _WIDTHS.get(format, format)


def _match(name: str) -> Match | None:
    words = _words(name)
    key = _key(words)
    if not key:
        return None
    if model := _exact().get(key) or _dotless().get(key):
        return Match(model.name, model)
    if size := _SIZE.fullmatch(key):
        return _generic(key, int(float(size[1]) * _UNITS[size[2]]))
    sizes = {word for word in words if _SIZES.fullmatch(word)}
    rest = [word for word in words if word not in sizes]
    if group := _groups().get(_key(rest)):
        return _of_group(name, group, sizes)
    fits = [model for model in known_models() if set(words) <= _all_words(model)]
    if not fits:
        return None
    return Match(fits[0].name, fits[0]) if len(fits) == 1 else _tie(name, fits)


def _generic(name: str, size: int) -> Match | None:
    if size <= 0:
        return None
    note = f"{name} alone is a size: a dense model of that many weights is taken; a name is surer, as in llama-3.1-8b."
    return Match(name, None, size, notes=(note,))


def _of_group(name: str, group: Sequence[KnownModel], sizes: set[str]) -> Match:
    """The model of a family, or of the families of one line (llama), with these sizes; without sizes the usual one."""
    if not sizes:
        usual = _usual(group)
        others = [model.name for model in group if model is not usual]
        also = f" There are also {_listed(others)}." if others else ""
        return Match(
            usual.name, usual, notes=(f"{name}: taken as {usual.title}, the most used.{also}",) if others else ()
        )
    fits = [model for model in group if sizes <= _sizes(model)]
    fits = [model for model in fits if not model.purpose] or fits  # what is made for one thing says so in its name
    if len(fits) == 1:
        return Match(fits[0].name, fits[0])
    if fits:
        return _tie(name, fits)
    names = [model.name for model in group]
    near = close(" ".join(sorted(sizes)), {size for model in group for size in _sizes(model)})
    best = next((m.name for m in group if near and near[0] in _sizes(m)), _usual(group).name)
    plain = [size for size in sizes if _SIZE.fullmatch(size)]
    raise ModelNotFound(
        f"There is no {name!r}: none of these has {' '.join(sorted(sizes)).upper()}.",
        [f"known are {_listed(names, 12)}"],
        [f"rung check {best}", *(f"rung check {size}   # any dense model of that size" for size in plain)],
    )


def _tie(name: str, fits: Sequence[KnownModel]) -> Match:
    names = [model.name for model in sorted(fits, key=lambda model: -model.downloads)]
    raise UsageError(
        f"{name!r} fits {len(names)} models alike.",
        [f"it fits {_listed(names, 12)}"],
        [f"rung check {each}" for each in names[:3]],
    )


def _usual(group: Sequence[KnownModel]) -> KnownModel:
    """The model that a bare name means: that of the family which is downloaded most."""
    families: dict[str, int] = {}
    for model in group:
        families[model.family] = families.get(model.family, 0) + model.downloads
    most = max(families, key=lambda family: families[family])
    own = [model for model in group if model.family == most]
    return next((model for model in own if model.usual), max(own, key=lambda model: model.downloads))


def _listed(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


# ---- spellings


def _words(name: str) -> list[str]:
    """The words of a name in small letters, without the owner of a repository and without loose words.

    >>> _words("meta-llama/Llama-3.1-8B-Instruct")
    ['llama', '3.1', '8b']
    """
    plain = unicodedata.normalize("NFKC", name).lower().rsplit("/", 1)[-1].replace("+", " plus ")
    found = re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]+", " ", plain).split()
    kept = [word for word in found if word not in _LOOSE]
    return kept[1:] if kept[:1] == ["meta"] and len(kept) > 1 else kept


def _key(words: Iterable[str]) -> str:
    """The words in one, with a dash only between two numbers: ``qwen2.5-7b`` and ``qwen2-57b`` stay two."""
    return re.sub(r"(?<=\d) (?=\d)", "-", " ".join(words)).replace(" ", "")


@functools.cache
def _exact() -> Mapping[str, KnownModel]:
    """Every spelling that means one model: its name, then aliases, then title and repositories of any model."""
    found: dict[str, KnownModel] = {}
    for spellings in (_names, _aliases, _others):
        for model in known_models():
            for spelling in spellings(model):
                found.setdefault(_key(_words(split_format(spelling)[0])), model)
    return found


def _names(model: KnownModel) -> tuple[str, ...]:
    return (model.name,)


def _aliases(model: KnownModel) -> tuple[str, ...]:
    return model.aliases


def _others(model: KnownModel) -> tuple[str, ...]:
    return (model.title, model.weights) if model.weights else (model.title,)


@functools.cache
def _dotless() -> Mapping[str, KnownModel]:
    """Spellings without dots (``llama-3-1-8b``, ``qwen25 7b``) where they mean one model."""
    found: dict[str, set[str]] = {}
    for spelling, model in _exact().items():
        for instead in ("-", ""):
            found.setdefault(spelling.replace(".", instead), set()).add(model.name)
    by_name = {model.name: model for model in known_models()}
    return {key: by_name[next(iter(names))] for key, names in found.items() if len(names) == 1}


@functools.cache
def _groups() -> Mapping[str, tuple[KnownModel, ...]]:
    """Families by their names, and under the first word of those (llama, qwen) all that share it."""
    found: dict[str, list[KnownModel]] = {}
    for model in known_models():
        found.setdefault(_key(_words(model.family)), []).append(model)
    families = set(found)
    for model in known_models():
        line = re.match(r"[a-z]+", model.family)
        if line and line[0] not in families:
            found.setdefault(line[0], []).append(model)
    return {key: tuple(models) for key, models in found.items()}


@functools.cache
def _all_words(model: KnownModel) -> frozenset[str]:
    return frozenset(word for text in (model.name, model.title, *model.aliases) for word in _words(text))


@functools.cache
def _sizes(model: KnownModel) -> frozenset[str]:
    return frozenset(word for word in _all_words(model) if _SIZES.fullmatch(word))
