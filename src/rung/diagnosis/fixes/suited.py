"""An answer suited to a device by planning: fixes that its memory does not allow come last, and what runs is named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rung.core.errors import RungError
from rung.core.text import quoted, size
from rung.core.types import Device
from rung.diagnosis.evidence import Evidence, Scene
from rung.diagnosis.explanation import Explanation, Works
from rung.diagnosis.fixes.wording import Fix
from rung.models import catalog, lookup
from rung.models.catalog import Match
from rung.models.networks.values import Outline
from rung.planning.answers.values import devices_phrase
from rung.planning.check import check
from rung.planning.check_result import Answer, Choice, Question
from rung.planning.speed import READING_SPEED

#: Well-known models by size, largest first; the first that answers at reading speed is named.
_KNOWN = (
    *("llama-3.3-70b", "qwen3-32b", "qwen3-14b", "llama-3.1-8b", "qwen3-4b", "llama-3.2-3b", "qwen3-1.7b"),
    *("llama-3.2-1b", "qwen3-0.6b", "smollm2-135m"),
)
_FORMAT = "q4_k_m"
#: Bytes of a weight in that format at least: what does not fit, or is not read in time, even so is not asked about.
_BYTES = 0.55
#: Fixes that load a model in a dtype, and that dtype as a format.
_LOADS = {"use-fp16": "f16", "use-bf16": "bf16", "use-fp32": "f32"}
_FULL = "gpu-out-of-memory"
#: Where weights are quantized a dtype is that of the products, and what is trained needs more than its weights.
_QUANTIZED = r"(?i)bitsandbytes|\bbnb\b|[48]-?bit|\bnf4|gguf|ggml|\bawq\b|gptq|quantiz|ollama|llama runner|lm ?studio"
_TRAINED = r"(?i)\btrain|backward|optimizer|epoch|fine-?tun"


def suit(found: Explanation, scene: Scene, device: Device, outline: Outline | None) -> Explanation:
    """Return the explanation with its fixes checked against ``device``, and with what runs there of the model of
    ``outline`` or of the log; without a known model the explanation as it is."""
    names = filter(None, (scene.mentions.file, scene.mentions.model))
    outline = outline or next(filter(None, map(_outline_named, names)), None)
    if outline is None:
        return found
    runs = _runs(outline, device, scene.mentions.file)
    found = _checked(_with_cards(found, outline), scene, device, outline, runs)
    found = replace(found, repairs=tuple(_repairs(found, runs)))
    return replace(found, works=runs)


def best_known(device: Device) -> Works | None:
    """Return the largest well-known model that answers at reading speed there, else the smallest that runs."""
    last = None
    for name in _KNOWN:
        known = catalog.find(name)
        if known is None or known.model is None or not _may_run(known.model.parameters * _BYTES, device):
            continue
        answer = _answer(catalog.outline_of(known), device, (_FORMAT,))
        if answer is None or answer.best is None:
            continue
        last = _works(answer, answer.choices[answer.best], device)
        if answer.choices[answer.best].level == "yes":
            return last
    return last


def _may_run(weights: float, device: Device) -> bool:
    """Return whether so many bytes fit, and can be read at least at reading speed."""
    return weights <= device.budget and (not device.bandwidth or device.bandwidth / weights >= READING_SPEED)


def _outline_named(name: str) -> Outline | None:
    """The outline of what a log calls a model: a file that is here, or a model of the catalog."""
    try:
        if lookup.exists(name) and name.endswith(".gguf"):
            return lookup.find_outline(name, offline=True)
        known = _known(name)
        return catalog.outline_of(known) if known is not None and known.model is not None else None
    except RungError:
        return None


def _known(name: str) -> Match | None:
    """The model of the catalog that a name, or the name of a file of it, means."""
    bare = re.sub(r"(?i)\.gguf$", "", re.split(r"[/\\]", name)[-1])
    try:
        return catalog.find(bare)
    except RungError:  # several fit, or none of that size
        return None


def _answer(
    outline: Outline, device: Device, formats: tuple[str, ...] = (), *, alternatives: bool = False
) -> Answer | None:
    """Return the answer of ``rung check`` for a model there, or None where there is no answer."""
    try:
        return check(outline, [device], Question(formats=formats), alternatives=alternatives)
    except RungError:
        return None


def _works(answer: Answer, choice: Choice, device: Device, change: str = "") -> Works:
    peer = choice.speed.llama_cpp
    return Works(
        model=answer.title or answer.model,
        device=devices_phrase((device,)),
        format=choice.format,
        memory=choice.memory.total,
        free=choice.free,
        tokens_per_second=choice.speed.decode_tokens_per_second,
        command=choice.command,
        change=change,
        faster=peer.command if peer is not None and choice.speed.slower else "",
    )


def _runs(outline: Outline, device: Device, file: str) -> Works | None:
    """Return a way to run the model of the log: in the format of its file or in one that fits, else with a change."""
    known = _known(file) if file else None
    own = (known.format,) if known is not None and known.format else ()
    answer = _answer(outline, device, own, alternatives=True)
    if answer is None:
        return None
    if answer.best is not None:
        found = _works(answer, answer.choices[answer.best], device)
    elif (other := next((each for each in answer.alternatives if each.as_asked), None)) is not None:
        found = _works(answer, other.choice, device, other.change)
    else:
        return None
    if own and found.format == own[0]:
        found = replace(found, command=_of_file(file, found), faster="")
    return replace(found, of_log=True)


def _of_file(file: str, found: Works) -> str:
    """The command that runs the file of the log; what is changed is said in it."""
    context = re.search(r" --context \d+", found.command or "") if found.change else None
    return f"rung run {quoted(file)}{context[0] if context else ''}"


def _checked(found: Explanation, scene: Scene, device: Device, outline: Outline, runs: Works | None) -> Explanation:
    """The fixes in an order that the memory allows, with a fact that says what it does not."""
    if scene.mentions.file or re.search(_QUANTIZED, f"{scene.text}\n{scene.excerpt}"):
        return found
    commands = tuple(_LOADS[fix.label] for fix in found.fixes if fix.label in _LOADS)
    full = found.cause == _FULL and not re.search(_TRAINED, f"{scene.text}\n{scene.excerpt}")
    if not commands and not full:
        return found
    answer = _answer(outline, device, commands or ("f16",))
    lost = {choice.format: choice for choice in answer.choices if not choice.fits} if answer is not None else {}
    if not lost:
        return found
    kept = [fix for fix in found.fixes if _LOADS.get(fix.label) not in lost]
    late = [_refused(fix, lost[_LOADS[fix.label]]) for fix in found.fixes if _LOADS.get(fix.label) in lost]
    title = outline.title or outline.name
    if runs is not None and (full or commands[0] in lost):
        first = Fix("change-quantization", f"run {title} in {runs.format}, which fits: {runs.use}", runs.command)
        kept = [first, *(fix for fix in kept if fix.label != first.label)]
    needs = " and ".join(f"{size(choice.memory.total)} in {choice.format}" for choice in lost.values())
    fact = Evidence(None, "", f"{title} needs {needs}; {device.name} has {size(device.budget)}", "rung check")
    return replace(found, fixes=(*kept, *late), evidence=(*found.evidence, fact))


def _with_cards(found: Explanation, outline: Outline) -> Explanation:
    """The explanation whose other hardware is what the catalog's cards can run of the model."""
    if _known(outline.name) is None:
        return found
    command = f"rung check {outline.name} --fits"
    fixes = tuple(replace(fix, command=command) if fix.label == "change-hardware" else fix for fix in found.fixes)
    return replace(found, fixes=fixes)


def _refused(fix: Fix, choice: Choice) -> Fix:
    """A fix with the memory that it would need, and no command to try it with."""
    why = f"{fix.text} (needs {choice.memory_words()}: does not fit)"
    return replace(fix, text=why, command=None)


def _repairs(found: Explanation, runs: Works | None) -> Iterable[Fix]:
    """Yield what rung does, with a command that runs: a file as it is, a name in the format that fits."""
    others = [fix for fix in found.repairs if fix.label != "rung-run"]
    own = len(others) < len(found.repairs)
    if runs is None or runs.command is None or not (own or found.automatic):
        return others
    if any(fix.command == runs.command for fix in found.fixes):
        return others
    return [Fix("rung-run", "let rung choose what works on this device", runs.command), *others]
