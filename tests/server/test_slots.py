"""Slots that are saved, restored and erased over HTTP: what is read again, by count, and who may have it."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from rung.engine.load import load
from rung.server.child.slots import Slots
from rung.server.protocol import ActOnSlot
from tests.engine.test_adapters import adapted, base
from tests.server.conftest import serving

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
PROMPT = "the model has a plan for each device and the plan has a place for each layer of it"


@pytest.fixture(scope="module")
def saving(_cache, tmp_path_factory):
    """A server that saves slots, with two keys, and the folder for them."""
    folder = tmp_path_factory.mktemp("saving")
    options = ("--slot-save-path", str(folder / "slots"), "--parallel", "2", "--key", "one", "--key", "two")
    with serving(folder, "demo", *options) as found:
        yield found, folder / "slots"


def call(server, path, body=None, key="one"):
    """Status and document of an answer to a POST."""
    status, document, _ = server.call(path, {} if body is None else body, {"x-api-key": key})
    return status, document


def complete(server, slot, key="one"):
    """An answer, and how many tokens of its prompt were computed before."""
    body = {"prompt": PROMPT, "n_predict": 6, "id_slot": slot}
    status, answer = call(server, "/completion", body, key)
    assert (status, answer["id_slot"]) == (200, slot), answer
    return answer["content"], answer["timings"]["cache_n"]


def test_what_a_slot_has_computed_is_saved_restored_and_erased(saving):
    server, folder = saving
    text, cached = complete(server, 1)
    assert cached == 0
    status, saved = call(server, "/slots/1?action=save", {"filename": "plan.bin"})
    assert (status, saved["id_slot"], saved["filename"]) == (200, 1, "plan.bin")
    (file,) = folder.iterdir()
    assert (file.stat().st_size, stat.S_IMODE(file.stat().st_mode)) == (saved["n_written"], 0o600)
    assert "plan" not in file.name
    _, again = complete(server, 1)
    assert 0 < again < saved["n_saved"]
    _, erased = call(server, "/slots/1?action=erase")
    assert erased == {"id_slot": 1, "n_erased": saved["n_saved"]}
    status, found = call(server, "/slots/0?action=restore", {"filename": "plan.bin"})
    assert (status, found["n_restored"], found["n_read"]) == (200, saved["n_saved"], saved["n_written"])
    assert complete(server, 0) == (text, again)
    call(server, "/slots/0?action=erase")
    assert complete(server, 0) == (text, 0)
    call(server, "/slots/0?action=erase")


def test_another_key_finds_nothing_of_it(saving):
    server, _ = saving
    complete(server, 1)
    assert call(server, "/slots/1?action=save", {"filename": "mine"})[1]["n_saved"] > 0
    assert call(server, "/slots/1?action=restore", {"filename": "mine"}, "two")[0] == 400
    assert call(server, "/slots/1?action=save", {"filename": "mine"}, "two")[1]["n_saved"] == 0
    assert call(server, "/slots/1?action=restore", {"filename": "mine"})[1]["n_restored"] > 0
    assert call(server, "/slots/1?action=erase", key="two")[1]["n_erased"] == 0
    assert complete(server, 1)[1] > 0
    call(server, "/slots/1?action=erase")


def test_a_damaged_file_is_refused_and_restores_nothing_wrong(saving):
    server, folder = saving
    text, _ = complete(server, 1)
    before = set(folder.iterdir())
    saved = call(server, "/slots/1?action=save", {"filename": "damaged"})[1]
    (file,) = set(folder.iterdir()) - before
    data = file.read_bytes()
    for position in (3, 9, 40, len(data) // 2, len(data) - 1):
        call(server, "/slots/1?action=erase")
        file.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        status, answer = call(server, "/slots/0?action=restore", {"filename": "damaged"})
        assert (status, answer["error"]["code"]) == (400, "file-invalid"), position
        assert complete(server, 1)[0] == text
    for cut in (0, 5, len(data) - 1):
        file.write_bytes(data[:cut])
        assert call(server, "/slots/0?action=restore", {"filename": "damaged"})[0] == 400
    call(server, "/slots/1?action=erase")
    file.write_bytes(data)
    assert call(server, "/slots/0?action=restore", {"filename": "damaged"})[1]["n_restored"] == saved["n_saved"]
    call(server, "/slots/0?action=erase")


def test_names_that_mean_to_be_paths_and_numbers_that_are_none_are_refused(saving):
    server, folder = saving
    for name in ("../x", "/etc/passwd", "a/b", "a\\b", "..", "", " x", "x\n", "x" * 256, 7, None):
        assert call(server, "/slots/1?action=save", {"filename": name})[0] == 400, name
    names = {each.name for each in folder.iterdir()}
    assert not any(os.path.lexists(folder.parent / each) for each in ("x", "a"))
    for path in (
        "/slots/2?action=erase",
        "/slots/-1?action=erase",
        "/slots/x?action=erase",
        "/slots/1",
        "/slots/1?action=load",
    ):
        assert call(server, path)[0] == 400, path
    assert call(server, "/slots/1?action=restore", {"filename": "never"})[0] == 400
    assert call(server, "/completion", {"prompt": "x", "n_predict": 1, "id_slot": 2})[0] == 400
    assert {each.name for each in folder.iterdir()} == names


@pytest.mark.usefixtures("_cache")
def test_a_folder_has_a_limit(tmp_path):
    with serving(tmp_path, "demo", "--slot-save-path", f"{tmp_path / 'few'}:1kB") as server:
        call(server, "/completion", {"prompt": PROMPT, "n_predict": 2, "id_slot": 0})
        status, answer = call(server, "/slots/0?action=save", {"filename": "large"})
        assert (status, "saved ones take" in answer["error"]["message"]) == (400, True)
        assert list((tmp_path / "few").iterdir()) == []


def test_without_the_option_slots_are_not_saved(server):
    status, answer = call(server, "/slots/0?action=save", {"filename": "x"})
    assert (status, "--slot-save-path" in answer["error"]["message"]) == (403, True)


def test_answers_go_on_while_a_slot_is_written(model, tmp_path, monkeypatch):
    slots, writing, goes_on = Slots(model, str(tmp_path / "slots")), threading.Event(), threading.Event()
    answer = model.start(model.prompt_ids(PROMPT), goes_on=True, max_tokens=6, owner="one")
    said = "".join(answer)
    slots.keep(0, answer.sequence)
    found = []

    def wait_for_disk(number):
        writing.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(os, "fsync", wait_for_disk)
    save = ActOnSlot(action="save", slot=0, name="plan", owner="one")
    saving = threading.Thread(target=lambda: found.append(slots.act(save)), daemon=True)
    saving.start()
    assert writing.wait(60)
    again = model.start(model.prompt_ids(PROMPT), goes_on=True, max_tokens=6, owner="one")
    assert "".join(again) == said
    assert "".join(model.generate("another text of others", raw=True, max_tokens=6, owner="two"))
    goes_on.set()
    saving.join(60)
    erased = slots.act(ActOnSlot(action="erase", slot=0, owner="one"))
    assert erased["tokens"] == found[0]["tokens"]  # nothing is held any more
    restored = slots.act(ActOnSlot(action="restore", slot=1, name="plan", owner="one"))
    assert restored["tokens"] == found[0]["tokens"]
    last = model.start(model.prompt_ids(PROMPT), goes_on=True, max_tokens=6, owner="one")
    assert "".join(last) == said
    assert last.result["cached_tokens"] > 0


def act(slots, action, slot=0):
    """Return the counts of an act on a slot with the key ``one``."""
    name = "" if action == "erase" else "plan"
    return slots.act(ActOnSlot(action=action, slot=slot, name=name, owner="one"))


def answer_of(model, adapter=None):
    """An answer, whole."""
    answer = model.start(model.prompt_ids(PROMPT), goes_on=True, max_tokens=6, owner="one", adapter=adapter)
    list(answer)
    return answer


def test_a_slot_of_a_model_with_windows_is_restored(tmp_path):
    first, second = (load(str(GGUF / "gemma3-f32.gguf"), context=128, format="f32") for _ in range(2))
    assert any(layer.window for layer in first.card.decoder.layers)
    slots = Slots(first, str(tmp_path / "slots"))
    said = answer_of(first)
    assert said.sequence.prompt > min(layer.window for layer in first.card.decoder.layers if layer.window)
    slots.keep(0, said.sequence)
    saved = act(slots, "save")
    other = Slots(second, str(tmp_path / "slots"))
    assert act(other, "restore", 0)["tokens"] == saved["tokens"] > 0
    again = answer_of(second)
    assert again.tokens == said.tokens
    assert again.result["cached_tokens"] > 0


def test_a_slot_of_an_adapter_is_restored_for_that_adapter(tmp_path):
    adapted(base(tmp_path / "base")).save_pretrained(tmp_path / "adapter")
    first, second = (load(str(tmp_path / "base"), context=128, format="f32", device="cpu") for _ in range(2))
    for model in (first, second):
        model.load_adapter([str(tmp_path / "adapter")], "tuned")
    slots = Slots(first, str(tmp_path / "slots"))
    plain, tuned = answer_of(first), answer_of(first, "tuned")
    assert plain.tokens != tuned.tokens
    slots.keep(0, tuned.sequence)
    saved = act(slots, "save")
    assert act(Slots(second, str(tmp_path / "slots")), "restore")["tokens"] == saved["tokens"] > 0
    again, without = answer_of(second, "tuned"), answer_of(second)
    assert again.tokens == tuned.tokens
    assert again.result["cached_tokens"] > 0
    assert (without.tokens, without.result["cached_tokens"]) == (plain.tokens, 0)
