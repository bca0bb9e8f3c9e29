"""Ways out of an error as commands that can be pasted: an option alone becomes the command that was typed, with it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

#: An option, its value where it has one, and a remark behind ``#``.
_OPTION = re.compile(r"(?P<option>--[a-z][a-z-]*)(?:[ =](?P<value>'[^']*'|[^\s,#']+))?(?P<remark>   # .*)?")
#: Letters of a command above which the option says more than a screen of pasted text.
_LONGEST = 500


def complete(way: str, typed: Sequence[str]) -> str:
    """Return ``way`` as the whole command where it is an option alone, else as it is.

    ``typed`` are the words of the command line, ``rung`` first. An option that stands there gets the new value.

    >>> complete("--context 8192", ["rung", "run", "smollm2", "--context", "99999"])
    'rung run smollm2 --context 8192'
    >>> complete("rung formats", ["rung", "run", "smollm2"])
    'rung formats'
    """
    found = _OPTION.fullmatch(way)
    if found is None or len(typed) < 2 or "--" in typed:
        return way
    option, value = found["option"], found["value"]
    at = [index for index, word in enumerate(typed) if word == option or word.startswith(f"{option}=")]
    if len(at) > 1:  # which of them is wrong cannot be told
        return way
    words = list(typed)
    added = [option] if value is None else [option, *shlex.split(value)]
    if at:
        alone = words[at[0]] == option
        words[at[0] : at[0] + (2 if alone and value is not None else 1)] = added
    else:
        words += added
    command = shlex.join(words)
    return command + (found["remark"] or "") if len(command) <= _LONGEST else way
