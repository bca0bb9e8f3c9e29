"""The text of ``rung check``: a table of the choices, or each in detail; what is best, and what would help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung.cli import check_scene
from rung.cli.views.output import columns, folded
from rung.core.text import printable, rate, size
from rung.core.types import MemoryUse
from rung.formats.table import grade
from rung.planning.answers.sentence import full_speed, sorted_by_size
from rung.planning.check_result import Checkpointing, Choice
from rung.planning.pipeline import PlannedPhase

if TYPE_CHECKING:
    from rung.planning.check_result import Answer, Choice, Pass


#: Parts of memory that people call otherwise than scripts.
_NAMES = {"kv_cache": "KV cache"}


def facts(choice: Choice) -> dict[str, list[str]]:
    """Why, its memory and that of its phases, speed and error, each in pieces; what there is nothing of is left out."""
    found: dict[str, Sequence[str]] = {
        "why": [choice.verdict.reason] if choice.verdict.reason else [],
        "memory": [f"{_total(choice.memory)} of {size(choice.free)} free", *parts(choice.memory)],
        **{phase.name: _phase(phase) for phase in choice.phases},
        "activations": _ways(choice.checkpointing) if choice.checkpointing else (),
        "speed": [*choice.speeds, *_bound(choice), unsure(choice), *_level(choice)]
        if choice.speeds
        else _bound(choice),
        "llama.cpp": _llama_cpp(choice),
        "quality": [grade(choice.error_db), *([] if math.isinf(choice.error_db) else [error(choice)])],
    }
    return {name: list(pieces) for name, pieces in found.items() if pieces}


def gist(choice: Choice) -> list[str]:
    """Return the parts of the memory, and how sure the speed is."""
    peak = [f"peak in {phase.name}" for phase in choice.phases if phase.memory == choice.memory]
    speed = [f"speed {unsure(choice)}", *_level(choice)] if choice.speeds else []
    return [*peak[:1], *parts(choice.memory), *speed]


def parts(use: MemoryUse) -> list[str]:
    """Return ``weights 2.5 GB`` and so on for all parts of a use of memory."""
    nonzero = {name: amount for name, amount in use.parts().items() if amount and name != "total"}
    return [f"{_NAMES.get(name, name)} {size(amount)}" for name, amount in nonzero.items()]


def unsure(choice: Choice) -> str:
    """``± 50%``."""
    return f"± {choice.speed.uncertainty:.0%}"


def _level(choice: Choice) -> list[str]:
    return [f"runs at level {choice.speed.level}"] if choice.speed.level else []


def error(choice: Choice) -> str:
    """``noise 45 dB below the weights``."""
    return f"noise {round(choice.error_db, 1):.0f} dB below the weights"


def slower_why(choice: Choice) -> str:
    """Return why rung is slow with that choice: ``with q8_0 rung reaches 6.7 of the 77 tokens/s that the memory
    allows``."""
    speed = choice.speed
    if speed.decode_tokens_per_second is None:
        return speed.reason
    most = speed.bound_tokens_per_second
    formats = "the stored formats" if choice.format == "stored" else choice.format
    reached = f"with {formats} rung reaches {rate(speed.decode_tokens_per_second)}"
    reached += f" of the {rate(most)} tokens/s that the memory allows" if most else " tokens/s"
    return f"{reached}, since it decodes the weights before each product there" if speed.decodes else reached


def llama_cpp_words(choice: Choice) -> str:
    """Return llama.cpp's speed there, as far as published figures tell."""
    peer = choice.speed.llama_cpp
    if peer is None or peer.tokens_per_second is None:
        most = choice.speed.bound_tokens_per_second
        allowed = f", and the memory allows {rate(most)} tokens/s" if most and choice.speed.reason else ""
        return f"llama.cpp multiplies such weights as they are stored{allowed}"
    return f"llama.cpp reaches about {peer.tokens_per_second:g}"


def _bound(choice: Choice) -> list[str]:
    most = choice.speed.bound_tokens_per_second
    return [f"the memory allows {rate(most)}"] if most else []


def _llama_cpp(choice: Choice) -> list[str]:
    """Return llama.cpp's lines: its speed where figures are published, with their source, and the command."""
    peer = choice.speed.llama_cpp
    if peer is None:
        return []
    command = [peer.command] if peer.command else []
    if peer.tokens_per_second is None:
        return command
    source = f"from {peer.measured} on this card, {peer.source}"
    return [f"about {peer.tokens_per_second:g} tokens/s", source, *command]


def _total(use: MemoryUse) -> str:
    """With the bound of its error, which must fit too."""
    return size(use.total) + (f", up to {size(use.bound)} more," if use.bound else "")


