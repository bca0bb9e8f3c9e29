"""The page of ``rung explain --html``: the cause, what speaks for it, what to do, what else it may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rung.cli.views.page import frame, table
from rung.core.types import Device

if TYPE_CHECKING:
    from rung.diagnosis.explain import Explanation
    from rung.diagnosis.fixes.wording import Fix

#: Fixes that stand in sight, and the least share of another cause that is named.
_FIXES, _SHARE = 3, 0.05


_ASK = (
    "<p>Give it the whole log, from the first error on: <code>2>&amp;1 | rung explain</code> behind the command.</p>\n"
)


def page(found: Explanation, devices: Sequence[Device] = ()) -> str:
    """Return the whole page as HTML."""
    known = found.cause is not None and not found.unsure
    body = (
        _evidence(found)
        + (_ASK if found.vague else "")
        + (_fixes(found) if known else "")
        + _others(found)
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
    """The fixes, each command once, and no "no repair" beside a repair."""
    remaining = list(fixes)
    found: dict[str, Fix] = {}
    for fix in [fix for fix in remaining if fix.label != "wait-or-none"] or remaining:
        found.setdefault(fix.command or fix.label, fix)
    return list(found.values())


def _others(found: Explanation) -> str:
    """Return the other possible causes, and the command that tells them apart."""
    from rung.diagnosis.fixes.fixing import causes

    others = [causes()[item.cause].sentence for item in found.alternatives if item.confidence >= _SHARE]
    if not others:
        return ""
    difference = f"<p>What tells them apart: <code>{escape(found.tell)}</code></p>\n" if found.tell else ""
    return (
        f"<h2>What else it may be</h2>\n<ul>{''.join(f'<li>{escape(each)}</li>' for each in others)}</ul>\n{difference}"
    )
