"""Plans for this machine: its devices with their proofs, threads and memory, and the wishes of a person."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rung.core.errors import SoftwareMissing, UnknownDevice, UsageError
from rung.core.settings import THREADS
from rung.core.types import Device, Level, Plan, Proof
from rung.hardware import detect, thread_count
from rung.hardware.interpreter import require_supported, without_wheels
from rung.hardware.json_cache import how_often
from rung.hardware.select import catalog_device, select_groups
from rung.kernels.webgpu import is_webgpu
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.planning.placement import is_segmented
from rung.planning.request import Memory, Request, Typed, parse_memory
from rung.planning.solve import choose_device, solve

_MEASURING = 60.0  # seconds for numbers of threads, most of them for compiling one kernel, once
#: The share of a plan's memory, without that of the runtime, that the next plan may take where a memory was full.
_LESS = 0.8
#: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h, and the largest of the latter that it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_IN_HEAP = -1, -3, 32 << 20


def compute_threads(count: int | None) -> int:
    """Return how many threads compute: ``count``, else ``RUNG_THREADS``, else as many as are best on these cores.

    Never more than run at a time: each step of a model waits for all threads. Raises ``UsageError`` below 1.
    """
    requested = requested_threads(count)
    if requested is not None:
        return min(requested, _most_threads())
    details = this_processor().details
    return int(details.get("compute_threads") or details.get("cores", 1))


def requested_threads(count: int | None) -> int | None:
    """Return ``count``, else ``RUNG_THREADS``; None for as many as rung chooses."""
    if count is not None and count < 1:
        raise UsageError(f"{count} threads cannot compute: it is 1 or more.", code="value-out-of-range")
    requested: int | None = count or THREADS.read()
    return requested


def _most_threads() -> int:
    """Threads that this process can run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_processor() -> Device:
    """Return the processor of this machine; a card may be listed before it."""
    return next(device for device in detect.devices(cached=False) if device.kind == "cpu")


#: What language models of the lean decoder need on a CPU, and what everything else needs.
LEAN, ALL = ("numba",), ("torch", "numba")


def missing_software(packages: Sequence[str] = ALL) -> list[str]:
    """Return which of the packages are not installed."""
    software = this_processor().software
    return [name for name in packages if name not in software]


def need_software(packages: Sequence[str] = ALL, what: str = "running a model") -> None:
    """Raises ``SoftwareMissing``, which says that ``what`` needs them, unless the packages are installed; ``RungError``
    on a Python that rung does not run on."""
    require_supported(sys.byteorder)
    missing = missing_software(packages)
    if missing:
        raise SoftwareMissing(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; {what} needs it.",
            [why] if (why := without_wheels()) else (),
            ["docker run -it python:3.12-slim   # Debian, with glibc"]
            if why
            else [f"pip install 'rung[{'run' if 'torch' in missing else 'lean'}]'"],
        )


def proven_devices(on_probe: Callable[[Device], None], named: str | None = None) -> tuple[Device, ...]:
    """The devices of this machine, probed now where no probe has been before; ``on_probe`` is told before each.

    A card without a working driver is not tried: that it computes nothing is known. Software adapters are among them
    where a device of WebGPU is ``named``.
    """
    found = []
    for device in detect.devices(software_adapters=(named or "").startswith("webgpu")):
        proved = any(c.proof is Proof.PROBE for c in device.capabilities.values())
        if device.real and not proved and device.capability("matmul.f32").level is not Level.ABSENT:
            from rung.run.probe import probe

            on_probe(device)
            device = probe(device)
        if device.kind == "cpu" and device.real:
            _choose_threads(device)
        found.append(device)
    return tuple(found)


def _choose_threads(processor: Device) -> None:
    """Measure how many threads compute best where cores are unlike or many, unless that is known."""
    counts = thread_count.candidates(processor)
    if len(counts) < 2 or thread_count.kept(processor) is not None:
        return
    from rung.run import worker

    job = worker.Job.of("rung.kernels.cpu.thread_pool:rates", counts=list(counts))
    outcome = worker.run([job], _MEASURING)[0]
    if outcome.ok:
        thread_count.keep(processor, {int(count): float(rate) for count, rate in outcome.value.items()})


