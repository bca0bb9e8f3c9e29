"""Answers of ``rung explain`` as text and HTML, and where a notebook prints one."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rung.cli.views.page import frame, table
from rung.core.text import printable
from rung.core.types import Device

if TYPE_CHECKING:
    from rich.console import Console

    from rung.diagnosis.evidence import Evidence
    from rung.diagnosis.explain import Alternative, Explanation
    from rung.diagnosis.fixes.wording import Fix


#: Fixes and facts that are shown without ``--all``, and other causes with their least share.
_FIXES, _FACTS, _OTHERS, _SHARE = 3, 2, 2, 0.05
#: Words that begin a sentence of ``causes.toml`` and are written small within one.
_SMALL = {"A", "An", "Bad", "It", "Tensors", "The", "This", "Two"}


def show(found: Explanation, out: Console, *, helped: bool = False, everything: bool = False) -> None:
    """Print an explanation for a person.

    ``helped``: of a program that ``rung exec`` has helped already; ``everything``: every fix, all evidence, percent.
    """
    if found.cause is None:
        out.print(found.sentence)
        _show_how_to_ask(found, out)
        return
    _show_headline(found, out, everything)
    _show_evidence(found.evidence if everything else _without_repetition(found.evidence), out)
    if (found.unsure and not everything) or found.vague:
        _show_how_to_ask(found, out)
    guess = found.unsure and not everything
    if guess and found.vague:
        return
    fixes, repairs = found.ways
    if guess:
        fixes = ()  # those of the likeliest cause alone; what rung does by itself helps with any
    else:
        out.print("What to do")
    for number, fix in enumerate(_once(fixes)[: None if everything else _FIXES], 1):
        out.print(f"  {number}  {fix.text}" + (f"\n       {fix.command}" if fix.command else ""))
    for fix in repairs:
        if not (helped and fix.label == "rung-exec"):
            out.print(f"  or {fix.text}" + (f":  {fix.command}" if fix.command else ""))
    _show_others(found, out, everything)
    _show_works(found, out)


def _show_works(found: Explanation, out: Console) -> None:
    """Print what runs on the device today, with its command where that does not stand above."""
    works = found.works
    if works is None:
        return
    above = {fix.command for fix in (*found.fixes[:_FIXES], *found.repairs)}
    out.print(f"On {works.device} today: {works.sentence}")
    if works.command and works.command not in above:
        out.print(f"  {works.command}")
    if works.faster:
        out.print(f"  llama.cpp is faster there:  {works.faster}")


def _show_headline(found: Explanation, out: Console, everything: bool) -> None:
    """Print the cause and how sure it is; where others are about as likely, these too."""
    percent = f"   {found.confidence:.0%}" if everything else ""
    if found.unsure:
        out.print(f"Not sure. The likeliest: {_within(found.sentence)}{percent}")
    else:
        certainty = str(found.certainty)
        out.print(f"{certainty[0].upper()}{certainty[1:]}: {_within(found.sentence)}{percent}")
    if found.doubtful:
        for item in _others(found):
            out.print(f"  or: {_named(item, everything)}")


def _show_evidence(evidence: Sequence[Evidence], out: Console) -> None:
    above = None
    for item in evidence:
        where = f"line {item.line}" if item.line is not None else "fact"
        if item.line is not None and item.line == above:  # a line is shown once, with all that is known of it
            out.print(f"  {'':<9}  → {item.fact}")
        else:
            out.print(f"  {where:<9}  {item.text + '   → ' if item.text else ''}{item.fact}")
        above = item.line


def _without_repetition(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence without the facts that say the same once more: what contradicts the log, and the first others."""
    facts = [item for item in evidence if item.line is None and item.source != "the environment given"]
    return [item for item in evidence if item not in facts[_FACTS:]]


def _show_others(found: Explanation, out: Console, everything: bool) -> None:
    """Print what else it may be and the command that tells; where that stands above, the command alone."""
    if found.doubtful:
        if found.tell and not found.vague:
            out.print(f"To tell them apart\n  {found.tell}")
        return
    if others := _others(found):
        named = "; ".join(_named(item, everything) for item in others)
        out.print(f"If it still fails: {named}" + (f"\n  {found.tell}" if found.tell else ""))


def _others(found: Explanation) -> list[Alternative]:
    return [item for item in found.alternatives if item.confidence >= _SHARE][:_OTHERS]


def _named(item: Alternative, everything: bool) -> str:
    from rung.diagnosis.fixes.fixing import causes

    sentence = causes()[item.cause].sentence
    return f"{sentence} ({item.confidence:.0%})" if everything else sentence


