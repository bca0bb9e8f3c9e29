"""The losses of a run as a picture (SVG), for any browser."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 360, 56, 36, 28
Points = Sequence[tuple[int, float]]


def loss_curve(training: Points, evaluation: Points, title: str) -> str:
    """An SVG of the losses over the steps; ``training`` and ``evaluation`` are (step, loss)."""
    every = [*training, *evaluation]
    last = max((step for step, _ in every), default=1)
    low, high = (f((loss for _, loss in every), default=0.0) for f in (min, max))
    span = (high - low) or 1.0

    def at(step: int, loss: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 16) * step / max(last, 1)
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (loss - low) / span)
        return f"{x:.1f},{y:.1f}"

    def line(points: Points, color: str) -> str:
        places = " ".join(at(*point) for point in points)
        dots = "".join(
            '<circle cx="{}" cy="{}" r="2" fill="{}"/>'.format(*at(*point).split(","), color) for point in points
        )
        return f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{places}"/>{dots}'

    ticks = [low + span * part / 4 for part in range(5)]
    marks = "".join(
        f'<text x="{_LEFT - 6}" y="{float(at(0, tick).split(",")[1]) + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
        f'<path d="M{at(0, tick)} L{at(last, tick)}" stroke="#ddd"/>'
        for tick in ticks
    )
    legend = "training" + (" (blue), held out (orange)" if evaluation else "")
    safe = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="16">{safe}: loss, {legend}</text>{marks}'
        f'<text x="{_WIDTH - 16}" y="{_HEIGHT - 10}" text-anchor="end">step {last}</text>'
        f"{line(training, '#1f77b4')}{line(evaluation, '#ff7f0e') if evaluation else ''}</svg>\n"
    )
