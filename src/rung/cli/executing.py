"""``rung exec`` from its arguments to its exit, without typer and rich, which no program must pay for."""

from __future__ import annotations

import errno
import os
import signal
import sys

from rung.exec.launch import PROCESSOR, environment, launch
from rung.exec.repairs import repairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rung.exec.report import Key

#: The function that runs in the program when it has imported a module.
HOOKS = {
    "torch": "rung.exec.hook.install",
    "bitsandbytes.cuda_specs": "rung.cli.exec_hooks.bitsandbytes_specs",
    "bitsandbytes": "rung.cli.exec_hooks.bitsandbytes",
    "gsplat": "rung.cli.exec_hooks.gsplat",
    "triton.runtime.interpreter": "rung.cli.exec_hooks.triton_interpreter",
}
_VALUED = ("--device", "--software", "--memory", "--defect")
_NO_TORCH = "no Python of 3.11 or newer imported torch, so nothing was changed"
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
#: A program that was ended on purpose has nothing to be explained; SIGKILL may be the kernel's, for want of memory.
_ENDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def understood(arguments: list[str]) -> tuple[dict[str, str], list[str]] | None:
    """Settings and command of ``exec``'s arguments; None when typer has to answer: help, or a wrong question."""
    settings: dict[str, str] = {}
    while arguments and arguments[0].startswith("--") and arguments[0] != "--":
        name, equals, value = arguments[0].partition("=")
        arguments = arguments[1:]
        if name == "--strict" and not equals:
            settings["strict"] = "yes"
            continue
        if name not in _VALUED or not (equals or arguments):
            return None
        if not equals:
            value, arguments = arguments[0], arguments[1:]
        if name == "--defect":
            settings["defects"] = "\t".join(filter(None, [settings.get("defects"), value]))
        else:
            settings[name[2:]] = value
    if len(arguments) < 2 or arguments[0] != "--":
        return None
    return settings, arguments[1:]


def execute(settings: dict[str, str], command: list[str]) -> int:
    """Runs the command with help; returns its exit code, 128+n for a signal, 127 and 126 as shells have them.

    Raises ``UsageError`` and ``UnknownDevice`` for settings that make no sense.
    """
    _check(settings, command)
    notes = notes_file()
    variables = environment({**settings, "notes": notes, "hooks": _hooks()}, dict(os.environ))
    repaired = {} if "strict" in settings else repairs(variables)
    killed = memory_kills()
    try:
        status, last = launch(command, variables | repaired)
    except (OSError, ValueError) as error:  # ValueError: an empty name
        return _not_started(command[0], error, settings)
    finally:
        found = _read(notes)
    for name, value in repaired.items():
        _say(f"set {name}={value}")
    if found:
        _report(found)
    if settings.get("device") == PROCESSOR and not found:
        _say(_NO_TORCH)
    on_purpose = -status in _ENDED or (-status == signal.SIGKILL and memory_kills() == killed)
    if status and not on_purpose:
        _explain(last, status, settings, command, any(not key[0] and key[4] for key in found))
    return status if status >= 0 else 128 - status


def memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0


def _hooks() -> str:
    return ",".join(f"{module}:{hook}" for module, hook in HOOKS.items())


def _check(settings: dict[str, str], command: list[str]) -> None:
    """Raise what the program would find out too late."""
    if set(settings) <= {"strict"}:
        return
    from rung.cli.afterwards import check_card

    check_card(settings, command)


def notes_file() -> str:
    """Make an empty file that nobody else can read, for notes of a program; return its path, or nothing."""
    for folder in filter(None, (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm")):
        path = os.path.join(folder, f"rung-exec-{os.getpid()}-{os.urandom(6).hex()}")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            continue
        return path
    return ""


def _read(path: str) -> Mapping[Key, int]:
    try:
        if not path or not os.stat(path).st_size:
            return {}
        from rung.exec.report import read

        return read(path)
    except FileNotFoundError:  # the program has cleared the folder
        return {}
    finally:
        if os.path.exists(path):
            os.unlink(path)


def _say(text: str) -> None:
    from rung.cli.views.output import note

    note(f"rung exec: {text}")


def _report(found: Mapping[Key, int]) -> None:
    """Each kind of step once."""
    for (op, device, before, after, reason), count in found.items():
        if op:
            times = f"{count} times" if count > 1 else "once"
            _say(f"{op} on {device}: {before} → {after}, {times}: {reason}")
        elif reason:
            _say(reason)


def _explain(last: bytes, status: int, settings: Mapping[str, str], command: list[str], known: bool) -> None:
    """Say what goes wrong while explaining; the exit code stays the program's.

    ``known``: something that may be the reason stands above already.
    """
    from rung.cli.afterwards import explain_end

    try:
        explain_end(last, status, settings, command, known)
    except Exception as error:
        _say(f"this could not be explained: {type(error).__name__}: {error}")


def _not_started(name: str, error: OSError | ValueError, settings: Mapping[str, str]) -> int:
    """Says why, in the words of shells, and what to do."""
    missing = not isinstance(error, OSError) or isinstance(error, FileNotFoundError)
    why = "command not found" if missing else getattr(error, "strerror", "")
    runner = "python" if name.endswith(".py") else ""
    if missing and os.path.isfile(name):
        why = "the interpreter that its first line names is not there"
    elif getattr(error, "errno", None) == errno.ENOEXEC and _binary(name):
        why, runner = "it is a program for another processor or system", ""
    elif getattr(error, "errno", None) == errno.ENOEXEC:
        why, runner = "no first line says what runs it (#!...)", runner or "sh"
    _say(f"{name or repr(name)}: {why}")
    if runner:
        device = f"--device {settings['device']} " if "device" in settings else ""
        print(f"What to do\n  1  rung exec {device}-- {runner} {name}", file=sys.stderr)
    return _NOT_FOUND if missing else _NOT_RUNNABLE


def _binary(name: str) -> bool:
    """Return whether a command is no text: one of another processor or system."""
    path = name if os.sep in name else next(filter(os.path.isfile, _candidates(name)), name)
    try:
        with open(path, "rb") as file:
            return b"\0" in file.read(512)
    except OSError:
        return False


def _candidates(name: str) -> list[str]:
    return [os.path.join(folder, name) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
