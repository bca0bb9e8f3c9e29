"""``rung list``: the models on this machine."""

from __future__ import annotations

from rung.cli import options


def list(json: options.Json = False) -> None:
    """List the models on this machine: pulled ones, and those that ollama, LM Studio or the hub's cache hold."""
    from rung.cli.views.models import inventory_lines
    from rung.cli.views.output import note, print_json
    from rung.models.store.listing import inventory

    found = inventory()
    for text in found.notes:
        note(text)
    if json:
        print_json(found.to_json())
        return
    for line in inventory_lines(found):
        print(line)
