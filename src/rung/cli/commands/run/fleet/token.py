"""``rung fleet token``: a token with which another machine joins."""

from __future__ import annotations


def token() -> None:
    """Print a token with which one machine joins, within the hour."""
    from rung.fleet import ray_node

    ray_node.require()
    from rung.fleet import control_client
    from rung.fleet.keys.folder import Folder
    from rung.fleet.messages import Text

    print(control_client.of_member(Folder.of_settings()).call("/token", None, Text).text)
