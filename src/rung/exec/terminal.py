"""A pseudo-terminal that stands for one of a program's streams, and the real terminal behind it.

What is written goes through as it is; what a program sets on the one is set on the other, so that full-screen programs,
which switch echo and lines off there, find it so.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from typing import Any

_INPUT, _OUTPUT, _LOCAL, _CHARACTERS = 0, 1, 3, 6
#: With it the kernel tells the other end what is set (``termbits.h`` of Linux, ``termios.h`` of macOS).
_EXTPROC = getattr(termios, "EXTPROC", 0x800 if sys.platform == "darwin" else 0x10000)
#: The first byte of what is read then, where it is no output but a setting.
_SETTING = getattr(termios, "TIOCPKT_IOCTL", 64)


class Terminal:
    """Both ends of a pseudo-terminal like the ``real`` one."""

    def __init__(self, real: int) -> None:
        self._real = real
        self._readable = fcntl.fcntl(real, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        self.control, self.end = os.openpty()
        self._set = termios.tcgetattr(real)
        self._set[_OUTPUT] &= ~termios.OPOST  # the real one does it
        self._set[_LOCAL] |= _EXTPROC
        termios.tcsetattr(self.end, termios.TCSANOW, self._set)
        try:
            fcntl.ioctl(self.control, termios.TIOCPKT, (1).to_bytes(4, sys.byteorder))
            self._notified = True
        except OSError:  # a kernel that has no such thing
            self._notified = False
        self._set = termios.tcgetattr(self.end)

    def read(self, most: int) -> bytes:
        """Read what was written to the terminal, at most ``most`` bytes; copy its new settings to the real terminal."""
        while piece := os.read(self.control, most):
            if not self._notified or not piece[0]:
                return piece[self._notified :]
            if piece[0] & _SETTING:
                self._follow()
        return b""

    @property
    def reads(self) -> bool:
        """Return whether a program reads keys here one by one, as pagers do, which open the terminal of their
        stderr."""
        return self._readable and not self._set[_LOCAL] & termios.ICANON and _front(self._real) in (0, os.getpgrp())

    def resize(self) -> bool:
        """Gives it the size of the real one; whether it had another."""
        sizes = [fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8)) for number in (self._real, self.control)]
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, sizes[0])
        return sizes[0] != sizes[1]

    def _follow(self) -> None:
        """Sets on the real one what has changed here, and nothing else."""
        before, now = self._set, termios.tcgetattr(self.control)
        self._set = now
        try:
            real = termios.tcgetattr(self._real)
            attributes = _changed(real, before, now)
            if attributes != real and not _behind(self._real):
                _set(self._real, attributes)
        except (OSError, termios.error):  # it has gone
            return


def _changed(real: list[Any], before: list[Any], now: list[Any]) -> list[Any]:
    attributes = list(real)
    for which, takes in ((_INPUT, ~0), (_OUTPUT, termios.ONLCR), (_LOCAL, ~_EXTPROC)):
        changed = (before[which] ^ now[which]) & takes
        attributes[which] = (real[which] & ~changed) | (now[which] & changed)
    characters = zip(real[_CHARACTERS], before[_CHARACTERS], now[_CHARACTERS], strict=True)
    attributes[_CHARACTERS] = [new if new != old else own for own, old, new in characters]
    return attributes


def _behind(real: int) -> bool:
    """Return whether the shell is in front, so that the terminal is not the program's; jobs of the program may be."""
    front = _front(real)
    return front != os.getpgrp() and front == os.getsid(0)


def _front(terminal: int) -> int:
    """The group of processes in front of a terminal; 0 where it is not the one of this session, which all may read."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return 0


def _set(real: int, attributes: list[Any]) -> None:
    """Also from behind, where a job of the program is in front."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        termios.tcsetattr(real, termios.TCSANOW, attributes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
