"""Hold what every choice of one model shares: its networks, what is asked, which formats to try; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rung import formats
from rung.core.errors import ContextTooLong, UnknownFormat, UsageError
from rung.core.text import count, quoted
from rung.models.networks.values import GENERATES, Outline
from rung.planning.check_result import PROMPT, SEQUENCE, Question
from rung.planning.network_spec import Subject
from rung.planning.request import Request
from rung.planning.solve import FORMATS, contexts_of, storages
from rung.planning.weight_plan import Storage, storage_name
from rung.planning.weight_plan_cache import WeightPlanCache


@dataclass(frozen=True)
class Case:
    """Hold what every choice of one model shares."""

    components: dict[str, WeightPlanCache]
    outline: Outline
    question: Question
    request: Request
    context: int
    sequence: int

    @property
    def main(self) -> WeightPlanCache:
        """The model itself; of a pipeline the largest component."""
        return max(self.components.values(), key=lambda plans: plans.subject.parameters)

    @property
    def reads(self) -> bool:
        """Return whether it is one network that reads a text, and so has a context and a speed of reading."""
        return len(self.components) == 1 and self.main.subject.role in (*GENERATES, "encoder")


def make_case(outline: Outline, question: Question, traced: Mapping[str, int]) -> Case:
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
    components = {name: WeightPlanCache(subject) for name, subject in subjects.items()}
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
    cache_dtype = None if question.cache_type == "auto" else question.cache_type
    request = Request(
        memory=question.memory, context=context, batch=question.batch, prompt_tokens=prompt, cache_type=cache_dtype
    )
    return Case(components, outline, question, request, context, sequence)


def _borrowed(outline: Outline, subject: Subject) -> bool:
    """Return whether its layers will be those of rung.nn."""
    read = outline.writes or any(tensor.source for tensor in subject.tensors)
    return outline.kind == "module" or (subject.decoder is None and read)


def storages_of(case: Case) -> list[Storage]:
    """The formats of the question, else a file's own and those that are smaller, or those of an unquantized model."""
    subject = case.main.subject
    read = {
        tensor.format for tensor in subject.tensors if tensor.source
    }  # what another quantizer wrote, and rung reads
    strange = sorted({tensor.format for tensor in subject.tensors} - set(formats.FORMATS) - read)
    if "stored" in case.question.formats and strange:
        raise UnknownFormat(
            f"{subject.name} is stored in {strange[0]}, which rung does not decode.",
            ways_out=[f"rung check {quoted(subject.path)} --format q8_0"],
        )
    if case.question.formats:
        named = [storage for name in case.question.formats for storage in storages(subject, name)]
        return list({storage_name(storage): storage for storage in named}.values())  # nf4 and nf4:64 are one
    if case.question.training == "full":
        return [storage for name in ("f32", "bf16", "f16") for storage in storages(subject, name)]
    return usual_storages(case)


def usual_storages(case: Case) -> list[Storage]:
    """The formats that ``rung run`` would try by itself."""
    subject = case.main.subject
    named = [storage for name in FORMATS for storage in storages(subject, name)]
    if not subject.keeps and not _quantized(subject):
        return named
    smaller = [s for s in named if s is not None and _bits(s) * subject.parameters / 8 < case.outline.weight_bytes]
    return [None, *smaller]


def _quantized(subject: Subject) -> bool:
    """Return whether its matrices are stored in formats that rung decodes, and not all of them as floats."""
    stored = {tensor.format for tensor in subject.tensors}
    return stored <= set(formats.FORMATS) and any(formats.FORMATS[name].bits < 16 for name in stored)


def _bits(storage: Storage) -> float:
    return float(getattr(storage, "bits", 0.0) or getattr(getattr(storage, "base", None), "bits", 0.0))


def with_context(case: Case, context: int) -> Case:
    if context == case.context:
        return case
    prompt = min(case.request.prompt_tokens, context)
    return replace(case, context=context, request=replace(case.request, context=context, prompt_tokens=prompt))
