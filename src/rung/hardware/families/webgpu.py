"""GPUs through WebGPU: adapters of Vulkan, Metal and DirectX 12, as ``wgpu`` lists them in a child process.

Listing them takes most of a second and loads every driver, so that it happens once for the drivers, the loader and the
cards that are there; the answer lies in the cache of proofs. Software adapters (Mesa's lavapipe) compute on the
processor: they are for tests, and nothing takes one that was not named.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rung.core.types import EMPTY, Capability, Device, Level, Proof
from rung.core.value import FrozenDict, Value
from rung.hardware import catalog, json_cache
from rung.hardware.catalog import DTYPES
from rung.hardware.cgroup import read
from rung.hardware.families import from_catalog
from rung.hardware.software import installed, version_of

#: The architecture of an adapter that computes on the processor.
SOFTWARE = "software"
#: Backends that rung computes through, the preferred one first where a card has several.
_BACKENDS = ("Vulkan", "Metal", "D3D12")
#: What a kernel has to know of an adapter.
LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroups-per-dimension",
    "min-storage-buffer-offset-alignment",
)
FEATURES = ("shader-f16", "subgroup", "timestamp-query", "pipeline-cache", "immediates")
#: Seconds that listing may take; a sleeping card of a laptop takes a few.
_LIMIT = 20.0
#: Seconds for which a listing that failed is believed.
_FAILED_FOR = 3600.0
#: Variables that tell the loader which drivers there are, or a driver which card it is.
_VARIABLES = ("VK_", "MESA_VK_", "RADV_", "LVP_", "DRI_PRIME", "WGPU_")
#: Folders below which the loader finds its drivers (Vulkan loader, "Driver discovery on Linux").
_DRIVERS = ("usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d")
#: Architectures without a driver of Vulkan, Metal or DirectX 12: AMD's CDNA (https://docs.mesa3d.org/drivers/radv.html
#: lists what RADV drives) and Intel's Xe-HPC, which have nothing to draw with.
_COMPUTE_ONLY = ("gfx908", "gfx90a", "gfx942", "gfx950", "xe-hpc")
#: Share of the machine's memory that a driver of an integrated GPU offers at least (RADV and ANV: half and more).
_SHARED = 0.5


@dataclass(frozen=True)
class Adapter(Value):
    """An adapter as ``wgpu`` describes it. ``index``: its place among all that ``wgpu`` lists."""

    index: int
    name: str
    driver: str
    backend: str
    type: str
    vendor: int
    device: int
    features: tuple[str, ...] = ()
    limits: FrozenDict[Any] = EMPTY

    @property
    def card(self) -> tuple[int, int]:
        """The PCI ids, which two cards of one model share."""
        return self.vendor, self.device


@dataclass(frozen=True)
class Listing(Value):
    """Hold the finding of a child: adapters, or ``trouble``, a sentence that counts ``until`` a time (since 1970)."""

    adapters: tuple[Adapter, ...] = ()
    trouble: str = ""
    until: float = 0.0


def identify(
    others: Sequence[Device], root: Path = Path("/"), *, listing: Callable[[Path], Listing] | None = None
) -> list[Device]:
    """Return the GPUs that WebGPU reaches, numbered from 0.

    ``others`` are the processor and the cards that other families found: an adapter of one of these cards has its
    memory and its rates, and ``details["card"]`` is its id. ``root`` holds ``sys`` and the drivers; ``listing`` stands
    in for a child in tests.
    """
    found = (listing or listed)(root).adapters
    devices: list[Device] = []
    for adapter in _one_each([each for each in found if each.type != "CPU"]):
        devices.append(_card(adapter, len(devices), others, devices))
    return devices


def software_adapters(
    others: Sequence[Device], root: Path = Path("/"), *, listing: Callable[[Path], Listing] | None = None
) -> list[Device]:
    """Return the adapter that computes on the processor, if there is one, numbered after those among ``others``."""
    number = sum(device.kind == "webgpu" for device in others)
    found = (each for each in (listing or listed)(root).adapters if each.type == "CPU" and _usable(each))
    return [_software(adapter, number, others) for adapter in found][:1]


def reached(card: Device) -> Device | None:
    """Return a card of the catalog as WebGPU reaches it; None where it has no driver for that.

    Of what its adapter offers only f32 is known. The packages that it takes count as installed.
    """
    if card.kind in ("cpu", "webgpu") or card.arch in _COMPUTE_ONLY:
        return None
    known = {name: value for name, value in card.details.items() if name in ("rates", "catalogue", "source")}
    here = replace(
        card,
        id=f"{card.id}-webgpu",
        kind="webgpu",
        name=f"{card.name} through WebGPU",
        details=FrozenDict(known),
        software=FrozenDict({"numba": "not installed", "wgpu": "not installed", **installed()}),
    )
    unasked = Capability("matmul.f16", Level.UNKNOWN, Proof.NONE, "shader-f16 is a feature of the adapter")
    return _finished(here, Adapter(0, card.name, "", _BACKENDS[0], "", 0, 0)).with_capabilities([unasked])


def absence(root: Path = Path("/"), listing: Callable[[Path], Listing] | None = None) -> str:
    """Return why there is no adapter at all here, as a sentence; empty where there is one."""
    found = (listing or listed)(root)
    if any(map(_usable, found.adapters)):
        return ""
    return found.trouble or "no driver of Vulkan, Metal or DirectX 12 shows a GPU"


def open_adapter(device: Device) -> Any:
    """Return ``wgpu``'s adapter of a device; imports ``wgpu``.

    Raises ``LookupError`` with a sentence where it has gone since it was listed.
    """
    wgpu = _wgpu()
    expected = Adapter.from_json(device.details["adapter"])
    there = list(wgpu.gpu.enumerate_adapters_sync())
    by_distance = sorted(enumerate(there), key=lambda each: each[0] != expected.index)
    for index, adapter in by_distance:
        if replace(_described(index, adapter), index=expected.index) == expected:
            return adapter
    raise LookupError(f"{device.name} is no longer there: no adapter of {expected.backend} goes by that name")


def listed(root: Path = Path("/")) -> Listing:
    """Return the adapters that ``wgpu`` lists, from the cache where drivers, loader and cards are those of an earlier
    listing."""
    version = version_of("wgpu")
    if not version:
        return Listing(trouble="wgpu is not installed: pip install 'rung[lean]'")
    if sys.platform == "linux" and not _loader():
        return Listing(
            trouble="there is no Vulkan loader (libvulkan.so.1): apt install libvulkan1 and the GPU's driver"
        )
    return _kept(tuple(sorted(_key(root, version).items())))


@functools.cache
def _kept(items: tuple[tuple[str, str], ...]) -> Listing:
    key = dict(items)
    if found := _read(key):
        return found
    with json_cache.lock(key):
        found = _read(key)
        if found is None:
            found = _ask()
            json_cache.write(key, found.to_json())
    return found


def _read(key: Mapping[str, str]) -> Listing | None:
    """The listing that is kept; None where none is, another version wrote it, or it has run out."""
    data = json_cache.read(key)
    try:
        found = Listing.from_json(data) if isinstance(data, Mapping) else None
    except (ValueError, TypeError, KeyError):
        return None
    return None if found and 0 < found.until < time.time() else found


def _key(root: Path, version: str) -> dict[str, str]:
    """Return all that a listing depends on: package, loader, files of drivers, cards of the bus, environment."""
    files = sorted(file for folder in _DRIVERS for file in (root / folder).glob("*.json"))
    libraries = [Path(library) for file in files if (library := _library(file)).startswith("/")]
    cards = sorted(
        f"{folder.name} {read(folder / 'vendor')} {read(folder / 'device')} {_driver(folder)}"
        for folder in (root / "sys/bus/pci/devices").glob("*")
        if read(folder / "class")[:4] in ("0x03", "0x12")
    )
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    return {
        "what": "adapters",
        "wgpu": version,
        "system": f"{sys.platform} {os.uname().release if hasattr(os, 'uname') else ''}",
        "files": " ".join(map(_stamp, [*filter(None, [_loader()]), *files, *libraries])),
        "cards": "; ".join(cards),
        "environment": json.dumps(variables),
    }


def _library(file: Path) -> str:
    """The library that a driver's manifest names; empty where it cannot be read."""
    try:
        found = json.loads(read(file))["ICD"]["library_path"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(found)


def _driver(folder: Path) -> str:
    link = folder / "driver"
    return link.resolve().name if link.exists() else ""


def _stamp(file: Path) -> str:
    """A file by name, size and time; a library that is missing by its name."""
    try:
        state = file.stat()
    except OSError:
        return str(file)
    return f"{file}:{state.st_size}:{state.st_mtime_ns}"


@functools.cache
def _loader() -> Path | None:
    """Return the file of the Vulkan loader that this process can load, None without one."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return None
    for line in read(Path("/proc/self/maps")).splitlines():
        if "libvulkan.so" in line:
            return Path(line.split(maxsplit=5)[5])
    return Path("libvulkan.so.1")


def _ask() -> Listing:
    """Let a child list the adapters: a driver that crashes or hangs costs the listing and nothing else."""
    import subprocess

    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rung.hardware.families import webgpu; "
    command = [sys.executable, "-P", "-c", f"{code}webgpu.print_adapters()", json.dumps(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines:
            return Listing(tuple(Adapter.from_json(each) for each in json.loads(lines[-1])))
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        trouble = f"listing the adapters ended with {how}: {last.strip()[:200]}"
    except subprocess.TimeoutExpired:
        trouble = f"a driver did not list its adapters within {_LIMIT:.0f} s"
    except (OSError, ValueError, TypeError, KeyError) as error:
        trouble = f"the adapters could not be listed: {error}"
    return Listing((), trouble, time.time() + _FAILED_FOR)


def _wgpu() -> Any:
    """Import ``wgpu``, where libraries of window systems write to stderr if there is no folder for sockets."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    return importlib.import_module("wgpu")


def print_adapters() -> None:
    """Print all adapters as one line of JSON: the whole work of the child."""
    wgpu = _wgpu()
    found = [_described(index, each) for index, each in enumerate(wgpu.gpu.enumerate_adapters_sync())]
    print(json.dumps([each.to_json() for each in found]))


def _described(index: int, adapter: Any) -> Adapter:
    info = adapter.info
    return Adapter(
        index=index,
        name=str(info["device"]),
        driver=str(info["description"]),
        backend=str(info["backend_type"]),
        type=str(info["adapter_type"]),
        vendor=int(info["vendor_id"]),
        device=int(info["device_id"]),
        features=tuple(name for name in FEATURES if name in adapter.features),
        limits=FrozenDict({name: int(adapter.limits[name]) for name in LIMITS if name in adapter.limits}),
    )


def _usable(adapter: Adapter) -> bool:
    return adapter.backend in _BACKENDS


def _one_each(adapters: Iterable[Adapter]) -> list[Adapter]:
    """The adapters without a second way to the same card: through the preferred backend, by the first driver of it.

    Two cards of one model differ in nothing but their place, so that they are known from one card with two drivers by
    the driver's name.
    """
    ways: dict[tuple[int, int], tuple[str, str]] = {}
    usable = sorted(filter(_usable, adapters), key=lambda each: (_BACKENDS.index(each.backend), each.index))
    for adapter in usable:
        ways.setdefault(adapter.card, (adapter.backend, adapter.driver))
    kept = [each for each in usable if ways[each.card] == (each.backend, each.driver)]
    return sorted(kept, key=lambda each: (each.type != "DiscreteGPU", each.index))


def _card(adapter: Adapter, number: int, others: Sequence[Device], before: Sequence[Device]) -> Device:
    """A card, with what the family of its maker and the catalog know of it."""
    twin = _twin(adapter, others, [str(each.details.get("card", "")) for each in before])
    shared = _integrated(adapter, others)
    memory, free = (twin.memory, twin.free) if twin else shared
    device = from_catalog.device(
        id=f"webgpu:{number}",
        kind="webgpu",
        name=twin.name if twin else _plain(adapter.name),
        arch=twin.arch if twin and twin.arch != "unknown" else catalog.pci_arch(*adapter.card),
        memory=memory,
        free=free,
        pci=adapter.card if adapter.vendor < 1 << 16 else None,
        driver=adapter.driver,
        details=_details(adapter) | ({"card": twin.id, "about": f"the same card as {twin.id}"} if twin else {}),
    )
    rates = {"peaks": twin.peaks, "bandwidth": twin.bandwidth} if twin else {}
    return _finished(replace(device, **rates), adapter)  # type: ignore[arg-type]


def _plain(name: str) -> str:
    """The name without what Mesa adds: ``AMD Radeon RX 480 Graphics (RADV POLARIS10)``.

    >>> _plain("AMD Radeon RX 480 Graphics (RADV POLARIS10)")
    'AMD Radeon RX 480 Graphics'
    """
    return re.sub(r"\s*\((?:RADV|ACO|NVK|LLVM)\b[^)]*\)$", "", name)


def _software(adapter: Adapter, number: int, others: Sequence[Device]) -> Device:
    """An adapter that computes on the processor, whose memory is the machine's."""
    processor = next(device for device in others if device.kind == "cpu")
    found = Device(
        id=f"webgpu:{number}",
        kind="webgpu",
        name=adapter.name,
        arch=SOFTWARE,
        memory=processor.memory,
        free=processor.free,
        software=installed() | {"driver": adapter.driver},
        details=FrozenDict(
            _details(adapter) | {"about": "a software adapter: it computes on the processor, for tests"}
        ),
    )
    return _finished(found, adapter)


def _twin(adapter: Adapter, others: Sequence[Device], taken: Sequence[str]) -> Device | None:
    """The same card as the family of its maker shows it: by PCI id; on a Mac its only GPU."""
    identifier = f"{adapter.vendor:04x}:{adapter.device:04x}"
    for device in others:
        same = device.details.get("pci_id") == identifier or (device.kind == "mps" and adapter.backend == "Metal")
        if same and device.id not in taken:
            return device
    return None


def _integrated(adapter: Adapter, others: Sequence[Device]) -> tuple[int, int | None]:
    """Bytes of an integrated GPU, in the machine's memory; 0 of a card that nobody else knows: WebGPU does not say."""
    processor = next(device for device in others if device.kind == "cpu")
    if adapter.type != "IntegratedGPU":
        return 0, None
    free = None if processor.free is None else min(processor.free, int(processor.memory * _SHARED))
    return int(processor.memory * _SHARED), free


def _details(adapter: Adapter) -> dict[str, Any]:
    shared = {"shared_memory": True} if adapter.type in ("CPU", "IntegratedGPU") else {}
    return {"adapter": FrozenDict(adapter.to_json()), **shared}


def _finished(device: Device, adapter: Adapter) -> Device:
    """The device with the software that drives it, and what WGSL computes there."""
    software = {**device.software, "wgpu": version_of("wgpu") or device.software.get("wgpu", "")}
    software = {name: at for name, at in software.items() if at and not name.startswith("torch")}
    capabilities = FrozenDict({each.name: each for each in _capabilities(device, adapter)})
    return replace(device, software=FrozenDict(software), capabilities=capabilities)


def _capabilities(device: Device, adapter: Adapter) -> Iterable[Capability]:
    """Yield what the adapter declares. f32 is what every adapter computes; other types are features, or not in WGSL."""
    declared = functools.partial(Capability, proof=Proof.DECLARED)
    for dtype in DTYPES:
        if dtype == "int8":
            continue
        there = dtype == "f32" or (dtype == "f16" and "shader-f16" in adapter.features)
        why = "every adapter" if dtype == "f32" else "shader-f16" if dtype == "f16" else f"WGSL has no {dtype}"
        for op in ("matmul", "attention", "elementwise"):
            source = why if there or dtype not in ("f32", "f16") else f"the adapter has no {why}"
            yield declared(f"{op}.{dtype}", Level.NATIVE if there else Level.ABSENT, source=source)
    yield _dot8(device)
    yield replace(_dot8(device), name="matmul.int8")
    subgroups = "subgroup" in adapter.features
    why = "a feature of the adapter" if subgroups else "the adapter has no such feature"
    yield declared("subgroup", Level.NATIVE if subgroups else Level.ABSENT, source=why)
    yield declared("package.torch", Level.ABSENT, source="torch drives no device of WebGPU")


def _dot8(device: Device) -> Capability:
    """``dot4I8Packed``: in WGSL everywhere, and fast where the card has the instruction."""
    if device.arch == SOFTWARE:
        return Capability("dot8", Level.EMULATED, Proof.DECLARED, "the processor computes dot4I8Packed")
    row = catalog.architectures().get(device.arch)
    if row is None:
        return Capability("dot8", Level.UNKNOWN, Proof.NONE, "the driver does not say whether dot4I8Packed is one")
    if row.dot8:
        return Capability("dot8", Level.NATIVE, Proof.TABLE, f"dot4I8Packed is {row.dot8}")
    return Capability("dot8", Level.EMULATED, Proof.TABLE, f"{row.key} has no instruction for dot4I8Packed")
