"""``rung fleet down``: end the fleet."""

from __future__ import annotations

import time


def down() -> None:
    """End the fleet of this machine when the answers that are computed have ended."""
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder
    from rung.fleet.messages import Text

    folder = Folder.of_settings()
    control_client.of_member(folder).call("/down", None, Text)
    while folder.member() is not None:
        time.sleep(0.1)
