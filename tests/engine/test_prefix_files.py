"""Prefixes in files: the same answers after a restart, and nothing of what is damaged, full or somebody else's."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from toy_backend import (
    VOCABULARY,
    WINDOW,
    ToyStep,
    answer,
    finish,
    free_blocks,
    next_token,
    scheduling,
    sequence,
    toy,
)

from rung.core.errors import OutOfMemory
from rung.engine.scheduling import prefix_files
from rung.engine.scheduling.prefix_files import PrefixFiles, list_files

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]


@pytest.fixture
def started(tmp_path):
    """A decoder of a process that has just begun, over the files of a folder; ``problems`` has what went wrong."""

    def start(most=1 << 20, identity=b"model", blocks=64, context=64):
        decoder = toy(context=context, blocks=blocks)
        decoder.problems = []
        decoder.keep_in_files(PrefixFiles(tmp_path, most, identity, decoder.problems.append))
        return decoder

    return start


def say(decoder, prompt, most=4, owner=""):
    """Return the answer, and how many tokens of the prompt were not computed."""
    scheduler, each = scheduling(decoder), sequence(prompt, most, owner, context=64)
    scheduler.add(each)
    (found,) = finish(scheduler, each)
    assert found == answer(prompt, most)
    decoder.prefixes.settle_all()
    return found, each.cached


def all_free(decoder) -> bool:
    decoder.prefixes.clear()
    return free_blocks(decoder) == [len(member.uses) for member in decoder.pool.members]


def test_a_chat_goes_on_after_a_restart(started):
    said, cached = say(started(), PROMPT)
    assert cached == 0
    decoder = started()
    turn = [*PROMPT, *said, 8, 8]
    more, cached = say(decoder, turn)
    assert cached == len(PROMPT) + len(said) - 1, "all that was computed"
    assert all_free(decoder)
    assert say(started(), [*turn, *more, 7])[1] == len(turn) + len(more) - 1


def test_a_prompt_that_leaves_an_earlier_one_within_a_block(started):
    say(started(), PROMPT)
    for same in range(1, len(PROMPT)):
        prompt = [*PROMPT[:same], 90, 91]
        decoder = started()
        _, cached = say(decoder, prompt)
        assert cached <= same
        assert all_free(decoder)


@pytest.mark.parametrize("other", [{"identity": b"another"}, {"owner": "bob"}])
def test_what_another_model_or_owner_left_is_not_found(started, other):
    say(started(), PROMPT)
    owner = other.pop("owner", "")
    assert say(started(**other), PROMPT, owner=owner)[1] == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "head"])
def test_a_damaged_file_is_taken_away_and_computed_again(started, tmp_path, damage):
    said, _ = say(started(), PROMPT)
    (file,) = [each.path for each in list_files(tmp_path) if each.start == 4]
    data = bytearray(file.read_bytes())
    data[10 if damage == "head" else -20] ^= 1
    file.write_bytes({"cut": data[:-7], "empty": b""}.get(damage, data))
    decoder = started()
    _, cached = say(decoder, [*PROMPT, *said, 8])
    assert cached <= 4
    assert all_free(decoder)
    assert say(started(), [*PROMPT, *said, 8, 9])[1] >= len(PROMPT), "it was written again"


def test_files_are_bounded_private_and_whole(started, tmp_path):
    say(started(), PROMPT)
    sizes = [each.path.stat().st_size for each in list_files(tmp_path)]
    assert all(stat.S_IMODE(each.path.stat().st_mode) == 0o600 for each in list_files(tmp_path))
    most = 3 * max(sizes)
    (tmp_path / "letter.txt").write_text("mine")
    for number in range(6):
        say(started(most=most), [number + 20, *PROMPT])
        taken = [each.path.stat().st_size for each in list_files(tmp_path)]
        assert 0 < sum(taken) <= most
    assert (tmp_path / "letter.txt").read_text() == "mine"
    assert len(os.listdir(tmp_path)) == len(taken) + 1, "no part of a file is left"


def test_a_disk_that_is_full_is_said_once_and_nothing_fails(started, monkeypatch, tmp_path):
    decoder = started()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    say(decoder, PROMPT)
    say(decoder, [7, *PROMPT])
    (problem,) = decoder.problems
    assert "No space left on device" in problem
    assert not os.listdir(tmp_path), "no part of a file is left"


def test_a_pool_without_room_reads_what_fits(started):
    said, _ = say(started(), PROMPT)
    decoder = started(blocks=8, context=32)
    assert say(decoder, [*PROMPT, *said, 8])[1] <= len(PROMPT) + len(said)
    assert all_free(decoder)


def test_the_same_block_after_other_ones_is_another(started):
    a, b, c, d, x = ([number] * 4 for number in (11, 12, 13, 14, 15))
    say(started(), [*a, *b, *c, 1])
    say(started(), [*x, *b, *d, 1])
    assert say(started(), [*x, *b, *c, 1])[1] <= 8


def test_what_was_used_lately_stays(started, tmp_path):
    for first in (20, 40):
        say(started(), [first] * 17, most=1)
    taken = sum(each.path.stat().st_size for each in list_files(tmp_path))
    assert say(started(), [20] * 17, most=1)[1] > 8
    for number in range(2):
        say(started(most=taken), [60 + number] * 5, most=1)
    assert say(started(most=taken), [20] * 17, most=1)[1] > 8
    assert say(started(most=taken), [40] * 17, most=1)[1] <= 8


@pytest.mark.parametrize("seed", range(6))
def test_any_order_with_restarts_and_little_room(started, seed):
    chance = random.Random(seed)
    decoder = started(blocks=9, context=32)
    starts = [[chance.randrange(1, 90) for _ in range(20)] for _ in range(3)]
    for _ in range(40):
        if chance.random() < 0.3:
            assert all_free(decoder)
            decoder = started(blocks=9, context=32, most=chance.choice([1 << 20, 6000]))
        start = chance.choice(starts)
        prompt = start[: chance.randrange(1, 20)] + [chance.randrange(1, 4) for _ in range(chance.randrange(1, 6))]
        say(decoder, prompt, most=chance.randrange(1, 6), owner=chance.choice("ab"))
    assert all_free(decoder)


class WindowStep(ToyStep):
    """Sees the last tokens alone, as where every layer has a window."""

    def apply(self, state, batch):
        found = []
        for each in batch:
            keys = np.zeros((len(each.tokens), 1, 16), np.float32)
            keys[:, 0, 0] = each.tokens
            each.cache.write_arrays(0, each.start, keys, keys)
            for end in range(each.start + len(each.tokens) - each.logits + 1, each.start + len(each.tokens) + 1):
                read = each.cache.arrays(0, max(0, end - WINDOW), end)[0][:, 0, 0]
                found.append(np.eye(VOCABULARY, dtype=np.float32)[next_token(read)])
        return np.array(found).reshape(-1, VOCABULARY)


def test_a_model_of_windows_alone_goes_on_after_a_restart(tmp_path):
    found = []
    for _ in range(2):
        decoder = toy(context=64, blocks=64, windows=(WINDOW,))
        decoder.step = WindowStep()
        decoder.keep_in_files(PrefixFiles(tmp_path, 1 << 20, b"model", pytest.fail))
        scheduler, each = scheduling(decoder), sequence([*PROMPT, *PROMPT], 4, context=64)
        scheduler.add(each)
        assert finish(scheduler, each) == [answer([*PROMPT, *PROMPT], 4, lambda ids: next_token(ids[-WINDOW:]))]
        found.append(each.cached)
        assert all_free(decoder)  # and all is written
    assert found[0] == 0
    assert found[1] > len(PROMPT)


def test_a_folder_that_goes_away_ends_no_answer(started, tmp_path):
    decoder = started()
    say(decoder, PROMPT)
    for file in list_files(tmp_path):
        file.path.unlink()
    tmp_path.rmdir()
    say(decoder, [*PROMPT, 8])
    say(decoder, [7, *PROMPT])
    assert len(decoder.problems) == 1
    tmp_path.mkdir()


def test_a_disk_that_has_room_again_is_written_again(started, tmp_path, monkeypatch):
    decoder = started()
    with monkeypatch.context() as full:
        full.setattr(prefix_files.tempfile, "mkstemp", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        say(decoder, PROMPT)
        full.setattr(prefix_files, "RETRY_SECONDS", 0)
        say(decoder, [*PROMPT, 8])  # too early
        assert prefix_files.tempfile.mkstemp.call_count == 1
    later = time.monotonic() + 3600
    monkeypatch.setattr(prefix_files.time, "monotonic", lambda: later)
    say(decoder, [*PROMPT, 8, 9])
    assert len(decoder.problems) == 1
    assert "No space left" in decoder.problems[0]
    assert say(started(), [*PROMPT, 8, 9, 7])[1] > len(PROMPT)  # with what was computed while the disk was full


def test_the_folder_is_listed_a_few_times_for_each_answer(started, monkeypatch):
    listed = []
    kept = prefix_files.list_files
    monkeypatch.setattr(prefix_files, "list_files", lambda folder: listed.append(folder) or kept(folder))
    prompt = [1 + number % 90 for number in range(50)]
    say(started(), prompt)
    assert len(listed) <= 4
    listed.clear()
    assert say(started(), [*prompt, 5])[1] >= 50
    assert len(listed) <= 4


def test_a_file_that_is_written_again_has_what_was_added(tmp_path):
    files = PrefixFiles(tmp_path, 1 << 20, b"model", pytest.fail)
    blocks = {group: np.full(8 + group, 7 * group, np.uint8) for group in range(3)}
    root = files.root("")
    for groups in ([0], [0, 1, 2]):
        files.write([prefix_files.NewFile(root, 0, (1, 2), {group: blocks[group] for group in groups})])
        ((_, file),) = files.children(root).items()
        files.forget_heads([file.key])
        assert files.head(file) == ([1, 2], groups)
    found = np.empty(10, np.uint8)
    assert files.read(file, {2: found})
    assert (found == blocks[2]).all()
    assert not files.read(file, {3: found})


@pytest.mark.parametrize("moment", range(14))
def test_a_pool_that_is_full_at_any_moment_of_reading(started, monkeypatch, moment):
    said, _ = say(started(), PROMPT)
    decoder, taken = started(), []
    take = decoder.pool.take

    def limited(group):
        taken.append(group)
        if len(taken) == moment + 1:
            raise OutOfMemory("full")
        return take(group)

    monkeypatch.setattr(decoder.pool, "take", limited)
    turn = [*PROMPT, *said, 8]
    more, _ = say(decoder, turn)
    monkeypatch.undo()
    say(decoder, [*turn, *more, 9])
    assert all_free(decoder)


@pytest.fixture
def slow_disk(monkeypatch):
    """An event without which no file is written; ``nodes`` has the first tokens of those that were to be."""
    ready, write = threading.Event(), PrefixFiles.write
    ready.nodes = []

    def later(self, nodes):
        ready.nodes += [(node.parent, node.start, tuple(node.ids)) for node in nodes]
        assert ready.wait(60)
        write(self, nodes)

    monkeypatch.setattr(PrefixFiles, "write", later)
    yield ready
    ready.set()


def ask(decoder, prompt, most=4):
    scheduler, each = scheduling(decoder), sequence(prompt, most, context=64)
    scheduler.add(each)
    assert finish(scheduler, each) == [answer(prompt, most)]
    return each.cached


def test_answers_go_on_while_files_are_written(started, slow_disk, tmp_path):
    decoder = started()
    ask(decoder, PROMPT)
    for last in (50, 51):  # both go on in the midst of a block that is being written
        assert ask(decoder, [*PROMPT, last]) > 8
    assert not list_files(tmp_path)
    assert len(slow_disk.nodes) == len(set(slow_disk.nodes)), "each is written once"
    slow_disk.set()
    assert all_free(decoder)
    for last in (50, 51):
        decoder = started()
        assert ask(decoder, [*PROMPT, last, 9, 9]) >= len(PROMPT)
        assert all_free(decoder)


def test_a_pool_without_room_waits_for_what_is_written(started, slow_disk):
    decoder = started(blocks=8, context=32)
    ask(decoder, PROMPT)
    threading.Timer(0.2, slow_disk.set).start()
    ask(decoder, [number + 40 for number in range(24)])
    assert slow_disk.is_set()
    assert all_free(decoder)


def test_an_error_in_a_step_frees_nothing_that_is_being_written(started, slow_disk):
    decoder = started(blocks=8, context=32)
    ask(decoder, PROMPT)
    threading.Timer(0.2, slow_disk.set).start()
    decoder.recover([])
    assert slow_disk.is_set()
    assert free_blocks(decoder) == [8, 8]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_does_not_wait_for_its_parents_thread(started, slow_disk):
    decoder = started()
    ask(decoder, PROMPT)
    child = os.fork()
    if not child:
        decoder.recover([])
        os._exit(0)
    for _ in range(200):
        if (ended := os.waitpid(child, os.WNOHANG))[0]:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_what_a_killed_process_had_begun_is_taken_away(started, tmp_path):
    old, new = tmp_path / ".old.part", tmp_path / ".new.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    say(started(), PROMPT)
    assert not old.exists()
    assert new.exists(), "another process may write it now"


def test_a_process_ends_after_its_files_are_written(tmp_path):
    code = f"""
import time, numpy
from pathlib import Path
from rung.core.shield import in_background
from rung.engine.scheduling.prefix_files import NewFile, PrefixFiles
files = PrefixFiles(Path({str(tmp_path)!r}), 1 << 20, b"model", print)
node = NewFile(files.root(""), 0, (1, 2), {{0: numpy.zeros(8, numpy.uint8)}})
in_background(lambda: (time.sleep(0.3), files.write([node])))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert len(list_files(tmp_path)) == 1
