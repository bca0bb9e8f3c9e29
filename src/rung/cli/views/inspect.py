"""Show what ``rung inspect`` shows: one library in full, many as a table, what follows from it at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rung.binaries import answer as answers
from rung.binaries import judge
from rung.binaries.images import CODE_OBJECT, CUBIN, LTO, NOT_READ, PTX, SPIRV, CpuCode, Library
from rung.binaries.judge import Judgment, capability, targets
from rung.cli.views.output import table
from rung.core.text import size
from rung.hardware.catalog.rows import architectures, version

if TYPE_CHECKING:
    from rich.table import Table

    from rung.binaries.answer import Answer
    from rung.core.types import Device

_WORDS = {
    "yes": "runs",
    "compiled": "runs, after compiling",
    "partly": "runs in part",
    "no": "does not run",
    "other": "not for it",
    "none": "no device code",
    "unknown": "unknown",
}
_KINDS = {CUBIN: "cubins", PTX: "PTX", LTO: "LTO-IR", CODE_OBJECT: "AMD code", SPIRV: "SPIR-V"}
_INSTRUCTIONS = {"avx": "AVX", "avx2": "AVX2", "avx512f": "AVX-512"}


def heading(answer: Answer) -> Iterator[str]:
    """Yield what was read, and for which device it is judged."""
    with_code = [library for library in answer.libraries if library.objects]
    if len(answer.libraries) == 1:
        library = answer.libraries[0]
        inside = "" if library.name == answer.what else f" · {library.name}"
        yield f"{answer.what}{inside} · {_what_it_is(library)} · {size(library.size)}"
    else:
        yield f"{answer.what} · {_libraries(len(answer.libraries))}, {len(with_code):,} with device code"
    if answer.device:
        yield f"on {_device(answer.device)}"


def _libraries(number: int) -> str:
    return f"{number:,} {'library' if number == 1 else 'libraries'}"


def _what_it_is(library: Library) -> str:
    return f"{library.format}, {library.cpu.machine}" if library.cpu else library.format


def _device(device: Device) -> str:
    at = capability(device)
    return f"{device.name}" + (f", compute capability {at[0]}.{at[1]}" if at else f", {device.arch}")


def matters(answer: Answer, index: int) -> bool:
    """Return whether a library belongs in the table: it has device code, is broken, or speaks against the device."""
    library = answer.libraries[index]
    if answer.device and not library.remarks:
        runs = answer.judgments[index].runs
        return runs not in (("yes", "none") if answer.device.kind == "cpu" else ("other", "none"))
    return bool(library.objects or library.remarks)


def in_full(answer: Answer, index: int) -> Iterator[str]:
    """All that is known of one library, the judgment first."""
    library = answer.libraries[index]
    if answer.judgments:
        yield _sentence(answer.judgments[index])
    if library.objects:
        for kind, word in _KINDS.items():
            if found := library.count(kind):
                yield f"  {word:<9} {_counted(found)}{_driver(library) if kind == PTX else ''}"
        yield f"  objects   {_objects(library)}"
        yield f"  code for  {ranges(answers.serves(library)) or 'no device of the catalog'}"
    elif not answer.judgments and library.format != NOT_READ:
        yield "  no device code"
    if library.cpu:
        yield f"  CPU       {_cpu(library.cpu)}"
    for remark in library.remarks:
        yield f"  ! {remark}"


def _sentence(found: Judgment) -> str:
    word = _WORDS[found.runs]
    parts = [word + (f": {found.reason}" if found.reason not in ("", word) else "")]
    if found.images and found.runs in ("yes", "partly"):
        parts.append(f"takes the code for {' '.join(found.images)}")
    if found.missing:
        parts.append(f"compiled without {', '.join(found.missing)}")
    return "; ".join(parts)


def _counted(found: Counter[str]) -> str:
    return " ".join(f"{target}×{found[target]:,}" if found[target] > 1 else target for target in targets(found))


def _driver(library: Library) -> str:
    """The CUDA version that a driver needs to compile the PTX."""
    versions = {image.isa for item in library.objects for image in item.images if image.kind == PTX and image.isa}
    needed = [judge.cuda_for_ptx(isa) for isa in sorted(versions, key=lambda isa: [int(n) for n in isa.split(".")])]
    if not needed or not needed[-1]:
        return ""
    span = needed[-1] if needed[0] == needed[-1] else f"{needed[0]} to {needed[-1]}"
    return f"   compiled by drivers with CUDA {span} or newer"


def _objects(library: Library) -> str:
    """How many places hold device code, and how many of them have PTX to fall back on."""
    total = sum(item.count for item in library.objects)
    with_ptx = sum(item.count for item in library.objects if any(image.kind == PTX for image in item.images))
    if not library.count(CUBIN, PTX):
        return f"{total:,}"
    share = "all" if with_ptx == total else "none" if not with_ptx else f"{with_ptx:,}"
    return f"{total:,}, {share} with PTX for later GPUs"


def _cpu(code: CpuCode) -> str:
    parts = [code.machine]
    if code.needs:
        parts.append(f"asks for {code.needs}")
    if code.holds:
        sets = ", ".join(_INSTRUCTIONS[name] for name in code.holds)
        parts.append(f"holds {sets}; whether it asks the processor first cannot be told")
    elif code.looked_at:
        parts.append("no AVX seen")
    if code.looked_at < code.size and code.machine == "x86_64":
        parts.append(f"{size(code.looked_at)} of {size(code.size)} of code looked at")
    return "; ".join(parts)


def ranges(served: Sequence[str]) -> str:
    """Compute capabilities of the catalog as ranges, AMD targets as they are: ``6.0 to 6.2, 7.5``."""
    known = sorted({row.cc for row in architectures().values() if row.cc}, key=version)
    indexes = [known.index(name) for name in served if name in known]
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [known[run[0]] if len(run) == 1 else f"{known[run[0]]} to {known[run[-1]]}" for run in runs]
    others = " ".join(name for name in served if name not in known)
    return ", ".join([*parts, *([others] if others else [])])


def listing(answer: Answer, shown: Sequence[int]) -> Table:
    """The libraries as a table; kernel files of one folder in one row."""
    headings = ("on this device", "") if answer.device else ("runs on", "code for")
    rows = table("library", "size", *headings)
    for name, members in _grouped(answer, shown).items():
        first = answer.libraries[members[0]]
        total = sum(answer.libraries[index].size for index in members)
        label = name if len(members) == 1 else f"{name} ({len(members)} files)"
        if answer.judgments:
            rows.add_row(label, size(total), *_judged([answer.judgments[index] for index in members]))
        else:
            libraries = [answer.libraries[index] for index in members]
            served = {cc for library in libraries for cc in answers.serves(library) if not cc.startswith("gfx")}
            found = {target for library in libraries for target in library.count()}
            rows.add_row(label, size(total), ranges(tuple(served)), " ".join(targets(found)))
        for remark in first.remarks:
            rows.add_row(f"  ! {remark}")
    return rows


def _judged(found: Sequence[Judgment]) -> tuple[str, str]:
    """Word and reason of one library; of kernel files the best, since each is for one device."""
    best = min(found, key=lambda item: list(_WORDS).index(item.runs))
    parts = [best.reason]
    if best.runs == "yes":
        parts.append(" ".join(best.images[:3]))
    if best.missing:
        parts.append(f"without {', '.join(best.missing)}")
    return _WORDS[best.runs], "; ".join(part for part in parts if part)


def _grouped(answer: Answer, shown: Sequence[int]) -> dict[str, list[int]]:
    """Places of libraries by what they are shown as."""
    found: dict[str, list[int]] = {}
    for index in shown:
        library = answer.libraries[index]
        name = library.name if library.cpu or library.remarks else answers.group(library)
        found.setdefault(name, []).append(index)
    return {
        (answer.libraries[indexes[0]].name if len(indexes) == 1 else name): indexes for name, indexes in found.items()
    }


def conclusion(answer: Answer) -> Iterator[str]:
    """Yield what all have in common, the weakest, what stands against the device and what to do then."""
    for remark in answer.remarks:
        yield f"! {remark}"
    if len(answer.libraries) > 1:
        yield from _against(answer, answer.device) if answer.device else _together(answer)
    if answer.failing and answer.device:
        yield f"→ the builds that do: rung setup --device {answer.device.id}"


def _together(answer: Answer) -> Iterator[str]:
    """Yield what all libraries have code for, and which of them has the least."""
    if not any(library.objects for library in answer.libraries):
        yield "None of them holds device code: it is a build for processors."
    if served := answers.common(answer.libraries):
        yield f"All have code for {ranges(served)}."
    if least := answers.weakest(answer.libraries):
        name = least.name if least.cpu else answers.group(least)
        yield f"The weakest: {name}, code for {ranges(answers.serves(least)) or 'nothing in the catalog'}."


def _against(answer: Answer, device: Device) -> Iterator[str]:
    """Yield whether something stands against the device, and what is not for it at all."""
    counts = Counter(found.runs for found in answer.judgments)
    if answer.failing:
        yield f"Nothing of {_libraries(len(answer.failing))} runs on {device.name}."
    elif counts["no"]:
        yield f"It runs on {device.name}: of builds for several toolkits or targets a program takes the one that does."
    elif counts["yes"] + counts["compiled"] + counts["partly"]:
        yield f"Nothing stands against {device.name}."
    else:
        yield f"None of them holds device code for {device.name}."
    if counts["other"]:
        yield f"{_libraries(counts['other'])} for other makers' devices are left out."
