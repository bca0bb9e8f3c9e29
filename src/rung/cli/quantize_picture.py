"""The errors of a quantised model as an SVG picture: a column for each layer, a line for each kind of tensor."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rung.conversion.writing import Written

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 56, 44, 130, 44
#: Okabe and Ito's colours, which colour-blind people tell apart; then dashes do it.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "6 3", "2 3")


def draw(written: Sequence[Written], title: str) -> str:
    """SQNR in dB over the layers, one line for each role of theirs; dots at the left are tensors outside of layers."""
    lines = _lines(written)
    values = [value for points in lines.values() for _, value in points]
    low, high = (math.floor(min(values, default=0)) - 1, math.ceil(max(values, default=1)) + 1)
    last = max((layer for points in lines.values() for layer, _ in points), default=0)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(layer: int) -> float:
        return _LEFT + (layer + 1.5) / (last + 2) * (right - _LEFT)

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - _TOP)

    parts = [_text(_LEFT, 24, title, size=15), _text(right / 2, _HEIGHT - 10, "layer (left of 0: outside of layers)")]
    step = max(1, round((high - low) / 6))
    for value in range(low, high + 1, step):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value} dB", anchor="end"))
    for layer in range(0, last + 1, max(1, (last + 1) // 12)):
        parts.append(_text(x(layer), bottom + 16, str(layer), anchor="middle"))
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        places = [(x(layer), y(value)) for layer, value in points]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{colour}"/>' for a, b in places]
        line = _TOP + 8 + 16 * number
        parts.append(
            f'<path d="M{right + 10} {line}h18" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        parts.append(_text(right + 33, line + 4, name))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _lines(written: Sequence[Written]) -> dict[str, list[tuple[int, float]]]:
    """By role: (layer, dB) of the tensors that lost something; layer -1 outside of layers."""
    found: dict[str, list[tuple[int, float]]] = {}
    for each in written:
        if each.cost is not None and math.isfinite(each.cost.db):
            parts = each.step.tensor.role.split(".")
            found.setdefault(parts[-1], []).append((int(parts[1]) if len(parts) > 1 else -1, each.cost.db))
    return found


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{html.escape(text)}</text>'
