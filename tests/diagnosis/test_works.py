"""Fixes checked against a card's memory, and what works there today: both as ``rung check`` plans them."""

import json
from dataclasses import replace

import pytest

from rung.diagnosis.explain import explain_log
from rung.diagnosis.fixes import works
from rung.hardware import catalog as cards
from rung.models import lookup
from rung.planning.check import check
from rung.planning.check_result import Question

BF16 = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TYPED = 'model = AutoModelForCausalLM.from_pretrained("google/gemma-2b")\n'


def explained(log, card="p2200", model=None):
    outline = lookup.find_outline(model) if model else None
    device = cards.device(card)
    return explain_log([log.encode()], {"gpu": device.name}, device=device, outline=outline)


def planned(model, card, *formats, **options):
    """The choices that ``rung check`` gives, by format."""
    found = check(lookup.find_outline(model), [cards.device(card)], Question(formats=formats, **options))
    return {choice.format: choice for choice in found.choices}


@pytest.mark.parametrize(("log", "model"), [(BF16, "gemma-2b"), (TYPED + BF16, None)])
def test_16_bits_that_do_not_fit_come_after_what_does(log, model):
    found = explained(log, model=model)
    plan = planned("gemma-2b", "p2200", "f16", "f32", "q8_0")
    assert not plan["f16"].fits
    assert plan["q8_0"].fits
    assert found.fixes[0].label == "change-quantization"
    assert "q8_0" in found.fixes[0].text
    assert found.fixes[0].command == planned("gemma-2b", "p2200", "q8_0")["q8_0"].command
    labels = [fix.label for fix in found.fixes]
    assert labels[-2:] == ["use-fp16", "use-fp32"]
    assert "needs 5.3 GB of 4.9 GB: does not fit" in found.fixes[-2].text
    assert any("5.3 GB in f16 and 10.1 GB in f32" in item.fact for item in found.evidence)
    assert found.works.of_log
    assert (found.works.format, found.works.memory) == ("q8_0", plan["q8_0"].memory.total)


def test_16_bits_that_fit_stay_first():
    found = explained(BF16, "v100", "gemma-2b")
    assert [fix.label for fix in found.fixes][:2] == ["use-fp16", "use-fp32"]
    assert "fit" not in found.fixes[0].text
    assert [fix.label for fix in found.fixes] == [fix.label for fix in explained(BF16, "v100").fixes]


def test_a_full_card_is_told_in_which_format_the_model_fits():
    found = explained(TYPED + FULL)
    assert (found.cause, found.fixes[0].label) == ("gpu-out-of-memory", "change-quantization")
    assert found.fixes[0].text.startswith("run Gemma 2B in q8_0, which fits: 3.1 of 4.9 GB")
    trained = explained(TYPED + "Epoch 1\nloss.backward()\n" + FULL)
    assert "which fits" not in trained.fixes[0].text, "what is trained needs more than its weights"


def test_of_programs_that_hold_fewer_bits_anyway_16_are_not_spoken_of():
    said = "Error: llama runner process has terminated: cudaMalloc failed: out of memory"
    found = explained(f"$ ollama run llama3.1:8b\n{said}", "gtx 1060")
    assert found.cause == "gpu-out-of-memory"
    assert not any("f16" in item.fact for item in found.evidence)
    assert (found.works.model, found.works.format) == ("Llama 3.1 8B", "q4_k_m")


@pytest.mark.parametrize("card", ["p2200", "2080ti", "v100", "rx 6750 xt", "gtx 1050", "h100"])
def test_what_works_on_a_card_fits_it_and_is_read_in_time_where_anything_is(card):
    found = explained(BF16, card).works if card != "rx 6750 xt" else explained(FULL, card).works
    device = cards.device(card)
    assert found.memory <= found.free == device.budget
    assert found.command.startswith("rung run ")
    assert not found.of_log
    name = found.command.split()[2]
    choice = planned(name, card, found.format)[found.format]
    assert choice.verdict
    assert choice.memory.total == found.memory
    assert choice.speed.decode_tokens_per_second == found.tokens_per_second
    assert round(found.tokens_per_second, 1) >= 5


def test_a_file_of_the_log_is_run_as_it_is_with_the_context_that_fits():
    missing = (
        "ggml-cuda.cu:1412: ERROR: CUDA kernel vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch 610."
    )
    found = explained(f"./llamafile-0.8.1 -m llama-2-7b-chat.Q4_0.gguf -ngl 99\n{missing}")
    assert not planned("llama-2-7b", "p2200", "q4_0")["q4_0"].fits
    assert planned("llama-2-7b", "p2200", "q4_0", context=2048)["q4_0"].fits
    assert found.works.command == "rung run llama-2-7b-chat.Q4_0.gguf --context 2048"
    assert [fix.command for fix in found.repairs] == [found.works.command]
    assert "2,048 tokens of context" in found.works.sentence


def test_the_answer_of_a_card_is_kept_until_the_card_or_the_sources_change(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    device = cards.device("p2200")
    first = works.best_known(device)
    from rung.diagnosis.fixes import suited

    monkeypatch.setattr(suited, "best_known", lambda device: pytest.fail("it was found already"))
    assert works.best_known(device) == first
    for kept in tmp_path.rglob("*.json"):
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"value": {"model": 3}}))
    monkeypatch.setattr(suited, "best_known", lambda device: None)
    assert works.best_known(device) is None, "what another version kept is found anew"
    smaller = replace(device, free=device.budget // 2)
    monkeypatch.undo()
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    assert works.best_known(smaller).memory < smaller.budget


def test_without_a_device_nothing_is_planned_and_of_no_problem_nothing_is_said():
    assert explain_log([BF16.encode()], {"gpu": "Quadro P2200"}).works is None
    assert explained("all is well").works is None
    assert explained("SyntaxError: invalid syntax").works is None
