"""Exceptions in the middle of a call, as Ctrl-C and a notebook's stop button raise them."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from safetensors import SafetensorError, safe_open

from rung.core.errors import RungError


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """SIGALRM raises ``KeyboardInterrupt`` in the block, as SIGINT does in a program."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt(call: Callable[[], object], seconds: float) -> bool:
    """Call and interrupt after so many seconds; say whether the call was still at work."""
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def moments(count: int, longest: float, seed: int = 0) -> list[float]:
    """Random moments, in seconds, in a call that takes ``longest``."""
    random_ = random.Random(seed)
    return [random_.uniform(0, longest) for _ in range(count)]


def ended(threads: int) -> bool:
    """Wait until no more than so many threads are there."""
    until = time.monotonic() + 60
    while _thread._count() > threads and time.monotonic() < until:
        time.sleep(0.01)
    return _thread._count() <= threads


# ---- whole commands

#: Seconds that a command may take from Ctrl-C to its end.
BAR = 2.0
#: Seconds, and the part of a command's time, before which a process is Python's own start more than the command.
START, START_PART = 0.3, 0.4

#: What a shell calls 130; the second after a command is done, while Python itself ends.
_INTERRUPTED = (130, -signal.SIGINT)


@dataclass(frozen=True)
class Work:
    """A command that writes: its words, what to add to go on with a run, and its results beside it.

    ``makes_inputs`` writes what it reads into a folder.
    """

    words: tuple[str, ...]
    results: tuple[str, ...]
    resume: tuple[str, ...] = ()
    makes_inputs: Callable[[Path], object] = lambda folder: None


def _rows_and_base(folder: Path) -> None:
    from tests.training.rows import chat_folder, question, write

    chat_folder(folder / "base")
    write(folder / "data.jsonl", *map(question, range(8)))


WORKS = {
    "quantize": Work(("quantize", "demo", "out.gguf", "--format", "q4_0", "--threads", "2"), ("out.gguf",)),
    "convert": Work(("convert", "demo", "out"), ("out/model.safetensors", "out/config.json", "out/tokenizer.json")),
    "tune": Work(
        (
            *("tune", "base", "data.jsonl", "--out", "out", "--format", "f32"),
            *("--epochs", "3", "--batch", "2", "--max-length", "64", "--device", "cpu"),
        ),
        ("out/adapter_model.safetensors",),
        makes_inputs=_rows_and_base,
    ),
    "splat train": Work(
        ("splat", "train", "demo", "--out", "out", "--steps", "30", "--threads", "2"),
        ("out/splats.ply",),
        ("--resume",),
    ),
}


@dataclass(frozen=True)
class Stop:
    """How a process ended: its exit code, the seconds it took after Ctrl-C, and stderr.

    Code 0: it was done before; then they are those of the whole.
    """

    at: float
    code: int
    seconds: float
    said: str

    @property
    def good(self) -> bool:
        """Return whether it ended as a command must, whenever that was."""
        return self.code == 0 or (self.code in _INTERRUPTED and "Traceback" not in self.said)


def _hear_ctrl_c() -> None:
    """In a child: behind a shell's ``&`` Ctrl-C is ignored, also by what is started there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(
    words: Sequence[str], folder: Path, stop_at: float | None = None, environment: Mapping[str, str] | None = None
) -> Stop:
    """Run ``rung`` with these words in a folder; after ``stop_at`` seconds the terminal sends Ctrl-C."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "rung", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_ctrl_c,
    )
    try:
        _, said = process.communicate(timeout=stop_at)
        return Stop(stop_at or 0.0, process.returncode, time.monotonic() - started, said)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    sent = time.monotonic()
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    since = sent if process.returncode else started
    return Stop(sent - started, process.returncode, time.monotonic() - since, said)


@dataclass
class Outcome:
    """The outcome of a work that was stopped again and again: the stops, and what was wrong."""

    stops: list[Stop]
    wrong: list[str]

    @property
    def stopped(self) -> int:
        """How many were stopped before they were done."""
        return sum(stop.code != 0 for stop in self.stops)


