"""Make the job of ``rung quantize`` within a budget: ``--size``, ``--max-kl``, or a named format with ``--text``."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rung import formats
from rung.conversion.checkpoint_layouts import aliases, lossless
from rung.conversion.job import Job
from rung.conversion.quantize import quantizing
from rung.core.errors import RungError, UsageError
from rung.core.files import read_text, written_whole
from rung.core.settings import CACHE
from rung.core.text import matches
from rung.core.types import Device, Format
from rung.core.value import FrozenDict
from rung.engine.chat import Template
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.models.card import ModelCard
from rung.models.files.gguf import pair
from rung.planning.gguf_mixtures import MIXTURES
from rung.quantization import text as texts
from rung.quantization.budget import (
    CANDIDATES,
    Choice,
    Cost,
    Option,
    Progress,
    Rounder,
    TokenTimes,
    choose,
    choose_both,
    corrected,
    matrices,
    options_of,
    rounded,
    timed,
)
from rung.quantization.divergence import Measured, Reference
from rung.quantization.statistics import FEWEST, LENGTH, gather

if TYPE_CHECKING:
    from torch import Tensor

#: Characters of the default text for a token, at least.
_CHARACTERS = 6
#: Of so many windows of each kind of text one corrects expectations, and one judges the result.
_PARTS = 5
#: Tokens that each layer is measured on for a picture.
_PICTURED = 512
#: Bytes by which metadata of files differ.
_SPARE = 1024
#: Changes with how weights are rounded and expectations corrected: options of earlier runs are then found anew.
_VERSION = 4
#: Where metadata of GGUF says what was measured.
_KEY = "rung.quantization"


def _windows_of(tokenizer: Tokenizer, path: Path) -> dict[str, Tensor]:
    """Return windows [windows, length] of a text, shorter ones of a short text."""
    words = read_text(path, texts.OTHER_TEXT)
    length = min(LENGTH, max(len(tokenizer.encode(words[:16384], special=False, bos=False)) // _PARTS, 2))
    return {path.name: texts.windows(tokenizer, words, length, texts.TOKENS)}


def _default_windows(card: ModelCard, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return windows [windows, LENGTH] by kinds of text; kinds that do not fill one are left out."""
    found = {}
    template = Template(card.chat_template, tokenizer.named) if card.chat_template else None
    with closing(template) if template is not None else nullcontext():
        for kind, count in texts.KINDS.items():
            words = texts.text_of(kind, _CHARACTERS * count * LENGTH, template)
            if words:
                found[kind] = texts.windows(tokenizer, words, LENGTH, count * LENGTH, special=kind == "chat")
    return {kind: each for kind, each in found.items() if each.shape[1] == LENGTH}


