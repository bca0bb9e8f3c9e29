"""The commands of ``rung``: one file each, imported only when it is called. A folder is a group of the help."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rung.core.text import did_you_mean, quoted


@dataclass(frozen=True)
class Group:
    """A group of the help: the package here that holds its commands, its title, and the commands in order."""

    package: str
    title: str
    commands: tuple[str, ...]


#: The groups of ``rung --help`` in order. Command ``x`` of package ``g`` is the function ``x`` of the module ``g.x``,
#: a package ``g.x`` whose ``COMMANDS`` names its own modules, or a module ``g.x`` whose ``COMMANDS`` has its functions.
GROUPS = (
    Group("before", "Before you run", ("check", "plan", "devices", "setup")),
    Group(
        "run",
        "Run",
        ("run", "serve", "fleet", "batch", "pull", "list", "show", "rm", "cache", "video", "image", "splat"),
    ),
    Group("repair", "When a program fails", ("explain", "exec", "inspect")),
    Group("make", "Make models smaller, or your own", ("quantize", "convert", "bundle", "tune", "merge", "compare")),
    Group("inside", "How rung decides", ("ladder", "formats", "calibrate")),
)
#: The module of each command, in the order of ``rung --help``.
COMMANDS = {name: f"{__name__}.{group.package}.{name}" for group in GROUPS for name in group.commands}


class Passed(Exception):
    """Carries ``error`` past typer, which ends the program without a word on Ctrl-C and on a closed pipe."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Commands(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in their groups, each with its first sentence, whole."""
        listed = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        groups = [(group.title, group.commands) for group in GROUPS] if ctx.parent is None else [("Commands", listed)]
        for title, names in groups:
            rows = [(name, _first_sentence(listed[name].help or "")) for name in names if name in listed]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with; an unknown one is answered with commands that exist."""
        if self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            near = _other_words(args[0]) if ctx.parent is None else ""
            near = near or did_you_mean(args[0], names) or f" There are {', '.join(names)}."
            ctx.fail(f"There is no command {args[0]!r}.{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, OSError, EOFError) as error:
            raise Passed(error) from error


#: Commands of other programs, and what they are called here.
_ELSEWHERE = {
    **dict.fromkeys(("chat", "ask", "generate", "start"), "run"),
    **dict.fromkeys(("server", "api"), "serve"),
    **dict.fromkeys(("download", "fetch", "get"), "pull"),
    **dict.fromkeys(("ls", "models", "ps"), "list"),
    **dict.fromkeys(("remove", "delete", "uninstall"), "rm"),
    **dict.fromkeys(("finetune", "fine-tune", "train", "lora"), "tune"),
    **dict.fromkeys(("doctor", "install"), "setup"),
    **dict.fromkeys(("fit", "fits", "estimate"), "check"),
    **dict.fromkeys(("bench", "benchmark"), "calibrate"),
    **dict.fromkeys(("gpu", "gpus", "info"), "devices"),
    "help": "--help",
}


def _other_words(typed: str) -> str:
    """Return the command to type instead of a word of another program or of a file; empty for any other word."""
    if typed in _ELSEWHERE:
        return f" It is called: rung {_ELSEWHERE[typed]}"
    return f" It is a file: rung run {quoted(typed)}" if Path(typed).exists() else ""


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence, point, _ = paragraph.partition(". ")
    return sentence + "." if point else paragraph


def _version(requested: bool) -> None:
    if requested:
        from rung.core.version import __version__

        typer.echo(f"rung {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Any model, on the device you have: plans, runs, steps down by itself, and says why.

    --debug, anywhere on the line, shows the traceback of an error.
    """


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """The commands that these arguments may call: the one they begin with, else all. Called without arguments, it
    runs them; raises ``Passed`` beside what a command raises."""
    app = _group("rung", "Any model, on the device you have.")
    app.callback()(_root)
    _add(app, COMMANDS, arguments)
    return app


def _group(name: str, summary: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=_Commands,
        help=summary,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add(app: typer.Typer, commands: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Add the command that ``arguments`` begins with, else all ``commands``, to ``app``; a package as a group."""
    for name in arguments[:1] if arguments and arguments[0] in commands else commands:
        module = importlib.import_module(commands[name])
        if hasattr(module, "COMMANDS"):
            group = _group(name, module.__doc__ or "")
            group.callback()(_nothing)
            if isinstance(module.COMMANDS, Mapping):
                for own, function in module.COMMANDS.items():
                    group.command(own)(function)
            else:
                _add(group, {own: f"{module.__name__}.{own}" for own in module.COMMANDS}, arguments[1:])
            app.add_typer(group)
        else:
            app.command(context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))


def _nothing() -> None:
    """Makes typer keep a group of one command a group."""
