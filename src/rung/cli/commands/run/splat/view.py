"""``rung splat view``: splats in the browser, live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def view(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="A file of splats or the folder of a run; several files are steps of a slider.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0: whoever reaches this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8080,
) -> None:
    """Look at a trained scene in the browser: splats, cameras and photographs; Ctrl-C ends it.

    View-dependent color is off there; a page of rung splat export shows it.
    """
    import contextlib
    import threading

    from rung.splats.files import read
    from rung.splats.trained import stages, trained
    from rung.splats.viewers.live import Live

    files = stages(sources)
    run = trained(sources[-1])
    with Live(run.views, run.cloud, host=host, port=port) as live:
        if len(files) > 1:
            live.steps([file.name for file in files], lambda index: read(files[index]))
        print(f"Open {live.address} in a browser; Ctrl-C ends it. View-dependent color is off there.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