def _parted(windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the windows that statistics come from, those that correct, and those that judge: the last of a few."""
    import torch

    count = len(windows)
    part = (torch.arange(count) + max(_PARTS - count, 0)) % _PARTS
    return windows[part < _PARTS - 2], windows[part == _PARTS - 2], windows[part == _PARTS - 1]


@dataclass(frozen=True)
class Budget:
    """Hold a budget: bytes of the file, KL in nats a token, or both; neither with a named format.

    With a ``device`` the mixture within a KL is the fastest there, not the smallest.
    """

    size: int | None = None
    max_kl: float | None = None
    format: str | None = None
    device: Device | None = None


class Calibration:
    """A model with the windows of a text: those that statistics come from, those that correct what is expected, and
    those that judge the result."""

    def __init__(self, card: ModelCard, text: Path | None, threads: int, progress: Progress) -> None:
        import torch

        torch.set_num_threads(threads)
        self.card, self.progress, self.name = card, progress, "default" if text is None else text.name
        #: What went wrong and changes no result.
        self.notes: list[str] = []
        tokenizer, digest = Tokenizer.from_card(card), hashlib.sha256()
        windows = _default_windows(card, tokenizer) if text is None else _windows_of(tokenizer, text)
        for each in windows.values():
            digest.update(each.numpy().tobytes())
        parts = {kind: _parted(each) for kind, each in windows.items()}
        self.digest = digest.hexdigest()
        self.chosen_by, self.corrected_by, self.held_out = map(torch.cat, zip(*parts.values(), strict=True))
        #: The kind of text of each window of ``held_out``.
        self.kinds = tuple(kind for kind, part in parts.items() for _ in part[2])
        if self.chosen_by.numel() < FEWEST:
            raise UsageError(
                f"The text has {sum(each.numel() for each in windows.values())} tokens, too few to judge a model by.",
                [f"at least {2 * FEWEST} are needed, and some thousands are better"],
                texts.OTHER_TEXT,
                code="input-empty",
            )
        self.rounder = Rounder(gather(card, self.chosen_by, progress), threads)

    @functools.cached_property
    def options(self) -> Mapping[str, tuple[Option, ...]]:
        """Return the options of each matrix, by role; those of an earlier run where there are any."""
        digest = hashlib.sha256(f"{_VERSION} {', '.join(CANDIDATES)}".encode() + self.corrected_by.numpy().tobytes())
        path = self.rounder.statistics.folder / f"options-{digest.hexdigest()[:16]}.json"
        shapes = {tensor.role: tensor.shape for tensor in matrices(self.card)}
        try:
            named = {
                role: [(formats.get(name), float(kl), float(inputs)) for name, kl, inputs in each]
                for role, each in json.loads(path.read_text()).items()
            }
            return {
                role: tuple(Option(fmt, fmt.bytes(shapes[role]), kl, inputs=inputs) for fmt, kl, inputs in each)
                for role, each in named.items()
            }
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, LookupError, RungError) as error:
            self.notes.append(f"what formats cost is computed anew, for {path} cannot be read: {error}")
        options = options_of(self.card, self.rounder, self.progress)
        found = corrected(self.card, self.rounder, options, self.corrected_by, self.progress)
        listed = {role: [(one.format.name, one.divergence, one.inputs) for one in each] for role, each in found.items()}
        try:
            with written_whole(path) as part:
                part.write_text(json.dumps(listed))
        except OSError as error:
            self.notes.append(f"the next run computes what formats cost anew, for {path} cannot be written: {error}")
        return found


def budgeted(
    found: Calibration, budget: Budget, keep: dict[str, Format], kind: str = "gguf"
) -> tuple[Job, Choice | None]:
    """Return the job that stores a model as ``kind``'s file within a budget, and what was chosen; None for a named
    format.

    Raises ``UsageError`` for a budget that no mixture meets, and as ``quantizing`` does.
    """
    if budget.format is not None:
        job = quantizing(found.card, kind, budget.format, keep, found.rounder.takes)
        return replace(job, rounder=found.rounder, pairs=(*_metadata(found, job, None), *job.pairs)), None
    options = _with_kept(found, keep, kind)
    _check_room(found, options, budget, kind)
    room: int | None = budget.size
    cost: Cost = "bytes"
    if budget.device is not None:
        options = timed(found.card, options, TokenTimes(found.card, budget.device))
        cost = "bytes" if budget.max_kl is None else "seconds"
    if budget.size is not None and budget.max_kl is not None:  # so that a refusal knows what is no matrix
        free = choose(options, None, budget.max_kl)
        room = budget.size - _job(found, free, kind).file_bytes + free.bytes
    while True:
        if room is not None and budget.size is not None and budget.max_kl is not None:
            choice = choose_both(options, room, budget.max_kl, budget.size - room, cost)
        else:
            choice = choose(options, room, budget.max_kl, cost)
        job = _job(found, choice, kind)
        excess = 0 if budget.size is None else job.file_bytes - budget.size
        if excess <= 0 or room is None:
            break
        room -= excess
    reached = set(found.rounder.statistics.roles)
    missed = [tensor.name for tensor in matrices(found.card) if tensor.role not in reached]
    note = (f"the text does not reach {', '.join(missed[:4])}: kept in 8 bits",) if missed else ()
    return replace(job, rounder=found.rounder, notes=(*job.notes, *note, *found.notes)), choice


def _check_room(found: Calibration, options: Mapping[str, tuple[Option, ...]], budget: Budget, kind: str) -> None:
    """Raise ``UsageError`` where the smallest file is larger than a budget."""
    smallest = _job(found, choose(options, None, math.inf), kind).file_bytes
    if budget.size is not None and smallest > budget.size:
        raise UsageError(
            "No mixture is so small.",
            [f"the smallest file has {smallest:,} bytes, {smallest - budget.size:,} too many"],
            [f"--size {smallest + _SPARE}"],
            code="value-out-of-range",
        )


def sizes(found: Calibration, count: int = 16) -> dict[str, list[tuple[float, float]]]:
    """Return points (MB of weights, log10 of the expected KL): of the best mixture of so many sizes, and of each named
    mixture that the options hold."""
    options, by_role = found.options, {tensor.role: tensor for tensor in matrices(found.card)}
    least, most = (sum(pick(one.bytes for one in each) for each in options.values()) for pick in (min, max))
    best = (choose(options, round(least + (most - least) * number / (count - 1)), None) for number in range(count))
    points = {"best of each size": [point(each.bytes, each.divergence) for each in best]}
    for name in ("q4_0", "q8_0", *MIXTURES):
        try:
            steps = quantizing(found.card, "gguf", name, {}, found.rounder.takes).steps
        except RungError:
            continue  # nothing writes one of its formats
        named = [_option(options, step.tensor.role, step.format) for step in steps if step.tensor.role in by_role]
        if named and all(named):
            points[name] = [point(sum(one.bytes for one in named if one), sum(one.divergence for one in named if one))]
    return points


def point(count: int, divergence: float) -> tuple[float, float]:
    """Return MB of weights, and the logarithm of a KL to base 10."""
    return count / 2**20, math.log10(max(divergence, 1e-9))


def _option(options: Mapping[str, tuple[Option, ...]], role: str, fmt: Format) -> Option | None:
    return next((each for each in options[role] if each.format == fmt), None)


def layers(found: Calibration, choice: Choice) -> dict[str, list[tuple[float, float]]]:
    """Return points (layer, KL) of a choice, -1 outside of layers: as expected, and measured with that layer alone
    rounded, on the beginnings of the text that judges."""
    by_layer: dict[int, dict[str, Format]] = {}
    for role, fmt in choice.formats.items():
        by_layer.setdefault(int(role.split(".")[1]) if role.startswith("layers.") else -1, {})[role] = fmt
    points: dict[str, list[tuple[float, float]]] = {"expected": [], "measured": []}
    reference = Reference(found.card, found.held_out[:, : max(2, _PICTURED // len(found.held_out))])
    with TemporaryDirectory(dir=CACHE.read(), prefix="rounded-") as folder:
        for number, (layer, chosen) in enumerate(sorted(by_layer.items())):
            found.progress(f"a pass with layer {layer} rounded", number, len(by_layer))
            expected = (_option(found.options, role, fmt) for role, fmt in chosen.items())
            points["expected"].append((layer, sum(one.divergence for one in expected if one)))
            override = rounded(found.card, found.rounder, chosen, Path(folder))
            points["measured"].append((layer, reference.compare(found.card, override).divergence))
    return points


def _with_kept(found: Calibration, keep: dict[str, Format], kind: str) -> dict[str, tuple[Option, ...]]:
    """Return the options of each matrix; those that ``keep`` names have one."""
    options = dict(found.options)
    steps = quantizing(found.card, kind, "q8_0", keep, found.rounder.takes).steps if keep else ()
    kept = {step.tensor.role: step.format for step in steps}
    for tensor in matrices(found.card):
        own = kept.get(tensor.role)
        if own is not None and any(matches(name, pattern) for name in aliases(found.card, tensor) for pattern in keep):
            same = [each for each in options[tensor.role] if each.format == own]
            options[tensor.role] = tuple(same) or (Option(own, own.bytes(tensor.shape), 0.0),)
    return options


def _job(found: Calibration, choice: Choice, kind: str) -> Job:
    """Return the job that stores each tensor as chosen; the file says that it is of the most frequent format."""
    by_role = {tensor.role: tensor for tensor in matrices(found.card)}
    sizes: dict[str, int] = {}
    quantized = {role: fmt for role, fmt in choice.formats.items() if not lossless(fmt)}
    for role, fmt in (quantized or choice.formats).items():
        sizes[fmt.name] = sizes.get(fmt.name, 0) + fmt.bytes(by_role[role].shape)
    job = quantizing(found.card, kind, max(sizes, key=lambda name: sizes[name]), choice.formats, found.rounder.takes)
    steps = tuple(replace(step, reason="budget") if step.reason.startswith("--keep") else step for step in job.steps)
    return replace(job, steps=steps, pairs=(*_metadata(found, job, choice.divergence), *job.pairs))


def _metadata(found: Calibration, job: Job, expected: float | None) -> list[bytes]:
    """Return the metadata of a budget for a GGUF file, with NaN in the place of each measure that is made later.

    They come first in the file, where ``rung list`` finds them without reading a vocabulary.
    """
    if not job.single:
        return []
    facts = {"text": found.name, "text_sha256": found.digest} | ({} if expected is None else {"expected_kl": expected})
    nothing = Measured(math.nan, math.nan, math.nan, math.nan, found.held_out[:, 1:].numel())
    nothing = replace(nothing, kinds=FrozenDict(dict.fromkeys(found.kinds, math.nan)))
    return [pair(f"{_KEY}.{key}", value) for key, value in (facts | _measures(nothing)).items()]


def _measures(measured: Measured) -> dict[str, float | int]:
    found: dict[str, float | int] = {
        "measured_kl": measured.divergence,
        "perplexity": measured.perplexity,
        "perplexity_before": measured.perplexity_before,
        "flips": measured.flips,
        "tokens": measured.tokens,
    }
    return found | (
        {f"measured_kl.{kind}": kl for kind, kl in measured.kinds.items()} if len(measured.kinds) > 1 else {}
    )


def without_verdict(target: Path) -> Path:
    """Return the name of a result until it is judged, and remove what a run that was killed left there."""
    path = target.with_name(f"{target.stem}.unjudged{target.suffix}")
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def record(job: Job, path: Path, measured: Measured) -> None:
    """Write what was measured into the metadata of a file, where its job left room for it."""
    head = job.layout()[0][0].head
    with path.open("r+b") as file:
        for key, value in _measures(measured).items():
            if isinstance(value, float):
                file.seek(head.index(pair(f"{_KEY}.{key}", math.nan)))
                file.write(pair(f"{_KEY}.{key}", value))
        file.flush()
        os.fsync(file.fileno())
