"""Requests that find the queue full: when they shall come again, and that they have a place then."""

from __future__ import annotations

import heapq

import pytest

from rung.server.admission import Admission
from rung.server.errors import ApiError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(admission: Admission, request: bytes = b"another", owner: str = "", answers: int = 1) -> ApiError:
    with pytest.raises(ApiError) as refused:
        admission.enter(owner, answers, request)
    return refused.value


def busy(clock: Clock, seconds: float, waiting: int = 10) -> tuple[Admission, list]:
    """A full queue of which an answer has ended each so many seconds for a while."""
    admission = Admission(most_waiting=waiting, clock=clock)
    tickets = [admission.enter("", 1, b"%d" % number) for number in range(waiting + 1)]
    for number in range(40):
        clock.now += seconds
        tickets.pop(0).release()
        tickets.append(admission.enter("", 1, b"later %d" % number))
    return admission, tickets


def test_a_queue_has_an_end_and_says_when_there_is_room():
    admission = Admission(most_waiting=3)
    admission.parallel = 2
    tickets = [admission.enter("", 1, b"%d" % number) for number in range(5)]
    refused = refusal(admission)
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert 0 < float(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"])
    tickets[0].release()
    tickets[0].release()  # once is enough
    assert admission.taken == 4


def test_one_key_of_several_does_not_fill_the_queue():
    admission = Admission(most_waiting=6, shared=True)
    admission.parallel = 2
    for number in range(6):
        admission.enter("greedy", 1, b"%d" % number)
    refusal(admission, owner="greedy")
    admission.enter("other", 1, b"x")


def test_each_refusal_names_a_later_time_by_the_rate_of_answers():
    clock = Clock()
    admission, _ = busy(clock, 3)
    found = [refusal(admission, b"%d" % number).retry_after for number in range(20)]
    assert found == sorted(found)
    # the queue is half empty after 5 answers; then comes one after the other
    assert [found[0], found[-1]] == pytest.approx([18, 75], rel=0.05)
    clock.now += 100  # nobody came again
    assert refusal(admission).retry_after < 40


def test_a_request_that_comes_too_early_keeps_its_turn():
    clock = Clock()
    admission, _ = busy(clock, 1)
    first, last = refusal(admission, b"first").retry_after, refusal(admission, b"last").retry_after
    clock.now += first / 2
    assert refusal(admission, b"first").retry_after == pytest.approx(first / 2)
    assert refusal(admission, b"last").retry_after == pytest.approx(last - first / 2)


def test_equal_requests_of_clients_that_say_so_have_a_turn_each():
    clock = Clock()
    admission, tickets = busy(clock, 1)

    def refuse(is_new):
        with pytest.raises(ApiError) as refused:
            admission.enter("", 1, b"equal", is_new)
        return refused.value.retry_after

    first, second = refuse(True), refuse(True)
    assert second > first
    assert refuse(False) == first  # too early: one of the two
    for ticket in tickets[:8]:
        clock.now += 1
        ticket.release()
    clock.now = max(clock.now, 1040 + second)
    admission.enter("", 1, b"equal")
    admission.enter("", 1, b"equal")


def test_whoever_was_refused_comes_before_new_requests():
    clock = Clock()
    admission, tickets = busy(clock, 1)
    wait = refusal(admission, b"refused").retry_after
    for ticket in tickets[:6]:
        clock.now += 1
        ticket.release()
    clock.now = max(clock.now, 1040 + wait)
    refusal(admission, b"new")  # half of the queue is for those that were refused
    admission.enter("", 1, b"refused")


def test_a_key_without_turns_leaves_those_of_others_their_places():
    clock = Clock()
    admission, tickets = busy(clock, 1)
    wait = refusal(admission, b"refused", owner="a").retry_after
    clock.now += wait
    tickets.pop().release()
    refusal(admission, b"new", owner="b")
    tickets.pop().release()
    admission.enter("c", 1, b"newer")
    admission.enter("a", 1, b"refused")


def test_turns_of_other_keys_do_not_lengthen_a_wait_by_more_than_their_share():
    clock = Clock()
    admission, _ = busy(clock, 1)
    for number in range(100):
        refusal(admission, b"%d" % number, owner="flood")
    alone = 6 * 2  # five answers until the queue is half empty and one, and of the other key as many
    assert refusal(admission, b"x", owner="calm").retry_after == pytest.approx(alone, rel=0.1)


@pytest.mark.parametrize("whole", [False, True], ids=["milliseconds", "seconds"])
def test_named_times_hold_while_new_requests_come(whole):
    """400 clients that come again when they are told, and 200 new ones meanwhile; an answer takes 0.13 s."""
    clock = Clock()
    admission, computed = busy(clock, 0.13, 64)
    first: dict[int, tuple[float, float]] = {}
    errors, begun, idle = [], clock.now, 0.0
    events = [(begun + number / 1e6, number) for number in range(400)]
    events += [(begun + number / 8, 1000 + number) for number in range(200)]
    heapq.heapify(events)
    free = begun + 0.13
    while events:
        came, number = heapq.heappop(events)
        while computed and free <= came:
            clock.now = free
            computed.pop(0).release()
            free += 0.13
        if not computed:
            idle, free = idle + came - free, came + 0.13
        clock.now = came
        try:
            computed.append(admission.enter("", 1, b"%d" % number))
        except ApiError as error:
            wait = float(error.headers["retry-after"] if whole else error.headers["retry-after-ms"])
            wait /= 1 if whole else 1000
            first.setdefault(number, (came, wait))
            heapq.heappush(events, (came + wait, number))
            assert len(first) < 1000
        else:
            if number in first:
                errors.append((came - first[number][0]) / first[number][1])
    assert len(errors) == len(first) > 300
    assert max(errors) < 1.3
    assert idle < 1
