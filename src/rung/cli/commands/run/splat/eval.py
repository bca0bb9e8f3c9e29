"""``rung splat eval``: how well a trained scene shows the photographs that it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options


def eval(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
    device: options.Device = None,
    software: options.Software = None,
    json: options.Json = False,
) -> None:
    """Measure a trained scene again on its test photographs: PSNR and SSIM, and LPIPS where its weights are there."""
    from rung.cli.commands.run.splat.device import on_device
    from rung.cli.views.output import columns, print_json
    from rung.core.text import count
    from rung.splats.evaluate import evaluate_run
    from rung.splats.trained import trained

    with on_device(device, software) as target:
        found = evaluate_run(trained(folder), target)
    if json:
        print_json(found)
        return
    rows = [[image["name"], *_measured(image)] for image in found["images"]]
    print("\n".join(columns(("photograph", "PSNR", "SSIM", "LPIPS"), [*rows, ["mean", *_measured(found)]])))
    print(f"{found['ply']} · {count(found['splats'], 'splat')} · {found['width']} x {found['height']}")


def _measured(of: dict[str, float | None]) -> list[str]:
    lpips = of["lpips"]
    return [f"{of['psnr']:.2f} dB", f"{of['ssim']:.4f}", "not here" if lpips is None else f"{lpips:.4f}"]
