"""``rung merge``: what PEFT merges in f32, rounded once; GGUF files, formats, and every refusal."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import rung
from rung import formats
from rung.cli.app import main
from rung.conversion.merge import merging
from rung.conversion.writing import write
from rung.core.errors import UsageError
from rung.models.adapters.adapter import Adapter, LowRank
from rung.models.open import open_card
from tests import foreign, tiny
from tests.training.lora import KINDS, adapted, logits

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
IDS = list(range(3, 40))


def merge(base, *adapters, out, format=None):
    write(merging(open_card(base), [str(adapter) for adapter in adapters], out, format), out, 1)
    return out


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora", "patterns", "whole"])
def test_the_weights_are_those_of_peft(kind, tmp_path):
    plain = tiny.tiny_checkpoint(tmp_path / "base", "llama")
    model = adapted(plain, **({"modules_to_save": ["lm_head"]} if kind == "whole" else KINDS[kind]))
    if kind == "whole":
        with torch.no_grad():
            model.lm_head.modules_to_save["default"].weight.mul_(1.5)
    model.save_pretrained(tmp_path / "adapter")
    merge(tmp_path / "base", tmp_path / "adapter", out=tmp_path / "out")
    want = model.merge_and_unload()
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for name, value in want.state_dict().items():
        torch.testing.assert_close(got.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_sums_are_made_in_f32_and_rounded_once(tmp_path):
    plain = tiny.tiny_checkpoint(tmp_path / "base", "llama", "bfloat16")
    model = adapted(plain)
    model.save_pretrained(tmp_path / "adapter")
    merge(tmp_path / "base", tmp_path / "adapter", out=tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    want = model.merge_and_unload().state_dict()
    assert {value.dtype for value in got.values()} == {torch.bfloat16}
    for name, value in got.items():
        assert torch.allclose(value.float(), want[name].bfloat16().float(), rtol=2**-7), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_change_of_zero_changes_no_bit(dtype, tmp_path):
    model = adapted(tiny.tiny_checkpoint(tmp_path / "base", "llama", dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    model.save_pretrained(tmp_path / "adapter")
    merge(tmp_path / "base", tmp_path / "adapter", out=tmp_path / "out")
    before, after = (load_file(tmp_path / where / "model.safetensors") for where in ("base", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_gguf_base_stays_one(tmp_path):
    """Merged and added while running are the same, in the base's formats and as a folder."""
    base = GGUF / "mistral-f32.gguf"
    decoder = open_card(base).decoder
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "vocab_size": decoder.vocabulary}
    adapted(tiny.tiny_model("mistral", **sizes)).save_pretrained(tmp_path / "adapter")
    options = {"device": "cpu", "context": 64}
    want = rung.load(base, adapters=[tmp_path / "adapter"], **options).logits(IDS)
    for out in (tmp_path / "out.gguf", tmp_path / "out"):
        merge(base, tmp_path / "adapter", out=out)
        torch.testing.assert_close(rung.load(out, format="f32", **options).logits(IDS), want, rtol=1e-4, atol=2e-4)
    assert (want - rung.load(base, **options).logits(IDS)).abs().max() > 0.3