def _show_how_to_ask(found: Explanation, out: Console) -> None:
    """Print how to get a log that says more."""
    out.print("Give it the whole log, from the first error on" + (":" if found.again else ": write behind the command"))
    out.print(f"  {found.again or '2>&1 | rung explain'}")


def _within(sentence: str) -> str:
    """A sentence as it stands after a colon."""
    first, _, rest = sentence.partition(" ")
    return f"{first.lower() if first in _SMALL else first} {rest}"


def _once(fixes: Iterable[Fix]) -> list[Fix]:
    """The fixes without those whose command stands above already, and without "no repair" beside a repair."""
    found: dict[str, Fix] = {}
    for fix in [fix for fix in fixes if fix.label != "wait-or-none"] or fixes:
        found.setdefault(fix.command or fix.label, fix)
    return list(found.values())


#: Columns of the text, which is not folded.
_WIDTH = 200


def text(found: Explanation) -> str:
    """Return the text of ``rung explain``."""
    from rich.console import Console

    out = io.StringIO()
    show(found, Console(file=out, width=_WIDTH, soft_wrap=True, highlight=False, markup=False, emoji=False))
    return "\n".join(map(printable, out.getvalue().splitlines()))


def html(found: Explanation) -> str:
    """Return the same as HTML."""
    first, *rest = text(found).splitlines()
    return f"<p><b>{escape(first)}</b></p><pre>{escape(chr(10).join(rest))}</pre>"


#: Fixes that stand in sight, and the least share of another cause that is named.


_ASK = (
    "<p>Give it the whole log, from the first error on: <code>2>&amp;1 | rung explain</code> behind the command.</p>\n"
)


def explanation_page(found: Explanation, devices: Sequence[Device] = ()) -> str:
    """Return the whole page as HTML."""
    known = found.cause is not None and not found.unsure
    body = (
        _evidence(found)
        + (_ASK if found.vague else "")
        + (_fixes(found) if known else "")
        + _other_causes(found)
        + _works(found)
    )
    return frame("rung explain", [_headline(found)], body, devices)


def _headline(found: Explanation) -> str:
    """``Almost certainly. This GPU cannot multiply bfloat16 matrices.``"""
    if found.cause is None:
        return found.sentence
    certainty = str(found.certainty)
    return f"{certainty[0].upper()}{certainty[1:]}. {found.sentence}"


def _evidence(found: Explanation) -> str:
    rows = []
    for item in found.evidence:
        where = f"line {item.line}" if item.line is not None else "fact"
        text = f"<code>{escape(item.text)}</code><br>" if item.text else ""
        rows.append(f'<tr><td class="number">{where}</td><td class="wide">{text}{escape(item.fact)}</td></tr>')
    return "<h2>Why</h2>\n" + table(("", ""), rows) if rows else ""


def _fixes(found: Explanation) -> str:
    fixes, repairs = found.ways
    items = [_fix(fix) for fix in _distinct(fixes)]
    items[_FIXES:_FIXES] = [_fix(fix) for fix in repairs]
    shown_count = _FIXES + len(repairs)
    more = (
        f"<details><summary>more</summary><ul>{''.join(items[shown_count:])}</ul></details>"
        if items[shown_count:]
        else ""
    )
    return f"<h2>What to do</h2>\n<ol>{''.join(items[:shown_count])}</ol>\n{more}"


def _works(found: Explanation) -> str:
    """Return the model that runs on the device today."""
    works = found.works
    if works is None:
        return ""
    command = f"<br><code>{escape(works.command)}</code>" if works.command else ""
    return f"<h2>What works on {escape(works.device)} today</h2>\n<p>{escape(works.sentence)}{command}</p>\n"


def _fix(fix: Fix) -> str:
    command = f"<br><code>{escape(fix.command)}</code>" if fix.command else ""
    return f"<li>{escape(fix.text)}{command}</li>"


def _distinct(fixes: Iterable[Fix]) -> list[Fix]:
    """Return the fixes, each command once, and no "no repair" where there is a repair."""
    remaining = list(fixes)
    found: dict[str, Fix] = {}
    for fix in [fix for fix in remaining if fix.label != "wait-or-none"] or remaining:
        found.setdefault(fix.command or fix.label, fix)
    return list(found.values())


def _other_causes(found: Explanation) -> str:
    """Return the other possible causes, and the command that tells them apart."""
    from rung.diagnosis.fixes.fixing import causes

    others = [causes()[item.cause].sentence for item in found.alternatives if item.confidence >= _SHARE]
    if not others:
        return ""
    difference = f"<p>What tells them apart: <code>{escape(found.tell)}</code></p>\n" if found.tell else ""
    return (
        f"<h2>What else it may be</h2>\n<ul>{''.join(f'<li>{escape(each)}</li>' for each in others)}</ul>\n{difference}"
    )
