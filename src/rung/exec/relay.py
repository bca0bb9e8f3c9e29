"""A program's streams on their way: passed on as they come, the end of stderr kept.

On a terminal stdout and stderr lead through a pseudo-terminal each, so that progress bars go on and the two stay apart.
Elsewhere stderr leads through a pipe, and stdout is left alone, but for one that leads to the same file or pipe as
stderr: that one shares its way, so that their order stays.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rung.exec.terminal import Terminal

#: Bytes of stderr that are kept for ``rung explain``.
KEPT = 1 << 20
_PIECE = 1 << 16
_PIECES = 16
_LINE = 1 << 12


class Way:
    """Hold what leads from the program's stream ``number`` to where this process's own leads."""

    def __init__(self, number: int) -> None:
        self.leads_to = number
        self._terminal: Terminal | None = None
        if os.isatty(number):
            from rung.exec.terminal import Terminal

            self._terminal = Terminal(number)
            self.source, self.end = self._terminal.control, self._terminal.end
        else:
            self.source, self.end = os.pipe()
        os.set_blocking(self.source, False)
        self.open = True

    def resize(self) -> bool:
        """Gives the pseudo-terminal the size of the terminal; whether it had another."""
        return self._terminal is not None and self.open and self._terminal.resize()

    @property
    def reads(self) -> bool:
        """Return whether the program takes keys from this terminal."""
        return self._terminal is not None and self.open and self._terminal.reads

    def hand_keys(self) -> None:
        """Hands over what is typed."""
        if select.select([self.leads_to], [], [], 0)[0]:
            try:
                os.write(self.source, os.read(self.leads_to, _LINE))
            except OSError:  # the terminal has gone, or what reads does not
                self._close()

    def take(self) -> bytes:
        """Read the bytes that are there, at most 64 KB; close at the end of the stream."""
        if not self.open:
            return b""
        try:
            piece = self._terminal.read(_PIECE) if self._terminal else os.read(self.source, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:  # EIO: nobody has the pseudo-terminal any more
            piece = b""
        if not piece:
            self._close()
        return piece

    def give(self, piece: bytes) -> None:
        """Passes it on; closed when the reader has gone, so that a program that writes on finds it gone."""
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self.leads_to, view) :]
            except BlockingIOError:  # the program made the terminal so that they share
                select.select([], [self.leads_to], [])
            except OSError:
                self._close()
                return

    def _close(self) -> None:
        if self.open:
            os.close(self.source)
            self.open = False


class Relay:
    """The ways of a program's streams. ``ends`` are its descriptors and the numbers that they get there."""

    def __init__(self) -> None:
        self._stderr = Way(2)
        self._stdout: Way | None = None
        self.ends = [(self._stderr.end, 2)]
        if _same(1, 2):
            self._stdout = Way(1) if os.isatty(1) else None
            self.ends.append((self._stdout.end if self._stdout else self._stderr.end, 1))
        self._ways = [way for way in (self._stdout, self._stderr) if way]
        self._kept = bytearray()
        self._line = b""  # what stderr has written since its last line end, where stdout wrote nothing after it
        self.resize()

    def started(self) -> None:
        """The program holds its ends now."""
        for way in self._ways:
            os.close(way.end)

    def resize(self) -> bool:
        """Gives the pseudo-terminals the size of the terminal; whether one had another."""
        return True in [way.resize() for way in self._ways]

    @property
    def sources(self) -> list[int]:
        """The descriptors on which more may come, the keyboard where the program reads it from stderr's terminal."""
        return [way.source for way in self._ways if way.open] + ([self._stderr.leads_to] if self._stderr.reads else [])

    def pump(self) -> None:
        """Passes on what is there, at most two megabytes."""
        if self._stderr.reads:
            self._stderr.hand_keys()
        out, err = bytearray(), bytearray()
        for _ in range(_PIECES):  # in turn until both are dry: what came before a piece of one is in the other then
            pieces = self._stdout.take() if self._stdout else b"", self._stderr.take()
            out += pieces[0]
            err += pieces[1]
            if not any(pieces):
                break
        self._keep(err)
        at = _offset(self._line, bytes(err)) if out else 0
        to = out.rfind(b"\n") + 1 if err[at:].endswith(b"\n") else len(out)  # a prompt comes after what it follows
        placed = (self._stderr, err[:at]), (self._stdout, out[:to]), (self._stderr, err[at:]), (self._stdout, out[to:])
        for way, piece in placed:
            if way and piece:
                way.give(bytes(piece))
                shown = self._line + piece[-_LINE:] if way is self._stderr else b""
                self._line = bytes(shown.rpartition(b"\n")[2][-_LINE:])

    def _keep(self, piece: bytes | bytearray) -> None:
        self._kept += piece
        if len(self._kept) > 2 * KEPT:
            del self._kept[:-KEPT]

    @property
    def kept(self) -> bytes:
        """The last megabyte of stderr."""
        return bytes(self._kept[-KEPT:])

    def leave_behind(self) -> None:
        """Pass on the streams of what the program left running: a process of its own passes them on.

        It holds nothing else of what this process holds, since others may wait for its end, and outlives the signals
        of the terminal, as what it serves may.
        """
        if os.fork() == 0:
            for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(ignored, signal.SIG_IGN)
            for number in {0, 1} - {way.leads_to for way in self._ways}:
                with contextlib.suppress(OSError):
                    os.close(number)
            while self.sources:
                select.select(self.sources, [], [])
                self.pump()
            os._exit(0)


def _offset(line: bytes, stderr: bytes) -> int:
    """Where in stderr to write the stdout that came with it, after that line: which was first, nobody knows.

    A progress bar is wiped, then comes a line, then the bar again (``tqdm.write``): the line goes where the bar was
    wiped last. Else it goes first, since what ends a program is said last, but for an unfinished line on the screen:
    that is finished before.
    """
    import re

    wiped = list(re.finditer(rb"\r +\r(?:\x1b\[A)*", line + stderr))
    if wiped and wiped[-1].end() >= len(line):
        return wiped[-1].end() - len(line)
    return stderr.find(b"\n") + 1 if line.rpartition(b"\r")[2].strip() else 0


def _same(one: int, other: int) -> bool:
    """Return whether two descriptors lead to the same file, pipe or terminal."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
