"""Ctrl-C of a whole process: quiet while libraries are imported, heard elsewhere, left alone where it is ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# the first is what torch does with an exception while it is imported, the second what a command may do anywhere
IMPORTED = """
import os, signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    os.abort()
"""
CALLED = """
import contextlib, signal
def devices():
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        raise SystemExit(3)
    raise SystemExit(4)
"""


@pytest.mark.parametrize(
    ("before", "module", "code", "said"),
    [
        ("SIG_DFL", IMPORTED, 130, "stopped\n"),
        ("SIG_DFL", CALLED, 4, ""),
        ("SIG_IGN", CALLED, 3, ""),
    ],
    ids=["imported", "called", "ignored"],
)
def test_ctrl_c(tmp_path: Path, before: str, module: str, code: int, said: str) -> None:
    (tmp_path / "devices.py").write_text(module)
    program = (
        "import sys, rung.cli.app, rung.cli.commands.before as group; "
        "group.__path__.insert(0, sys.argv[1]); rung.cli.app.main(['devices'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, getattr(signal, before)),
    )
    assert (done.returncode, done.stderr) == (code, said)
