"""The frame of every page that rung writes: title, date, version, the answer, the command, the devices.

A page is one file that asks no network and runs no script. Nothing in it is wider than a telephone: a wide table
scrolls by itself.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rung import cli
from rung.core.errors import UsageError
from rung.core.files import write_whole
from rung.core.text import size
from rung.core.types import Device
from rung.core.version import __version__

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a;
  background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.25rem; margin: 0 0 .3rem } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem }
.answer { font-size: 1.1rem; margin: .2rem 0 .6rem } .small, small { color: #595959; font-size: .86rem }
.scroll { overflow-x: auto; margin: .6rem 0 } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .32rem .5rem; border-bottom: 1px solid #d8d8d8;
  overflow-wrap: normal }
thead th { font-weight: 600; color: #595959; font-size: .86rem } td.number { white-space: nowrap }
td.wide, p, li, dd, code { overflow-wrap: anywhere } tr.more td { padding-top: 0 } tr.first td { border-bottom: 0 }
.yes, .slow, .no { font-weight: 600; padding: 0 .4rem; border-radius: .3rem; white-space: nowrap }
.yes { background: #dff3e0; color: #14491b } .slow { background: #fff0c2; color: #5a4300 }
.no { background: #f8dcdc; color: #6d1414 }
tr.best td:first-child, tr.best + tr.more td:first-child { border-left: 3px solid #222 }
summary { cursor: pointer } dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .8rem; margin: .4rem 0 }
dt { color: #595959 } dd { margin: 0 } ul, ol { padding-left: 1.3rem }
code { background: #eee; padding: .1rem .3rem; border-radius: .2rem }
pre { background: #eee; padding: .5rem; overflow-x: auto } pre code { padding: 0 }
@media (prefers-color-scheme: dark) {
  body { color: #e8e8e8; background: #181818 } .small, small, thead th, dt { color: #b0b0b0 }
  th, td { border-color: #444 } .yes { background: #1d3a21; color: #c9efcd }
  .slow { background: #423813; color: #ffe9ad } .no { background: #472222; color: #ffd0d0 }
  tr.best td:first-child, tr.best + tr.more td:first-child { border-left-color: #eee }
  code, pre { background: #303030 }
}
@media (max-width: 480px) { body { padding: 0 .6rem } th, td { padding: .3rem .25rem } .spare { display: none } }
"""
#: Of more devices than these, as of the whole catalog, nothing is told one by one.
FEW = 12


def frame(title: str, answers: Iterable[str], body: str, devices: Sequence[Device] = ()) -> str:
    """Return the whole page: ``answers`` are sentences, ``body`` is HTML; the command is the one that was typed."""
    sections = "".join(f'<p class="answer">{escape(answer)}</p>\n' for answer in answers)
    origin = f"{datetime.date.today().isoformat()} · rung {__version__}"
    typed = f" · <code>{escape(shlex.join(cli.typed))}</code>" if cli.typed else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'{sections}<p class="small">{origin}{typed}</p>\n{body}{cards(devices)}</body></html>\n'
    )


def table(headings: Sequence[str], rows: Iterable[str]) -> str:
    """Return a table of rows that are HTML; it scrolls by itself where it is too wide."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'


def cards(devices: Sequence[Device]) -> str:
    """Return the facts of the devices as HTML; empty for many devices."""
    distinct = list({device.name: device for device in devices}.values())
    if not distinct or len(distinct) > FEW:
        return ""
    items = "".join(f"<li><b>{escape(device.name)}</b>: {escape(_card(device))}</li>" for device in distinct)
    return f"<h2>The devices</h2>\n<ul>{items}</ul>\n"


def _card(device: Device) -> str:
    known = [(name, device.peaks[name]) for name in ("f32", "f16") if name in device.peaks]
    rates = [f"{name} {peak / 1e12:.3g} T operations/s" for name, peak in known]
    parts = [f"{size(device.memory)}, {size(device.budget)} free"]
    parts += [f"reads {device.bandwidth / 1e9:.3g} GB/s"] if device.bandwidth else []
    parts += [*rates, device.arch, str(device.details.get("build", ""))]
    parts.append("of this machine" if device.real else "from the catalog")
    return " · ".join(filter(None, parts))


def write(path: Path, text: str) -> None:
    """Write the page, whole or not at all. Raises ``UsageError`` where the file cannot be written."""
    data = text.encode("utf-8", "replace")  # names of files need not be text
    try:
        if path.exists() and not path.is_file():  # /dev/stdout
            path.write_bytes(data)
        else:
            write_whole(path, data)
    except OSError as error:
        raise UsageError(
            f"--html {path} cannot be written: {error.strerror or error}",
            ways_out=["--html page.html"],
            code="output-unwritable",
        ) from error
