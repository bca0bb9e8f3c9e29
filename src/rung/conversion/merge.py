"""Makes the job of ``rung merge``: the weights of a model with those of adapters added, a tensor at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rung import formats
from rung.conversion.checkpoint_layouts import lossless
from rung.conversion.job import Job
from rung.conversion.quantize import kind_of, plain_dtype, quantizing, to_folder, to_gguf
from rung.core.errors import UsageError
from rung.core.text import quoted
from rung.models.adapters.roles import read_merged
from rung.models.card import ModelCard, Tensor
from rung.models.lookup import name_of
from rung.planning.gguf_mixtures import storage


def merging(card: ModelCard, adapters: Sequence[str], target: Path, format: str | None) -> Job:
    """The job that stores a model with adapters added (``DIR``, ``DIR:0.5``), by default in its own formats.

    Sums are made in f32 and rounded, or encoded, once. Raises what reading adapters and ``quantizing`` raise, and
    ``UsageError`` for a weight that is stored in a format that rung does not write.
    """
    changes, whole = read_merged(adapters, card)
    running = f"rung run {quoted(name_of(card.path))} --adapter {quoted(adapters[0])}"
    gguf = kind_of(target, None) == "gguf"
    if format is None or getattr(storage(format), "family", "") == "floats":
        job = _same(card, gguf, format)
    else:
        job = quantizing(card, kind_of(target, None), format, {})
    if changes.keys() - {step.tensor.role for step in job.steps}:
        raise UsageError(
            f"{adapters[0]} changes the output head, and {card.name} has none of its own: it is the embedding.",
            ["added to both, it would change what tokens mean as well"],
            [f"{running}   # adds it to the head alone"],
            code="made-for-another-model",
        )
    steps = tuple(
        replace(step, changes=changes.get(step.tensor.role, ()), whole=whole.get(step.tensor.role))
        for step in job.steps
    )
    for step in steps:
        if step.merges and not step.format.encodes:
            better = formats.next_better(step.format, step.matrix[1]).name
            raise UsageError(
                f"{step.tensor.name} is stored in {step.format.name}, which rung reads and does not write.",
                ["an adapter cannot be put into it"],
                [
                    f"rung merge {quoted(name_of(card.path))} {quoted(adapters[0])} {quoted(target)} --format {better}",
                    f"{running}   # adds it while the model runs",
                ],
                code="format-not-writable",
            )
    return replace(job, steps=steps)


def _same(card: ModelCard, gguf: bool, format: str | None) -> Job:
    """Every tensor in the format it has, or all matrices in one float; what a folder cannot hold becomes floats."""
    keeps = format is None and (gguf or card.kind == "folder")
    blocks = [tensor.format for tensor in card.tensors if not lossless(formats.get(tensor.format))]
    layers = keeps and not gguf and bool(blocks)  # a folder of rung's holds the formats of any other
    stored = blocks if layers else [tensor.format for tensor in card.tensors if len(tensor.shape) > 1]
    most = formats.get(format or (max(set(stored), key=stored.count) if gguf or layers else plain_dtype(card)))

    def chosen(tensor: Tensor) -> str:
        if len(tensor.shape) < 2 and gguf:
            return "f32"
        return tensor.format if keeps else most.name

    by_role = {tensor.role: (formats.get(chosen(tensor)), "") for tensor in card.tensors}
    return (
        to_gguf(card, most, by_role, ()) if gguf else to_folder(card, "rung" if layers else "plain", most, by_role, ())
    )
