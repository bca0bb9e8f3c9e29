"""``rung splat info``: what a file of splats holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import print_json


def info(
    file: Annotated[
        Path, typer.Argument(help="A file of splats: .ply, .compressed.ply, .splat, .spz or .sog.", show_default=False)
    ],
    json: options.Json = False,
) -> None:
    """Print what a file of splats holds: how many, their harmonics, where they are and how large."""
    import numpy as np

    from rung.core.text import count, size
    from rung.splats import read

    cloud = read(file)
    low, high = (f(cloud.means, axis=0).tolist() if len(cloud.means) else [] for f in (np.min, np.max))
    middle = [float(np.median(values)) if len(cloud.means) else None for values in (cloud.scales, cloud.opacities)]
    facts = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "splats": len(cloud.means),
        "sh_degree": cloud.degree,
        "low": low,
        "high": high,
        "median_scale": middle[0],
        "median_opacity": middle[1],
    }
    if json:
        print_json(facts)
        return
    print(f"{file}: {count(len(cloud.means), 'splat')}, harmonics of degree {cloud.degree}, {size(facts['bytes'])}")
    if low:
        corners = " to ".join("(" + ", ".join(f"{value:.3g}" for value in corner) + ")" for corner in (low, high))
        print(f"from {corners}; median scale {middle[0]:.3g}, median opacity {middle[1]:.2f}")
