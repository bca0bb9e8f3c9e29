"""Say what ``rung explain`` is asked about: a log, rows of logs, and a file that says where it happened."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from rung.cli.views.output import as_json, note
from rung.core.errors import RungError, UsageError
from rung.core.text import size

#: What is said where there is nothing to read, and how to ask.
NO_LOG, WAYS = "There is no log to explain.", ("python train.py 2>&1 | rung explain", 'rung explain "the line"')
_CHUNK = 1 << 20
_ENVIRONMENT_FILE = """echo '{{"gpu": "Quadro P2200", "torch": "1.10.0+cu102"}}' > {}"""
#: Bytes of an environment and of a row: what is longer is neither, or has no end.
_LONGEST_ENVIRONMENT, _LONGEST_ROW = 16 << 20, 256 << 20


def log_of(what: str | None) -> Iterator[bytes]:
    """The log in UTF-8: of the file, of stdin, or the argument itself."""
    from rung.diagnosis.logs.log import utf8

    if what is None or what == "-":
        if what is None and sys.stdin is not None and sys.stdin.isatty():
            raise _no_log()
        yield from utf8(chunks_of(_stdin()))
        return
    if not what.strip():
        raise UsageError("The line to explain is empty.", (), ['rung explain "the line"'], code="input-empty")
    try:
        path = Path(what)
        there, folder = path.exists() or path.is_symlink(), path.is_dir()
    except (OSError, ValueError):  # too long, or with characters that no path has: a line
        there = folder = False
    if folder:
        raise UsageError(f"{what} is a folder, not a log.", (), ["rung explain FILE"])
    if there:
        try:
            with open(path, "rb") as file:
                yield from utf8(chunks_of(file))
        except OSError as error:
            raise _unreadable(what, error) from error
        return
    if not any(letter.isspace() for letter in what.strip()):
        _check_word(what)
    yield what.encode("utf-8", "replace")


#: How names of logs end, and labels of causes read.
_LOG = re.compile(r"(?i)\.(?:log|txt|out|err|json|jsonl|md|csv|gz|zip)$")
_LABEL = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
#: From this likeness on a word is taken for a mistyped label.
_ALIKE = 0.8


def _check_word(word: str) -> None:
    """Raise ``UsageError`` for one word that is a missing file or a mistyped cause; any other is a line of a log."""
    from rung.diagnosis.explain import scene
    from rung.diagnosis.fixes.fixing import causes

    if _LOG.search(word) or (re.search(r"[/\\]", word) and not scene([word.encode("utf-8", "replace")]).hits):
        raise UsageError(
            f"There is no file {word}.", (), ['rung explain "the line"', "rung explain FILE"], code="path-unknown"
        )
    if _LABEL.fullmatch(word) and (near := difflib.get_close_matches(word, list(causes()), 2, _ALIKE)):
        raise UsageError(
            f"{word} is no cause. Did you mean {' or '.join(near)}?",
            (),
            [f"rung explain {near[0]}", "rung explain --list"],
            code="name-unknown",
        )


class Noted:
    """Pieces of a log as they come; ``empty`` until one of them holds more than white space."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self.empty = pieces, True

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.empty = self.empty and not piece.strip()
            yield piece


def _stdin() -> BinaryIO:
    if sys.stdin is None:  # closed before the program began
        raise _no_log()
    return sys.stdin.buffer


def _no_log() -> UsageError:
    return UsageError(NO_LOG, (), WAYS)


def _unreadable(name: object, error: OSError) -> UsageError:
    return UsageError(f"{name} cannot be read: {error.strerror}", code="file-unreadable")


