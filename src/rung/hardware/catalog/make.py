"""Make a device from the catalog, or from a file of one's own: a product with a release of the software."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import GB, did_you_mean, parse_size, size
from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware.catalog import names, releases
from rung.hardware.catalog.capabilities import applies, capabilities
from rung.hardware.catalog.releases import Build, newest, parse
from rung.hardware.catalog.rows import DTYPES, Architecture, Product, architectures, products
from rung.hardware.catalog.tables import load

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


#: Share of its memory that an idle card shows as free where nobody has looked. NVIDIA: below the median (0.983) of the
#: rows that have a figure; AMD and Intel keep a few hundred MB; a Mac lets its GPU wire two thirds, from 36 GB on three
#: quarters.
_IDLE = {"cuda": 0.975, "rocm": 0.98, "xpu": 0.95}
_LARGE_MAC = 36 * GB
#: Bytes that a process takes on a GPU before any tensor, where no figure is known.
RUNTIME = 400 * 2**20
#: What compiles kernels at run time, of the release of its toolkit: torch's wheels bring it.
_COMPILERS = {"cuda": "nvrtc", "hip": "hiprtc"}
#: What a catalog processor computes with beside torch: rung's own kernels.
_CPU_PACKAGES = {"numba": "0.63.0", "llvmlite": "0.46.0"}


def device(name: str, software: str | None = None, memory: str | int | None = None) -> Device:
    """The device of that name as the catalog knows it: not in this machine, for planning and simulation.

    ``name`` is a product as drivers, shops and people write it (``p2200``, ``RTX3060 12GB``, ``p3.2xlarge``, with or
    without ``sim:``), or a TOML file that describes a card. ``software`` names releases (``torch 1.10+cu102``); without
    it the card gets the newest torch that still carries its code. ``memory`` replaces the card's, in bytes or as
    ``4.6GB``: less of it, or more, as on boards that were rebuilt with larger chips. ``free`` is what a program finds
    on the idle card, ``details["runtime_bytes"]`` what it takes before any tensor, ``details["note"]`` says what the
    name left open, ``details["about"]`` what is known of the card beside its figures.

    Raises ``UnknownDevice`` with the names that look most like it or the list that it fits, ``UsageError`` for
    software that the catalog does not know, for memory that is none and for more than any GPU has, and for a file
    with wrong keys.
    """
    product_name = name.removeprefix("sim:").strip()
    if product_name.endswith(".toml"):
        product, architecture = read(product_name)
        found = names.Match(product, product.memory)
    else:
        found = names.match(product_name)
        architecture = architectures()[found.product.arch]
    memory_bytes = _bytes(memory)
    if memory_bytes is not None and architecture.kind != "cpu":
        _check_largest(memory_bytes)
    return build_device(found, architecture, software, memory_bytes)


def build_device(
    found: names.Match, architecture: Architecture, software: str | None = None, memory: int | None = None
) -> Device:
    """The device of a product that was found; see ``device``."""
    product = found.product
    others: dict[str, str] = {}
    build = newest(architecture.key) if software is None else None
    if software is not None:
        build, others = parse(software, architecture)
    total = memory or found.memory
    free, free_from = _free(product, architecture, total, memory is not None)
    return Device(
        id=_identity(found),
        kind=architecture.kind,
        name=product.name,
        arch=architecture.machine or architecture.key,
        memory=total,
        free=free,
        bandwidth=product.bandwidth,
        peaks=FrozenDict(product.rates()),
        capabilities=capabilities(architecture.key, build),
        software=FrozenDict(_software(architecture, build, others)),
        details=FrozenDict(_details(found, architecture, build, free_from)),
        real=False,
    )


def _identity(found: names.Match) -> str:
    """Return the id of a device: its name, and its memory where it can have another."""
    product = found.product
    identity = names.normal(product.name).replace(" ", "-")
    if (len(product.sizes) > 1 or product.any_size) and found.memory != product.memory:
        identity += f"-{found.memory / GB:g}gb".replace(".", "-")
    return identity


def _details(found: names.Match, architecture: Architecture, build: Build | None, free_from: str) -> dict[str, Any]:
    """Return where the figures of a device come from, and what is known beside them."""
    product = found.product
    runtime, runtime_from = _runtime(architecture, build)
    cores = _cores(product) if architecture.kind == "cpu" else 0
    details: dict[str, Any] = {
        "rates": "table",
        "catalogue": product.status,
        "source": product.source,
        "free_from": free_from,
        "runtime_bytes": runtime,
        "runtime_from": runtime_from,
    }
    details |= {"cores": cores, "threads": cores, "isa": architecture.key} if cores else {}
    if product.cores:
        details["instructions_per_second"] = sum(each.instructions for each in product.cores)
        details["caches"] = product.caches
    if product.reads:
        details["reads"] = product.reads
    if architecture.sm and product.units:
        details["multiprocessors"] = round(product.units["shaders"]) // architecture.sm
    if build:
        details["build"] = str(build)
    if found.note:
        details["note"] = found.note
    if about := "; ".join(text for text in (product.note, architecture.note) if text):
        details["about"] = about
    return details


def _cores(product: Product) -> int:
    return sum(each.number for each in product.cores) or int(product.units.get("shaders", 1))


def _software(architecture: Architecture, build: Build | None, others: dict[str, str]) -> dict[str, str]:
    found = build.software() if build else {}
    if build and build.backend in ("cuda", "hip") and releases.triton(build):
        found["triton"] = f"{releases.triton(build)}.0"
    if build and (compiler := _COMPILERS.get(build.backend)):
        found[compiler] = build.toolkit.partition(".")[0]
    return found | (_CPU_PACKAGES if architecture.kind == "cpu" else {}) | others


def _free(product: Product, architecture: Architecture, total: int, replaced: bool) -> tuple[int | None, str]:
    """Bytes that a program finds on the idle device, and where the figure comes from."""
    if architecture.kind == "cpu":
        return None, "nine tenths of memory"
    if architecture.kind == "mps":
        return total * 3 // 4 if total >= _LARGE_MAC else total * 2 // 3, "what macOS lets a GPU wire by default"
    if not replaced and product.shown and total in product.sizes:
        # one figure belongs to the size of the row, several to the sizes in their order
        at = product.sizes.index(total) if len(product.shown) == len(product.sizes) else None
        if at is not None:
            return product.shown[at], "seen on idle cards" if product.observed else "as remembered of idle cards"
    return int(total * _IDLE[architecture.kind]), f"{_IDLE[architecture.kind]:.1%} of memory, as other cards show"


def _runtime(architecture: Architecture, build: Build | None) -> tuple[int, str]:
    """Bytes of context, kernels and libraries on the device, with the source."""
    if architecture.kind == "cpu":
        return 0, "counted with the process"
    for row in load("software.toml")["runtime"]:
        if build and applies(row, architecture, build):
            return int(row["mib"]) * 2**20, str(row["source"])
    return RUNTIME, "no figure is known"


def _bytes(memory: str | int | None) -> int | None:
    if memory is None or (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        return memory
    if not isinstance(memory, str):
        raise UsageError(
            f"A device cannot have {memory!r} bytes of memory.", ways_out=['memory="4.6GB"'], code="value-out-of-range"
        )
    try:
        return parse_size(memory)
    except ValueError as error:
        raise UsageError(f"{error}.", ways_out=['memory="4.6GB"']) from None


def _check_largest(memory: int) -> None:
    """Raises ``UsageError`` for more memory than any GPU of the catalog has: a slip of the pen."""
    gpus = [product for product in products() if architectures()[product.arch].kind != "cpu"]
    largest = max(gpus, key=lambda product: max(product.sizes))
    if memory > max(largest.sizes):
        raise UsageError(
            f"No GPU has {size(memory)} of memory.",
            [f"the largest of the catalog, {largest.name}, has {size(max(largest.sizes))}"],
            ['memory="4.6GB"', "a device file of your own   # docs/devices.md"],
            code="value-out-of-range",
        )
