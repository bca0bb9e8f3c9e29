"""Scripts in a process of their own: answers, and the limits that the process keeps by itself."""

import os

import pytest

from rung.run.script_process import ScriptProcess

SCRIPT = """
import time

def answer(request):
    time.sleep(request.get("sleep", 0))
    return {"size": len(bytearray(request.get("bytes", 0)))}
"""


@pytest.fixture
def process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    found = ScriptProcess(tmp_path / "script.py")
    yield found
    found.end()


def test_requests_are_answered_in_turn(process):
    assert [process.ask({"seconds": 20, "bytes": size}, 60) for size in (3, 0, 5)] == [
        {"size": 3},
        {"size": 0},
        {"size": 5},
    ]


@pytest.mark.skipif(os.name == "nt", reason="a timer of POSIX")
def test_the_process_ends_itself_after_the_seconds_of_a_request(process):
    """Though whoever asked would wait longer, or is no more."""
    assert process.ask({"seconds": 20, "sleep": 0.5}, 60) == {"size": 0}
    assert process.ask({"seconds": 0.3, "sleep": 2}, 60) is None


@pytest.mark.skipif(os.name == "nt", reason="a limit of POSIX")
def test_more_memory_than_it_may_have_is_an_error_and_no_end(process):
    assert "more memory" in process.ask({"seconds": 20, "bytes": 2**31}, 60)["error"]
    assert process.ask({"seconds": 20, "bytes": 7}, 60) == {"size": 7}
