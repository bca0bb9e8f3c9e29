"""``docs/errors/`` says what the data say."""

import json
import re
from pathlib import Path

import pytest

from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.fixes.wording import template
from rung.diagnosis.pages import page, write
from rung.diagnosis.tables import compile_tables, tables

DOCS = Path(__file__).parents[2] / "docs" / "errors"


def test_the_pages_are_those_of_the_data(tmp_path):
    write(tmp_path)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text(encoding="utf-8") for file in DOCS.iterdir()}
    assert written == kept, "run: python -m rung.diagnosis.pages docs/errors"


def test_the_table_that_programs_read_is_that_of_the_rows():
    assert json.loads(compile_tables()) == tables(), "run: python -m rung.diagnosis.pages docs/errors"


@pytest.mark.parametrize("cause", causes().values(), ids=lambda cause: cause.label)
def test_a_page_names_what_to_do_and_how_it_reads(cause):
    text = page(cause)
    assert all(f"`{label}`" in text for label in cause.fixes)
    assert "## How it reads" in text
    assert template(cause.tell) in text
    assert not re.search(r"\{\w+(?:\|[^}]*)?\}", text), "a name of a log is filled in or written large"
