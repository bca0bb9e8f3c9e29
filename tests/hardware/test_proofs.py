"""The cache of proofs: whole files or none, and trouble with the folder costs a note."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from rung.hardware import json_cache
from tests.support.devices import fresh_cache

KEY = {"device": "cpu", "driver": "1"}


cache = fresh_cache()


def test_what_was_written_is_read():
    assert json_cache.read(KEY) is None
    assert json_cache.write(KEY, {"a": [1, 2.5, None]}) == ""
    assert json_cache.read(KEY) == {"a": [1, 2.5, None]}
    assert json_cache.read({"driver": "1", "device": "cpu"}) == {"a": [1, 2.5, None]}
    json_cache.write(KEY, "newer")
    assert json_cache.read(KEY) == "newer"


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"device": "cpu", "driver": "2"}, KEY | {"torch": "2.13"}])
def test_another_key_finds_nothing(other):
    json_cache.write(KEY, 1)
    assert json_cache.read(other) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"{}", b'{"key": {}, "value": 1}', b"null", b"[" * 100_000, b'{"key": 1}'],
    ids=repr,
)
def test_a_corrupt_file_is_as_none_and_is_replaced(content):
    json_cache.write(KEY, 1)
    (file,) = json_cache.folder().iterdir()
    file.write_bytes(content)
    assert json_cache.read(KEY) is None
    assert json_cache.write(KEY, 2) == ""
    assert json_cache.read(KEY) == 2


def test_no_half_files_are_left(cache):
    for number in range(5):
        json_cache.write(KEY, number)
    assert len(list(json_cache.folder().iterdir())) == 1


def test_a_folder_that_cannot_be_made_costs_a_note(cache):
    cache.write_text("a file where the folder should be")
    note = json_cache.write(KEY, 1)
    assert "cannot be written" in note
    assert "RUNG_CACHE" in note
    assert json_cache.read(KEY) is None
    with json_cache.lock(KEY):
        pass


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_costs_a_note(cache):
    json_cache.write(KEY, 1)
    json_cache.folder().chmod(0o500)
    assert "cannot be written" in json_cache.write(KEY, 2)
    assert json_cache.read(KEY) == 1


def test_a_full_disk_costs_a_note(monkeypatch):
    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json_cache.json, "dump", full)
    assert "No space left on device" in json_cache.write(KEY, 1)
    assert list(json_cache.folder().iterdir()) == []


def test_removing():
    json_cache.remove(KEY)
    json_cache.write(KEY, 1)
    json_cache.remove(KEY)
    assert json_cache.read(KEY) is None


WRITER = """
import sys
sys.path[:] = {path!r}
import itertools, pathlib
from rung.hardware import json_cache
for number in itertools.count():
    json_cache.write({key!r}, [number] * 2000)
    if pathlib.Path({enough!r}).exists():
        break
"""


def test_two_writers_at_once_and_a_reader_see_whole_values(tmp_path):
    enough = tmp_path / "enough"
    code = WRITER.format(path=sys.path, key=KEY, enough=str(enough))
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    try:
        values = set()
        while len(values) < 50:
            assert [writer.poll() for writer in writers] == [None, None]
            value = json_cache.read(KEY)
            if value is not None:
                assert len(value) == 2000
                assert len(set(value)) == 1
                values.add(value[0])
    finally:
        enough.touch()
        codes = [writer.wait(60) for writer in writers]
    assert codes == [0, 0]
    assert len(list(json_cache.folder().iterdir())) == 1


def test_one_at_a_time_finds_out_the_value():
    order = []

    def other():
        with json_cache.lock(KEY):
            order.append("second")

    thread = threading.Thread(target=other)
    with json_cache.lock(KEY):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_lock_that_is_not_given_up_is_waited_for_so_long():
    with json_cache.lock(KEY):
        began = time.monotonic()
        with json_cache.lock(KEY, seconds=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 60


def test_the_file_says_what_it_is_for():
    json_cache.write(KEY, 1)
    (file,) = json_cache.folder().iterdir()
    assert json.loads(file.read_text()) == {"key": KEY, "value": 1}


def test_how_often_a_person_waits_for_a_measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "new"))
    assert json_cache.how_often() == json_cache.how_often(why=True) == "once"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    assert json_cache.how_often() == "each time"
    said = json_cache.how_often(why=True)
    assert said.startswith(f"each time: {tmp_path / 'file' / 'proofs'} cannot be written (Not a directory)")
    assert "RUNG_CACHE" in said
