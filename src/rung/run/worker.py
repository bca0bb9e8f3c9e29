"""Jobs in a child process, so that an abort, a hang or an illegal instruction costs one job and not the program.

One child serves many jobs. When it dies or a job outlasts its time the child is killed, and a new one goes on with
the next job. The child has a process group of its own (Ctrl-C in a terminal does not reach it, the parent ends it),
dies with its parent, writes no core file, and talks over pipes of its own: what a library prints spoils nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.kernels.cpu import target

#: Seconds that a child may take from its start until it listens, and for the job that prepares it.
START_LIMIT = 60.0
#: How the error of a job begins that outlasted its time.
NO_ANSWER = "no answer within"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_TAIL = 2000  # bytes of the child's stderr that are read for the reason of a crash


@dataclass(frozen=True)
class Job(Value):
    """A call of the function named ``module:function`` with JSON-able keyword arguments."""

    function: str
    arguments: FrozenDict[Any] = EMPTY

    @classmethod
    def of(cls, function: str, /, **arguments: Any) -> Job:
        """The job that calls ``function`` with those keyword arguments."""
        return cls(function, FrozenDict(arguments))


#: Words of an error that says nothing about what was tried.
_OF_THE_MOMENT = (
    "out of memory",
    "memory runs out",
    "MemoryError",
    "No space left on device",
    "ModuleNotFoundError",
    "no child process",
    "the child did not start",
    "is no longer there",
)


@dataclass(frozen=True)
class Outcome(Value):
    """Hold what became of a job.

    ``how`` is ``returned`` (``value`` is what the function returned, through JSON), ``raised`` (``error`` is
    ``Type: message``), ``crashed`` (``error`` says what ended the process), ``timeout``, or ``skipped`` (too many
    children were lost before).
    """

    how: str
    value: Any = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Return whether the function returned."""
        return self.how == "returned"

    @property
    def says_nothing(self) -> bool:
        """Return whether the trouble was the moment's (memory or disk full, no process to be had), and no finding."""
        return self.how == "skipped" or (not self.ok and any(words in self.error for words in _OF_THE_MOMENT))


class _Died(Exception):
    """The child closed its pipe."""


class _Late(Exception):
    """The child has not answered in time."""


#: How a child finds rung: by the path of this process, so that it imports the very same code and not what lies in the
#: current folder; an interpreter of another environment gets rung and nothing else from beside it.
_SAME_PATH = "sys.path[:] = a[3]"
_RUNG_ALONE = (
    "from importlib.util import module_from_spec as made, spec_from_file_location as at; "
    "s = at('rung', a[3][0] + '/__init__.py', submodule_search_locations=a[3]); "
    "sys.modules['rung'] = made(s); s.loader.exec_module(sys.modules['rung'])"
)
_SERVE = "from rung.run.worker import serve; serve(*a[:3])"


class _Child:
    """One child process and its pipes. Leaving the ``with`` block ends the process and everything it started."""

    def __init__(self, environment: Mapping[str, str], python: str | None) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (the child's end closes it)
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        path = [str(Path(__file__).parents[1])] if python else sys.path
        arguments = json.dumps([requests, answers, os.getpid(), path])
        code = f"import json, sys; a = json.loads(sys.argv[1]); {_RUNG_ALONE if python else _SAME_PATH}; {_SERVE}"
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-I" if python else "-P", "-c", code, arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(requests, answers),
                start_new_session=True,
                env={**os.environ, **target.shared(), **environment},
            )
        except BaseException:
            os.close(self._requests)
            os.close(self._answers)
            self._stderr.close()
            raise
        finally:
            os.close(requests)
            os.close(answers)
        self._buffer = b""

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._requests)
        os.close(self._answers)
        self._stderr.close()

    def kill(self) -> None:
        """Ends the process and its group with SIGKILL; nothing is left behind."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def send(self, job: Job) -> None:
        """Sends a job; raises ``_Died`` when nobody reads."""
        data = (json.dumps(job.to_json()) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError as error:
            raise _Died from error

    def receive(self, seconds: float) -> Any:
        """The next answer; raises ``_Late`` or ``_Died``."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _Late
                piece = os.read(self._answers, 1 << 16)
                if not piece:
                    raise _Died
                self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def cause_of_death(self) -> str:
        """Return the cause of the end of the process, in words, with the last error that it printed."""
        code = self._process.wait()
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _TAIL))
        lines = [line.strip() for line in self._stderr.read().decode("utf-8", "replace").splitlines() if line.strip()]
        lines = [line for line in lines if "error" in line.lower()] or lines
        cause = _DEATHS.get(-code) or (
            f"the process was ended by signal {-code}" if code < 0 else f"the process ended with status {code}"
        )
        return f"{cause}: {lines[-1]}" if lines else cause


_DEATHS: dict[int, str] = {
    signal.SIGABRT: "the process aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "the process was killed, as the kernel does when memory runs out",
    signal.SIGSEGV: "segmentation fault",
}


