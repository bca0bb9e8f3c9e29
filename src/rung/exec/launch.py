"""Starts a program, passes its streams and signals through, and says how it ended.

Nothing but small modules of the standard library is imported: this is all that a program without torch pays for.
"""

from __future__ import annotations

import _thread
import os
import select
import signal

from rung.exec.relay import Relay

#: The device that is no simulated card: the processor, which answers to ``cuda``.
PROCESSOR = "cpu"
#: The folder that is put on PYTHONPATH.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start")
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FORWARDED = {
    getattr(signal, f"SIG{name}")
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH", "ALRM", "XCPU", "PWR")
    if hasattr(signal, f"SIG{name}")
}
#: The code of a signal that the terminal sent.
_BY_KERNEL = 0x80


def environment(settings: dict[str, str], variables: dict[str, str]) -> dict[str, str]:
    """The environment of the program: its Pythons find the start-up hook, which finds its settings there."""
    path = variables.get("PYTHONPATH", "")
    if path.split(os.pathsep)[0] != START:
        path = os.pathsep.join([START, path] if path else [START])
    lines = "\n".join(f"{name}={value}" for name, value in {"home": HOME, **settings}.items())
    return {**variables, "PYTHONPATH": path, "RUNG_EXEC": lines}


def launch(command: list[str], variables: dict[str, str]) -> tuple[int, bytes]:
    """Runs the command to its end: its exit code, -n for signal n, and the last megabyte of its stderr.

    Raises ``OSError`` when it cannot be started.
    """
    relay = Relay() if _open(2) else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        process = _start(command, variables, relay, before)
        forwarding = _Forwarding(process, relay)
        try:
            _pass_on(process, relay)
        finally:
            forwarding.end()
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if relay is None:
        return status, b""
    relay.pump()
    if relay.sources:
        relay.leave_behind()
    return status, relay.kept


def _start(command: list[str], variables: dict[str, str], relay: Relay | None, mask: set[signal.Signals | int]) -> int:
    ends = relay.ends if relay is not None else []
    try:
        return os.posix_spawnp(
            command[0],
            command,
            variables,
            file_actions=[(os.POSIX_SPAWN_DUP2, end, number) for end, number in ends],
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them, programs expect not to
        )
    finally:
        if relay is not None:
            relay.started()


def _pass_on(process: int, relay: Relay | None) -> None:
    """Passes on what comes until the program has ended. It is not reaped: signals may be on their way to it."""
    ended, report = os.pipe()

    def wait() -> None:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        os.close(report)

    _thread.start_new_thread(wait, ())
    while True:
        sources = relay.sources if relay is not None else []
        ready = _ready([ended, *sources])
        if relay is not None and ready != {ended}:
            relay.pump()
        if ended in ready:
            os.close(ended)
            return


def _ready(descriptors: list[int]) -> set[int]:
    """Return those on which something came, at least one. Not select, which takes no descriptor above 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll()}


class _Forwarding:
    """A thread that hands signals on to the program, but for those that the terminal sent to it as well."""

    def __init__(self, process: int, relay: Relay | None) -> None:
        self._process, self._relay = process, relay
        self._running = True
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._thread = _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            received = signal.sigwaitinfo(_FORWARDED)
            if not self._running:
                break
            if received.si_signo == signal.SIGWINCH and self._relay is not None and self._relay.resize():
                self._all_in_front()  # they have heard of it before it was so
            elif received.si_code != _BY_KERNEL or (received.si_signo == signal.SIGHUP and _leads()):
                os.kill(self._process, received.si_signo)
        self._ended.release()

    def _all_in_front(self) -> None:
        """The size of the terminal has changed for whatever runs in its foreground, this process included."""
        try:
            os.killpg(os.tcgetpgrp(2), signal.SIGWINCH)
        except OSError:  # not the terminal of this session
            os.kill(self._process, signal.SIGWINCH)

    def end(self) -> None:
        """The program has ended: no signal is meant for it any more."""
        self._running = False
        signal.pthread_kill(self._thread, signal.SIGWINCH)
        self._ended.acquire()


def _leads() -> bool:
    """Return whether a terminal that goes tells this process alone, which leads the session: ``ssh -t host rung exec
    ...``."""
    return os.getsid(0) == os.getpid()


def _open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
