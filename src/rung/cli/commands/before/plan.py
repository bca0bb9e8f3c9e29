"""``rung plan MODEL``: what would run, where, in which format, with how much memory, and why not the others."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import console, note, print_json


def plan(
    model: Annotated[
        str,
        typer.Argument(help="A GGUF file, a Hugging Face folder, demo, a hub name, or a model's name: llama-3.1-8b."),
    ],
    format: options.Format = None,
    device: options.Reasoned = None,
    software: options.Software = None,
    memory: options.Memory = None,
    context: options.Context = None,
    parallel: options.Parallel = None,
    cache_type: options.CacheType = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """Show the plan for a model without loading it.

    Format, device, memory and speed, and what was refused with the reason.
    """
    from rung.cli.common import part_lines, plan_line, tell_beyond, tell_taken
    from rung.cli.views.shown_plan import candidates
    from rung.core.text import printable
    from rung.engine.open_model import open_named
    from rung.engine.planning import make_plan, target_named
    from rung.planning.request import Typed, parse_memory

    card, named = open_named(model, offline=offline, revision=revision, on_note=note)
    target = target_named(device, software)
    tell_taken([device])
    found, devices = make_plan(
        card,
        format=format or named,
        device=target.device,
        memory=memory,
        context=context,
        parallel=parallel,
        cache_type=cache_type,
        threads=threads,
        devices=target.devices,
        together=target.together,
        typed=Typed("rung plan", model, device, software) if target.devices else Typed(device=device),
    )
    used = {each.device for each in found.placements}
    tell_beyond(parse_memory(memory), [[each for each in devices if each.id in used]])
    if json:
        print_json(found.to_json())
        return
    out = console()
    out.print(plan_line(found, devices))
    for line in part_lines(found):
        out.print(line)
    print("\n".join(map(printable, candidates(found))))
