"""The page of ``rung compare --html``: what each format costs and saves, beside the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rung.cli.views.page import frame, table
from rung.core.text import size
from rung.core.types import Device

#: What the columns are, for who did not ask the question.
_MEANINGS = {
    "KL": "how far the chances of the next token are from the reference's, in nats; below 0.01 texts rarely differ",
    "perplexity": "how surprised the model is by the text; lower is better",
    "agreement": "the share of tokens for which both find the same one likeliest",
    "worst layer dB": "how far the noise of the worst layer's weights lies below them; 6 dB are one bit",
    "PSNR dB": "how far the frames are from the reference's; above 40 hard to see",
    "SSIM": "how alike the frames are; 1 is the same",
}


def page(model: str, rows: Sequence[Mapping[str, Any]], devices: Sequence[Device] = ()) -> str:
    """Return the whole page as HTML; the first row is the reference."""
    cells = [
        "".join(f'<td class="number">{escape(cell(value))}</td>' for value in row.values()) for row in rows
    ]  # fmt: skip
    shown = table(tuple(rows[0]), (f"<tr>{each}</tr>" for each in cells))
    sections = "".join(
        f"<dt>{escape(name)}</dt><dd>{meaning}</dd>" for name, meaning in _MEANINGS.items() if name in rows[0]
    )
    return frame(f"rung compare: {model}", [sentence(model, rows)], f"{shown}<dl>{sections}</dl>\n", devices)


def sentence(model: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ``demo against stored: nf4 KL 0.58, 60 MB instead of 92 MB; ...``"""
    reference, *others = rows
    limit = "weights" if "weights" in reference else "memory"
    measure = "KL" if "KL" in reference else "PSNR dB"
    parts = [
        f"{row['format']}: {measure} {cell(row[measure])}, {size(row[limit])} instead of {size(reference[limit])}"
        for row in others
    ]
    return f"{model} against {reference['format']}: {'; '.join(parts)}." if parts else f"{model}: nothing to compare."


def cell(value: Any) -> str:
    """Return a value of a table as text."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else "none" if math.isinf(value) else f"{value:.4g}"
    return size(value) if isinstance(value, int) else str(value)
