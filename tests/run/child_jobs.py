"""Jobs that misbehave in every way, for the tests of ``rung.run.worker``."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

prepared = []


def echo(**arguments):
    print("noise on stdout")
    print("noise on stderr", file=sys.stderr)
    return arguments


def process():
    return os.getpid()


def raises():
    raise ValueError("one sentence")


def exits():
    sys.exit(3)


def segfault():
    ctypes.string_at(0)


def abort():
    os.write(2, b"LLVM ERROR: Cannot select: intrinsic\nIn function: f\n")
    os.abort()


def illegal():
    os.kill(os.getpid(), signal.SIGILL)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hang(mark=""):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mark:
        Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


def child_of_the_child(mark):
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(mark).write_text(str(started.pid))
    segfault()


def unspeakable():
    return object()


def large(size):
    return "x" * size


def prepare(fail=""):
    if fail:
        raise LookupError(fail)
    prepared.append(os.getpid())


def times_prepared():
    return len(prepared)


def variable(name):
    return os.environ.get(name)


def where():
    return [sys.path, os.getcwd()]
