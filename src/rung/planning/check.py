"""Whether a model will run, on which device, in which format: (outline, devices, question) -> Answer; pure.

For a language model that ``rung run`` builds this is the same arithmetic as its plan: recipe, memory, time and error
of ``rung.planning``, one arrangement for each format and device.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rung import formats
from rung.core.errors import ContextTooLong, UnknownFormat, UsageError
from rung.core.text import count, quoted, tenths
from rung.core.types import Device, Format, Level, MemoryUse, StepClass, Verdict, no
from rung.core.value import FrozenDict
from rung.hardware.select import Group, group_id
from rung.models.outlines.values import GENERATES, Outline
from rung.planning.answer import (
    OPTIMIZER,
    PROMPT,
    RANK,
    SEQUENCE,
    Answer,
    Checkpointing,
    Choice,
    Pass,
    Question,
    Relaxation,
    Speed,
)
from rung.planning.arrange import Arrangement, arrange, computable
from rung.planning.devices import computes, uncertainty
from rung.planning.kitchen import Kitchen, Recipe
from rung.planning.phase_check import inputs_of, phase_on
from rung.planning.phases import PlannedPhase
from rung.planning.recipe import Storage, storage_name
from rung.planning.relax import less_context, other_training, smaller_format
from rung.planning.request import Request
from rung.planning.solve import FORMATS, SIXTEEN, arrangements, choose, contexts_of, storages, verdict_of
from rung.planning.subject import Subject
from rung.planning.training import trainable, training_use

#: Fewer tokens a second than a person reads count as slow.
SLOW = 3.0


@dataclass(frozen=True)
class _Case:
    """What every choice of one model shares."""

    kitchens: dict[str, Kitchen]
    outline: Outline
    question: Question
    request: Request
    context: int
    sequence: int

    @property
    def main(self) -> Kitchen:
        """The model itself; of a pipeline the largest component."""
        return max(self.kitchens.values(), key=lambda kitchen: kitchen.subject.parameters)

    @property
    def reads(self) -> bool:
        """Whether it is one network that reads a text, and so has a context and a speed of reading."""
        return len(self.kitchens) == 1 and self.main.subject.role in (*GENERATES, "encoder")


def check(
    outline: Outline, devices: Sequence[Device | Group], question: Question, passes: Sequence[Pass] = ()
) -> Answer:
    """Every format on every device, refused ones included, the best of them, and what would help where none is.

    A tuple of devices is one budget, its layers split in that order. ``passes`` were traced: their activations count
    instead of estimates. Raises ``ContextTooLong``, ``UnknownFormat``,
    ``UsageError`` (training of a pipeline).
    """
    groups = [(entry,) if isinstance(entry, Device) else entry for entry in devices]
    case = _case(outline, question, {one.component: one.activations for one in passes})
    case.request.check_names(device for group in groups for device in group)
    choices: list[Choice] = []
    best: dict[str, int | None] = {}
    picked: list[tuple[Arrangement, int]] = []
    for group in groups:
        rows = [_choice(case, format, group) for format in _storages(case)]
        first, fitting = len(choices), []
        for number, (choice, arrangement) in enumerate(rows):
            choices.append(choice)
            if choice.verdict:
                fitting.append((arrangement, first + number))
        index = _best(case, fitting)
        best[group_id(group)] = index
        picked += [pair for pair in fitting if pair[1] == index]
    chosen = _best(case, picked)
    helpful = _relaxations(case, groups, choices) if chosen is None else ()
    return Answer(
        outline.name,
        tuple(choices),
        chosen,
        FrozenDict(best),
        helpful,
        outline.parameters,
        case.context if case.reads and not question.training else 0,
        tuple(passes),
        case.sequence if question.training else 0,
    )


def _case(outline: Outline, question: Question, traced: Mapping[str, int]) -> _Case:
    if outline.card is not None:
        subjects = {outline.components[0].name: Subject.of_card(outline.card)}
    else:
        subjects = {c.name: Subject.of_component(c, outline.kind, outline.path) for c in outline.components}
        subjects = {
            name: replace(s, name=outline.name, traced=traced.get(name, 0), borrowed=_borrowed(outline, s))
            for name, s in subjects.items()
        }
    if question.training and len(subjects) > 1:
        raise UsageError(
            f"{outline.name} is a pipeline; rung knows the memory of training for language models.",
            ways_out=["rung check MODEL   # without --training"],
        )
    kitchens = {name: Kitchen(subject) for name, subject in subjects.items()}
    largest = max(subjects.values(), key=lambda subject: subject.parameters)
    context = contexts_of(largest, question.context)[0]
    most = largest.shape.context or SEQUENCE
    sequence = question.sequence or min(SEQUENCE, most)
    if largest.shape.context and sequence > most:
        raise ContextTooLong(
            f"A training sequence of {sequence:,} tokens is longer than the model allows.",
            [f"{largest.name} holds {count(most, 'token')}"],
            [f"--sequence {most}"],
        )
    prompt = question.prompt_tokens or min(PROMPT, context)
    if prompt > context:
        raise ContextTooLong(
            f"A prompt of {prompt:,} tokens is longer than the context, which is {count(context, 'token')}.",
            (),
            [f"--prompt-tokens {context}", f"--context {prompt}"],
        )
    request = Request(memory=question.memory, context=context, batch=question.batch, prompt_tokens=prompt)
    return _Case(kitchens, outline, question, request, context, sequence)


def _borrowed(outline: Outline, subject: Subject) -> bool:
    """Whether its layers will be those of rung.nn."""
    read = outline.writes or any(tensor.source for tensor in subject.tensors)
    return outline.kind == "module" or (subject.decoder is None and read)


def _storages(case: _Case) -> list[Storage]:
    """The formats of the question, else a file's own and those that are smaller, or those of an unquantised model."""
    subject = case.main.subject
    read = {
        tensor.format for tensor in subject.tensors if tensor.source
    }  # what another quantiser wrote, and rung reads
    strange = sorted({tensor.format for tensor in subject.tensors} - set(formats.FORMATS) - read)
    if "stored" in case.question.formats and strange:
        raise UnknownFormat(
            f"{subject.name} is stored in {strange[0]}, which rung does not decode.",
            ways_out=[f"rung check {quoted(subject.path)} --format q8_0"],
        )
    if case.question.formats:
        asked = [storage for name in case.question.formats for storage in storages(subject, name)]
        return list({storage_name(storage): storage for storage in asked}.values())  # nf4 and nf4:64 are one
    if case.question.training == "full":
        return [storage for name in ("f32", "bf16", "f16") for storage in storages(subject, name)]
    named = [storage for name in FORMATS for storage in storages(subject, name)]
    if not subject.keeps and not _quantised(subject):
        return named
    smaller = [s for s in named if s is not None and _bits(s) * subject.parameters / 8 < case.outline.weight_bytes]
    return [None, *smaller]