def stop_again_and_again(
    name: str,
    folder: Path,
    count: int,
    seed: int = 0,
    chain: int = 5,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Stop a work ``count`` times at random moments, ``chain`` times in a row in one folder; then let it end.

    After each stop nothing may have the final name that is not the whole result, and the end must be the result of a
    run that nobody stopped, byte for byte.
    """
    work, reference = WORKS[name], folder / "reference"
    reference.mkdir()
    work.makes_inputs(folder)
    for path in folder.iterdir():
        if path != reference:
            (reference / path.name).symlink_to(path)
    started = time.monotonic()
    assert run(work.words, reference).code == 0
    longest = time.monotonic() - started
    start = min(START, START_PART * longest)
    outcome, random_ = Outcome([], []), random.Random(seed)
    for number in itertools.count():
        run_folder = _fresh(folder, reference, f"run{number}")
        for link in range(chain):
            stop = run((*work.words, *_resume(work, run_folder)), run_folder, random_.uniform(start, longest))
            outcome.stops.append(stop)
            if stop.code == 0:  # done before
                if not link:  # what goes on where another one was stopped is shorter
                    longest = max(min(longest, stop.seconds), 1.1 * start)
                break
            if not stop.good:
                outcome.wrong.append(f"{stop.code} {stop.seconds:.2f} s after {stop.at:.2f} s: {stop.said[-400:]}")
            outcome.wrong += [f"{part} is half written" for part in _half_written(name, run_folder, reference)]
            progress(outcome)
            if outcome.stopped >= count or _files(work, run_folder) == _files(work, reference):
                break
        if outcome.stops[-1].code != 0 and _files(work, run_folder) != _files(work, reference):
            last = run((*work.words, *_resume(work, run_folder)), run_folder)
            if last.code != 0:
                outcome.wrong.append(f"the next run ends with {last.code}: {last.said[-400:]}")
        if _files(work, run_folder) != _files(work, reference):
            outcome.wrong.append(f"run {number}: another result than without a stop")
        if outcome.stopped >= count or len(outcome.stops) >= 3 * count:
            return outcome
    raise AssertionError


def _fresh(folder: Path, reference: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    for link in reference.iterdir():
        if link.is_symlink():
            (path / link.name).symlink_to(link.resolve())
    return path


def _resume(work: Work, folder: Path) -> tuple[str, ...]:
    return work.resume if (folder / "out" / "config.json").is_file() else ()


def _files(work: Work, folder: Path) -> list[bytes | None]:
    return [(folder / name).read_bytes() if (folder / name).is_file() else None for name in work.results]


def _half_written(name: str, folder: Path, reference: Path) -> Iterator[str]:
    """Results that have their final name and are no whole file."""
    for result in WORKS[name].results:
        path = folder / result
        if not path.is_file():
            continue
        if name in ("quantize", "convert") and path.read_bytes() != (reference / result).read_bytes():
            yield result
        if path.suffix == ".safetensors":
            try:
                safe_open(path, "np")
            except SafetensorError:
                yield result
        if path.suffix == ".ply" and not _is_whole_ply(path):
            yield result


def _is_whole_ply(path: Path) -> bool:
    from rung.splats.files import read

    try:
        read(path)
    except RungError:
        return False
    return True


# ---- a chat on a terminal

_PROMPT = ">>> "
_CODES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)|\r")


class Chat:
    """``rung run`` with these words on a terminal."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        import pty

        self.process, self._number = pty.fork()
        if not self.process:
            _hear_ctrl_c()
            os.environ.update(TERM="dumb", INPUTRC="/dev/null", COLUMNS="300", LINES="40", **(environment or {}))
            os.execv(sys.executable, [sys.executable, "-m", "rung", "run", *words])
        self._shown = ""
        self._settled = 0
        self.until_prompt()

    def until_prompt(self, seconds: float = 120.0) -> str:
        """Return the output until the chat asks for the next turn."""
        ends = time.monotonic() + seconds
        while _PROMPT not in self._shown:
            if not select.select([self._number], [], [], max(0.0, ends - time.monotonic()))[0]:
                raise AssertionError(f"no prompt, but {self._shown!r}")
            self._read()
        shown, _, self._shown = self._shown.partition(_PROMPT)
        return shown

    def _read(self) -> None:
        self._shown += _CODES.sub("", os.read(self._number, 1 << 16).decode("utf-8", "replace"))

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._number, text.encode())

    def ask(self, question: str) -> str:
        """The answer to a question in a conversation that begins with it."""
        self.send("/clear\n")
        self.until_prompt()
        self.send(question + "\n")
        return self.until_prompt().partition("\n")[2]

    def stop(self, question: str, seconds: float) -> str:
        """Ask, and type Ctrl-C after so many seconds; return "prefill" where nothing of the answer was there yet,
        "decode" where some was, and "" where all was."""
        self.send("/clear\n")
        self.until_prompt()
        self.send(question + "\n")
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if select.select([self._number], [], [], left)[0]:
                self._read()
        stopped = "" if _PROMPT in self._shown else "decode" if self._shown.partition("\n")[2] else "prefill"
        self.send("\x03")
        self._settle()
        return stopped

    def _settle(self) -> None:
        """Wait until the chat listens: it may ask for the next turn once or twice, or take what was typed for cut."""
        self._settled += 1
        mark, ends = f"no command /settled{self._settled}.", time.monotonic() + 120
        while mark not in self._shown:
            if time.monotonic() > ends:
                raise AssertionError(f"it does not listen, but shows {self._shown!r}")
            self.send(f"/settled{self._settled}\n")
            until = time.monotonic() + 2
            while mark not in self._shown and (left := until - time.monotonic()) > 0:
                if select.select([self._number], [], [], left)[0]:
                    self._read()
        self._shown = self._shown.rpartition(mark)[2]
        self.until_prompt()

    def close(self) -> int:
        """Leave the chat; return its exit status."""
        self.send("/bye\n")
        with contextlib.suppress(OSError):  # the other side is closed
            while os.read(self._number, 1 << 16):
                pass
        os.close(self._number)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