def chunks_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield what a stream gives, until it ends."""
    while chunk := stream.read(_CHUNK):
        yield chunk


def environment_in(file: Path) -> Mapping[str, Any]:
    """The environment that a JSON file holds; keys that mean nothing are named on stderr."""
    from rung.diagnosis.facts import KEYS, environment_of
    from rung.diagnosis.logs.log import encoding_of

    way = [_ENVIRONMENT_FILE.format(shlex.quote(str(file)))]
    try:
        with open(file, "rb") as stream:
            data = stream.read(_LONGEST_ENVIRONMENT + 1)
        if len(data) > _LONGEST_ENVIRONMENT:
            raise UsageError(f"An environment is no larger than {size(_LONGEST_ENVIRONMENT)}.")
        parsed = _parsed(data.decode(encoding_of(data)))
        environment = environment_of(parsed)
    except OSError as error:
        raise _unreadable(file, error) from error
    except UsageError as error:
        raise UsageError(f"{file}: {error.cause}", error.facts, way, code=error.code) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no JSON: {error}", ways_out=way, code="json-invalid") from error
    if strange := [key for key in parsed or () if key not in KEYS]:
        note(
            f"{file}: left out, no key of an environment: {', '.join(map(str, strange[:5]))}. Known: {', '.join(KEYS)}."
        )
    return environment


#: A row: its number and its text. An answer, and whether it is but an error.
Row: TypeAlias = tuple[int, str]
Answer: TypeAlias = tuple[dict[str, Any], bool]


def answer_rows(file: Path, answered: Callable[[Iterator[Row]], Iterator[Answer]] | None = None) -> None:
    """One answer a line, in the order of the rows; a row that cannot be read is answered with its error. - is stdin.
    ``answered`` gives the answers, where this process does not."""
    try:
        if str(file) == "-":
            wrong = _print_answers(_stdin(), answered)
        else:
            with open(file, "rb") as stream:
                wrong = _print_answers(stream, answered)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise _unreadable(file, error) from error
    if wrong:
        raise UsageError(
            f"{wrong} of the rows in {file} could not be answered.", ['a row is {"id", "log", "environment"}']
        )


def _print_answers(stream: BinaryIO, answered: Callable[[Iterator[Row]], Iterator[Answer]] | None) -> int:
    """Print the answers of rows; return how many are but errors."""
    rows, wrong = (row for row in _rows(stream) if row[1].strip()), 0
    for answer, is_wrong in map(answer_of, rows) if answered is None else answered(rows):
        print(as_json(answer), flush=True)
        wrong += is_wrong
    return wrong


def _rows(stream: BinaryIO) -> Iterator[Row]:
    """The lines that are not empty with their numbers, whatever they were written in."""
    from rung.diagnosis.logs.log import utf8

    number, rest = 1, bytearray()
    for chunk in utf8(iter(lambda: stream.read1(_CHUNK), b"")):  # type: ignore[attr-defined]
        rest += chunk
        if len(rest) > _LONGEST_ROW + _CHUNK:
            raise UsageError(f"Row {number} is longer than {size(_LONGEST_ROW)}.", (), ["rung explain FILE"])
        if b"\n" in chunk:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield number, line.decode("utf-8", "replace")
                number += 1
    yield number, rest.decode("utf-8", "replace")


def answer_of(row: Row) -> Answer:
    """Return the answer of a row, and whether there is none but an error."""
    from rung.diagnosis.explain import explain

    number, line = row
    answered = None
    try:
        answered = _parsed(line)
        if not isinstance(answered, dict) or not isinstance(answered.get("log"), str):
            raise ValueError('no object with a "log" that is text')
        return {"id": answered.get("id"), **explain(answered["log"], answered.get("environment")).to_json()}, False
    except (ValueError, RecursionError, RungError) as error:
        name = answered.get("id") if isinstance(answered, dict) else None
        return {"id": name, "error": f"line {number}: {error}"}, True


def answer_in_json(row: Row) -> str:
    """Return the value of ``answer_of`` as JSON in ASCII."""
    return json.dumps(answer_of(row), default=str)


def _parsed(text: str) -> Any:
    """Parse a JSON text; numbers that JSON has not become None."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)


def _finite(text: str) -> float | None:
    return number if math.isfinite(number := float(text)) else None