def _quantised(subject: Subject) -> bool:
    """Whether its matrices are stored in formats that rung decodes, and not all of them as floats."""
    stored = {tensor.format for tensor in subject.tensors}
    return stored <= set(formats.FORMATS) and any(formats.FORMATS[name].bits < 16 for name in stored)


def _bits(storage: Storage) -> float:
    return float(getattr(storage, "bits", 0.0) or getattr(getattr(storage, "base", None), "bits", 0.0))


def _choice(case: _Case, storage: Storage, group: Group) -> tuple[Choice, Arrangement]:
    """One row of the answer."""
    arrangement = arrangements(case.main, storage, group, case.request, case.context)[-1]
    phases: tuple[PlannedPhase, ...] = ()
    recipes = [arrangement.recipe]
    note = ""
    steps: Checkpointing | None = None
    if case.question.training:
        arrangement, steps = _trained(case, arrangement, group)
        note = steps.note
    elif len(case.kitchens) > 1:
        arrangement, phases = _phased(case, arrangement, group)
        note = _held_otherwise(case, storage, phases)
        recipes = list(_recipes(case, arrangement, group[0]).values())
    fits = arrangement.over <= 0
    verdict = _verdict(case, arrangement, group)
    slow = _slow(case, arrangement, group) if verdict else ""
    said = (verdict.reason or slow, note if phases or not (verdict.reason or slow) else "")
    reason = "; ".join(filter(None, said))
    total = arrangement.placements[0].memory if len(arrangement.placements) == 1 else _sum(arrangement)
    choice = Choice(
        format=storage_name(storage),
        device=group_id(group),
        fits=fits,
        level="no" if not verdict else "slow" if slow else "yes",
        verdict=replace(verdict, reason=reason),
        memory=total,
        free=sum(case.request.budget(device) for device in group),
        speed=_speed(case, arrangement, group),
        error_db=min(recipe.error_db for recipe in recipes),
        command=_command(case, arrangement, group),
        phases=phases,
        checkpointing=steps,
    )
    return choice, arrangement


