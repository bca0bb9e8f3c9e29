"""Predicted speed of a GPU's kernels beside what llama.cpp reached there, as people published it.

    python benchmarks/published_decode.py [--rows]

``published_decode.table`` holds the rows with their links. A prediction comes from the bytes, instructions and
dispatches of a token (``rung.planning.speed``) and the bandwidth that the catalog has of the card: nothing of the
table goes into it. It is a check of the ceiling: llama.cpp's kernels are other kernels, and no card has timed rung's.

Prints the median of abs(log(predicted / published)), the rank correlation (Spearman) and the share of the names that
the catalog knows, for kernels that multiply weights as they are packed (``webgpu.rows``) and for those that decode a
weight first (``torch.decode``); with ``--rows`` every row. Ends with 1 where the former miss a bar.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rung.core.types import Device
from rung.hardware import catalog
from rung.models.lookup import find_outline
from rung.planning.gguf_mixtures import storage
from rung.planning.network_spec import Subject
from rung.planning.speed import groups, rates
from rung.planning.weight_plan import Weight, format_of

TABLE = Path(__file__).with_suffix(".table")
MEDIAN, RANK, KNOWN, ROWS = 0.4, 0.9, 0.9, 40


@dataclass(frozen=True)
class Row:
    """A published rate in tokens per second."""

    device: str
    product: str
    backend: str
    model: str
    format: str
    depth: int
    rate: float
    source: str


def read(path: Path = TABLE) -> tuple[list[Row], dict[str, str]]:
    """Return the rows and the address of each source."""
    text = path.read_text(encoding="utf-8").split("# sources\n")
    lines = [line.split("|") for line in text[0].splitlines() if line and not line.startswith("#")]
    rows = [Row(*map(str.strip, line[:5]), int(line[5]), float(line[6]), line[7].strip()) for line in lines]  # type: ignore[arg-type]
    return rows, dict(line.split(" = ") for line in text[1].splitlines())


def device_of(row: Row) -> Device | None:
    """Return the card of the catalog, None where it has none."""
    product = None if row.product == "-" else catalog.find(row.product or row.device)
    return catalog.device(product.name) if product else None


def predicted(row: Row, device: Device, rung: str) -> float:
    """Return tokens per second of a rung of ``linear`` that multiplies every matrix there."""
    outline = find_outline(row.model, offline=True)
    subject = Subject.of_component(outline.components[0], outline.kind, outline.path)
    named = storage(row.format)
    weights = []
    for tensor in subject.tensors:
        plain = len(tensor.shape) < 2
        chosen = format_of(subject, tensor, named)[0]
        size = 4 * math.prod(tensor.shape) if plain else chosen.bytes(tensor.shape)
        weights.append(Weight(tensor, chosen, "stored", "ref" if plain else rung, size))
    found = groups(((weight, 1) for weight in weights), subject)
    return rates(found, subject, device, 4096, "f16", row.depth).decode


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of ranks; equal values share the middle of theirs."""
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _summary(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    predictions, published = zip(*pairs, strict=True)
    off = statistics.median(abs(math.log(a / b)) for a, b in zip(predictions, published, strict=True))
    return off, spearman(predictions, published)


def main() -> int:
    """Print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    rows, sources = read()
    names = {row.device for row in rows}
    known = {row.device for row in rows if device_of(row)}
    there = [(row, device) for row in rows if (device := device_of(row))]
    found = {rung: [(predicted(r, d, rung), r.rate) for r, d in there] for rung in ("webgpu.rows", "torch.decode")}
    if options.rows:
        for (row, device), (prediction, rate) in zip(there, found["webgpu.rows"], strict=True):
            what = f"{device.name:24} {row.backend:7} {row.model:13} {row.format:7}"
            print(f"{what} {prediction:7.1f} {rate:7.1f} {prediction / rate:5.2f}  {sources[row.source]}")
    print(f"{len(there)} of {len(rows)} rows; {len(known)} of {len(names)} names are known")
    for rung, pairs in found.items():
        off, rank = _summary(pairs)
        print(f"{rung:13} median of abs(log ratio) {off:.3f}, rank correlation {rank:.3f}")
    off, rank = _summary(found["webgpu.rows"])
    enough = len(there) >= ROWS and len(known) >= KNOWN * len(names)
    return 0 if enough and off <= MEDIAN and rank >= RANK else 1


if __name__ == "__main__":
    raise SystemExit(main())
