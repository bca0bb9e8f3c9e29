"""``rung serve [MODEL]``: a language model over HTTP, for clients of OpenAI and others."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import note
from rung.core.errors import SoftwareMissing

#: What the HTTP process is made of.
_PACKAGES = ("starlette", "uvicorn", "msgspec")


def serve(
    model: options.Model = None,
    host: Annotated[str, typer.Option("--host", help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Listen on this port; 0: any free one.")] = 8080,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help="Answer only requests with this key; may be given several times.", show_default=False
        ),
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Need no key on an address that other machines reach.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name that clients call this server by.", show_default=False),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="Pages of this origin may call: https://example.org.", show_default=False),
    ] = None,
    format: options.Format = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    adapter: options.Adapter = None,
    draft: options.Draft = None,
    prefix_cache: options.PrefixCache = None,
    cache_type: options.CacheType = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but a key that was made.")] = False,
    yes: options.Yes = False,
) -> None:
    """Serve a language model over HTTP, as OpenAI's clients expect it.

    Without MODEL the starter smollm2, or the embedded demo where that is not pulled.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise SoftwareMissing(f"{missing[0]} is not installed; serving needs it.", (), ["pip install 'rung[serve]'"])
    from rung.cli import fetching, interrupts
    from rung.cli.common import check_software
    from rung.cli.views.progress import bar
    from rung.server.protocol import Load
    from rung.server.serve import Settings
    from rung.server.serve import serve as run

    check_software(device, software)
    path, starter = fetching.model_to_run(model, yes, offline, quiet)
    load = {
        "format": format,
        "device": device,
        "software": software,
        "memory": memory,
        "context": context,
        "parallel": parallel,
        "adapters": tuple(adapter or ()),
        "draft": draft,
        "prefix_cache": prefix_cache,
        "cache_type": cache_type,
        "threads": threads,
        "offline": offline,
        "revision": revision,
    }
    settings = Settings(
        {starter or model or path: Load(path, load)},
        host=host,
        port=port,
        keys=tuple(key or ()),
        no_key=no_key,
        allow_hosts=tuple(allow_host or ()),
        origins=tuple(origin or ()),
    )
    interrupts.keep_running()
    with bar(quiet) as progress:
        run(settings, on_note=lambda text: None if quiet else note(text), on_progress=progress.update)