def _phase(phase: PlannedPhase) -> list[str]:
    storage = [f"{name} in {way}" for name, way in phase.held.items()]
    return [_total(phase.memory).rstrip(","), *parts(phase.memory), *storage]


def _ways(steps: Checkpointing) -> list[str]:
    ways = {"with gradient checkpointing": steps.lean, "without": steps.without}
    return [f"{size(use.activations)} {way} ({size(use.total)} in all)" for way, use in ways.items()]


#: A blank at which no line is folded, and the most letters of what stays whole.
_UNBROKEN, _SHORT = "\u00a0", 24
#: What stands in the place of a command.
_ON_ONE = "  no command: transformers builds this network, and rung runs those on one device"


def show(answer: Answer, fits: bool = False, details: bool = False) -> None:
    """Print the answer."""
    print(text(answer, fits, details))


def text(answer: Answer, fits: bool = False, details: bool = False) -> str:
    """Return the answer: a sentence, a table or all in detail, what runs instead, the best with command and memory."""
    lines = [*folded("", answer.sentence), *folded("", _heading(answer))]
    for one in answer.passes:
        lines += _pass_lines(one)
    shown = _per_device(answer) if fits else answer.choices
    if details:
        lines += _details(answer, shown)
    elif check_scene.is_answer(answer):
        lines += check_scene.table(shown, answer)
    else:
        lines += _table(answer, shown)
    return printable("\n".join([*lines, *_conclusion(answer, fits, details)]))


def _heading(answer: Answer) -> str:
    """``gemma-2b · 2,506,172,416 parameters · context 4,096 · Quadro P2200, 4.9 GB free``."""
    about = f"{answer.model} · {answer.about}"
    if len(answer.groups) != 1:
        return about
    key = next(iter(answer.best_by_device), "")
    free = next((choice.free for choice in answer.choices), 0)
    return f"{about} · {answer.name(key)}, {size(free)} free"


def _details(answer: Answer, shown: Sequence[Choice]) -> list[str]:
    """A paragraph a choice. A command is never folded, so that it can be copied."""
    facts_of_all = [facts(choice) for choice in shown]
    wide = max((len(name) for found in facts_of_all for name in (*found, "command")), default=0)
    lines = []
    for choice, found in zip(shown, facts_of_all, strict=True):
        lines.append(f"{choice.column} on {answer.name(choice.device)}: {choice.level}")
        for name, pieces in found.items():
            lines += _pieces(f"  {name:<{wide}}  ", pieces)
        lines += [f"  {'command':<{wide}}  {choice.command}"] if choice.command else []
    return lines


def _pieces(start: str, pieces: Sequence[str]) -> list[str]:
    """Short pieces stay whole where lines are folded: a name with its size."""
    whole = [piece.replace(" ", _UNBROKEN) if len(piece) <= _SHORT else piece for piece in pieces]
    return [line.replace(_UNBROKEN, " ") for line in folded(start, " · ".join(whole))]


def _table(answer: Answer, shown: Sequence[Choice]) -> list[str]:
    """One line a choice; no columns that are empty in all, no devices where there is one."""
    headings = ("format", "device", "memory", "free", "", "tokens/s", "at most", "quality", "")
    rows = [_row(answer, choice) for choice in shown]
    alone = len({choice.device for choice in shown}) == 1
    empty = {at for at, name in enumerate(headings) if name.endswith(("/s", "most")) and not any(r[at] for r in rows)}
    kept = [at for at, name in enumerate(headings) if at not in empty and not (alone and name in ("device", "free"))]
    return columns([headings[at] for at in kept], [[row[at] for at in kept] for row in rows]) if rows else []


def _row(answer: Answer, choice: Choice) -> tuple[str, ...]:
    return (
        choice.format,
        answer.name(choice.device),
        size(choice.memory.total),
        size(choice.free),
        choice.level,
        *_speeds(choice),
        grade(choice.error_db),
        choice.verdict.reason,
    )


def _speeds(choice: Choice) -> tuple[str, str]:
    """Its tokens a second, of a network that writes none those that it reads, and what the memory allows."""
    speed = choice.speed
    if not choice.verdict:
        return ("", "")
    decode = speed.decode_tokens_per_second
    pace = speed.prefill_tokens_per_second if decode is None else decode
    found = ("" if each is None else rate(each) for each in (pace, speed.bound_tokens_per_second))
    shown, most = found
    return ("-" if speed.reason and not shown else shown, most)


def _pass_lines(one: Pass) -> list[str]:
    """Return the cost of a traced pass, and the operations that take most of it."""
    dear = ", ".join(f"{found['name']} {_operations(found['flops'])}" for found in one.operations[:3] if found["flops"])
    return [
        f"{one.component}: one pass is {one.calls:,} operations, {_operations(one.flops)}"
        + (f" ({dear})" if dear else ""),
        f"  {size(one.bytes)} read and written, at most {size(one.activations)} of activations at once",
    ]


