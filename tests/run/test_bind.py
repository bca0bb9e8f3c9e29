"""Binding: self-check, quarantine, repeat one rung lower, report; each step down made to happen."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rung import formats
from rung.core.errors import DeviceLost, NoRung, OutOfMemory
from rung.core.types import Case, Device, Ladder, Rung, StepClass
from rung.core.value import FrozenDict
from rung.run import self_check
from rung.run.binding import Binder, Embedding
from rung.run.journal import Journal
from rung.run.worker import Outcome
from tests.run import bad_rungs

CPU = Device("cpu", "cpu", "a processor", "x86_64", 2**34, software=FrozenDict({"torch": "0"}))
ROOT = str(bad_rungs.__file__).removesuffix("/tests/run/bad_rungs.py")


#: In a packing that only few rows can use, and one of rows.
FEW = Rung("linear", "test.few", "tests.run.bad_rungs:GOOD", packing="lonely", check="tests.run.test_bind:only_few")
ROWS = Rung("embedding", "test.rows", "tests.run.bad_rungs:ROWS", packing="special")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Every rung here is checked once, and the one that ends its child last: a check imports torch there."""
    folder, shape = str(tmp_path_factory.mktemp("cache")), (48, 64)
    tops = [bad_rungs.ladder(name).rungs[0] for name in ("GOOD", "WRONG_ROW", "NAN", "REFUSES", "SEGFAULT")]
    cases = [(FEW, Case("linear", "q8_0", "f32", (1, *shape))), (ROWS, Case("embedding", "q8_0", "f32", (1, *shape)))]
    cases += [(top, Case("linear", "q8_0", "f32", (rows, *shape))) for top in tops for rows in (1, 256)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_CACHE", folder)
        patch.setattr(sys, "path", [ROOT, *sys.path])
        self_check.prove(CPU, cases)
    return folder


@pytest.fixture(autouse=True)
def _fresh(cache, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", cache)
    monkeypatch.setattr(sys, "path", [ROOT, *sys.path])
    monkeypatch.setattr(bad_rungs.Refuses, "armed", False)
    monkeypatch.setattr(bad_rungs.Rows, "armed", False)


@pytest.fixture
def nothing_proved(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))


def weight():
    values = np.random.default_rng(3).standard_normal((48, 64), dtype=np.float32)
    return formats.encode(values, formats.get("q8_0"), "w")


def bound(name):
    journal = Journal()
    binder = Binder(CPU, journal, ladders={"linear": bad_rungs.ladder(name)})
    return binder.linear(weight()), journal


def check_values(linear, rows=3):
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    want = x @ torch.from_numpy(formats.decode(weight())).T
    torch.testing.assert_close(linear(x), want)


def test_a_good_rung_is_taken_and_nothing_is_said():
    linear, journal = bound("GOOD")
    assert [rung.name for rung in linear.rungs] == ["test.good", "test.good"]
    assert journal.report(FrozenDict(), FrozenDict()).steps == ()
    check_values(linear)


@pytest.mark.parametrize(
    ("name", "words"),
    [("WRONG_ROW", "instead of"), ("NAN", "NaN or infinite"), ("SEGFAULT", "crashed")],
)
def test_a_rung_that_fails_its_self_check_is_quarantined_and_reported(name, words):
    linear, journal = bound(name)
    assert [rung.name for rung in linear.rungs] == ["ref", "ref"]
    check_values(linear)
    (step,) = {(s.rung, s.step, s.to) for s in journal.report(FrozenDict(), FrozenDict()).steps}
    assert step == (f"test.{name.lower()}", StepClass.BROKEN, "ref")
    assert all(words in s.reason for s in journal.report(FrozenDict(), FrozenDict()).steps)


def test_a_rung_that_raises_is_left_and_the_call_repeated(monkeypatch):
    linear, journal = bound("REFUSES")
    assert linear.rungs[0].name == "test.refuses"
    monkeypatch.setattr(bad_rungs.Refuses, "armed", True)
    check_values(linear)
    assert [rung.name for rung in linear.rungs] == ["ref", "ref"]
    steps = journal.report(FrozenDict(), FrozenDict()).steps
    assert {(s.rung, s.step, s.to) for s in steps} == {("test.refuses", StepClass.BROKEN, "ref")}
    assert "cuBLAS has no such multiplication" in steps[0].reason


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB", OutOfMemory),
        ("CUDA error: an illegal memory access was encountered", DeviceLost),
    ],
)
def test_memory_and_a_lost_device_quarantine_nothing(monkeypatch, message, error):
    linear, journal = bound("REFUSES")
    monkeypatch.setattr(bad_rungs.Refuses, "armed", True)
    monkeypatch.setattr(bad_rungs.Refuses, "message", message)
    with pytest.raises(error) as caught:
        check_values(linear)
    assert caught.value.ways_out
    assert linear.rungs[0].name == "test.refuses"
    assert journal.report(FrozenDict(), FrozenDict()).steps == ()


