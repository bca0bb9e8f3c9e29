"""Answers that wait until the cache has room for all that they may become."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from typing import NamedTuple

import pytest

from rung.server.child.waiting import count_fitting, in_turn
from tests.server.conftest import serving


class Request(NamedTuple):
    owner: str
    room: int
    number: int = 0


def test_owners_take_turns_and_each_keeps_its_order():
    waiting = [Request("a", 10, n) for n in range(4)] + [Request("b", 10, n) for n in range(2)] + [Request("c", 30)]
    turns = [(each.owner, each.number) for each in in_turn(waiting, [])]
    assert turns[:3] == [("a", 0), ("b", 0), ("c", 0)]
    assert [number for owner, number in turns if owner == "a"] == [0, 1, 2, 3]
    assert in_turn(waiting, [Request("a", 100)])[0].owner == "b"  # who has most comes last
    assert [each.owner for each in in_turn(waiting, [Request("a", 100)])].index("a") == 3


@pytest.mark.parametrize(
    ("live", "rooms", "count"),
    [
        ([], [50, 50, 1], 2),
        ([40], [50, 50], 1),
        ([40], [70, 10], 0),  # nobody overtakes
        ([], [200, 1], 1),  # one alone always fits
        ([100], [1], 0),
        ([10, 10], [10, 10], 1),  # three at most
        ([], [], 0),
    ],
)
def test_as_many_begin_as_fit_whole(live, rooms, count):
    requests = [Request("", room) for room in rooms]
    assert count_fitting(requests, [Request("", room) for room in live], 100, 3) == count


def test_streams_wait_for_room_and_say_their_place(tmp_path, endless):
    body = {"model": "demo", "prompt": "the", "max_tokens": 500, "logit_bias": endless, "stream": True}
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            found[number] = answer.read().decode()

    with serving(tmp_path, "demo") as server:  # the room of one context
        ask(-1)
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while server.metric("rung_requests_deferred") < 3:  # all seven wait at once where clients are quick enough
            assert server.metric("rung_requests_processing") <= 1
            assert time.monotonic() < until
        for thread in threads:
            thread.join()
    places = sorted(
        int(position) for text in found.values() for position in re.findall(r": queue position (\d+)", text)[:1]
    )
    assert len(places) >= 2
    assert places[-1] >= 3
    texts = {"".join(_texts(answer)) for answer in found.values()}
    assert len(texts) == 1  # whoever waited has the same bytes


def _texts(answer: str) -> list[str]:
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"]]
