"""Faults in the middle of answers: they go on, one rung lower, and say from which token on."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import openai
import pytest

from rung.core.errors import DeviceError, DeviceLost, NoRung, OutOfMemory
from rung.engine.load import load
from rung.server.child.engine_child import lower
from tests.server.conftest import PLANTED, serving
from tests.support.devices import software_adapter

adapter = software_adapter()
HELLO = [{"role": "user", "content": "hello"}]
TOKENS = 450


@pytest.fixture
def request_body(endless):
    return {"model": "demo", "messages": HELLO, "max_tokens": TOKENS, "logit_bias": endless}


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def read(server, request_body, in_the_middle) -> list[tuple[str, dict]]:
    """Stream two answers, greedy and drawn, and do something in their middle: text and ``rung`` of each."""
    found: list[tuple[str, dict]] = [("", {}), ("", {})]
    middle = threading.Barrier(3)

    def stream(number: int, client: openai.OpenAI, **more) -> None:
        with client:
            chunks = client.chat.completions.create(
                **request_body, **more, stream=True, stream_options={"include_usage": True}
            )
            text = ""
            for count, chunk in enumerate(chunks):
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                if count == 3:
                    middle.wait(60)
                if not chunk.choices:
                    assert chunk.usage.completion_tokens == request_body["max_tokens"]
                    found[number] = text, chunk.model_extra["rung"]

    more = ({}, {"temperature": 1.0, "seed": 7})
    clients = [client_of(server), client_of(server)]  # which takes a while
    threads = [threading.Thread(target=stream, args=(n, clients[n]), kwargs=each) for n, each in enumerate(more)]
    for thread in threads:
        thread.start()
    middle.wait(60)
    in_the_middle()
    for thread in threads:
        thread.join()
    return found


def expected(model, request_body) -> list[str]:
    bias = {int(token): value for token, value in request_body["logit_bias"].items()}
    options = {"max_tokens": TOKENS, "logit_bias": bias}
    return ["".join(model.chat(HELLO, **options, **more)) for more in ({}, {"temperature": 1.0, "seed": 7})]


def test_answers_go_on_with_the_same_bytes_when_their_engine_is_killed(tmp_path, request_body, model):
    with serving(tmp_path, "demo", "--parallel", "2") as server:
        found = read(server, request_body, lambda: os.kill(server.engine(), signal.SIGKILL))
        assert [text for text, _ in found] == expected(model, request_body)
        assert all("same_bytes_until" not in ran and not ran["steps"] for _, ran in found)
        assert "started again" in server.said()


@pytest.mark.levels
def test_a_kernel_that_fails_is_left_and_the_answer_says_where(tmp_path, request_body, model, fault):
    with serving(tmp_path, "demo", "--parallel", "2", first=PLANTED) as server:
        found = read(server, request_body, lambda: fault.write_text("kernel"))
        assert not fault.exists()
        check_marks(found, expected(model, request_body), model)
        for _, ran in found:
            (step,) = ran["steps"]
            assert (step["rung"], step["step"]) == ("numba.step", "broken")
            assert "no kernel image" in step["reason"]
        ran = server.call("/v1/chat/completions", {**request_body, "max_tokens": 4})[1]["rung"]
        assert (ran["same_bytes_until"], len(ran["steps"])) == (0, 1)


def check_marks(found, alone, model) -> None:
    """Up to the mark the text is as it is without a fault."""
    for (text, ran), whole in zip(found, alone, strict=True):
        until = ran["same_bytes_until"]
        assert 0 < until < TOKENS
        kept = len(model.tokenizer.decode(model.tokenizer.encode(whole, special=False, bos=False)[: until // 2]))
        assert text[:kept] == whole[:kept]


@pytest.mark.levels
def test_a_process_that_ends_in_its_own_code_goes_on_at_a_lower_level(tmp_path, request_body, model, fault):
    with serving(tmp_path, "demo", "--parallel", "2", first=PLANTED) as server:
        first = server.engine()
        found = read(server, request_body, lambda: fault.write_text("segfault"))
        assert server.engine() != first
        check_marks(found, expected(model, request_body), model)
        (step,) = found[0][1]["steps"]
        assert "SIGSEGV" in step["reason"]
        assert step["to"] in server.said()


def test_where_memory_is_short_a_new_process_goes_on(tmp_path, request_body, model, fault):
    with serving(tmp_path, "demo", "--parallel", "2", "--context", "512", first=PLANTED) as server:
        found = read(server, request_body, lambda: fault.write_text("memory"))
        check_marks(found, expected(model, request_body), model)
        (step,) = (step for step in found[0][1]["steps"] if step["op"] == "plan")
        assert (step["step"], step["reason"]) == ("out of memory", "The planted memory is full.")
        assert step["to"] == "the same plan in a new process"  # none is smaller with that context


def test_the_plan_after_short_memory_is_a_smaller_one(model):
    plan = load("demo", device="cpu", context=512, memory="2GB").plan
    error = OutOfMemory("full")
    (budget,) = lower(plan, error).options["memory"].values()
    use = plan.placements[0].memory
    assert budget == pytest.approx(use.most - 0.2 * (use.total - use.runtime), abs=1)
    assert lower(plan, error, "2GB").options["memory"] == {"*": 2 * 2**30, "cpu": budget}
    assert lower(plan, error, "2GB").step["to"] == lower(plan, error).step["to"]
    assert lower(plan, DeviceLost("gone")) is None  # there is nothing below a CPU
    assert lower(plan, AssertionError("a bug")) is None
    assert lower(plan, DeviceError("no numbers")) is None


@pytest.mark.parametrize("error", [DeviceLost("gone"), DeviceError("no numbers"), NoRung("none is left")])
def test_a_card_that_is_lost_or_wrong_is_left_for_the_processor(model, error):
    (placement,) = model.plan.placements
    plan = replace(model.plan, placements=(replace(placement, device="webgpu:0"),))
    found = lower(plan, error)
    assert found.options == {"device": "cpu", "memory": None}
    assert (found.step["device"], found.step["to"], found.step["reason"]) == ("webgpu:0", "cpu", error.cause)


def check_lost(tmp_path, request_body, fault, device, name) -> None:
    """Serve on a device that is lost in the middle of two streams: they go on on the processor, and say so."""
    with serving(tmp_path, "demo", "--parallel", "2", "--device", device, first=PLANTED) as server:
        found = read(server, {**request_body, "max_tokens": 120}, lambda: fault.write_text("lost"))
        cut = [ran for _, ran in found if "same_bytes_until" in ran]  # the other may have ended before
        assert cut
        for ran in cut:
            assert (ran["devices"], 0 < ran["same_bytes_until"] < 120) == (["cpu"], True)
            (step,) = (step for step in ran["steps"] if step["step"] == "device lost")
            assert (step["device"], step["to"]) == (name, "cpu")


def test_a_lost_card_is_left_for_the_processor(tmp_path, request_body, fault):
    pytest.importorskip("torch", reason="cards are simulated for torch")
    check_lost(tmp_path, request_body, fault, "sim:p2200", "cuda:0")


def test_a_lost_device_of_webgpu_is_left_for_the_processor(tmp_path, request_body, fault, adapter):
    check_lost(tmp_path, request_body, fault, adapter.id, adapter.id)


def test_a_bug_ends_its_answers_alone(tmp_path, request_body, fault):
    with serving(tmp_path, "demo", "--parallel", "2", first=PLANTED) as server:
        fault.write_text("bug")
        status, body, _ = server.call("/v1/chat/completions", request_body)
        assert (status, body["error"]["code"]) == (500, "engine-failed")
        assert "planted" not in body["error"]["message"]
        assert server.call("/v1/chat/completions", {**request_body, "max_tokens": 2})[0] == 200


@pytest.mark.levels
def test_an_answer_that_always_kills_its_engine_is_given_up(tmp_path, request_body, fault):
    with serving(tmp_path, "demo", "--parallel", "2", first=PLANTED) as server:
        stop = threading.Event()

        def go_on_planting() -> None:
            while not stop.wait(0.05):
                if not fault.exists():
                    fault.write_text("segfault")

        thread = threading.Thread(target=go_on_planting)
        thread.start()
        status, body, _ = server.call("/v1/chat/completions", request_body)
        stop.set()
        thread.join()
        fault.unlink(missing_ok=True)
        assert (status, body["error"]["code"]) == (503, "engine_ended")
        assert server.call("/v1/chat/completions", {**request_body, "max_tokens": 2})[0] == 200
