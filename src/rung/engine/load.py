"""From a name to a model that answers: card, plan, proofs, weights, decoder."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rung.core.errors import DoesNotFit, OutOfMemory, UsageError
from rung.core.shield import import_whole
from rung.core.text import count, size
from rung.core.types import Device, Plan, StepClass, StepDown
from rung.core.version import __version__
from rung.diagnosis import classify
from rung.engine import planning
from rung.engine.draft_model import DraftModel, open_draft
from rung.engine.open_model import open_any
from rung.engine.planning import make_plan
from rung.engine.scheduling.prefix_files import open_folder
from rung.hardware.json_cache import how_often
from rung.kernels.webgpu import is_webgpu
from rung.models.adapters.adapter import rank_of
from rung.models.adapters.roles import read_changes, read_network_changes
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.models.files.gguf import identity
from rung.models.lookup import find_path
from rung.planning.memory import computes
from rung.planning.placement import is_segmented
from rung.planning.request import Memory, Typed, parse_memory
from rung.planning.solve import steps_down
from rung.run.journal import Journal

if TYPE_CHECKING:
    from rung.engine.decoder import Decoder
    from rung.engine.model import Model
    from rung.engine.scheduling.prefix_files import PrefixFiles
    from rung.engine.scheduling.segments import SegmentedStep
    from rung.engine.scheduling.stages import Split
    from rung.engine.tokenizers.tokenizer import Tokenizer
    from rung.models.adapters.adapter import LowRank
    from rung.models.card import Decoder as Shape
    from rung.ops.decode_step.weights import Weights
    from rung.run.binding import Step

Progress = Callable[[str, int, int], None]

#: How often there is a smaller plan, when a memory is full although the plan fitted.
_TIMES = 3
#: Seconds that importing torch takes, about: prompts which are sooner read a token at a time are read without it.
_TORCH = 1.5
#: Longer prompts are read with torch whatever the rate, so that the memory of a run that is full is as planned.
_SINGLES = 64
#: Sequences at once where nobody says how many, as far as there is room in one context: the rows of a step's program.
DEFAULT_PARALLEL = 16
#: What is imported here and by what a first answer calls.
_PARTS = ("rung.engine.weight_loader", "rung.engine.model", "rung.engine.decoder", "rung.engine.tokenizers.tokenizer")
_LOOK = 64 * _SINGLES  # characters of the first prompt that tell whether it is long


def load(
    name: str,
    *,
    format: str | None = None,
    device: str | None = None,
    memory: str | int | Mapping[str, str | int] | None = None,
    context: int | None = None,
    parallel: int | None = None,
    threads: int | None = None,
    offline: bool = False,
    revision: str | None = None,
    devices: Sequence[Device] | None = None,
    first_prompt: str = "",
    adapters: Sequence[str] = (),
    draft: str | None = None,
    prefix_cache: str | None = None,
    cache_type: str | None = None,
    reserved: int = 0,
    split: Split | None = None,
    typed: Typed | None = None,
    notes: Sequence[str] = (),
    progress: Progress = lambda label, done, total: None,
    on_step: Callable[[StepDown], None] = lambda step: None,
    on_note: Callable[[str], None] = lambda note: None,
    on_plan: Callable[[Plan, Sequence[Device]], None] = lambda plan, devices: None,
) -> Model:
    """A language model, planned for this machine, read and bound; of an encoder an ``EncoderModel``.

    ``progress`` is called with (label, bytes done, bytes in all); ``on_step`` with each step down,
    ``on_note`` with what a person should know, ``on_plan`` once before the weights are read. ``first_prompt`` is what
    will be asked first, if that is known: for a long one torch is imported while the weights are read. ``parallel`` is
    the most sequences at once, each with room for the whole context; by default, as many as have room in one context
    together, up to 16. ``adapters``
    are PEFT folders or GGUF files, ``DIR:0.5`` for one of half its weight; they are added while the model runs.
    ``draft`` names a smaller model of the same vocabulary that guesses tokens, which changes none of them.
    ``prefix_cache`` (``DIR`` or ``DIR:SIZE``) is a folder that keeps what prompts computed for later processes.
    ``cache_type`` (f32, f16, q8_0, q5_1, q4_0; None or auto: the plan's choice) is what keys and values are stored in.
    ``reserved`` bytes of each budget are for the caller. With ``split`` other machines have the layers from
    ``split.last`` on (``rung.engine.scheduling.stages``). ``typed`` is what ways out of a refusal repeat, ``notes``
    what the report has of the caller.
    Raises ``SoftwareMissing``, ``RungError`` on a big-endian or 32-bit Python, and whatever finding, reading and
    planning raise.
    """
    planning.need_software(planning.LEAN)
    budget = max(parse_memory(memory).values(), default=None)
    card = open_any(
        find_path(name, offline=offline, revision=revision, budget=budget, progress=progress, on_note=on_note)
    )
    card, device, divided = _first_part(card, split, device, (adapters, draft, prefix_cache))
    folder = _prefix_folder(prefix_cache, card)
    rank = rank_of(changes := _read_adapters(adapters, card))
    reserved += sum(change.nbytes for several in changes.values() for change in several)

    find_draft = partial(open_draft, larger=card, offline=offline, progress=progress, on_note=on_note)
    drafting = None if draft is None else DraftModel(find_draft(draft))
    make = partial(
        make_plan,
        device=device,
        parallel=parallel,
        threads=threads,
        devices=devices,
        on_probe=lambda d: on_note(f"Finding out what {d.name} can do: about 10 seconds, {how_often(why=True)}."),
    )
    larger = partial(make, card, format=format, context=context, typed=typed, cache_type=cache_type, rank=rank)
    planned = partial(_plan_both, larger, make, drafting, reserved)
    plan, found = planned(memory)
    _note_unused(card, found if device is None else (), on_note)
    on_plan(plan, found)
    journal = _start_journal(plan, steps_down(plan, cache_type), changes, len(adapters), on_step, on_note, notes)
    bind = partial(
        bind_plan,
        card,
        journal=journal,
        progress=progress,
        first_prompt=first_prompt,
        changes=changes,
        parallel=parallel or DEFAULT_PARALLEL,
        drafting=drafting,
        prefix_cache=folder,
        split=divided,
        again=partial(_plan_on_processor, larger, memory, reserved),
    )
    return _bind_what_fits(bind, plan, found, planned, memory, journal, on_plan)


def _first_part(
    card: ModelCard | EncoderCard | NetworkCard,
    split: Split | None,
    device: str | None,
    others: tuple[Sequence[str], str | None, str | None],
) -> tuple[ModelCard | EncoderCard | NetworkCard, str | None, tuple[Split, Shape] | None]:
    """Return the card and device of the layers of the first machine, with the whole decoder; ``card`` and ``device``
    where it has all. Raises ``UsageError`` for a model or options that cannot be divided; ``others`` are adapters, a
    draft model and a folder for prefixes."""
    if split is None:
        return card, device, None
    if not isinstance(card, ModelCard):
        raise UsageError(f"{card.name} cannot lie on several machines: rung does not build its layers itself.")
    options = ("--device", "--adapter", "--draft", "--prefix-cache")
    for option, value in zip(options, (device not in (None, "cpu"), *others), strict=True):
        if value:
            raise UsageError(f"{option} is not for a model that lies on several machines.")
    part = import_whole("rung.engine.scheduling.stages").part_of(card, 0, split.last)
    return part, "cpu", (split, card.decoder)


def _plan_on_processor(
    larger: Callable[..., tuple[Plan, tuple[Device, ...]]], memory: Memory, reserved: int, lost: Plan
) -> tuple[Plan, tuple[Device, ...]]:
    """Return a plan for the processor, where a device of ``lost`` failed.

    The layers that the processor has of that plan stay in memory meanwhile, within the budget that it was given.
    """
    budgets = {name: count for name, count in parse_memory(memory).items() if name in ("*", "cpu")}
    layers = sum(each.memory.total - each.memory.runtime for each in lost.placements if each.device == "cpu")
    taken = reserved + (layers if budgets else 0)
    return larger(memory=budgets, reserved=taken, device="cpu", format=lost.format, context=lost.context)


def _plan_both(
    larger: Callable[..., tuple[Plan, tuple[Device, ...]]],
    make: Callable[..., tuple[Plan, tuple[Device, ...]]],
    drafting: DraftModel | None,
    reserved: int,
    memory: str | int | Mapping[str, str | int] | None,
) -> tuple[Plan, tuple[Device, ...]]:
    """Plan a model for a memory, ``reserved`` bytes of which are taken, with room for its draft model."""
    plan, devices = larger(memory=memory, reserved=reserved)
    if drafting is None:
        return plan, devices
    return larger(memory=memory, reserved=reserved + drafting.plan(plan.context, partial(make, memory=memory)))


def _start_journal(
    plan: Plan,
    steps: Iterable[StepDown],
    changes: Mapping[str, Sequence[LowRank]],
    adapters: int,
    on_step: Callable[[StepDown], None],
    on_note: Callable[[str], None],
    notes: Sequence[str],
) -> Journal:
    """Return the journal of a model, with the steps down of its plan and its adapters."""
    journal = Journal(on_step, on_note)
    journal.notes += notes
    for step in steps:
        journal.record(step)
    if changes:
        added = sum(change.nbytes for several in changes.values() for change in several)
        text = f"{count(adapters, 'adapter')} beside {count(len(changes), 'linear')}, unmerged, {size(added)}"
        journal.notes.append(text)
        on_note(text)
    return journal


def _read_adapters(
    adapters: Sequence[str], card: ModelCard | EncoderCard | NetworkCard
) -> Mapping[str, Sequence[LowRank]]:
    """Return the changes of each weight of a model. Raises ``UsageError`` for an encoder, which takes none."""
    if isinstance(card, EncoderCard):
        if adapters:
            raise UsageError(f"{card.name} is an encoder, and adapters are for models that write text.")
        return {}
    if isinstance(card, NetworkCard):
        return read_network_changes(adapters, card)
    return read_changes(adapters, card)


def _note_unused(
    card: ModelCard | EncoderCard | NetworkCard, devices: Sequence[Device], on_note: Callable[[str], None]
) -> None:
    """Say which devices of this machine compute nothing, and why, and which parts of a model are not used."""
    for group in card.skipped if isinstance(card, ModelCard) else ():
        on_note(f"not used: {group}")
    for device in devices:
        if not (able := computes(device)):
            on_note(f"{device.name} is not used: {able.reason}")


def _bind_what_fits(
    bind: Callable[[Plan, Sequence[Device]], Model],
    plan: Plan,
    devices: Sequence[Device],
    planned: Callable[[Mapping[str, int]], tuple[Plan, tuple[Device, ...]]],
    memory: Memory,
    journal: Journal,
    on_plan: Callable[[Plan, Sequence[Device]], None],
) -> Model:
    """Bind the plan, and where a memory is full a smaller one, up to ``_TIMES`` times."""
    for _ in range(_TIMES):
        try:
            return bind(plan, devices)
        except Exception as error:
            reason = _full(error)
            if not reason:
                raise
            if _is_of_shared_processor(error, plan, devices):
                raise _no_smaller_plan(plan, devices, reason) from error
        budgets = planning.smaller_budgets(plan, memory)
        plan, devices = _planned_again(plan, devices, reason, partial(planned, budgets), journal)
        on_plan(plan, devices)
    return bind(plan, devices)


def _planned_again(
    plan: Plan,
    devices: Sequence[Device],
    reason: str,
    planned: Callable[[], tuple[Plan, tuple[Device, ...]]],
    journal: Journal,
) -> tuple[Plan, tuple[Device, ...]]:
    """A plan that wants less than the one for which there was no room; raises ``OutOfMemory`` when there is none."""
    try:
        smaller, found = planned()
    except DoesNotFit as error:
        raise _no_smaller_plan(plan, devices, reason, error) from error
    journal.step(_step_down(plan, smaller, reason))
    return smaller, found


def _no_smaller_plan(
    plan: Plan, devices: Sequence[Device], reason: str, refusal: DoesNotFit | None = None
) -> OutOfMemory:
    """Return the error for a memory that is full where a plan that takes less does not fit."""
    used = {p.device for p in plan.placements}
    names = " and ".join(d.name for d in devices if d.id in used)
    return OutOfMemory(
        f"The memory of {names} is full, and no smaller plan is left.",
        [reason, *(refusal.facts if refusal else ())],
        ["close what else uses it, then try again", *(refusal.ways_out if refusal else ())],
    )


def _is_of_shared_processor(error: Exception, plan: Plan, devices: Sequence[Device]) -> bool:
    """Return whether the memory of a processor is full that shares layers with a GPU: with fewer layers there it would
    need more."""
    names = [device.name for device in devices if device.kind == "cpu"]
    named = isinstance(error, MemoryError) or any(name in str(error) for name in names)
    return is_segmented(plan.placements) and named


def _full(error: Exception) -> str:
    """The reason in words if an error means that a memory is full; empty for any other."""
    if isinstance(error, OutOfMemory):
        return error.facts[0] if error.facts else error.cause
    found = classify(error)
    return found.reason if found is not None and found.signature.step is StepClass.OUT_OF_MEMORY else ""


def _step_down(before: Plan, after: Plan, reason: str) -> StepDown:
    """From one plan to a smaller one."""
    words = [f"{plan.format}, {size(plan.memory)}, context {plan.context:,}" for plan in (before, after)]
    return StepDown("plan", words[0], before.placements[0].device, StepClass.OUT_OF_MEMORY, reason, words[1])


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Large packages are imported here while another thread packs weights.

    What an import makes stays: looking for garbage takes a tenth of torch's. The other thread waits for the
    interpreter every few milliseconds of work, by default 5 ms each time.
    """
    collecting, interval = gc.isenabled(), sys.getswitchinterval()
    try:
        gc.disable()
        sys.setswitchinterval(0.0005)
        yield
    finally:
        sys.setswitchinterval(interval)
        if collecting:
            gc.enable()


def _configure_process(
    card: ModelCard | EncoderCard | NetworkCard, plan: Plan, devices: Sequence[Device], journal: Journal
) -> None:
    """Set memory, level of instructions and threads of this process as a plan has them."""
    from rung.kernels.cpu import target
    from rung.run import cpu_level

    if isinstance(card, EncoderCard):
        planning.keep_what_is_freed()  # arrays of a batch are small, and as large in each batch
    elif plan.packing == "stored" or isinstance(card, NetworkCard):
        planning.keep_heap_whole()
    for each in devices:
        cpu_level.adopt(each)
    note = target.configure()  # before Numba is imported, which fixes its target
    if note:
        journal.notes.append(note)


def bind_plan(
    card: ModelCard | EncoderCard | NetworkCard,
    plan: Plan,
    devices: Sequence[Device],
    journal: Journal,
    progress: Progress,
    first_prompt: str,
    changes: Mapping[str, Sequence[LowRank]],
    parallel: int,
    drafting: DraftModel | None,
    prefix_cache: tuple[Path, int] | None,
    split: tuple[Split, Shape] | None,
    again: Callable[..., tuple[Plan, tuple[Device, ...]]],
) -> Model:
    """Bind a plan; ``again`` plans for the processor, where a model of a GPU goes on when that fails."""
    _configure_process(card, plan, devices, journal)
    if isinstance(card, NetworkCard):
        return _bind_network(card, plan, devices, journal, changes)
    if isinstance(card, EncoderCard):
        return _bind_encoder(card, plan, devices, journal, progress)
    from rung.engine.model import Model

    bind = partial(_bind_decoder, journal=journal, first_prompt=first_prompt, parallel=parallel)
    decoder, tokenizer = bind(card, plan, devices, progress=progress, changes=changes, split=split)
    _identify(decoder, card, plan)
    if prefix_cache is not None:
        decoder.keep_in_files(_prefix_files(prefix_cache, decoder, journal))
    if not decoder.same_bytes:
        journal.notes.append("an answer may differ in its last digits by what is computed beside it")
    if drafting is None or not _may_draft(drafting, decoder, journal):
        model = Model(card, plan, tuple(devices), decoder, journal, tokenizer)
        if any(is_webgpu(each.device) for each in plan.placements):
            model.processor = partial(
                _bind_on_processor, card, partial(again, plan), journal, changes, parallel, prefix_cache
            )
        return model
    draft = drafting.bind(partial(bind, progress=progress, changes={}), decoder, journal)
    return Model(card, plan, tuple(devices), decoder, journal, tokenizer, draft, drafting.nbytes)


def _may_draft(drafting: DraftModel, decoder: Decoder, journal: Journal) -> bool:
    """Note whether a draft model is used, and return that: it is where rows have the same bytes in any step."""
    name = drafting.card.name
    if decoder.same_bytes:
        journal.note(f"{name} guesses tokens: {size(drafting.nbytes)}")
    else:
        journal.note(f"{name} is not used: rows of a step differ in their last digits here")
    return decoder.same_bytes


def _bind_on_processor(
    card: ModelCard,
    planned: Callable[[], tuple[Plan, tuple[Device, ...]]],
    journal: Journal,
    changes: Mapping[str, Sequence[LowRank]],
    parallel: int,
    prefix_cache: tuple[Path, int] | None,
) -> tuple[Plan, tuple[Device, ...], Decoder]:
    """Plan and bind on the processor a model whose device failed. Raises what planning and reading raise."""
    plan, devices = planned()
    bind = partial(_bind_decoder, card, plan, devices, journal, progress=lambda label, done, total: None)
    decoder, _ = bind(first_prompt="", changes=changes, parallel=parallel)
    _identify(decoder, card, plan)
    if prefix_cache is not None:
        decoder.keep_in_files(_prefix_files(prefix_cache, decoder, journal))
    return plan, devices, decoder


def _bind_network(
    card: NetworkCard,
    plan: Plan,
    devices: Sequence[Device],
    journal: Journal,
    changes: Mapping[str, Sequence[LowRank]],
) -> Model:
    bind = import_whole("rung.engine.transformers_decoder").bind
    from rung.engine.model import Model

    decoder, tokenizer = bind(card, plan, devices, journal, changes)
    return Model(card, plan, tuple(devices), decoder, journal, tokenizer)


def _bind_encoder(
    card: EncoderCard, plan: Plan, devices: Sequence[Device], journal: Journal, progress: Progress
) -> Model:
    with _importing():
        for name in ("rung.kernels.cpu.pack.packing", "rung.engine.embeddings"):
            import_whole(name)
    from rung.engine.embeddings.encoder import EncoderLoader, EncoderModel
    from rung.engine.tokenizers.word_piece import TextTokenizer
    from rung.models.reader import Reader
    from rung.ops.encoder.weights import EncoderWeights

    def read(done: int, total: int) -> None:
        progress("reading", done, total)

    with Reader(card) as reader, EncoderLoader(card, plan, devices, reader, journal, read) as parts:
        tokenizer = TextTokenizer.from_card(card)
        weights = EncoderWeights.bind(card.encoder, parts)
        encode = parts.encode()
    encode.prepare(weights, plan.threads)
    return EncoderModel(card, plan, tuple(devices), encode, journal, tokenizer)


def _prefix_folder(folder: str | None, card: ModelCard | EncoderCard | NetworkCard) -> tuple[Path, int] | None:
    """Return the folder for prefixes and its most bytes. Raises ``UsageError`` for a model that keeps no blocks."""
    if folder is None:
        return None
    if not isinstance(card, ModelCard):
        raise UsageError(
            f"{card.name} keeps no prefixes.",
            ["--prefix-cache is for models that rung builds itself"],
            ["rung formats"],
        )
    return open_folder(folder)


def _prefix_files(folder: tuple[Path, int], decoder: Decoder, journal: Journal) -> PrefixFiles:
    """Return the files of prefixes for a decoder; those that another model or another way of computing left differ."""
    from rung.engine.scheduling.prefix_files import PrefixFiles

    return PrefixFiles(*folder, decoder.identity(), journal.note)


def _identify(decoder: Decoder, card: ModelCard, plan: Plan) -> None:
    """Name what a decoder has read; files that stand in their place later are others."""
    decoder.identity = partial(_identity, identity([Path(each) for each in card.files]), plan, decoder)


def _identity(files: str, plan: Plan, decoder: Decoder) -> bytes:
    """Return a name of all that keys and values depend on: the model's files and how they are computed now."""
    from rung.engine.scheduling.segments import SegmentedStep
    from rung.kernels.cpu import target
    from rung.run.binding import Step

    step = decoder.step
    rung = step.rung.name if isinstance(step, Step) else step.names if isinstance(step, SegmentedStep) else ""
    cpu = target.level().name if any(each.device == "cpu" for each in plan.placements) else ""
    computed = plan.format, plan.dtype, plan.cache_dtype, plan.packing, cpu, rung
    parts = [__version__, files, *computed, decoder.pool.layout]
    return "\n".join(map(str, parts)).encode()


def _import_parts() -> None:
    """Import what reads weights, before its threads begin; these need the first."""
    with _importing():
        for name in ("rung.kernels.cpu.pack.packing", *_PARTS):
            import_whole(name)


def _bind_decoder(
    card: ModelCard,
    plan: Plan,
    devices: Sequence[Device],
    journal: Journal,
    progress: Progress,
    first_prompt: str,
    changes: Mapping[str, Sequence[LowRank]],
    parallel: int,
    split: tuple[Split, Shape] | None = None,
) -> tuple[Decoder, Tokenizer]:
    _import_parts()
    from rung.engine.weight_loader import WeightLoader
    from rung.models.reader import Reader

    singles = _count_singles(plan)
    with (
        Reader(card) as reader,
        WeightLoader(card, plan, devices, reader, journal, partial(progress, "reading")) as parts,
    ):
        from rung.engine.decoder import Decoder
        from rung.engine.scheduling.kv_cache import BlockPool
        from rung.engine.tokenizers.tokenizer import Tokenizer
        from rung.ops.decode_step.weights import Weights

        tokenizer = Tokenizer.from_card(card)
        short = singles and len(tokenizer.encode(first_prompt[:_LOOK], special=True, bos=True)) <= singles
        if not (short or parts.without_torch):
            with _importing():
                import_whole("rung.ops.decode_step.network")  # with torch, while the weights are read
        weights, step = Weights.bind(card.decoder, parts, plan.context), parts.step()
        if split is not None:
            return _bind_split(*split, plan, weights, step, parallel), tokenizer
        pool = BlockPool(
            card.decoder, plan.context, plan.cache_dtype, parts.devices, step.block, sequences=plan.parallel
        )
    decoder = Decoder(weights, pool, step, plan.threads, singles, parallel)
    if changes:
        decoder.default_adapter = decoder.bind_adapter(changes)
    return decoder, tokenizer


def _count_singles(plan: Plan) -> int:
    """Return how many tokens of a prompt are read one at a time sooner than torch is imported."""
    whole = plan.packing in ("r16", "mapped") and len(plan.placements) == 1
    return min(int(_TORCH * plan.decode_rate), _SINGLES) if whole else 0


def _bind_split(
    split: Split, whole: Shape, plan: Plan, weights: Weights, step: Step | SegmentedStep, parallel: int
) -> Decoder:
    """Return the decoder of the first machine, which has the layers before ``split.last``."""
    from rung.engine.scheduling import stages
    from rung.run.binding import Step

    assert isinstance(step, Step), "layers on several machines are those of processors"
    pool = stages.pool_of_part(whole, 0, split.last, plan, step.block)
    divided = stages.SplitStep(step, plan, split)
    return stages.SplitDecoder(weights, pool, divided, plan.threads, parallel, split.depth)