def smaller_budgets(plan: Plan, memory: Memory = None) -> dict[str, int]:
    """Return budgets for a smaller plan, where a memory is full although the plan fitted: others may have taken it.

    The next plan may take ``_LESS`` of the memory of this one; that of the runtime does not shrink. Where a GPU and the
    processor share layers, the GPU's budget shrinks, and the processor takes more layers. Other budgets stay.
    """
    uses = {each.device: each.memory for each in plan.placements}
    smaller = filter(is_webgpu, uses) if is_segmented(plan.placements) else uses
    less = {name: int(uses[name].most - (1 - _LESS) * (uses[name].total - uses[name].runtime)) for name in smaller}
    return {**parse_memory(memory), **less}


def machine_memory() -> int:
    """Bytes of the machine's memory that this process may use; 0 where nobody knows."""
    return next((device.memory for device in detect.devices() if device.kind == "cpu"), 0)


def resident_memory() -> int:
    """The resident size of this process, in bytes."""
    import psutil

    result: int = psutil.Process().memory_info().rss
    return result


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        import psutil

        used = psutil.Process().memory_info()
        return int(getattr(used, "peak_wset", used.rss))  # Windows counts the peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stolen() -> float:
    """Seconds that the machine below has taken from this one's processors since it started, where Linux counts them."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def keep_heap_whole() -> None:
    """Has large arrays mapped and unmapped one by one, where glibc would keep them in its heap, which then has holes.

    Slabs that are decoded while a prompt is read made the peak of a bf16 model of 600 MB 250 MB higher. Even arrays of
    1 to 2 MB in the heap cost an f16 model of 200 MB another 100 MB; mapping them costs no time that can be measured.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 256 << 10)


def keep_what_is_freed() -> None:
    """Has arrays up to 32 MB lie in the heap, which keeps what they leave for those that come next, up to 64 MB.

    A network that transformers builds makes new arrays in each step; mapped anew, and set to zero by the system, they
    took half of the time of a prompt.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MOST_IN_HEAP)
        library.mallopt(_TRIM_THRESHOLD, 2 * _MOST_IN_HEAP)


def give_back() -> None:
    """Gives the system back what dead objects held: glibc keeps it in its heap, for arrays that may never come."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


#: Sequences that a plan may have room for.
MOST_PARALLEL = 4096


def device_here(name: str | None, on_note: Callable[[str], None], webgpu: bool = False) -> Device:
    """The device of this machine that is named, by default the first card that computes, else the CPU.

    ``on_note`` is called with notes on what takes long; ``webgpu``: a card that torch does not drive will do. Raises
    ``UnknownDevice``.
    """
    if name is not None and (card := catalog_device(name)) is not None:
        raise not_here(card, name)
    devices = proven_devices(
        lambda d: on_note(f"Finding out what {d.name} can do: about 10 seconds, {how_often(why=True)}."), name
    )
    return choose_device(devices, name, webgpu)


def not_here(card: Device, name: str) -> UnknownDevice:
    """The error for a card of the catalog where something is to be computed."""
    return UnknownDevice(
        f"{card.name} is not in this machine.",
        [f"devices here: {', '.join(d.id for d in detect.devices())}"],
        [f"--device sim:{name.removeprefix('sim:')}   # simulates it", "rung devices"],
    )


@dataclass(frozen=True)
class PlanTarget:
    """Where to plan for: the id of a ``device`` (None: any of them) among ``devices`` (None: those of this machine).

    ``together``: the devices are one budget.
    """

    device: str | None = None
    devices: tuple[Device, ...] | None = None
    together: bool = False


