"""The programs in the docs run as they stand, one page after the other in a folder of its own."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ["quantize.md", "transformers.md", "peft.md", "tune.md", "splats.md"]


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page(page, tmp_path, monkeypatch, capsys):
    """A block of output after a program is what it prints."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", text, re.DOTALL)
    assert programs
    for program, output in programs:
        exec(compile(program, page, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        if output:
            assert printed == output
