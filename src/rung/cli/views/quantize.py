"""How the result of ``rung quantize`` and ``rung convert`` is told: a table by role, one line, JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rung.core.text import count, rate, size

if TYPE_CHECKING:
    from rich.table import Table

    from rung.conversion.job import Job
    from rung.conversion.writing import Written
    from rung.quantization.divergence import Measured


def table_of(written: Sequence[Written]) -> Table:
    """Roles of the layers and the tensors outside of them, each with its formats: the error together, the worst tensor
    and the worst row."""
    from rung.cli.views.output import table

    groups: dict[tuple[str, str], list[Written]] = {}
    for each in written:
        if each.cost is not None:
            role = each.step.tensor.role.rpartition(".")[2]
            groups.setdefault((role, each.step.format.name), []).append(each)
    result = table("tensors", "format", "", "error", "worst tensor", "", "worst row", "")
    for (role, format), tensors in groups.items():
        worst = min(tensors, key=_db)
        row = min(tensors, key=lambda each: each.cost.worst_db if each.cost else math.inf)
        assert row.cost is not None
        result.add_row(
            role,
            format,
            f"{len(tensors)} x",
            decibels(together(tensors)),
            decibels(_db(worst)),
            _tensor_name(worst),
            decibels(row.cost.worst_db),
            f"{_tensor_name(row)} row {row.cost.worst_row}".strip(),
        )
    return result


def _tensor_name(each: Written) -> str:
    parts = each.step.tensor.role.split(".")
    return f"layer {parts[1]}" if len(parts) > 1 else ""


def _db(each: Written) -> float:
    return each.cost.db if each.cost else math.inf


def together(written: Sequence[Written]) -> float:
    """SQNR in dB of all tensors that lost something, as if they were one."""
    costs = [each.cost for each in written if each.cost is not None]
    signal, noise = sum(cost.signal for cost in costs), sum(cost.noise for cost in costs)
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def decibels(value: float) -> str:
    """``21.3 dB``; ``exact`` where nothing was lost."""
    return "exact" if value == math.inf else f"{value:.1f} dB"


def shrunk(after: int, before: int) -> str:
    """Return ``99 MB (was 269 MB)``: below 1 GB both in megabytes, so that one can compare them."""
    if all(2**20 <= count < 2**30 for count in (after, before)):
        return f"{after / 2**20:.0f} MB (was {before / 2**20:.0f} MB)"
    return f"{size(after)} (was {size(before)})"


def whole_line(job: Job, written: Sequence[Written], seconds: float, target: str) -> str:
    """``model.gguf: 4.1 GB (was 13.5 GB), 201 tensors, error 21.9 dB · 2 min 5 s``."""
    after = sum(each.bytes for each in written)
    parts = [f"{target}: {shrunk(after, job.weight_bytes)}", count(len(written), "tensor")]
    if any(each.cost for each in written):
        parts.append(f"error {decibels(together(written))}")
    minutes, rest = divmod(round(seconds), 60)
    took = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    return f"{', '.join(parts)} · {took}"


def as_json(job: Job, written: Sequence[Written], seconds: float, target: str) -> dict[str, Any]:
    """Everything about the result, tensor by tensor."""
    return {
        "target": target,
        "bytes_before": job.weight_bytes,
        "bytes": sum(each.bytes for each in written),
        "sqnr_db": _number(together(written)),
        "seconds": seconds,
        "notes": list(job.notes),
        "tensors": [
            {
                "source": each.step.tensor.name,
                "name": each.step.name,
                "role": each.step.tensor.role,
                "shape": list(each.step.tensor.shape),
                "before": each.step.tensor.format,
                "format": each.step.format.name,
                "bytes": each.bytes,
                "reason": each.step.reason,
                "sqnr_db": _number(_db(each)),
                "worst_row": each.cost.worst_row if each.cost else None,
                "worst_row_db": _number(each.cost.worst_db) if each.cost else None,
            }
            for each in written
        ],
    }


def _number(value: float) -> float | None:
    """A number of JSON; null for what is exact."""
    return round(value, 3) if math.isfinite(value) else None


def errors_by_layer(written: Sequence[Written]) -> dict[str, list[tuple[float, float]]]:
    """By role: (layer, dB) of the tensors that lost something; layer -1 outside of layers."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in written:
        if each.cost is not None and math.isfinite(each.cost.db):
            parts = each.step.tensor.role.split(".")
            found.setdefault(parts[-1], []).append((int(parts[1]) if len(parts) > 1 else -1, each.cost.db))
    return found


def planned_line(expected: dict[str, Any]) -> str:
    """Return ``97 MB, expected KL 0.013: 120 x q4_0, 91 x q5_1``."""
    formats = ", ".join(f"{count} x {name}" for name, count in sorted(expected["formats"].items()))
    return f"{size(expected['file_bytes'])}, expected KL {expected['expected_kl']:.2g}: {formats}"


def speed_lines(expected: dict[str, Any]) -> list[str]:
    """Return the line of the predicted speed on the device that was chosen for, if there is one."""
    if "device" not in expected:
        return []
    return [f"{expected['device']}: {rate(expected['tokens_per_second'])} tokens/s, predicted"]


def measured_lines(expected: float | None, measured: Measured) -> list[str]:
    """Return the measured KL on other text, the expected one, perplexities, and changed first choices; then KL by kinds
    of text."""
    prediction = "" if expected is None else f", expected {expected:.2g}"
    kinds = ", ".join(f"{kind} {kl:.2g}" for kind, kl in measured.kinds.items())
    return [
        f"KL {measured.divergence:.2g}{prediction} on {measured.tokens:,} tokens of other text · perplexity "
        f"{measured.perplexity_before:.2f} -> {measured.perplexity:.2f} · {measured.flips:.1%} of first choices "
        "changed",
        *([f"KL by kind of text: {kinds}"] if kinds else []),
    ]
