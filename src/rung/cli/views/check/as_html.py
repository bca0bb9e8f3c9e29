"""The page of ``rung check --html``: of several devices what is best on each, then all choices of each device."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rung.cli.views.check.as_text import facts, llama_cpp_words, slower_why
from rung.cli.views.page import FEW, frame, table
from rung.core.text import rate, size
from rung.formats.table import grade
from rung.planning.check_result import Unanswered

if TYPE_CHECKING:
    from rung.planning.check_result import Answer, Choice


def page(answers: Sequence[Answer | Unanswered]) -> str:
    """Return the whole page as HTML; a part for each model, or why there is none."""
    answered = [answer for answer in answers if not isinstance(answer, Unanswered)]
    body = "".join(_unanswered(one) if isinstance(one, Unanswered) else model(one) for one in answers)
    devices = [device for answer in answered for group in answer.groups for device in group]
    title = f"rung check: {', '.join(answer.model for answer in answers)}"
    return frame(title, [answer.sentence for answer in answered], body, devices)


def model(answer: Answer) -> str:
    """Return the part of one model as HTML."""
    heading = f'<h2>{escape(answer.model)}</h2>\n<p class="small">{escape(answer.about)}</p>\n'
    keys = list(answer.best_by_device)
    overview = _overview(answer) if len(keys) > 1 else ""
    return heading + overview + ("".join(_device(answer, key) for key in keys) if len(keys) <= FEW else "")


def _unanswered(one: Unanswered) -> str:
    items = "".join(f"<li>{escape(fact)}</li>" for fact in (*one.facts, *one.ways_out))
    return f"<h2>{escape(one.model)}</h2>\n<p>{escape(one.cause)}</p><ul>{items}</ul>\n"


def _overview(answer: Answer) -> str:
    """The best choice of each device."""
    rows = []
    for key, index in answer.best_by_device.items():
        instead = next((each.choice for each in answer.alternatives if each.instead_of == key), None)
        best = instead if index is None else answer.choices[index]
        no = '<td><span class="no">no</span></td><td></td><td></td><td></td>'
        cells = no if best is None else f"{_cells(best, best.column)}{_pace(best)}"
        rows.append(f"<tr><td>{escape(answer.name(key))}</td>{cells}</tr>")
    return table(("device", "", "best", "memory", "tokens/s"), rows)


def _device(answer: Answer, key: str) -> str:
    """All choices of one device: what runs instead, the best, the others, those that do not run."""
    best = answer.best_by_device[key]
    there = [(number, choice) for number, choice in enumerate(answer.choices) if choice.device == key]
    there.sort(key=lambda pair: (pair[0] != best, not pair[1].verdict))
    others = [each for each in answer.alternatives if each.instead_of == key]
    rows = [_rows(each.choice, each.label, each is others[0]) for each in others]
    rows += [_rows(choice, choice.column, number == best) for number, choice in there]
    rows_table = table(("", "format", "memory", "tokens/s", "quality"), rows)
    lost = "" if others or best is not None else _help(answer)
    return f"<h2>{escape(answer.name(key))}</h2>\n{rows_table}{lost}"


def _cells(choice: Choice, name: str) -> str:
    level = f'<td><span class="{choice.level}">{choice.level}</span></td>'
    return f'{level}<td>{escape(name)}</td><td class="number">{size(choice.memory.total)}</td>'


def _pace(choice: Choice) -> str:
    """Its tokens a second, and in small letters what the memory allows; nothing for what does not run."""
    speed = choice.speed
    decode, most = speed.decode_tokens_per_second, speed.bound_tokens_per_second
    shown = "" if not choice.verdict else rate(decode) if decode is not None else "-" if speed.reason else ""
    bound = f' <small class="spare">of {rate(most)}</small>' if most and shown else ""
    return f'<td class="number">{shown}{bound}</td>'


def _rows(choice: Choice, name: str, best: bool) -> str:
    """Two lines of a table: the choice, and below it why, its command, and the rest on a click."""
    cells = f"{_cells(choice, name)}{_pace(choice)}<td>{grade(choice.error_db)}</td>"
    notes = [f"<small>{escape(choice.verdict.reason)}</small>"] if choice.verdict.reason else []
    command = f"<code>{escape(choice.command)}</code>" if choice.command else ""
    notes += [command] if best and command else []
    if best and choice.speed.slower and choice.speed.llama_cpp:
        words, faster = f"{slower_why(choice)}; {llama_cpp_words(choice)}", choice.speed.llama_cpp.command
        shown = f":</small> <code>{escape(faster)}</code>" if faster else ", from a GGUF file</small>"
        notes.append(f"<small>{escape(words)}{shown}")
    items = "".join(
        f"<dt>{escape(part)}</dt><dd>{'<br>'.join(map(escape, pieces))}</dd>" for part, pieces in facts(choice).items()
    )
    items += f"<dt>command</dt><dd>{command}</dd>" if command else ""
    more = "<br>".join(notes) + f"<details><summary><small>details</small></summary><dl>{items}</dl></details>"
    marked = " best" if best else ""
    return f'<tr class="first{marked}">{cells}</tr>\n<tr class="more"><td colspan="5" class="wide">{more}</td></tr>\n'


def _help(answer: Answer) -> str:
    items = "".join(
        f"<li>{escape(one.change)}" + (f" <code>{escape(one.command)}</code>" if one.command else "") + "</li>"
        for one in answer.relaxations
    )
    return f"<p>What would help:</p><ul>{items}</ul>\n" if items else ""
