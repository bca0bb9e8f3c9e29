"""The command line: one file per command, imported only when it is called; errors end here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rung.cli.devices import devices
from rung.cli.formats import formats
from rung.cli.ladder import ladder
from rung.cli.plan import plan
from rung.cli.run import run
from rung.core.errors import RungError
from rung.core.settings import DEBUG

app = typer.Typer(
    name="rung",
    help="Any model, on the device you have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (run, plan, devices, formats, ladder):
    app.command()(_command)


def _version(asked: bool) -> None:
    if asked:
        from rung import __version__

        typer.echo(f"rung {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Any model, on the device you have: plans, runs, steps down by itself, and says why.

    --debug, anywhere on the line, shows the traceback of an error.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 an error, 2 a wrong question, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    if asked or _debugging():
        app(given)
    else:
        _guarded(given)


def _debugging() -> bool:
    try:
        return bool(DEBUG.read())
    except RungError as error:
        _say(str(error))
        sys.exit(error.exit_code)


def _guarded(given: list[str]) -> None:
    try:
        app(given)
    except RungError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone (| head): nothing is left to say, and the interpreter must not try to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _say(f"rung itself failed: {type(error).__name__}: {error}")
        _say("This is a bug of rung. The same command with --debug shows where; please report it with that output.")
        sys.exit(1)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
