"""Where the router sends requests, judged by what they take: a clock and nodes that compute as they say."""

from __future__ import annotations

import pytest

pytest.importorskip("msgspec")

from rung.fleet.router import Job, Node, Rates, Router, pieces_of


def router(*speeds: float, slots: int = 4) -> Router:
    found = Router()
    for number, speed in enumerate(speeds):
        found.add(Node(f"n{number}", slots, Rates(1000 * speed, 20 * speed, 40 * speed)))
    return found


def run(found: Router, jobs: list[Job], speeds: dict[str, float]) -> dict[int, tuple[str, float]]:
    """Node and end of each job: a node shares its real speed (tokens a second in sum) among its jobs."""
    for job in jobs:
        found.enter(job)
    ends: dict[int, tuple[str, float]] = {}
    now, left = 0.0, {job.number: float(job.tokens) for job in jobs}
    while len(ends) < len(jobs):
        found.assign(now)
        step = min(
            (left[n] * len(node.running) / speeds[name], n, name)
            for name, node in found.nodes.items()
            for n in node.running
        )[0]
        for name, node in found.nodes.items():
            for number, job in list(node.running.items()):
                done = step * speeds[name] / len(node.running)
                left[number] -= done
                node.add(job, max(int(job.tokens - left[number]) - job.came, 0), now + step)
        now += step
        for name, node in found.nodes.items():
            for number, job in list(node.running.items()):
                if left[number] < 1e-6:
                    node.end(job, now)
                    ends[number] = name, now
    return ends


def test_unlike_nodes_reach_nine_tenths_of_their_sum():
    speeds = {"n0": 40.0, "n1": 80.0, "n2": 160.0}
    ends = run(router(1, 2, 4), [Job(k, "", 20, 64) for k in range(64)], speeds)
    assert max(end for _, end in ends.values()) <= 64 * 64 / sum(speeds.values()) / 0.9


def test_a_node_that_is_slower_than_it_said_gets_less():
    """Twice as fast in words, ten times as slow in deeds: what it is measured at counts."""
    speeds = {"n0": 40.0, "n1": 8.0}
    found = router(1, 2)
    ends = run(found, [Job(k, "", 20, 64) for k in range(48)], speeds)
    assert found.nodes["n1"].speed < 0.3
    assert sum(name == "n1" for name, _ in ends.values()) <= 16


def test_owners_take_turns():
    found = router(1, slots=1)
    for number in range(20):
        found.enter(Job(number, "greedy", 10, 10))
    found.enter(Job(99, "modest", 10, 10))
    order = []
    for now in range(4):
        ((job, node),) = found.assign(float(now))
        order.append(job.owner)
        node.end(job, float(now))
    assert order[:2].count("modest") == 1 or order[:3].count("modest") == 1


def test_the_node_that_read_a_prompt_gets_its_continuation():
    found = router(1, 1)
    text = "a long beginning " * 200
    first = Job(1, "", len(text) // 4, 1, pieces=pieces_of(text))
    found.enter(first)
    ((_, node),) = found.assign(0.0)
    node.end(first, 1.0)
    again = Job(2, "", len(text) // 4 + 50, 1, pieces=pieces_of(text + " and more" * 20))
    found.enter(again)
    ((_, chosen),) = found.assign(1.0)
    assert chosen is node
    assert chosen.unread(again) < again.prompt // 4


def test_nodes_that_leave_or_were_lost_get_nothing():
    found = router(1, 1)
    found.nodes["n0"].is_draining = True
    found.enter(Job(1, "", 10, 10))
    ((_, node),) = found.assign(0.0)
    assert node.name == "n1"
    found.nodes["n0"].is_draining = False
    found.enter(Job(2, "", 10, 10, lost_on={"n1"}), first=True)
    ((_, node),) = found.assign(0.0)
    assert node.name == "n0"


def test_a_request_for_more_answers_than_a_node_has_slots_runs_alone():
    found = router(1, slots=4)
    found.enter(Job(1, "", 10, 10, answers=9))
    ((job, node),) = found.assign(0.0)
    found.enter(Job(2, "", 10, 10))
    assert found.assign(0.0) == []
    node.end(job, 1.0)
    assert len(found.assign(1.0)) == 1


def test_one_that_waits_no_longer_is_forgotten():
    found = router(1, slots=1)
    jobs = [Job(k, "", 10, 10) for k in range(3)]
    for job in jobs:
        found.enter(job)
    ((_, node),) = found.assign(0.0)
    found.withdraw(jobs[1])
    assert found.positions() == {2: 1}
    node.end(jobs[0], 1.0)
    assert [job.number for job, _ in found.assign(1.0)] == [2]
    assert found.waiting == 0