def _verdict(case: _Case, arrangement: Arrangement, group: Group) -> Verdict:
    for device in group:
        for able in (computes(device), computable(arrangement.storage, device)):
            if not able:
                return able
    if case.question.training:
        able = trainable(case.question.training, arrangement.storage, case.main.subject)
        if not able:
            return able
    if len(group) > 1 and (case.question.training or len(case.kitchens) > 1):
        return no(f"rung plans {'training' if case.question.training else 'pipelines'} on one device")
    found = verdict_of(arrangement, group)
    if not found and arrangement.over > 0:
        emulated = _emulated(arrangement, group)
        return no(f"{found.reason}{'; ' + emulated if emulated else ''}", StepClass.OUT_OF_MEMORY)
    return found


def _emulated(arrangement: Arrangement, group: Group) -> str:
    """A sentence when a GPU among the devices multiplies a 16-bit format by conversion; kernels for CPUs read both."""
    for device in group:
        found = device.capability(f"matmul.{arrangement.name}")
        if arrangement.name in SIXTEEN and device.kind != "cpu" and found.level is Level.EMULATED:
            return f"{arrangement.name} is emulated there" + (f": {found.source}" if found.source else "")
    return ""


def _slow(case: _Case, arrangement: Arrangement, group: Group) -> str:
    """Why it runs slowly, or nothing."""
    if emulated := _emulated(arrangement, group):
        return emulated
    if case.main.subject.generates and not case.question.training and arrangement.rates.decode < SLOW:
        return f"{arrangement.rates.decode:.2g} tokens/s, slower than one reads"
    return ""


def _sum(arrangement: Arrangement) -> MemoryUse:
    uses = [vars(placement.memory) for placement in arrangement.placements]
    return MemoryUse(**{name: sum(use[name] for use in uses) for name in uses[0]})


def _speed(case: _Case, arrangement: Arrangement, group: Group) -> Speed:
    unsure = max(uncertainty(device) for device in group)
    timed = case.reads and not case.question.training
    prefill = round(arrangement.rates.prefill, 1) if timed else None
    decode = round(arrangement.rates.decode, 2) if timed and case.main.subject.generates else None
    return Speed(prefill, decode, unsure, case.request.prompt_tokens)


def _command(case: _Case, arrangement: Arrangement, group: Group) -> str | None:
    """What runs it. A card of the catalogue is meant to be the first of its kind where the command runs."""
    makes = case.outline.makes if isinstance(arrangement.storage, Format) and case.request.batch == 1 else ""
    alone = len(group) > 1 and case.main.subject.borrowed  # transformers' networks compute on one device
    if case.question.training or alone or not (makes or case.outline.writes):
        return None
    words = ["rung", makes or "run", case.outline.path, *(["PROMPT"] if makes else [])]
    if arrangement.storage is not None:
        words += ["--format", storage_name(arrangement.storage)]
    words += [] if makes else ["--context", str(case.context)]
    if len(group) == 1:
        words += ["--device", group[0].id if group[0].real else _place(group[0])]
    return shlex.join(words)


def _place(device: Device) -> str:
    return device.kind if device.kind in ("cpu", "mps") else f"{device.kind}:0"


def _best(case: _Case, fitting: list[tuple[Arrangement, int]]) -> int | None:
    """The index of the choice that ``rung run`` would take."""
    if not fitting:
        return None
    if case.question.training or len(case.kitchens) > 1 or not case.main.subject.generates:
        return max(fitting, key=lambda pair: (pair[0].recipe.error_db, -pair[0].placements[0].memory.total))[1]
    asked = case.question.formats[0] if len(case.question.formats) == 1 else None
    own = [pair for pair in fitting if pair[0].storage is None]
    best, _ = choose(case.main.subject, [arrangement for arrangement, _ in own or fitting], asked)
    return next(number for arrangement, number in fitting if arrangement is best)


# ---- pipelines and training


