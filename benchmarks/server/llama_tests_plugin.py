"""pytest plugin for llama.cpp's server tests: no model is loaded before the first test, and no test hangs.

Names of headers are compared without case, as HTTP has it; the tests know llama-server's spelling. Its ``--verbose``
is a field of requests in ``rung serve``.

It runs in the interpreter of those tests (``llama_tests``), so it imports nothing of rung.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

#: Seconds that a test may take.
_TEST_SECONDS = 60


def pytest_configure(config: Any) -> None:
    """Leave out that each preset's server is started and stopped first, which fetches its model for later tests."""
    import utils
    from requests.structures import CaseInsensitiveDict

    utils.ServerPreset.load_all = staticmethod(lambda: None)
    make_request = utils.ServerProcess.make_request

    def with_any_case(server: Any, method: str, path: str, data: Any = None, *arguments: Any, **options: Any) -> Any:
        if server.debug and path.endswith("/chat/completions"):
            data = {"verbose": True, **data}
        found = make_request(server, method, path, data, *arguments, **options)
        found.headers = CaseInsensitiveDict(found.headers)
        return found

    utils.ServerProcess.make_request = with_any_case


def _late(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"not done after {_TEST_SECONDS} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """End a test that takes too long."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(_TEST_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