def run(
    jobs: Sequence[Job],
    timeout: float,
    *,
    prepare: Job | None = None,
    most_lost: int | None = None,
    environment: Mapping[str, str] = EMPTY,
    python: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Outcome]:
    """Runs the jobs one after the other in a child and returns an outcome for each.

    ``timeout`` is in seconds and for each job; what a job imports counts. ``prepare`` is run first in every child,
    within ``START_LIMIT`` seconds; where it fails, the jobs left share its outcome. After ``most_lost`` crashes and
    timeouts the jobs left are skipped: that is no longer about one job. ``environment`` is added to the child's;
    ``python`` is the interpreter (3.11 or newer) of another environment, whose packages the jobs then import.
    ``progress`` is called with the number of jobs done. Raises nothing of the child's doing; an exception of this
    process, ``KeyboardInterrupt`` too, ends the child before it goes on its way.
    """
    outcomes: list[Outcome] = []
    lost = 0
    while len(outcomes) < len(jobs):
        if lost == most_lost:
            skipped = Outcome("skipped", error=f"not tried: {lost} attempts before it ended the process or hung")
            return outcomes + [skipped] * (len(jobs) - len(outcomes))
        failed = _one_child(jobs, timeout, prepare, environment, python, progress, outcomes)
        lost += 1
        if failed:
            outcomes += [failed] * (len(jobs) - len(outcomes))
    return outcomes


class SecondChild:
    """Jobs in a child of their own, which does them while this process, or another child, does something else.

    A context manager: the child starts when it is entered, and has ended when it is left.
    """

    def __init__(self, jobs: Sequence[Job], timeout: float, environment: Mapping[str, str] = EMPTY) -> None:
        self._jobs, self._timeout, self._environment = jobs, timeout, environment
        self._child: _Child | None = None

    def __enter__(self) -> SecondChild:
        with contextlib.suppress(OSError, _Died):  # what it cannot do is done in ``outcomes``
            if self._jobs:
                self._child = _Child(self._environment, None)
                for job in self._jobs:
                    self._child.send(job)
        return self

    def __exit__(self, *details: object) -> None:
        if self._child is not None:
            self._child.__exit__(*details)

    def outcomes(self) -> list[Outcome]:
        """Wait for an outcome of each job; those after one that ended the child, or hung, get another child."""
        found: list[Outcome] = []
        if self._child is not None:
            with contextlib.suppress(_Late, _Died):
                self._child.receive(START_LIMIT)
                while len(found) < len(self._jobs):
                    found.append(_answered(self._child, self._timeout))
                    if found[-1].how in ("timeout", "crashed"):
                        break
            self._child.kill()
        return found + run(self._jobs[len(found) :], self._timeout, environment=self._environment)


def _one_child(
    jobs: Sequence[Job],
    timeout: float,
    prepare: Job | None,
    environment: Mapping[str, str],
    python: str | None,
    progress: Callable[[int], None],
    outcomes: list[Outcome],
) -> Outcome | None:
    """Appends outcomes until the jobs are done or the child is lost; returns why no child can be had at all."""
    try:
        child = _Child(environment, python)
    except OSError as error:
        return Outcome("crashed", error=f"no child process: {error}")
    with child:
        try:
            child.receive(START_LIMIT)
        except _Late:
            return Outcome("timeout", error="the child did not start")
        except _Died:
            return Outcome("crashed", error=f"the child did not start: {child.cause_of_death()}")
        if prepare:
            ready = _ask(child, prepare, START_LIMIT)
            if not ready.ok:
                return ready
        while len(outcomes) < len(jobs):
            outcomes.append(_ask(child, jobs[len(outcomes)], timeout))
            progress(len(outcomes))
            if outcomes[-1].how in ("timeout", "crashed"):
                break
    return None


def _ask(child: _Child, job: Job, timeout: float) -> Outcome:
    with contextlib.suppress(_Died):  # why it did says ``_answered``
        child.send(job)
    return _answered(child, timeout)


def _answered(child: _Child, timeout: float) -> Outcome:
    """The outcome of the next of the jobs that were sent."""
    try:
        return Outcome.from_json(child.receive(timeout))
    except _Late:
        return Outcome("timeout", error=f"{NO_ANSWER} {timeout:g} s")
    except _Died:
        return Outcome("crashed", error=child.cause_of_death())


def serve(requests: int, answers: int, parent: int) -> None:
    """The child's side: reads jobs from the file ``requests`` and writes outcomes to ``answers`` until it closes."""
    _die_with(parent)
    with open(requests, encoding="utf-8") as lines, open(answers, "w", encoding="utf-8") as out:
        print("null", file=out, flush=True)
        for line in lines:
            print(_answer(Job.from_json(json.loads(line))), file=out, flush=True)


def _answer(job: Job) -> str:
    outcome = here(job)
    try:
        return json.dumps(outcome.to_json())
    except TypeError as error:  # what it returned has no form in JSON
        return json.dumps(_raised(error).to_json())


def here(job: Job) -> Outcome:
    """Runs a job in this process; what it raises is its outcome."""
    try:
        module, _, name = job.function.partition(":")
        return Outcome("returned", getattr(importlib.import_module(module), name)(**job.arguments))
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> Outcome:
    return Outcome("raised", error=f"{type(error).__name__}: {error}".strip().removesuffix(":"))


def _die_with(parent: int) -> None:
    """Asks the kernel to end this process with its parent, and for no core file."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)
