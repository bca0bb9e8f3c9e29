"""The public interface: every name, and what a loaded model promises."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import rung
from rung.core.errors import ContextTooLong, DoesNotFit, UnknownDevice, UnknownFormat, UsageError
from rung.core.text import parse_size
from rung.engine.chat import Template
from rung.engine.load import load as load_on
from tests.fixtures import references

PATH = references.fixture("llama-q4_0").path
LAYERS = references.fixture("gemma3-f32").path
KEYS = {
    *("text", "tokens", "prompt_tokens", "prefill_tokens_per_second", "decode_tokens_per_second", "stop_reason"),
    *("peak_memory_bytes", "plan", "report"),
}
IDS = [1, *range(40, 80)]


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny model of random weights, without a chat template."""
    return rung.load(PATH, device="cpu")


@pytest.fixture(scope="module")
def demo() -> Any:
    """The embedded model, which chats."""
    return rung.load("demo", device="cpu")


def test_every_public_name_after_every_submodule_was_imported() -> None:
    """Importing a submodule binds its name in the package: it must not be the name of a function."""
    found = [one.name for one in pkgutil.walk_packages(rung.__path__, "rung.")]
    assert len(found) > 100
    for name in found:
        if not (name.endswith("__main__") or (name.startswith("rung.fleet") and not find_spec("ray"))):
            importlib.import_module(name)
    devices = rung.devices()
    assert devices
    assert all(isinstance(device, rung.Device) for device in devices)
    card = rung.card(PATH)
    assert card.decoder.model_type == "llama"
    plan = rung.plan(card)
    assert isinstance(plan, rung.Plan)
    assert rung.plan(PATH, devices) == rung.plan(str(PATH), devices)
    assert isinstance(rung.load(PATH).report, rung.Report)
    with pytest.raises(rung.RungError):
        rung.card("no/such/file.gguf")
    assert rung.__version__
    called = {"Device", "Plan", "Report", "RungError", "__version__", "card", "devices", "load", "plan"}
    # these have tests of their own
    elsewhere = {"Defect", "QuantizationConfig", "Trace", "check", "device", "explain", "quantize", "simulate", "trace"}
    assert set(rung.__all__) == called | elsewhere == set(dir(rung))
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = rung.nothing_of_that_name


def test_logits(model: Any) -> None:
    logits = model.logits(IDS)
    assert logits.dtype == torch.float32
    assert logits.shape == (len(IDS), model.card.decoder.vocabulary)
    assert torch.equal(logits, model.logits(IDS))
    # what comes later changes nothing before; other numbers of rows take other rungs
    for count in (3, 20):
        assert references.agreement(logits[:count].numpy(), model.logits(IDS[:count]).numpy()).divergence < 1e-3


@pytest.mark.parametrize("ids", [[], [-1], [1, 10**6]])
def test_ids_that_do_not_exist(model: Any, ids: list[int]) -> None:
    with pytest.raises(UsageError):
        model.logits(ids)


def test_a_result_has_the_keys_of_json(model: Any) -> None:
    answer = model.generate("the model number", temperature=0, max_tokens=9)
    pieces = list(answer)
    result = answer.result
    assert result.keys() >= KEYS
    assert json.loads(json.dumps(result)) == result
    assert result["text"] == "".join(pieces)
    assert len(result["tokens"]) == 9
    assert result["stop_reason"] == "length"
    assert result["prompt_tokens"] == len(model.tokenizer.encode("the model number", special=True, bos=True))
    assert result["prefill_tokens_per_second"] > 0 < result["decode_tokens_per_second"]
    assert rung.Plan.from_json(result["plan"]) == model.plan
    assert rung.Report.from_json(result["report"]).rungs == model.report.rungs
    assert result["peak_memory_bytes"] > 2**20


def test_the_same_prompt_again_costs_its_last_token_and_says_the_same(demo: Any) -> None:
    answers = [demo.generate("Does a GTX 1080 multiply bfloat16?", temperature=0) for _ in range(3)]
    texts = ["".join(answer) for answer in answers]
    assert texts[0]
    assert texts[0] == texts[1] == texts[2]
    assert [each.result["prompt_tokens"] - each.result["cached_tokens"] for each in answers[1:]] == [1, 1]


def test_chat_goes_on_from_what_the_cache_holds(demo: Any) -> None:
    first = [{"role": "user", "content": "hello"}]
    answer = demo.chat(first, temperature=0, max_tokens=40)
    said = "".join(answer)
    assert said
    assert answer.result["stop_reason"] == "end"
    more = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "Does a T4 have int8?"}]
    second = demo.chat(more, temperature=0, max_tokens=40)
    list(second)
    assert second.result["cached_tokens"] == answer.result["prompt_tokens"] + len(answer.result["tokens"])