def test_a_bug_propagates(monkeypatch):
    linear, _ = bound("REFUSES")
    monkeypatch.setattr(bad_rungs.Refuses, "armed", True)
    monkeypatch.setattr(bad_rungs.Refuses, "message", "shapes do not match")
    with pytest.raises(RuntimeError, match="shapes do not match"):
        check_values(linear)


def test_a_proof_is_kept_on_disk(monkeypatch):
    bound("GOOD")
    monkeypatch.setattr("rung.run.worker.run", lambda *a, **k: pytest.fail("a second child was started"))
    bound("GOOD")


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome("raised", error="OSError: [Errno 28] No space left on device"), False),
        (Outcome("crashed", error="the process was killed, as the kernel does when memory runs out"), False),
        (Outcome("timeout", error="no answer within 120 s"), False),
        (Outcome("crashed", error="segmentation fault"), True),
        (Outcome("returned", {"ok": False, "reason": "value (0, 41) is 1.9 instead of 1.3"}), True),
    ],
    ids=["disk", "memory", "time", "crash", "wrong"],
)
def test_what_the_moment_did_is_checked_again_and_a_finding_is_kept(monkeypatch, nothing_proved, outcome, kept):
    counts = []

    def run(jobs, limit, **options):
        counts.append(len(jobs))
        return [outcome] * len(jobs)

    monkeypatch.setattr("rung.run.worker.run", run)
    for _ in range(2):
        linear, journal = bound("GOOD")
        assert {rung.name for rung in linear.rungs} == {"ref"}
        assert {s.step for s in journal.report(FrozenDict(), FrozenDict()).steps} == {StepClass.BROKEN}
    assert counts == [2] * (1 if kept else 2)  # for few rows and for many, in one child


def test_two_cores_check_products_and_the_rest_at_once(monkeypatch, nothing_proved):
    """Each verdict is that of its own rung; on one core, or with little memory, one child does all of it.

    The child of products compiles for whole tokens when it is done with its own.
    """
    cases = [
        (bad_rungs.ladder("GOOD").rungs[0], Case("linear", "q8_0", "f32", (1, 48, 64))),
        (replace(ROWS, op="attention", name="second"), Case("attention", "f16", "f32", (1, 64, 2, 2, 16))),
        (ROWS, Case("embedding", "q8_0", "f32", (1, 48, 64))),
        (replace(ROWS, op="decode_step", name="third"), Case("decode_step", "f16", "f32", (1, 64))),
    ]
    calls = []

    def answers(jobs):
        names = [job.arguments["rung"]["name"] for job in jobs]
        calls.append(names)
        return [Outcome("returned", {"ok": name != "second", "reason": name}) for name in names]

    class Second:
        def __init__(self, jobs, limit, environment):
            self.jobs = jobs

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def outcomes(self):
            return answers(self.jobs)

    monkeypatch.setattr("rung.run.worker.run", lambda jobs, limit, **options: answers(jobs))
    monkeypatch.setattr("rung.run.worker.SecondChild", Second)
    for cores, memory, several in ((2, 2**34, True), (1, 2**34, False), (2, 2**30, False)):
        device = replace(CPU, memory=memory, name=f"{cores} {memory}", details=FrozenDict({"cores": cores}))
        found = self_check.prove(device, cases)
        assert [bool(found[rung, self_check.class_of(case)]) for rung, case in cases] == [True, False, True, True]
        names = [rung.name for rung, _ in cases]
        assert calls == ([[names[0], names[2], "third"], [names[1], "third"]] if several else [names])
        calls.clear()


