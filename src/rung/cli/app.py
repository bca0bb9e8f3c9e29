"""The command ``rung``: errors, Ctrl-C and closed pipes end here, as a few words on stderr and an exit status.

Nothing large is imported before ``main`` is called, so that Ctrl-C finds it there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rung import cli
from rung.cli import interrupts
from rung.hardware import interpreter


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 an error, 2 a wrong question, 130 after Ctrl-C."""
    try:
        _main(arguments)
    except KeyboardInterrupt:  # while ``_main`` answered how the command ended
        interrupts.stop()


def _open_streams() -> None:
    """Have stdout and stderr take any text, also where they are closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the program began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal's alphabet lacks, and names that are no text
            stream.reconfigure(errors="replace")


def _main(arguments: Sequence[str] | None) -> None:
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words.index("--") if "--" in words else len(words)  # behind it another program's arguments may stand
    debug = "--debug" in words[:own]
    words = [argument for argument in words[:own] if argument != "--debug"] + words[own:]
    cli.typed = ("rung", *words)
    try:
        interpreter.require_supported(sys.byteorder)
        interrupts.listen(watch=arguments is None and words[:1] != ["exec"])  # what exec runs hears it itself
        if words[:1] == ["exec"]:
            _execute(words[1:])
        from rung.core.settings import DEBUG

        debug = debug or DEBUG.read()
        run(words)
    except KeyboardInterrupt:
        interrupts.stop()
    except SystemExit as ended:
        if ended.code == 130:  # a command that has ended after Ctrl-C by itself, its work saved
            interrupts.leave()
        _finish(ended.code)
        raise
    except BrokenPipeError:
        _discard()  # the reader has gone (| head): nothing is left to say
        sys.exit(0)
    except Exception as error:
        if _interrupted(error):
            interrupts.stop()
        if debug:
            raise
        code = _report(error, json="--json" in words[:own])
        if _no_room(error):
            _discard()
        _finish(code)
        sys.exit(code)


def _finish(code: str | int | None) -> None:
    """Leave where no thread is at work and all that was printed has been read; else Python ends as it does."""
    if isinstance(code, str):  # Python prints it
        return
    if "threading" in sys.modules and any(not each.daemon for each in sys.modules["threading"].enumerate()[1:]):
        return
    try:
        sys.stdout.flush()
    except OSError:
        return
    interrupts.leave(code or 0)


def _interrupted(error: BaseException | None) -> bool:
    """Return whether an error came of Ctrl-C: some libraries make another one of it while they are imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _discard() -> None:
    """Send what is still to be printed nowhere: the interpreter must not try to write it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _no_room(error: Exception) -> bool:
    import errno

    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _execute(arguments: list[str]) -> None:
    """``rung exec``, past typer; comes back where that has to answer."""
    from rung.cli.executing import execute, understood

    understood_arguments = understood(arguments)
    if understood_arguments is not None:
        sys.exit(execute(*understood_arguments))


def run(arguments: list[str]) -> None:
    """Run the command that the arguments name."""
    if not arguments:
        from rung.cli.views import front_door

        front_door.show()
        sys.exit(0)
    from rung.cli.commands import Passed, command_line
    from rung.core.settings import CPU_LEVEL

    if CPU_LEVEL.read() and not arguments[0].startswith("-"):
        from rung.kernels.cpu.target import check_limit

        check_limit()
    try:
        command_line(arguments)(arguments)
        return
    except Passed as passed:
        error = passed.error
    raise error  # out here: raised where it was caught it would be its own cause's context, a ring without an end


def _report(error: Exception, json: bool) -> int:
    """Say what went wrong on stderr, and as a JSON document on stdout where one was to come; return the exit status."""
    from rung.core.errors import RungError, SoftwareMissing

    if isinstance(error, ModuleNotFoundError) and error.name == "torch":  # all but language models compute with it
        error = SoftwareMissing("torch is not installed; this command needs it.", (), ["pip install 'rung[run]'"])
    if isinstance(error, RungError):
        from rung.cli.ways_out import complete

        error.ways_out = tuple(complete(way, cli.typed) for way in error.ways_out)
        _say(str(error))
        if json:
            _print_json(error.to_json())
        return error.exit_code
    if isinstance(error, OSError) and _no_room(error):
        _say(f"{error.filename or 'The output'} cannot be written: {error.strerror}.")
        return 1
    _say(f"rung itself failed: {type(error).__name__}: {error}")
    _say("This is a bug of rung. The same command with --debug shows where; please report it with that output.")
    return 1


def _print_json(document: dict[str, object]) -> None:
    from json import dumps

    try:
        print(dumps(document, ensure_ascii=False), flush=True)  # one line: an answer of many is one line each
    except OSError:  # no reader, or no room: stderr has said it
        _discard()


def _say(text: str) -> None:
    from rung.cli.views.output import note

    note(text)
