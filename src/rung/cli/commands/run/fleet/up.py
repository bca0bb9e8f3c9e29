"""``rung fleet up MODEL...``: begin a fleet, of this machine and those that join."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import note


def up(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Models to serve, as rung serve takes them.", show_default=False),
    ],
    address: Annotated[
        str, typer.Option("--address", help="Address of this machine by which the others reach it.")
    ] = "127.0.0.1",
    control_port: Annotated[
        int, typer.Option("--control-port", min=0, max=65535, help="Port on which machines join; 0: any free one.")
    ] = 8470,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this machine; its host name by default.", show_default=False)
    ] = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    key: options.Keys = None,
    no_key: options.NoKey = False,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Compute nothing on this machine, only on those that join.")
    ] = False,
    format: options.Format = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    cache_type: options.CacheType = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but a key that was made.")] = False,
) -> None:
    """Begin a fleet that serves models, on this machine and on those that join.

    Ray runs with a token and TLS; both are made here. The line that another machine joins with is printed.
    """
    from rung.cli import interrupts
    from rung.fleet import head, ray_node

    ray_node.require()
    from rung.models.lookup import DEMO, find_path
    from rung.server import serve as server
    from rung.server.protocol import Load

    common = {
        "format": format,
        "memory": memory,
        "context": context,
        "parallel": parallel,
        "cache_type": cache_type,
        "threads": threads,
        "offline": offline,
    }
    loads = {each: Load(each if each == DEMO else str(find_path(each, offline=offline)), common) for each in models}
    settings = server.Settings({}, host=host, port=port, keys=tuple(key or ()), no_key=no_key)
    interrupts.keep_running()
    own = head.Own(address, control_port, name, head_only)
    head.up(loads, settings, own, lambda text: None if quiet else note(text), note)