def test_two_adapters_with_weights(tmp_path):
    plain = tiny.tiny_checkpoint(tmp_path / "base", "llama")
    first = adapted(copy.deepcopy(plain), seed=1)
    first.save_pretrained(tmp_path / "first")
    second = adapted(copy.deepcopy(plain), seed=2)
    second.save_pretrained(tmp_path / "second")
    merge(tmp_path / "base", f"{tmp_path / 'first'}:0.5", tmp_path / "second", out=tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    one, two, was = first.merge_and_unload().state_dict(), second.merge_and_unload().state_dict(), plain.state_dict()
    for name, value in got.items():
        want = was[name] + 0.5 * (one[name] - was[name]) + (two[name] - was[name])
        torch.testing.assert_close(value, want, rtol=1e-4, atol=1e-5)


def command(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0


def test_encoding_again_says_what_it_costs(tmp_path, capsys):
    model = adapted(tiny.tiny_checkpoint(tmp_path / "base", "llama"))
    model.save_pretrained(tmp_path / "adapter")
    words = ("merge", tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert command(*words, "--format", "q8_0") == 0
    said = capsys.readouterr().out
    assert re.search(r"^down +q8_0 +2 x +4\d\.\d dB", said, re.MULTILINE), said
    job = merging(open_card(tmp_path / "base"), [str(tmp_path / "adapter")], tmp_path / "again", "q8_0")
    costs = [each.cost.db for each in write(job, tmp_path / "again", 1) if each.cost]
    assert len(costs) == 14
    assert 38 < min(costs) < max(costs) < 55
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert formats.sqnr(logits(model).numpy(), logits(got).numpy()) > 25
    assert command(*words[:3], tmp_path / "base") == 2
    assert "is the source itself" in capsys.readouterr().err
    assert command(*words[:3], tmp_path / "adapter") == 2
    assert "is the adapter itself" in capsys.readouterr().err
    assert command(*words[:3]) == 2
    assert "needs an adapter and a result" in capsys.readouterr().err


def test_a_format_that_is_only_read_is_refused_with_one_that_is_written(tmp_path):
    card = open_card(GGUF / "llama-iq2_s.gguf")
    stored = next(t for t in card.tensors if len(t.shape) > 1 and not formats.get(t.format).encodes)
    rows, columns = stored.shape
    adapter = Adapter("x", "llama", "", {stored.name.removesuffix(".weight"): LowRank(*ones(rows, columns), 1.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rung.models.adapters.roles.read_adapter", lambda *arguments: adapter)
        with pytest.raises(UsageError, match=r"reads and does not write[\s\S]*--format \w+\n"):
            merging(card, ["x"], tmp_path / "out.gguf", None)
        assert merging(card, ["x"], tmp_path / "out", None).steps  # a folder holds floats


@pytest.mark.parametrize("who", ["rung", "bitsandbytes", "bitsandbytes with its default"])
def test_a_quantized_base_goes_on_computing_as_it_did(who, tmp_path):
    plain = tiny.tiny_checkpoint(tmp_path / "base", "llama")
    adapted(plain).save_pretrained(tmp_path / "adapter")
    said = rung.QuantizationConfig("llm_int8", threshold=2.5, compute_dtype="bfloat16")
    if who == "rung":
        quantized = AutoModelForCausalLM.from_pretrained(tmp_path / "base", quantization_config=said)
        quantized.save_pretrained(tmp_path / "q")
    else:
        foreign.write(tmp_path / "q", foreign.VARIANTS["llm-int8"])
        more = {} if "default" in who else {"llm_int8_threshold": 2.5}
        foreign.configure(tmp_path / "q", {"quant_method": "bitsandbytes", "load_in_8bit": True, **more})
    merge(tmp_path / "q", tmp_path / "adapter", out=tmp_path / "out")
    layer = AutoModelForCausalLM.from_pretrained(tmp_path / "out").model.layers[0].mlp.up_proj
    assert layer.threshold == (6.0 if "default" in who else 2.5)
    assert layer.compute_dtype == (torch.bfloat16 if who == "rung" else None)
    merge(tmp_path / "q", tmp_path / "adapter", out=tmp_path / "anew", format="q8_0")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "anew").model.layers[0].mlp.up_proj.threshold == 0


def ones(rows, columns):
    return np.ones((1, columns), np.float32), np.ones((rows, 1), np.float32)


def test_refusals(tmp_path):
    tied = tiny.tiny_checkpoint(tmp_path / "tied", "llama", tie_word_embeddings=True)
    adapted(tied, target_modules=["q_proj", "lm_head"]).save_pretrained(tmp_path / "head")
    with pytest.raises(UsageError, match=r"has none of its own: it is the embedding[\s\S]*--adapter"):
        merge(tmp_path / "tied", tmp_path / "head", out=tmp_path / "out")
    wide = tiny.tiny_checkpoint(tmp_path / "wide", "llama", hidden_size=128)
    adapted(wide).save_pretrained(tmp_path / "other")
    with pytest.raises(UsageError, match="made for another model than tied"):
        merge(tmp_path / "tied", tmp_path / "other", out=tmp_path / "out")
    adapted(wide, modules_to_save=["lm_head"]).save_pretrained(tmp_path / "whole")
    with pytest.raises(UsageError, match=r"has trained lm_head\.weight whole, and tied has no such tensor"):
        merge(tmp_path / "tied", tmp_path / "whole", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