def _recipes(case: _Case, arrangement: Arrangement, device: Device) -> dict[str, Recipe]:
    """The recipe of each component."""
    return {
        name: kitchen.recipe(arrangement.storage, device, arrangement.dtype, False)
        for name, kitchen in case.kitchens.items()
    }


def _phased(case: _Case, arrangement: Arrangement, group: Group) -> tuple[Arrangement, tuple[PlannedPhase, ...]]:
    """The arrangement with the memory of its largest phase; components that it does not name are not resident."""
    device = group[0]
    found = [
        phase_on(phase, case.kitchens, arrangement.storage, device, case.request, case.context)
        for phase in case.outline.phases
    ]
    largest = max(found, key=lambda phase: phase.memory.most).memory
    placed = replace(arrangement.placements[0], device=device.id, memory=largest, budget=case.request.budget(device))
    return replace(arrangement, placements=(placed,)), tuple(found)


def _held_otherwise(case: _Case, storage: Storage, phases: Sequence[PlannedPhase]) -> str:
    """A sentence on what encodes in another format than the one asked for, and on what computes in slices."""
    found = []
    for phase in phases:
        for name, way in phase.held.items():
            if phase.name == "encode" and way.format != storage_name(storage):
                found.append(f"{name} in {way.format}: it overflows in {storage_name(storage)}")
            inputs = inputs_of(case.kitchens[name], case.request)
            if way.at_once < inputs:
                found.append(f"{name} computes {way.at_once} of {inputs} at once")
    return "; ".join(found)


def _trained(case: _Case, arrangement: Arrangement, group: Group) -> tuple[Arrangement, Checkpointing]:
    """The arrangement with the memory of a training step, checkpointed where it does not fit otherwise."""
    asked, device = case.question, group[0]
    budget = case.request.budget(device)
    made = case.main.recipe(arrangement.storage, device, arrangement.dtype, False)
    plain, lean = (
        training_use(
            made.weights,
            case.main.subject,
            device,
            way=str(asked.training),
            optimizer=asked.optimizer or OPTIMIZER,
            rank=asked.rank or RANK,
            batch=asked.batch,
            sequence=case.sequence,
            checkpointing=checkpointing,
        )
        for checkpointing in (False, True)
    )
    steps = Checkpointing(plain.most > budget, plain, lean)
    placement = replace(arrangement.placements[0], device=device.id, memory=steps.memory, budget=budget)
    return replace(arrangement, placements=(placement,)), steps


def _relaxations(case: _Case, groups: Sequence[Group], choices: Sequence[Choice]) -> tuple[Relaxation, ...]:
    """The smallest changes that would make something fit: less context, a smaller format, more memory."""
    if case.question.training:
        return _other_training(case, groups, choices)
    tight = [choice for choice in choices if not choice.fits and choice.verdict.step is StepClass.OUT_OF_MEMORY]
    if not tight:
        return ()
    closest = min(tight, key=lambda choice: choice.memory.most - choice.free)
    found = []
    if len(case.kitchens) == 1 and case.main.subject.decoder is not None:
        request = replace(case.request, format=closest.format if case.question.formats else None)
        storage = next(s for s in _storages(case) if storage_name(s) == closest.format)
        tried = arrange(case.main, storage, groups[0], case.request, case.context, False)
        less = less_context(case.main, groups, request, case.context)
        found += [Relaxation("a shorter context", command) for command in less]
        smaller = smaller_format(case.main, groups, request, case.context, tried)
        found += [Relaxation("a smaller format", command) for command in smaller]
    return (*found, _more_memory(closest))


def _more_memory(closest: Choice) -> Relaxation:
    return Relaxation(f"a device or budget of {tenths(closest.memory.most)} GB, for {closest.format}")


def _other_training(case: _Case, groups: Sequence[Group], choices: Sequence[Choice]) -> tuple[Relaxation, ...]:
    def fitting(question: Question, where: Sequence[Group]) -> Group | None:
        tried = _case(case.outline, question, {})
        return next((g for g in where for s in _storages(tried) if _choice(tried, s, g)[0].verdict), None)

    found = other_training(case.outline.path, case.question, groups, fitting)
    tight = [choice for choice in choices if choice.verdict.step is StepClass.OUT_OF_MEMORY]
    more = [_more_memory(min(tight, key=lambda choice: choice.memory.most - choice.free))] if tight else []
    return (*found, *more)
