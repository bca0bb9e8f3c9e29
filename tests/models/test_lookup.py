"""From what a person typed to a card: the embedded model, local things before it, and when nobody is to be asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rung.core.errors import HubError, ModelNotFound
from rung.models import lookup
from rung.models.locate import Location
from rung.models.lookup import demo_path, find_card
from rung.models.store import starters

FILE = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-q4_0.gguf"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the calls of the search for a name; it finds a small file and has a note."""
    found: list[dict[str, Any]] = []

    def locate(name: str, **options: Any) -> Location:
        found.append({"name": name, **options})
        return Location(FILE, ("org/tiny: Q4_0 (1 MB)",))

    monkeypatch.setattr(lookup, "locate", locate)
    return found


def test_demo_is_the_embedded_model_unless_a_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_card("demo").path == str(demo_path())
    shutil.copy(FILE, tmp_path / "demo")
    assert find_card("demo").decoder.model_type == "llama"


@pytest.mark.parametrize(("variable", "option", "offline"), [("", False, False), ("1", False, True), ("", True, True)])
def test_the_option_and_the_variable_keep_it_offline(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, variable: str, option: bool, offline: bool
) -> None:
    monkeypatch.setenv("RUNG_OFFLINE", variable)
    find_card("org/tiny", offline=option, revision="v1", budget=7)
    assert [(one["offline"], one["revision"], one["memory_budget"]) for one in calls] == [(offline, "v1", 7)]


def test_what_was_chosen_is_said_and_the_budget_is_what_is_free(calls: list[dict[str, Any]]) -> None:
    notes: list[str] = []
    assert find_card("org/tiny", on_note=notes.append).path == str(FILE)
    assert notes == ["org/tiny: Q4_0 (1 MB)"]
    assert calls[0]["memory_budget"] > 2**28


def test_a_refusal_of_the_hub_says_that_nothing_local_has_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def locate(name: str, **options: Any) -> Location:
        raise HubError("The hub is away.", ["a fact"], ["a way"])

    monkeypatch.setattr(lookup, "locate", locate)
    with pytest.raises(HubError, match="The hub is away") as caught:
        find_card("org/tiny")
    assert caught.value.facts == ("'org/tiny' is no file or folder here, so it was looked for on the hub", "a fact")
    assert caught.value.ways_out == ("a way",)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("smolm2", "rung pull smollm2   # "),
        ("gema3-270m", "rung pull gemma3-270m   # "),
        ("lama-3.1-8b", "rung check llama-3.1-8b"),
        ("quen3-8b", "rung check qwen3-8b"),
        ("foobarbaz", "rung pull smollm2   # "),
    ],
)
def test_an_unknown_name_is_answered_with_the_names_near_it(name: str, first: str) -> None:
    """Starters first, since they can be fetched; each command is about a name that is known."""
    with pytest.raises(ModelNotFound) as caught:
        lookup.find_outline(name)
    assert caught.value.ways_out[0].startswith(first)
    assert "ORG/REPO:Q4_K_M" in " ".join(caught.value.facts)
    for way in caught.value.ways_out:
        words = way.partition("#")[0].split()
        if words[:2] == ["rung", "check"] and len(words) > 2:
            assert lookup.find_outline(words[2]).parameters > 0
        elif words[:2] == ["rung", "pull"]:
            assert starters.find(words[2]) is not None
    assert ("Did you mean" in caught.value.cause) == (name != "foobarbaz")


def test_a_missing_file_is_no_misspelled_name() -> None:
    with pytest.raises(ModelNotFound) as caught:
        lookup.find_outline("smolm2.gguf")
    assert not any("rung pull" in way for way in caught.value.ways_out)
