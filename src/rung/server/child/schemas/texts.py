"""Patterns and formats of JSON schemas as regular expressions that mean the same to all who read them.

JSON schemas have the expressions of JavaScript; llguidance reads those of Rust. What the two, and Python, take for
different things is written out, or refused. What is written matches no more texts than any of the three would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: What all take for white space, what any does, and the end of a line.
_SPACE, _ANY_SPACE = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000", r"\x1c-\x1f\x85\ufeff"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1b!-\x84\x86-\x9f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
)
_NO_LINE_END = r"[^\n\r\u2028\u2029]"
#: Classes by their letter, as they are listed: where what is listed matches, and where all else does. Other scripts'
#: letters and digits are in none: JavaScript takes them for no letters, Python does.
_CLASSES = {
    "d": ("0-9", r"\p{Nd}"),
    "w": ("0-9A-Za-z_", r"\p{L}\p{M}\p{N}\p{Pc}"),
    "s": (_SPACE, _SPACE + _ANY_SPACE),
    "D": (r"\P{Nd}", r"\x00-/:-\U0010ffff"),
    "W": (r"[^\p{L}\p{M}\p{N}\p{Pc}]", r"\x00-/:-@\[-\^`{-\U0010ffff"),
    "S": (_NO_SPACE, _NO_SPACE + _ANY_SPACE),
}
_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u(?!d[89a-f])[0-9A-Fa-f]{4}|[tnrfv]|0(?![0-9])|[^0-9A-Za-z])", re.DOTALL)
#: What strings of answers cannot have; as one character llguidance takes it for none.
_CONTROL = re.compile(
    r"\\(?:x0[0-7bef]|x1.|x7f|u000[0-7bef]|u001.|u007f|v)|[\x00-\x07\x0b\x0e-\x1f\x7f]", re.IGNORECASE
)
#: Categories of Unicode, which JavaScript and Rust know by the same names; Python's own expressions have none.
_CATEGORY = re.compile(r"\\[pP]\{(?:L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?)\}")
_COUNT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z_][0-9A-Za-z_]*>|(?!\?))")


class PatternError(ValueError):
    """A regular expression that is none, or that cannot be kept to."""


def portable(pattern: str) -> str:
    """Return a pattern of a JSON schema so that all read it alike. Raises ``PatternError``."""
    return "".join(_pieces(pattern))


def _pieces(pattern: str) -> Iterator[str]:
    index, repeated = 0, False
    while index < len(pattern):
        rest = pattern[index:]
        found, length, repeats = _piece(rest)
        if repeats and repeated:
            raise PatternError(f"{rest[:10]!r} repeats what repeats")
        # a ? behind a count asks for few, which is the same texts
        lazy = repeats and pattern[index + length : index + length + 1] == "?"
        index, repeated = index + length + lazy, repeats
        yield found


def _piece(rest: str) -> tuple[str, int, bool]:
    """Return the first piece of a rest of a pattern, its length, and whether it repeats the piece before."""
    if rest[0] == "\\":
        if rest[1:2] in _CLASSES:
            return f"[{_CLASSES[rest[1]][0]}]", 2, False
        if (category := _CATEGORY.match(rest)) is not None:
            return category[0], category.end(), False
        return (*_literal(rest), False)
    if rest[0] == "[":
        return (*_class(rest), False)
    if rest[0] == "(":
        if (group := _GROUP.match(rest)) is None:
            raise PatternError(f"{rest[:4]!r} looks around, or sets a flag")
        return "(?:", group.end(), False
    if rest[0] == "{":
        if rest.startswith("{,"):
            raise PatternError("'{,' means different things to different readers")
        count = _COUNT.match(rest)
        return (count[0], count.end(), True) if count else (r"\{", 1, False)
    if rest[0] == ".":
        return _NO_LINE_END, 1, False
    if rest[0] in "*+?":
        return rest[0], 1, True
    return (*_literal(rest), False) if rest[0] not in "^$|)}" else ("\\" * (rest[0] == "}") + rest[0], 1, False)


def _literal(rest: str) -> tuple[str, int]:
    found, length = _character(rest)
    if _CONTROL.fullmatch(found):
        raise PatternError(f"{rest[:length]!r} is a control character, which answers do not have")
    return found, length


def _character(rest: str) -> tuple[str, int]:
    """Return the character that begins a rest of a pattern, and how many characters it is written with."""
    if rest[0] != "\\":
        return ("\\" if rest[0] in r"[]^-&~" else "") + rest[0], 1
    if (escape := _ESCAPE.match(rest)) is None:
        raise PatternError(f"{rest[:2]!r} cannot be enforced, or means different things to different readers")
    written = escape[0]
    if written == r"\0":
        written = r"\x00"
    elif not written[1].isalnum() and written[1] not in r"\.+*?()|[]{}^$-&~":
        written = written[1]
    return written, escape.end()


def _class(rest: str) -> tuple[str, int]:
    """Return the class of characters that begins a rest of a pattern, and its length."""
    negated = rest.startswith("[^")
    index, found, may_range, letters = 1 + negated, list[str](), False, set[str]()
    while index < len(rest) and rest[index] != "]":
        if rest[index] == "\\" and rest[index + 1 : index + 2] in _CLASSES:
            found.append(_CLASSES[rest[index + 1]][negated])
            letters.add(rest[index + 1])
            index, may_range = index + 2, False
            continue
        if (category := _CATEGORY.match(rest, index)) is not None:
            found.append(category[0])
            index, may_range = category.end(), False
            continue
        if rest[index] == "-" and may_range and rest[index + 1 : index + 2] not in ("]", ""):
            if rest[index + 1] == "\\" and rest[index + 2 : index + 3] in _CLASSES:
                raise PatternError(f"{rest[: index + 3]!r} has a range without an end")
            end, length = _character(rest[index + 1 :])
            found.append(f"-{end}")
            index, may_range = index + 1 + length, False
            continue
        character, length = _character(rest[index:])
        found.append(character)
        index, may_range = index + length, True
    if index >= len(rest):
        raise PatternError("a [ has no ]")
    if is_all := any(letter.upper() in letters for letter in letters if letter.islower()):
        found = []
    if not found:
        if negated is is_all:
            raise PatternError(f"{rest[: index + 1]!r} matches nothing")
        return r"[\x00-\U0010ffff]", index + 1
    if not negated and all(_CONTROL.fullmatch(each) for each in found):
        raise PatternError(f"{rest[: index + 1]!r} has only control characters, which answers do not have")
    return f"[{'^' if negated else ''}{''.join(found)}]", index + 1


_HEX, _OCTET = "[0-9a-fA-F]", "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#: Without the second that is put in now and then: it needs a certain minute.
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+\-]{_CLOCK})"
_NUMBER = "[0-9]{1,9}"
#: No part between others is left out.
_HOURS = rf"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_DAYS = rf"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"
_GROUP16 = f"{_HEX}{{1,4}}"
_SHORT6 = (
    f"(?:(?:{_GROUP16}:){{{left - 1}}}{_GROUP16}::(?:{_GROUP16}(?::{_GROUP16}){{0,{6 - left}}})?)"
    for left in range(1, 7)
)
_IPV6 = "|".join(
    [
        f"(?:{_GROUP16}:){{7}}{_GROUP16}",
        f"::(?:{_GROUP16}(?::{_GROUP16}){{0,6}})?",
        *_SHORT6,
        f"(?:{_GROUP16}:){{7}}:",
    ]
)
_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z\-]{0,24}[0-9A-Za-z])?"
#: A first label of up to 60 characters and seven of up to 26 are short enough for a name.
_HOST = rf"[0-9A-Za-z](?:[0-9A-Za-z\-]{{0,58}}[0-9A-Za-z])?(?:\.{_LABEL}){{0,7}}"
_ATOM = r"[0-9A-Za-z!#$%&'*+/=?\^_`{|}~\-]{1,15}"
_FREE = rf"(?:[0-9A-Za-z\-._~!$&'()*+,;=:@]|%{_HEX}{{2}})"
_USER = rf"(?:[0-9A-Za-z\-._~!$&'()*+,;=:]|%{_HEX}{{2}})*"
_REGISTERED, _PORT = r"[0-9A-Za-z_](?:[0-9A-Za-z\-._]{0,251}[0-9A-Za-z_])?", "(?:[1-5][0-9]{4}|[0-9]{1,4})"
_URI = (
    rf"[A-Za-z][0-9A-Za-z+.\-]*:(?://(?:{_USER}@)?(?:{_REGISTERED}|\[(?:{_IPV6})\])(?::{_PORT})?(?:/{_FREE}*)*"
    rf"|/(?:{_FREE}+(?:/{_FREE}*)*)?|{_FREE}+(?:/{_FREE}*)*)(?:\?(?:{_FREE}|[/?])*)?(?:#(?:{_FREE}|[/?])*)?"
)

_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|{_NUMBER}W)",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "ipv6": _IPV6,
    "uri": _URI,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    **{
        f"uuid{version}": f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
        for version in range(1, 9)
    },
}
#: Formats as patterns. Some valid texts are left out, as a time of day with a second too many.
FORMATS = {name: f"^(?:{pattern})$" for name, pattern in _FORMATS.items()}
#: Those of which no valid text is left out, and those that validators check and no pattern here keeps.
EXACT_FORMATS = ("date", "ipv4", "uuid")
UNENFORCEABLE_FORMATS = (
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex", "color", "host-name", "ip-address"),
)
