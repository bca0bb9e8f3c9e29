"""The device that ``--device`` of a command of splats names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rung.cli.common import simulated
from rung.cli.views.output import note


@contextlib.contextmanager
def on_device(name: str | None, software: str | None) -> Iterator[str]:
    """torch's name of the device; a card of ``sim:NAME`` is simulated while in the block. Raises ``UnknownDevice``."""
    from rung.engine.planning import device_here
    from rung.run.torch_device import torch_name

    with simulated(name, software) as place:
        yield torch_name(device_here(place, note).id)