def test_a_proof_is_of_one_class_of_cases(monkeypatch, nothing_proved):
    """A proof for few rows says nothing of many, of another format or another dtype."""
    rung = bad_rungs.ladder("GOOD").rungs[0]
    cases = [
        Case("linear", "q8_0", "f32", (1, 48, 64)),
        Case("linear", "q8_0", "f32", (256, 48, 64)),
        Case("linear", "q4_0", "f32", (1, 48, 64)),
        Case("linear", "q8_0", "bf16", (1, 48, 64)),
    ]
    counts = []

    def run(jobs, limit, **options):
        counts.append(len(jobs))
        return [Outcome("returned", {"ok": True, "reason": ""})] * len(jobs)

    monkeypatch.setattr("rung.run.worker.run", run)
    for case in cases:
        self_check.prove(CPU, [(rung, case)])
    assert counts == [1, 1, 1, 1]
    self_check.prove(CPU, [(rung, replace(case, shape=(case.shape[0], 96, 128))) for case in cases])
    assert counts == [1, 1, 1, 1]
    for other in (replace(CPU, software=FrozenDict({"torch": "1"})), replace(CPU, name="another")):
        self_check.prove(other, [(rung, cases[0])])
    monkeypatch.setattr(self_check, "source_hash", lambda: "changed")
    self_check.prove(CPU, [(rung, cases[0])])
    self_check.prove(CPU, [(replace(rung, version=2), cases[0])])
    assert counts == [1] * 8


def test_no_rung_raises_with_the_trail():
    ladder = Ladder("linear", (Rung("linear", "ref", "tests.run.bad_rungs:GOOD", kinds=("cuda",)),))
    with pytest.raises(NoRung) as caught:
        Binder(CPU, Journal(), ladders={"linear": ladder}).linear(weight())
    assert "ref: runs on cuda, not on cpu" in caught.value.facts


def test_a_packing_that_only_few_rows_can_use_is_not_taken():
    """A weight is held once: a rung for few rows without a partner for many is passed over."""
    ladder = Ladder("linear", (FEW, Rung("linear", "ref", "tests.run.bad_rungs:GOOD")))
    linear = Binder(CPU, Journal(), ladders={"linear": ladder}).linear(weight())
    assert [rung.name for rung in linear.rungs] == ["ref", "ref"]


def tied():
    """A head in a packing of its own above the real ``ref``, the embedding that shares it, and their journal."""
    below = Rung("linear", "ref", "rung.ops.linear.ref:RUNG")
    ladders = {
        "linear": Ladder("linear", (bad_rungs.ladder("REFUSES").rungs[0], below)),
        "embedding": Ladder("embedding", (ROWS, Rung("embedding", "ref", "rung.ops.embedding.ref:RUNG"))),
    }
    journal = Journal()
    binder = Binder(CPU, journal, ladders=ladders)
    head = binder.linear(weight())
    return head, Embedding(binder, tied=head), journal


def check_rows(embedding):
    want = formats.decode(weight())
    np.testing.assert_array_equal(embedding.rows([5])[0], want[5])
    np.testing.assert_array_equal(embedding(torch.tensor([7, 5])).numpy(), want[[7, 5]])


def test_rows_of_a_tied_head_are_found_after_the_head_has_stepped_down(monkeypatch):
    head, embedding, _ = tied()
    check_rows(embedding)
    monkeypatch.setattr(bad_rungs.Refuses, "armed", True)
    check_values(head)
    assert head.rungs[0].name == "ref"
    check_rows(embedding)


def test_a_row_that_cannot_be_read_is_the_embeddings_step_down(monkeypatch):
    _, embedding, journal = tied()
    assert embedding.rung.name == "test.rows"
    monkeypatch.setattr(bad_rungs.Rows, "armed", True)
    check_rows(embedding)
    steps = journal.report(FrozenDict(), FrozenDict()).steps
    assert [(s.op, s.rung, s.to) for s in steps] == [("embedding", "test.rows", "ref")]


def only_few(case, device):
    from rung.core.types import YES, no

    return YES if case.shape[0] <= 8 else no("takes few rows")