def target_named(name: str | None, software: str | None = None) -> PlanTarget:
    """Return where to plan for by the name of a device, of a card that is not here, or of several: ``p2200+cpu``.

    The CPU of this machine stands beside a card that is not here, for what does not fit on the card alone. Raises what
    ``select_groups`` raises.
    """
    if name is None and software is None:
        return PlanTarget()
    group = select_groups((name,) if name is not None else (), software)[0]
    if len(group) > 1:
        return PlanTarget(None, group, together=True)
    (device,) = group
    if device.real:
        return PlanTarget(device.id)
    cpu = select_groups(("cpu",))[0] if device.kind != "cpu" else ()
    return PlanTarget(device.id, (device, *cpu))


def make_plan(
    card: ModelCard | EncoderCard | NetworkCard,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    context: int | None = None,
    parallel: int | None = None,
    threads: int | None = None,
    devices: Sequence[Device] | None = None,
    on_probe: Callable[[Device], None] = lambda device: None,
    catalog: bool = False,
    reserved: int = 0,
    together: bool = False,
    typed: Typed | None = None,
    cache_type: str | None = None,
    rank: int = 0,
) -> tuple[Plan, tuple[Device, ...]]:
    """The plan for a card, and the devices it was made for (by default those of this machine, probed once).

    ``parallel`` sequences have room for the whole context, by default one. ``reserved`` bytes are left for
    adapters, of which ``rank`` is the highest, and a draft model;
    ``cache_type``: f32, f16, q8_0, q5_1 or q4_0 for keys and values; None or auto: rung chooses. ``together``: the
    devices are one budget; ``typed`` is what ways out repeat.
    With ``catalog``, for plans that nobody is about to run, ``device`` may name a card that is not here, or several.
    Where numba is missing, or torch that the model needs, nothing can be probed: the plan is for this machine with
    them, and says so.
    Raises ``DoesNotFit``, ``ContextTooLong``, ``UnknownFormat``, ``UnknownDevice``, ``UsageError``.
    """
    if device is not None and devices is None:
        if catalog:
            target = target_named(device)
            typed = typed or Typed("rung plan" if target.devices else "rung run", "", device)
            device, devices, together = target.device, target.devices, target.together
        elif (card_named := catalog_device(device)) is not None:
            raise not_here(card_named, device)
    if parallel is not None and not 1 <= parallel <= MOST_PARALLEL:
        raise UsageError(
            f"{parallel} sequences at once make no sense: it must be 1 to {MOST_PARALLEL:,}.", code="value-out-of-range"
        )
    budgets = parse_memory(memory)  # before anything is probed, which takes a while
    needed = LEAN if isinstance(card, ModelCard | EncoderCard) else ALL
    missing = missing_software(needed) if devices is None else []
    found = tuple(devices) if devices is not None else _devices_here(missing, on_probe, device)
    request = Request(
        format=format,
        device=device,
        memory=budgets,
        context=context,
        threads=(count := compute_threads(threads)),
        batch=parallel or 1,
        reserved=reserved,
        together=together,
        typed=typed or Typed(),
        cache_type=None if cache_type == "auto" else cache_type,
        rank=rank,
    )
    plan = solve(card, found, request)
    requested = requested_threads(threads)
    if requested is not None and requested > count:
        note = f"{count} of {requested:,} threads: more do not run at a time here"
        plan = replace(plan, reasons=(*plan.reasons, note))
    if missing:
        extra = "run" if "torch" in missing else "lean"
        note = f"planned as if {' and '.join(missing)} were installed: pip install 'rung[{extra}]'"
        plan = replace(plan, reasons=(*plan.reasons, note))
    return plan, found


def _devices_here(missing: Sequence[str], on_probe: Callable[[Device], None], named: str | None) -> tuple[Device, ...]:
    """The devices of this machine, probed; as if missing packages were installed where nothing can be probed."""
    if missing:
        return tuple(_with(device, missing) for device in detect.devices())
    return proven_devices(on_probe, named)


def _with(device: Device, packages: Sequence[str]) -> Device:
    usable = [name for name in packages if name != "torch" or device.torch_computes]
    return replace(device, software=device.software | dict.fromkeys(usable, "not installed"))
