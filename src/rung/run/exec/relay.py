"""The stderr of a program on its way: passed on as it comes, its end kept.

A stream that leads to a terminal leads through a pseudo-terminal of its own, so that progress bars go on; one that does
not, through a pipe. Where stdout and stderr lead to the same place they share the way, so that their order stays.
"""

from __future__ import annotations

import os
import select

#: Bytes of stderr that are kept for ``rung explain``.
KEPT = 1 << 20
_PIECE = 1 << 16
_PIECES = 16


class Relay:
    """From the program to where this process's stderr leads. ``ends`` are the descriptors for the program."""

    def __init__(self) -> None:
        self._to = 2
        self._terminal = os.isatty(2)
        if self._terminal:
            self.source, end = _terminal_like(2)
        else:
            self.source, end = os.pipe()
        os.set_blocking(self.source, False)
        self.ends = [(end, 2), (end, 1)] if _same(1, 2) else [(end, 2)]
        self._end = end
        self._kept = bytearray()
        self.open = True
        self.resize()

    def started(self) -> None:
        """The program holds its end now."""
        os.close(self._end)

    def resize(self) -> None:
        """Gives the pseudo-terminal the size of the terminal."""
        if self._terminal and self.open:
            import fcntl
            import termios

            size = fcntl.ioctl(self._to, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)

    def pump(self) -> bool:
        """Passes on what is there, at most a megabyte; False, and closed, when there will be no more."""
        for _ in range(_PIECES):
            try:
                piece = os.read(self.source, _PIECE)
            except BlockingIOError:
                return True
            except OSError:  # EIO: nobody has the pseudo-terminal any more
                piece = b""
            self._kept += piece
            if len(self._kept) > 2 * KEPT:
                del self._kept[:-KEPT]
            if not piece or not self._write(piece):
                os.close(self.source)  # a program that writes on finds its reader gone, as without this way
                self.open = False
                return False
        return True

    def _write(self, piece: bytes) -> bool:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:  # the program made the terminal so that they share
                select.select([], [self._to], [])
            except OSError:  # the reader has gone
                return False
        return True

    @property
    def kept(self) -> bytes:
        """The last megabyte."""
        return bytes(self._kept[-KEPT:])

    def leave_behind(self) -> None:
        """What the program left running keeps its stderr: a process of its own passes it on."""
        if os.fork() == 0:
            while self.pump():
                select.select([self.source], [], [])
            os._exit(0)


def _same(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same file, pipe or terminal."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _terminal_like(real: int) -> tuple[int, int]:
    """Both ends of a pseudo-terminal that is like a terminal, but leaves what is written as it is."""
    import termios

    control, end = os.openpty()
    attributes = termios.tcgetattr(real)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(end, termios.TCSANOW, attributes)
    return control, end
