"""The page of a fleet at ``/fleet``, and the state that it shows, at ``/fleet/status``, for who has a key."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Protocol

from starlette.responses import Response

from rung.fleet.messages import FleetStatus
from rung.server import page_files
from rung.server.http import json_response
from rung.server.service import Call, Endpoint

#: A page of the server, with its modules and styles and some of its own.
PATH = "/fleet"


class Fleet(Protocol):
    """The state of a fleet on its head."""

    def status(self) -> FleetStatus:
        """Return the state of the fleet."""


def endpoints(fleet: Fleet) -> Sequence[Endpoint]:
    """Return the endpoints that a server needs for the page."""

    async def status(call: Call) -> Response:
        return json_response(fleet.status())

    files = page_files.endpoints(resources.files("rung.fleet") / "page", PATH, PATH)
    return [*files, Endpoint("GET", f"{PATH}/status", status)]
