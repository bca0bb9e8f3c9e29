"""Find out whether a model will run, on which device, in which format: (outline, devices, question) -> Answer; pure.

For a language model that ``rung run`` builds this is the same arithmetic as its plan: weights, memory, time and error
of ``rung.planning``, one arrangement for each format and device.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rung.core.text import quoted, size, tenths
from rung.core.types import Device, Format, Level, MemoryUse, StepClass, Verdict, no
from rung.core.value import FrozenDict
from rung.hardware.select import Group, group_id
from rung.kernels import instructions
from rung.models.networks.values import Outline
from rung.planning.answers.alternatives import GroupRequest, instead
from rung.planning.answers.case import Case, make_case, storages_of, usual_storages, with_context
from rung.planning.answers.suggestions import budget_text, less_context, other_training, smaller_format
from rung.planning.answers.values import llama_cpp_speed, memory_bound
from rung.planning.check_result import (
    OPTIMIZER,
    RANK,
    Alternative,
    Answer,
    Checkpointing,
    Choice,
    Pass,
    Question,
    Relaxation,
    Speed,
)
from rung.planning.memory import computes, uncertainty
from rung.planning.pipeline import PlannedPhase, inputs_of, phase_on
from rung.planning.placement import Arrangement, arrange, arrangements, computable
from rung.planning.solve import SIXTEEN, cache_reasons, choose, layer_reasons, verdict_of
from rung.planning.speed import READING_SPEED, at_reading_speed, decodes, has_kernel
from rung.planning.training import trainable, training_use
from rung.planning.weight_plan import WIDER, Storage, storage_name
from rung.planning.weight_plan_cache import WeightPlan

#: Weights that take so many times the bytes of their format are worth a word.
_WIDENED = 1.5
#: Of more devices than these it has been asked of all.
_FEW_DEVICES = 16


def check(
    outline: Outline,
    devices: Sequence[Device | Group],
    question: Question,
    passes: Sequence[Pass] = (),
    *,
    cpu: Device | None = None,
    alternatives: bool = True,
    relaxations: bool = True,
) -> Answer:
    """Every format on every device, refused ones included, the best of them, and what would help where none is.

    A tuple of devices is one budget, its layers split in that order. ``passes`` were traced: their activations count
    instead of estimates. Where nothing runs as asked, ``alternatives`` are tried: other formats, a shorter context, and
    ``cpu`` beside the card; ``relaxations`` are the smallest changes that would help. Raises ``ContextTooLong``,
    ``UnknownFormat``, ``UsageError`` (training of a pipeline).
    """
    groups = [(entry,) if isinstance(entry, Device) else entry for entry in devices]
    case = make_case(outline, question, {one.component: one.activations for one in passes})
    case.request.check_names(device for group in groups for device in group)
    rows = [_choice(case, format, group) for group in groups for format in storages_of(case)]
    choices = tuple(choice for choice, _ in rows)
    able = [(arrangement, number) for number, (choice, arrangement) in enumerate(rows) if choice.verdict]
    best = {k: _best(case, [p for p in able if choices[p[1]].device == k], choices) for k in map(group_id, groups)}
    chosen = _best(case, [pair for pair in able if pair[1] in best.values()], choices)
    return Answer(
        outline.name,
        choices,
        chosen,
        FrozenDict(best),
        _relaxations(case, groups, choices) if relaxations and chosen is None else (),
        outline.parameters,
        case.context if case.reads and not question.training else 0,
        tuple(passes),
        case.sequence if question.training else 0,
        tuple(groups),
        tuple(a for g in groups if best[group_id(g)] is None for a in _instead(case, g, cpu)) if alternatives else (),
        outline.title or outline.name,
        "" if outline.card is None else outline.card.divergence,
    )


def _instead(case: Case, group: Group, cpu: Device | None) -> list[Alternative]:
    """Return the alternatives that run on a group of devices; language models have some, other models none."""
    subject = case.main.subject
    if case.question.training or len(case.components) > 1 or not subject.generates:
        return []

    def attempt(storage: Storage, devices: Group, context: int) -> tuple[Choice, Arrangement]:
        return _choice(with_context(case, context), storage, devices)

    def pick(able: Sequence[Arrangement]) -> Arrangement:
        own = [arrangement for arrangement in able if arrangement.storage is None]
        return choose(subject, own or list(able), None)[0]

    question = case.question
    request = GroupRequest(
        group, tuple(storages_of(case)), case.context, bool(question.formats), question.context is not None
    )
    cpu_too = cpu if not subject.borrowed else None  # transformers' networks compute on one device
    return instead(request, cpu_too, usual_storages(case), attempt, pick)


def _choice(case: Case, storage: Storage, group: Group) -> tuple[Choice, Arrangement]:
    """One row of the answer."""
    arrangement = arrangements(case.main, storage, group, case.request, case.context)[-1]
    phases: tuple[PlannedPhase, ...] = ()
    weight_plans = [arrangement.weight_plan]
    note = ""
    steps: Checkpointing | None = None
    if case.question.training:
        arrangement, steps = _trained(case, arrangement, group)
        note = steps.note
    elif len(case.components) > 1:
        arrangement, phases = _phased(case, arrangement, group)
        note = _other_format_note(case, storage, phases)
        weight_plans = list(_weight_plans(case, arrangement, group[0]).values())
    verdict, level = _judged(case, arrangement, group, note)
    total = arrangement.placements[0].memory if len(arrangement.placements) == 1 else _sum(arrangement)
    choice = Choice(
        format=storage_name(storage),
        device=group_id(group),
        fits=arrangement.over <= 0,
        level=level,
        verdict=verdict,
        memory=total,
        free=sum(case.request.budget(device) for device in group),
        speed=_speed(case, arrangement, group),
        error_db=min(arrangement.cache_error_db, *(weight_plan.error_db for weight_plan in weight_plans)),
        command=_command(case, arrangement, group),
        phases=phases,
        checkpointing=steps,
    )
    return choice, arrangement


def _judged(case: Case, arrangement: Arrangement, group: Group, note: str) -> tuple[Verdict, str]:
    """The verdict with all its reasons, and the level: no, slow or yes. ``note`` says how it is computed."""
    verdict = _verdict(case, arrangement, group)
    if not verdict:
        return replace(
            verdict, reason="; ".join(filter(None, (verdict.reason, note if len(case.components) > 1 else "")))
        ), "no"
    slow = _slow(case, arrangement, group)
    reasons = [slow, _emulated(arrangement, group), _odd(case, arrangement)]
    if _writes(case):
        reasons += cache_reasons(arrangement, case.request.cache_type)
        reasons += layer_reasons(arrangement, group)
    if len(case.components) > 1 or not any(reasons):
        reasons.append(note)
    return replace(verdict, reason="; ".join(dict.fromkeys(filter(None, reasons)))), "slow" if slow else "yes"


def _verdict(case: Case, arrangement: Arrangement, group: Group) -> Verdict:
    for device in group:
        for able in (computes(device), computable(arrangement.storage, device)):
            if not able:
                return able
    torch = case.question.training or len(case.components) > 1
    if torch and any(device.kind == "webgpu" for device in group):
        return no("torch computes it, which drives no device of WebGPU")
    if case.question.training:
        able = trainable(case.question.training, arrangement.storage, case.main.subject)
        if not able:
            return able
    if len(group) > 1 and (case.question.training or len(case.components) > 1):
        return no(f"rung plans {'training' if case.question.training else 'pipelines'} on one device")
    found = verdict_of(arrangement, group, case.request.cache_type)
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


def _slow(case: Case, arrangement: Arrangement, group: Group) -> str:
    """Why it runs slowly, or nothing: its speed, and where none is predicted that the device converts 16 bits."""
    if not case.reads or case.question.training:
        return _emulated(arrangement, group)
    if not arrangement.timed:
        return _no_kernel(arrangement)
    if _writes(case) and not at_reading_speed(arrangement.rates.decode):
        return f"slower than one reads: fewer than {READING_SPEED:.0f} tokens/s"
    return ""


def _writes(case: Case) -> bool:
    """Return whether it is asked to write text."""
    return case.reads and case.main.subject.generates and not case.question.training


def _no_kernel(arrangement: Arrangement) -> str:
    """Why there is no speed, in the place of a number that would be the same for every processor."""
    lacking = [g.format for plan, device, _ in arrangement.parts for g in plan.groups if not has_kernel(g, device)]
    names = list(dict.fromkeys(lacking)) if arrangement.storage is None else [storage_name(arrangement.storage)]
    return f"rung has no fast kernel for {' and '.join(names)} on this CPU"


def _odd(case: Case, arrangement: Arrangement) -> str:
    """Why the weights take much more than their format does: a kernel that wants them unpacked, or kept twice."""
    if not _writes(case) or case.main.subject.borrowed:
        return ""
    packed = [kind for kind in arrangement.weight_plan.kinds if kind.weight.packing in WIDER]
    wide = sum(kind.weight.bytes * len(kind.places) for kind in packed)
    plain = sum(kind.weight.format.bytes(kind.weight.tensor.shape) * len(kind.places) for kind in packed)
    if len(arrangement.parts) > 1 or wide <= _WIDENED * plain:
        return ""
    name = storage_name(arrangement.storage)
    return f"its kernel wants {name} unpacked: {size(wide)} instead of {size(plain)}"


def _sum(arrangement: Arrangement) -> MemoryUse:
    uses = [vars(placement.memory) for placement in arrangement.placements]
    return MemoryUse(**{name: sum(use[name] for use in uses) for name in uses[0]})


def _speed(case: Case, arrangement: Arrangement, group: Group) -> Speed:
    unsure = max(uncertainty(device) for device in group)
    reads, writes = case.reads and not case.question.training, _writes(case)
    known = arrangement.timed
    prefill = round(arrangement.rates.prefill, 1) if reads and known else None
    decode = round(arrangement.rates.decode, 2) if writes and known else None
    reason = _no_kernel(arrangement) if reads and not known else ""
    depth, subject = min(case.request.prompt_tokens, case.context), case.main.subject
    most = memory_bound(arrangement, subject, depth, case.request.batch) if writes else None
    peer = None
    if writes and arrangement.over <= 0 and case.request.batch == 1:
        peer = llama_cpp_speed(arrangement, subject, storage_name(arrangement.storage), case.context, case.outline)
    most = None if most is None else float(f"{most:.3g}")
    levels = (instructions.level(device) for _, device, _ in arrangement.parts if device.kind == "cpu")
    level = next(levels, "")
    decoded = any(decodes(each) for plan, _, _ in arrangement.parts for each in plan.groups)
    return Speed(prefill, decode, unsure, case.request.prompt_tokens, reason, most, peer, level, decoded)


def _command(case: Case, arrangement: Arrangement, group: Group) -> str | None:
    """Return the command that runs an arrangement, or None. A card of the catalog counts as the first of its kind where
    the command runs."""
    makes = case.outline.makes if isinstance(arrangement.storage, Format) and case.request.batch == 1 else ""
    alone = len(group) > 1 and case.main.subject.borrowed  # transformers' networks compute on one device
    if case.question.training or alone or not (makes or case.outline.writes):
        return None
    words = ["rung", makes or "run", case.outline.path, *(["PROMPT"] if makes else [])]
    if arrangement.storage is not None:
        words += ["--format", storage_name(arrangement.storage)]
    words += [] if makes else ["--context", str(case.context)]
    words += ["--cache-type", case.request.cache_type] if case.request.cache_type else []
    named = group if len(group) == 1 else [device for device in group if device.kind == "webgpu"]
    words += [word for device in named for word in ("--device", _device_name(device))]  # the processor takes the rest
    return shlex.join([*words, *_budgets(case.request.memory, group)])


def _budgets(memory: Mapping[str, int], group: Group) -> list[str]:
    """Return ``--memory`` as the command takes it, where budgets were given: it runs within them, too."""
    keys = {device.id: _device_name(device) if len(group) > 1 else "*" for device in group} | {"*": "*"}
    # a device's own budget goes before that for any
    found = {keys[name]: memory[name] for name in sorted(memory, key="*".__ne__) if name in keys}
    return ["--memory", ",".join(budget_text(name, count) for name, count in found.items())] if found else []


def _device_name(device: Device) -> str:
    if device.real:
        return device.id
    return device.kind if device.kind in ("cpu", "mps") else f"{device.kind}:0"


def _best(case: Case, fitting: Sequence[tuple[Arrangement, int]], choices: Sequence[Choice]) -> int | None:
    """The index of the choice that ``rung run`` would take; of other networks the most exact that is not slow."""
    if not fitting:
        return None
    if case.question.training or len(case.components) > 1 or not case.main.subject.generates:

        def rank(pair: tuple[Arrangement, int]) -> tuple[bool, float, int]:
            choice = choices[pair[1]]
            return choice.level != "slow", pair[0].weight_plan.error_db, -choice.memory.total

        return max(fitting, key=rank)[1]
    named = case.question.formats[0] if len(case.question.formats) == 1 else None
    own = [pair for pair in fitting if pair[0].storage is None]
    best, _ = choose(case.main.subject, [arrangement for arrangement, _ in own or fitting], named)
    return next(number for arrangement, number in fitting if arrangement is best)


# ---- pipelines and training


def _weight_plans(case: Case, arrangement: Arrangement, device: Device) -> dict[str, WeightPlan]:
    """Return the weight plan of each component."""
    return {
        name: plans.plan(arrangement.storage, device, arrangement.dtype, False)
        for name, plans in case.components.items()
    }


def _phased(case: Case, arrangement: Arrangement, group: Group) -> tuple[Arrangement, tuple[PlannedPhase, ...]]:
    """The arrangement with the memory of its largest phase; components that it does not name are not resident."""
    device = group[0]
    found = [
        phase_on(phase, case.components, arrangement.storage, device, case.request, case.context)
        for phase in case.outline.phases
    ]
    largest = max(found, key=lambda phase: phase.memory.most).memory
    placed = replace(arrangement.placements[0], device=device.id, memory=largest, budget=case.request.budget(device))
    return replace(arrangement, placements=(placed,)), tuple(found)


def _other_format_note(case: Case, storage: Storage, phases: Sequence[PlannedPhase]) -> str:
    """A sentence on what encodes in another format than the one asked for, and on what computes in slices."""
    found = []
    for phase in phases:
        for name, way in phase.held.items():
            if phase.name == "encode" and way.format != storage_name(storage):
                found.append(f"{name} in {way.format}: it overflows in {storage_name(storage)}")
            inputs = inputs_of(case.components[name], case.request)
            if way.at_once < inputs:
                found.append(f"{name} computes {way.at_once} of {inputs} at once")
    return "; ".join(found)


def _trained(case: Case, arrangement: Arrangement, group: Group) -> tuple[Arrangement, Checkpointing]:
    """The arrangement with the memory of a training step, checkpointed where it does not fit otherwise."""
    question, device = case.question, group[0]
    budget = case.request.budget(device)
    plan = case.main.plan(arrangement.storage, device, arrangement.dtype, False)
    plain, lean = (
        training_use(
            plan.weights,
            case.main.subject,
            device,
            way=str(question.training),
            optimizer=question.optimizer or OPTIMIZER,
            rank=question.rank or RANK,
            batch=question.batch,
            sequence=case.sequence,
            checkpointing=checkpointing,
        )
        for checkpointing in (False, True)
    )
    steps = Checkpointing(plain.most > budget, plain, lean)
    placement = replace(arrangement.placements[0], device=device.id, memory=steps.memory, budget=budget)
    return replace(arrangement, placements=(placement,)), steps


def _relaxations(case: Case, groups: Sequence[Group], choices: Sequence[Choice]) -> tuple[Relaxation, ...]:
    """The smallest changes that would make something fit: less context, a smaller format, more memory."""
    if case.question.training:
        return _other_training(case, groups, choices)
    tight = [choice for choice in choices if not choice.fits and choice.verdict.step is StepClass.OUT_OF_MEMORY]
    if not tight:
        return ()
    closest = min(tight, key=lambda choice: choice.memory.most - choice.free)
    found = []
    if len(case.components) == 1 and case.main.subject.decoder is not None:
        request = replace(case.request, format=closest.format if case.question.formats else None)
        storage = next(s for s in storages_of(case) if storage_name(s) == closest.format)
        tried = arrange(case.main, storage, groups[0], case.request, case.context, False)
        less = less_context(case.main, groups, request, case.context)
        found += [Relaxation("a shorter context", command) for command in less]
        smaller = smaller_format(case.main, groups, request, case.context, tried)
        found += [Relaxation("a smaller format", command) for command in smaller]
    card = groups[0][0]
    if len(groups) == 1 and len(groups[0]) == 1:
        device_name = card.id if card.real else card.name
        found.append(Relaxation("another model: what runs there", f"rung check --device {quoted(device_name)}"))
    if len(groups) <= _FEW_DEVICES:
        found.append(Relaxation("another card: every one that runs it", f"rung check {quoted(_called(case))} --fits"))
    return (*found, _more_memory(closest))


def _called(case: Case) -> str:
    """Return the word that names the model in a command: its name, else its path."""
    return case.outline.name if case.outline.title else case.outline.path


def _more_memory(closest: Choice) -> Relaxation:
    return Relaxation(f"a device or budget of {tenths(closest.memory.most)} GB, for {closest.format}")


def _other_training(case: Case, groups: Sequence[Group], choices: Sequence[Choice]) -> tuple[Relaxation, ...]:
    def fitting(question: Question, where: Sequence[Group]) -> Group | None:
        tried = replace(make_case(case.outline, question, {}), components=case.components)
        return next((g for g in where for s in storages_of(tried) if _choice(tried, s, g)[0].verdict), None)

    found = other_training(_called(case), case.question, case.sequence, groups, fitting)
    tight = [choice for choice in choices if choice.verdict.step is StepClass.OUT_OF_MEMORY]
    more = [_more_memory(min(tight, key=lambda choice: choice.memory.most - choice.free))] if tight else []
    return (*found, *more)
