"""Choose how a file is run within a KL: what keys and values are stored in, and whether weights meet inputs of 8 bits.

What a way to run costs is measured once of the model itself, on a text of all sorts and in the arithmetic of the
kernels, and kept with the proofs of this machine. A file that says how far its weights are from their source has that
much less of the budget left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rung.core.errors import DoesNotFit, RungError, UsageError
from rung.core.files import state_of
from rung.core.text import quoted
from rung.core.text import size as sized
from rung.core.types import FLOAT_BYTES, Plan
from rung.core.value import FrozenDict, Value
from rung.engine.chat import Template
from rung.engine.open_model import open_any
from rung.engine.planning import compute_threads, make_plan
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.hardware import json_cache
from rung.models.card import ModelCard
from rung.models.lookup import find_path
from rung.quantization import text as texts
from rung.quantization.divergence import Reference
from rung.quantization.network import EXACT, Arithmetic

#: Tokens that are measured, and the length of a window of them: the context, within these bounds.
TOKENS, _SHORTEST = 4096, 32
#: Formats and caches that are tried: weights as they are stored, or decoded into f32, where inputs stay floats.
WAYS = ((None, "q4_0"), (None, "q5_1"), (None, "q8_0"), (None, "f16"), (None, "f32"), ("f32", "f16"), ("f32", "f32"))
#: Characters of text for a token, at least.
_CHARACTERS = 6
_VERSION = "1"


class Planning(Protocol):
    """Plans a model with its weights in a format (None: as stored) and a cache of a type."""

    def __call__(self, *, format: str | None, cache_type: str) -> Plan:
        """Raise ``UsageError`` where that cannot be, ``DoesNotFit`` where it does not fit."""


@dataclass(frozen=True)
class Way(Value):
    """One way to run a model: its ``format`` (None: as stored) and plan, and the KL that is expected of it."""

    format: str | None
    plan: Plan
    arithmetic: Arithmetic
    divergence: float = 0.0
    tokens: int = 0

    def words(self, usual: Plan, most: float) -> str:
        """Return a sentence about the choice within a KL and its price, beside the ``usual`` plan."""
        mine, other = self.plan, usual
        cache = f"keys and values in {mine.cache_dtype}"
        if mine.cache_dtype != other.cache_dtype:
            cache += f" ({_cache(mine)}, in {other.cache_dtype} {_cache(other)})"
        inputs = "inputs of weights in 8 bits"
        if self.arithmetic.inputs == "f32":
            inputs = "inputs of weights as floats"
        if self.format is not None:
            rates = f"{mine.decode_rate:.0f} tokens/s instead of {other.decode_rate:.0f}"
            memory = f"{sized(mine.memory)} instead of {sized(other.memory)}"
            inputs = f"weights and inputs in {self.format} ({memory}, {rates})"
        measured = f" on {self.tokens:,} tokens" if self.tokens else ""
        return f"within a KL of {most:.2g}: {cache}, {inputs}; KL {self.divergence:.2g}{measured}"


def _cache(plan: Plan) -> str:
    return sized(sum(placement.memory.kv_cache for placement in plan.placements))


class Costs:
    """Hold what ways to run a model cost, in nats a token: measured where nothing is kept of it."""

    def __init__(self, card: ModelCard, context: int, progress: Callable[[str, int, int], None]) -> None:
        self._card, self._progress = card, progress
        tokenizer = Tokenizer.from_card(card)
        self._windows = mixed_windows(card, tokenizer, max(_SHORTEST, min(context, TOKENS)))
        self.tokens = self._windows[:, 1:].numel()
        self._state = state_of(map(Path, card.files))
        self._digest = hashlib.sha256(self._windows.numpy().tobytes()).hexdigest()
        self._reference: Reference | None = None

    def of(self, arithmetic: Arithmetic) -> float:
        """Return the KL of an arithmetic from f32 throughout."""
        if arithmetic == EXACT:
            return 0.0
        key = {"kind": "running", "version": _VERSION, "model": str(self._state), "text": self._digest}
        key |= {"arithmetic": repr(arithmetic)}
        known = json_cache.read(key)
        if isinstance(known, float):
            return known
        if self._reference is None:
            self._progress(f"{self._card.name} on {self.tokens:,} tokens, in f32", 0, 2)
            self._reference = Reference(self._card, self._windows)
        self._progress(f"{self._card.name}, keys and values in {arithmetic.cache}", 1, 2)
        found = self._reference.computed(arithmetic).divergence
        json_cache.write(key, found)
        return found


def mixed_windows(card: ModelCard, tokenizer: Tokenizer, length: int) -> Tensor:
    """Return windows int64 [windows, length] of about ``TOKENS`` tokens of the default text, all sorts in turn; fewer
    where a model has no chat template."""
    share = -(-TOKENS // len(texts.KINDS))
    template = Template(card.chat_template, tokenizer.named) if card.chat_template else None
    found = []
    with closing(template) if template is not None else nullcontext():
        for kind in texts.KINDS:
            words = texts.text_of(kind, _CHARACTERS * share, template)
            found.append(tokenizer.encode(words, special=kind == "chat", bos=False)[:share] if words else [])
    first = [tokenizer.bos] if tokenizer.adds_bos and tokenizer.bos is not None else []
    ids, piece = [token for each in found for token in each], length - len(first)
    piece = min(piece, len(ids))
    return torch.tensor([first + ids[at : at + piece] for at in range(0, len(ids) - piece + 1, piece)])


@dataclass(frozen=True)
class Within(Value):
    """Hold what ``--max-kl`` chose: ``changes`` of the keyword arguments of ``rung.engine.load.load``, the
    ``divergence`` that is expected, and all of it in ``words``."""

    changes: FrozenDict[Any]
    divergence: float
    words: str


def within(name: str, max_kl: float, loading: Mapping[str, Any], progress: Callable[[str, int, int], None]) -> Within:
    """Choose how the model of a name is run within a KL, with the keyword arguments of ``rung.engine.load.load``.

    Raises what finding, planning and ``choose_way`` raise.
    """
    way, usual = choose_way_of(name, max_kl, loading, progress)
    words = way.words(usual, max_kl)
    changes = {"format": way.format, "cache_type": way.plan.cache_dtype, "context": way.plan.context, "notes": (words,)}
    return Within(FrozenDict(changes), way.divergence, words)


def choose_way_of(
    name: str, max_kl: float, loading: Mapping[str, Any], progress: Callable[[str, int, int], None]
) -> tuple[Way, Plan]:
    """Do as ``choose_way`` for the model of a name with the keyword arguments of ``rung.engine.load.load``.

    Raises also what finding and planning raise.
    """
    path = find_path(name, offline=loading.get("offline", False), revision=loading.get("revision"), progress=progress)
    card = open_any(path)
    if not isinstance(card, ModelCard):
        raise UsageError(
            f"--max-kl is for language models that rung builds itself; {card.name} is none.",
            (),
            ["leave out --max-kl"],
            code="format-does-not-suit",
        )
    budgets: dict[str, Any] = {
        key: loading.get(key) for key in ("device", "memory", "context", "parallel", "threads", "typed")
    }
    budgets["reserved"] = loading.get("reserved", 0)
    threads = compute_threads(loading.get("threads"))
    torch.set_num_threads(threads)

    def planning(*, format: str | None, cache_type: str) -> Plan:
        return make_plan(card, format=format, cache_type=cache_type, **budgets)[0]

    return choose_way(card, max_kl, planning, progress)


def choose_way(
    card: ModelCard, max_kl: float, planning: Planning, progress: Callable[[str, int, int], None]
) -> tuple[Way, Plan]:
    """Return the way with the least memory whose expected KL is at most ``max_kl``, and the usual plan.

    Raises ``UsageError`` where the model is not a file of stored formats that one processor runs, and where no way is
    near enough, with the KL of those that there are.
    """
    usual = planning(format=None, cache_type="auto")
    _check_runs_here(card, usual)
    weights = _of_weights(card)
    ways, missing = _ways(card, planning, usual)
    costs, refused = Costs(card, usual.context, progress), []
    for way in ways:
        found = weights + costs.of(way.arithmetic)
        if found <= max_kl:
            return Way(way.format, way.plan, way.arithmetic, found, costs.tokens), usual
        refused.append((found, f"{found:.2g} with {_named(way)}"))
    raise UsageError(
        f"No way to run {card.name} here is within a KL of {max_kl:.2g}.",
        [*([f"its weights alone are {weights:.2g} from their source"] if weights else []),
         *(words for _, words in sorted(refused)), *missing],
        [f"--max-kl {min(found for found, _ in refused) * 1.05:.2g}"],
        code="value-out-of-range",
    )  # fmt: skip


def _named(way: Way) -> str:
    stored = "weights as they are stored" if way.format is None else f"weights in {way.format}"
    return f"{stored} and a cache in {way.plan.cache_dtype} ({sized(way.plan.memory)})"


def _ways(card: ModelCard, planning: Planning, usual: Plan) -> tuple[list[Way], list[str]]:
    """Return the ways that there are, those with less memory first, and why there are no others."""
    found: list[Way] = []
    missing = []
    for format, cache_type in WAYS:
        name = f"a cache in {cache_type}" if format is None else f"weights in {format} and a cache in {cache_type}"
        try:
            plan = planning(format=format, cache_type=cache_type)
        except (UsageError, DoesNotFit) as error:
            missing.append(f"{name}: {_why(error)}")
            continue
        if plan.context < usual.context:
            missing.append(f"{name}: holds {plan.context:,} tokens, not {usual.context:,}")
            continue
        way = Way(format, plan, arithmetic_of(card, plan))
        if all(way.arithmetic != each.arithmetic for each in found):
            found.append(way)
    return sorted(found, key=lambda way: way.plan.memory), missing


def _why(error: RungError) -> str:
    return error.facts[0] if error.facts else error.cause


def arithmetic_of(card: ModelCard, plan: Plan) -> Arithmetic:
    """Return how a processor computes by a plan: in kernels that round what enters weights in blocks to 8 bits."""
    formats = {tensor.format for tensor in card.tensors if len(tensor.shape) > 1}
    if plan.format != "stored":
        return Arithmetic(plan.cache_dtype)
    inputs = "int8" if any(name not in FLOAT_BYTES for name in formats) else "f32"
    narrow = plan.dtype if formats & {"f16", "bf16"} else "f32"
    return Arithmetic(plan.cache_dtype, inputs, narrow)


def _check_runs_here(card: ModelCard, plan: Plan) -> None:
    """Raise ``UsageError`` for a plan that computes in other ways than are measured."""
    if [placement.device for placement in plan.placements] != ["cpu"]:
        raise UsageError(
            "--max-kl chooses for the processor: what other devices round is not measured.",
            [f"the plan is for {' and '.join(placement.device for placement in plan.placements)}"],
            ["--device cpu"],
            code="format-does-not-suit",
        )
    if plan.format != "stored":
        raise UsageError(
            f"--max-kl counts from the weights of a file; those of {card.name} would be stored anew, in {plan.format}.",
            (),
            [
                f"rung quantize {quoted(card.path)} model.gguf --max-kl 0.02",
                f"rung convert {quoted(card.path)} model.gguf",
            ],
            code="format-does-not-suit",
        )


def _of_weights(card: ModelCard) -> float:
    """Return how far the weights of a file are from their source, as far as it says; else 0."""
    measured = card.metadata.get("rung.quantization.measured_kl")
    return measured if card.divergence and isinstance(measured, float) else 0.0