def test_system_text_and_one_bos_reach_the_model(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[int], bool]] = []
    monkeypatch.setattr(demo, "start", lambda ids, goes_on, **options: started.append((ids, goes_on)))
    user = {"role": "user", "content": "hello"}
    for source in (demo.card.chat_template, "{{ bos_token }}{{ messages | tojson }}", "{{ messages | tojson }}"):
        monkeypatch.setattr(demo, "template", Template(source, demo.tokenizer.named))
        started.clear()
        demo.generate("hello", system="Be brief.")
        demo.chat([{"role": "system", "content": "Be brief."}, user])
        demo.generate("hello")
        demo.generate("hello", raw=True)
        (first, _), (second, _), (plain, _), (raw, _) = started
        assert first == second != plain
        assert "be brief." in demo.tokenizer.decode(first).lower()
        assert "be brief." not in demo.tokenizer.decode(plain).lower()
        assert raw == demo.tokenizer.encode("hello", special=True, bos=True)
        assert [ids.count(demo.tokenizer.bos) for ids, _ in started] == [1] * 4
        assert [goes_on for _, goes_on in started] == [False, False, False, True]


def test_an_answer_begins_a_text_and_a_continuation_goes_on(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tokenizer puts a space before a text, an answer must not begin with it, and a continuation must."""
    starts: list[bool] = []
    monkeypatch.setattr("rung.engine.model.TextStream", lambda tokenizer, stops, *, start: starts.append(start))
    demo.generate("hello")
    demo.generate("hello", raw=True)
    assert starts == [True, False]


def test_chat_without_a_template_is_refused_with_a_way_out(model: Any) -> None:
    with pytest.raises(UsageError, match="no chat template") as caught:
        model.chat([{"role": "user", "content": "hello"}])
    assert caught.value.ways_out


def test_stop(model: Any) -> None:
    answer = model.generate("the model", temperature=0)
    next(iter(answer))
    result = answer.stop()
    assert result.keys() >= KEYS
    assert result["stop_reason"] == "stopped"
    assert len(result["tokens"]) < 20
    assert list(answer) == []
    whole = "".join(model.generate("the model", temperature=0, max_tokens=30))
    end = whole[len(whole) // 2 :][:3]
    cut = model.generate("the model", temperature=0, max_tokens=30, stop=[end])
    assert "".join(cut) == whole[: whole.index(end)]
    assert cut.result["stop_reason"] == "stop"


def test_a_context_ends_an_answer_and_refuses_a_longer_prompt() -> None:
    model = rung.load(PATH, device="cpu", context=24)
    answer = model.generate("the model number", temperature=0)
    list(answer)
    assert answer.result["stop_reason"] in ("context", "end")
    assert answer.result["prompt_tokens"] + len(answer.result["tokens"]) <= 25
    with pytest.raises(ContextTooLong) as caught:
        model.generate("the model number " * 20)
    assert any("--context" in way for way in caught.value.ways_out)
    words = "the model number " * 20
    lengths = [len(model.tokenizer.encode(words[:end], special=True, bos=True)) for end in range(len(words))]
    assert {23, 24} <= set(lengths)
    list(model.generate(words[: lengths.index(23)], max_tokens=1))
    with pytest.raises(ContextTooLong, match="has 24 tokens, the context holds 24"):
        model.generate(words[: lengths.index(24)])
    with pytest.raises(ContextTooLong):
        model.logits([1] * 25)
    assert model.logits([1] * 24).shape[0] == 24
    with pytest.raises(ContextTooLong):
        rung.load(PATH, context=129)


def test_wishes_that_cannot_be_met_are_refused() -> None:
    with pytest.raises(UnknownFormat, match="q4_k"):
        rung.load(PATH, format="q4k")
    with pytest.raises(UnknownDevice):
        rung.load(PATH, device="cuda:7")
    with pytest.raises(DoesNotFit) as caught:
        rung.load(PATH, memory="40MB")
    assert caught.value.ways_out


def test_a_budget_is_kept_to_the_full_context() -> None:
    """In a process of its own: its resident peak is what the budget is about."""
    program = (
        "import sys, rung\n"
        "model = rung.load('demo', device='cpu', memory=sys.argv[1])\n"
        "model.logits(list(range(3, 3 + model.plan.context)))\n"
        "answer = model.generate(model.example)\n"
        "list(answer)\n"
        "print(answer.result['peak_memory_bytes'], model.plan.memory)"
    )
    budget = "560MB"
    run = subprocess.run([sys.executable, "-c", program, budget], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    peak, planned = map(int, run.stdout.split())
    assert peak <= parse_size(budget) >= planned


def test_layers_over_two_devices_give_the_same_logits() -> None:
    """Two budgets on one processor, each too small for the whole model."""
    whole = load_on(str(LAYERS), device="cpu")
    (placement,) = whole.plan.placements
    budget = placement.memory.most - placement.memory.weights // 4
    cpu = whole.devices[0]
    split = load_on(
        str(LAYERS),
        devices=[cpu, replace(cpu, id="cpu:1")],
        memory={"cpu": budget, "cpu:1": budget},
        context=whole.plan.context,
    )
    first, second = split.plan.placements
    assert (first.device, second.device) == ("cpu", "cpu:1")
    assert 0 == first.first < first.last == second.first < second.last == len(whole.card.decoder.layers)
    assert all(one.memory.most <= one.budget == budget for one in split.plan.placements)
    found = references.agreement(whole.logits(IDS).numpy(), split.logits(IDS).numpy())
    assert found.divergence < references.F32_DIVERGENCE
    texts = ["".join(one.generate("the model", temperature=0, max_tokens=20)) for one in (whole, split)]
    assert texts[0] == texts[1]
