"""``rung formats``: the table, and the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path

from rung import formats

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_every_format_is_listed_with_its_floor(rung):
    said = rung("formats")
    assert said.code == 0
    rows = {line.split()[0]: line for line in said.out.splitlines()[1:] if line.strip()}
    assert rows.keys() == set(formats.FORMATS)
    assert "20.9 dB" in rows["q4_0"]
    assert "exact" in rows["f32"]
    assert rows["iq1_s"].rstrip().endswith("read only")
    assert "read only" not in rows["nf4:64"]


def test_the_page_shows_what_is_printed(rung):
    shown = PAGE.read_text(encoding="utf-8").split("$ rung formats\n")[1].split("```")[0]
    printed = rung("formats").out
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in printed.rstrip().splitlines()]


def test_as_json(rung):
    listed = json.loads(rung("formats", "--json").out)
    assert {one["name"] for one in listed} == set(formats.FORMATS)
