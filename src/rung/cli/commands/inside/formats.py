"""``rung formats``: how weights can be stored."""

from __future__ import annotations

from rung.cli import options
from rung.cli.views.output import console, print_json, table


def formats(json: options.Json = False) -> None:
    """List the formats in which weights are stored.

    Size, block, and the least quality of an encoded weight.
    """
    from rung.formats import FORMATS

    if json:
        print_json([format.to_json() for format in FORMATS.values()])
        return
    rows = table("format", "bits", "block", "floor", "")
    for format in sorted(FORMATS.values(), key=lambda f: (-f.bits, f.name)):
        block = "row" if format.layout == "row_scale" else str(format.block)
        floor = "exact" if format.floor_db == float("inf") else f"{format.floor_db:.1f} dB"
        title = format.title + ("" if format.encodes else ", read only")
        rows.add_row(format.name, f"{format.bits:.4g}", block, floor, title)
    console().print(rows)
