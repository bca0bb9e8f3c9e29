"""Prefixes in files: the same answers after a restart, and nothing of what is damaged, full or somebody else's."""

from __future__ import annotations

import os
import random
import stat

import pytest
from toy_backend import answer, finish, free_blocks, scheduling, sequence, toy

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
