"""Hides modules that only POSIX systems have: imported first, or as a plugin of pytest (``-p tests.hidden_posix``)."""

import sys

import psutil  # noqa: F401  which needs resource itself, on Linux

for name in ("fcntl", "termios", "pty", "tty", "resource"):
    sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError, as on Windows
