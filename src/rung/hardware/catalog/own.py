"""A device file of one's own: a card that the catalog does not have, as a few lines of TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import GB, did_you_mean
from rung.core.value import FrozenDict
from rung.hardware.catalog.rows import DTYPES, Architecture, Product, architectures

#: Key to what it must be, and whether a file needs it.
_KEYS = {
    "name": (str, True, "what the card is called"),
    "arch": (str, True, "an architecture of the catalog: sm_86, gfx1100, xe-hpg, apple9, x86-avx2"),
    "memory": (float, True, "GB of 2^30 bytes"),
    "bandwidth": (float, True, "10^9 bytes a second"),
    "peaks": (dict, True, "10^12 operations a second by dtype, f32 at least"),
    "free": (float, False, "GB that a program finds on the idle card"),
    "cores": (float, False, "cores of a CPU"),
    "note": (str, False, "a sentence"),
}
#: Larger values than these are a slip of the unit.
_MOST = {"memory": 4096, "bandwidth": 100_000, "free": 4096, "cores": 4096}
_LARGEST = 1 << 16


def read(path: str) -> tuple[Product, Architecture]:
    """The product and architecture that a file describes.

    Raises ``UsageError`` that names the wrong, missing or unknown key and says what belongs there.
    """
    row = _load(path)
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], _KEYS)
        raise _bad(path, f"has a key {unknown[0]!r} that means nothing.{hint}")
    for key, (kind, needed, what) in _KEYS.items():
        if key not in row:
            if needed:
                raise _bad(path, f"lacks {key}: {what}.")
            continue
        _check(path, key, row[key], kind, what)
    rates = row["peaks"]
    for dtype, rate in rates.items():
        if dtype not in DTYPES:
            raise _bad(path, f"has a rate for {dtype!r}, which is no dtype.{did_you_mean(dtype, DTYPES)}")
        _check(path, f"peaks.{dtype}", rate, float, "10^12 operations a second")
    if "f32" not in rates:
        raise _bad(path, "lacks peaks.f32: 10^12 operations a second.")
    if row["arch"] not in architectures():
        hint = did_you_mean(row["arch"], architectures())
        raise _bad(path, f"names an architecture {row['arch']!r} that the catalog does not have.{hint}")
    if row.get("free", 0) > row["memory"]:
        raise _bad(path, "has more free memory than memory.")
    return _product(path, row), architectures()[row["arch"]]


def _product(path: str, row: dict[str, Any]) -> Product:
    memory = round(row["memory"] * GB)
    cores = {"shaders": float(row["cores"])} if "cores" in row else {}
    return Product(
        name=row["name"],
        aliases=(),
        arch=row["arch"],
        memory=memory,
        sizes=(memory,),
        bandwidth=row["bandwidth"] * 1e9,
        peaks=FrozenDict({dtype: rate * 1e12 for dtype, rate in row["peaks"].items()}),
        dp4a=None,
        units=FrozenDict(cores),
        shown=(round(row["free"] * GB),) if "free" in row else (),
        observed=True,
        pci=(),
        source=path,
        note=row.get("note", ""),
    )


def _load(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(Path(path), "rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read ({error.strerror}).") from None
    if len(text) > _LARGEST:
        raise _bad(path, "is far too large for a device file.")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"is no TOML: {error}.") from None


def _check(path: str, key: str, value: Any, kind: type, what: str) -> None:
    if kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < _MOST.get(key, 1e6):
            below = f" and below {_MOST[key]:,}" if key in _MOST else ""
            raise _bad(path, f"says {key} = {value!r}; it is {what}, above zero{below}.")
    elif not isinstance(value, kind) or value == "":
        raise _bad(path, f"says {key} = {value!r}; it is {what}.")


def _bad(path: str, what: str) -> UsageError:
    example = 'name = "My card"; arch = "sm_86"; memory = 12; bandwidth = 360; peaks = { f32 = 12.7, f16 = 25.5 }'
    return UsageError(
        f"{path} {what}", [f"a whole file, a key a line: {example}"], [f"correct it, then rung devices {path}"]
    )
