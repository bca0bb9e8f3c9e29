"""The device that ``--device`` of a command of splats names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rung.cli.common import simulated
from rung.cli.views.output import note


@contextlib.contextmanager
def on_device(name: str | None, software: str | None) -> Iterator[str]:
    """Where the device computes, see ``location``; a card of ``sim:NAME`` is simulated while in the block.

    Raises ``UnknownDevice``.
    """
    from rung.engine.planning import device_here
    from rung.run.torch_device import location

    with simulated(name, software) as target:
        yield location(device_here(target, note, True).id)