def _operations(count: int) -> str:
    """``1.2 TFLOP``."""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}FLOP"
    return f"{count} FLOP"


def _per_device(answer: Answer) -> list[Choice]:
    """The best choice of every device that runs it, slow ones last, smallest memory first."""
    return sorted(sorted_by_size(answer), key=lambda choice: choice.level == "slow")


def _conclusion(answer: Answer, fits: bool, details: bool) -> list[str]:
    lines = _smallest(answer, details) if fits else _best(answer, details)
    way = next((choice.in_the_way for choice in answer.choices if choice.in_the_way), ())
    if way and not fits:
        occupants = ", ".join(f"{p['name']} ({p['pid']}) {size(p['bytes'])}" for p in way)
        lines.append(f"It would fit on the idle device; in the way now: {occupants}")
    return lines + _help(answer)


def _smallest(answer: Answer, details: bool) -> list[str]:
    """How many cards run it, the smallest at reading speed, and the smallest that runs it at all if that is another."""
    able = sorted_by_size(answer)
    lines = [f"{len(able)} of {len(answer.best_by_device)} cards of the catalog run it."]
    if not able:
        return lines
    first = next((choice for choice in able if choice.level != "slow"), None)
    slower = any(choice.level == "slow" for choice in able)
    found = {f"the smallest {full_speed(answer)}" if slower else "the smallest": first} if first else {}
    if able[0] is not first:
        found["the smallest that runs it at all" if first else "the smallest, slowly"] = able[0]
    for words, choice in found.items():
        speed = f", {rate(decode)} tokens/s" if (decode := choice.speed.decode_tokens_per_second) is not None else ""
        lines.append(f"→ {words}: {answer.name(choice.device)}, {choice.format}, {size(choice.memory.total)}{speed}")
        lines += [] if details else _pieces("  ", gist(choice))
    return lines


def _best(answer: Answer, details: bool) -> list[str]:
    """The best choice of each device with its command, and what its memory is made of where nobody said so yet."""
    lines = []
    for device, index in answer.best_by_device.items():
        if index is None:
            lines += _instead(answer, device)
            continue
        best = answer.choices[index]
        lines.append(f"→ {answer.name(device)}: {best.format}" + (f"   {best.command}" if best.command else ""))
        lines += [_ON_ONE] if _split_elsewhere(best) else []
        lines += [] if details else _pieces("  ", gist(best))
        lines += faster(best) or faster(_slower(answer, device))
    return lines


def _split_elsewhere(choice: Choice) -> bool:
    """Return whether a language model would run over these devices, and ``rung run`` does not split it."""
    return choice.command is None and "+" in choice.device and choice.speed.decode_tokens_per_second is not None


def _slower(answer: Answer, device: str) -> Choice | None:
    """A choice there with which llama.cpp is faster, the usual 4 bits before others."""
    there = [c for c in answer.choices if c.device == device and c.verdict and c.speed.slower]
    return min(there, key=lambda choice: choice.format != "q4_k_m", default=None)


def _instead(answer: Answer, device: str) -> list[str]:
    """Return the alternatives on a device, each with its command."""
    others = [each for each in answer.alternatives if each.instead_of == device]
    name = answer.name(device)
    if not others:
        return [f"→ {name}: nothing runs"]
    rows = [
        (f"  {number}", other.label, f"{other.choice.memory_words()}",
         other.choice.level, *_speeds(other.choice), grade(other.choice.error_db))
        for number, other in enumerate(others, 1)
    ]  # fmt: skip
    lines = [f"→ {name}: nothing runs as asked; this does"]
    lines += columns(("   ", "", "memory", "", "tokens/s", "at most", "quality"), rows)
    lines += [f"  {number}  {other.choice.command}" for number, other in enumerate(others, 1) if other.choice.command]
    return lines + faster(others[0].choice)


def faster(choice: Choice | None) -> list[str]:
    """Return the lines that say where llama.cpp is faster than rung, with its command."""
    peer = choice.speed.llama_cpp if choice else None
    if choice is None or peer is None or not choice.speed.slower:
        return []
    words = f"{slower_why(choice)}; {llama_cpp_words(choice)}"
    if not peer.command:
        return _pieces("  ", [f"{words}, from a GGUF file"])
    return [*_pieces("  ", [f"{words}:"]), f"  {peer.command}"]


def _help(answer: Answer) -> list[str]:
    """The smallest changes with which something would run; never a purchase alone."""
    if not answer.relaxations or answer.alternatives:
        return []
    changes = [help.change + (f"   {help.command}" if help.command else "") for help in answer.relaxations]
    return ["What would help", *(f"  {number}  {one}" for number, one in enumerate(changes, 1))]
