"""The models on this machine, and one of them, in words."""

from __future__ import annotations

import time

from rung.cli.views.output import columns
from rung.core.text import size
from rung.models.store.listing import About, Inventory
from rung.models.store.pull import how_to_pull
from rung.models.store.starters import starters

_DAY = 86400.0


def inventory_lines(found: Inventory) -> list[str]:
    """Return a table of all models, and below it the starters that are not here with their commands."""
    measured = any(one.divergence for one in found.models)
    rows = [
        (
            one.name,
            size(one.size),
            one.format,
            *([one.divergence.removeprefix("KL ")] if measured else []),
            since(one.last_used) if one.whole else "its file is gone",
            "" if one.program == "rung" else f"in {one.program}",
        )
        for one in found.models
    ]
    headings = ("name", "size", "format", *(["KL"] if measured else []), "last used", "")
    lines = columns(headings, rows) if rows else ["No model is here but demo."]
    if found.partial:
        lines += ["", "Half fetched:"]
        lines += [
            f"  {one.name}: {one.done / one.size:.0%} of {size(one.size)}; goes on with  rung pull {one.name}"
            for one in found.partial
        ]
    if found.starters:
        lines += ["", "Starters that are not here:"]
        lines += [f"  {starters()[name].title}: {how_to_pull(starters()[name])}" for name in found.starters]
    return lines


def since(moment: float) -> str:
    """Return how long ago a moment was, in seconds since 1970."""
    days = int((time.time() - moment) // _DAY)
    if days < 1:
        minutes = int((time.time() - moment) // 60)
        return "now" if minutes < 1 else f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"
    return f"{days} day{'s' if days > 1 else ''} ago"


def about_lines(about: About) -> list[str]:
    """Describe a model, a fact a line."""
    total = sum(about.formats.values())
    formats = ", ".join(
        f"{name} {count / total:.0%}" for name, count in about.formats.items() if count / total >= 0.005
    )
    where = about.path if about.here else f"not here; {how_to_pull(starters()[about.name.lower()])}"
    facts = [
        ("architecture", f"{about.architecture}, {about.layers} layers, context {about.context:,}"),
        ("weights", f"{about.parameters:,}"),
        ("formats", formats),
        ("quantized", about.divergence),
        ("size", size(about.size)),
        ("license", about.license),
        ("chat template", "yes" if about.chat_template else "no: it continues a text"),
        ("terms", "; ".join(about.terms)),
        ("from", about.source or (f"in {about.program}" if about.program not in ("", "rung") else "")),
        ("file", where),
    ]
    return [about.title, *columns(("", ""), [(f"  {name}", text) for name, text in facts if text])[1:]]
