"""A fleet of three machines; skipped where Ray or network namespaces are not to be had."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.server.page.conftest import browser  # noqa: F401 - a fixture
from tests.support.fleet import Machine, machines_of, namespaces


@pytest.fixture(scope="session")
def machines(_cache, tmp_path_factory) -> Iterator[list[Machine]]:
    """Three machines: a head, a node, and one that is in no fleet."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'rung[fleet]'")
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("network namespaces need root and ip")
    folder = tmp_path_factory.mktemp("fleet")
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(namespaces(3, f"rf{os.getpid() % 10000}"))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted: {error.stderr}")
        yield machines_of(names, folder)


@pytest.fixture(scope="module")
def fleet(machines) -> Iterator[tuple[Machine, Machine, str]]:
    """A head and a node that serve the demo, and the join token that the node has used; each file has its own."""
    head, node, _ = machines
    try:
        head.start("up", "demo", "--address", head.address, "--name", "one", "--context", "512")
        token = head.wait_for(r"--token (\S+)")
        node.start("join", head.address, "--token", token, "--name", "two")
        head.wait_for("demo is ready on one")
        head.wait_for("demo is ready on two")
        yield head, node, token
    finally:
        node.stop()
        head.stop()
