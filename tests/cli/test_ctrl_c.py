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


# a library that is at work for hours, and gives Python no moment for its exception
AT_WORK = """
import hashlib, os, signal, threading
def devices():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
# threads that Python would wait for at its end
WITH_THREADS = """
import signal, threading, time
def devices():
    threading.Thread(target=time.sleep, args=(3600,)).start()
    signal.raise_signal(signal.SIGINT)
"""
SAVED = """
import sys, threading, time
def devices():
    threading.Thread(target=time.sleep, args=(3600,)).start()
    sys.exit(130)
"""


# Ctrl-C when the command has ended and only the process has not
AT_THE_END = """
import atexit, signal, sys
def devices():
    atexit.register(signal.raise_signal, signal.SIGINT)
    sys.exit({code})
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (AT_WORK, "stopped\n"),
        (WITH_THREADS, "stopped\n"),
        (SAVED, ""),
        (AT_THE_END.format(code=0), "stopped\n"),
        (AT_THE_END.format(code=2), "stopped\n"),
    ],
    ids=["library", "threads", "saved", "done", "refused"],
)
def test_a_command_ends_whatever_it_is_doing(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / "devices.py").write_text(module)
    program = (
        "import sys, rung.cli.app, rung.cli.commands.before as group; "
        "group.__path__.insert(0, sys.argv.pop()); rung.cli.app.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "devices", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, said)


def test_a_chat_goes_on_and_hears_of_it_once_an_import_is_over(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("import signal, time\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    program = """
import sys, time
from rung.cli import interrupts
interrupts.listen(watch=True)
interrupts.keep_running()
sys.path.insert(0, sys.argv[1])
try:
    import imported
    time.sleep(60)
except KeyboardInterrupt:
    print("heard", imported.whole)
time.sleep(2 * interrupts.LIMIT)
print("goes on")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard True\ngoes on\n", "")
