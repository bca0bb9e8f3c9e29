"""Settings: parsed in one place, and listed by a page that is true."""

import re
from pathlib import Path

import pytest

from rung.core import settings
from rung.core.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "environment.md"


def test_the_page_lists_every_setting_and_no_other():
    rows = re.findall(r"^\| `(RUNG_\w+)` \| (\S+) \| at (\w+)[^|]* \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    scopes = {"start": "start", "call": "each"}
    want = [(s.variable, s.default or "—", scopes[s.scope], s.meaning) for s in settings.SETTINGS]
    assert rows == want


def test_no_variable_is_read_elsewhere():
    source = Path(settings.__file__).parents[1]
    known = {s.variable for s in settings.SETTINGS}
    for path in source.rglob("*.py"):
        if path.name == "settings.py":
            continue
        assert not set(re.findall(r"environ[^\n]*(RUNG_\w+)", path.read_text(encoding="utf-8"))) & known, path


@pytest.mark.parametrize(("text", "value"), [("", None), ("3", 3)])
def test_threads(monkeypatch, text, value):
    monkeypatch.setenv("RUNG_THREADS", text)
    assert settings.THREADS.read() == value


@pytest.mark.parametrize("text", ["0", "-1", "many", "2.5", "100000"])
def test_a_value_that_makes_no_sense_names_variable_and_way_out(monkeypatch, text):
    monkeypatch.setenv("RUNG_THREADS", text)
    with pytest.raises(UsageError) as caught:
        settings.THREADS.read()
    assert "RUNG_THREADS" in str(caught.value)
    assert caught.value.ways_out == ("unset RUNG_THREADS",)
    assert caught.value.exit_code == 2


def test_the_cache_folder_follows_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    assert settings.CACHE.read() == tmp_path
    monkeypatch.delenv("RUNG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings.CACHE.read() == tmp_path / "rung"
