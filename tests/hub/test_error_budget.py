"""Models of transformers within a KL or a size: the formats of ``rung quantize``, and what they come to."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

import rung
from rung import formats
from rung.conversion.within_budget import Budget, Calibration, budgeted
from rung.core.errors import BadFile, DiskFull, RungError, UsageError
from rung.models import open_card
from rung.models.reader import Reader
from tests.tiny import gguf_vocabulary, tiny_checkpoint


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    for tied in (False, True):
        model = folder / f"tied-{tied}"
        tiny_checkpoint(model, "llama", vocab_size=320, hidden_size=64, intermediate_size=256, tie_word_embeddings=tied)
        gguf_vocabulary(model)
    (folder / "text.txt").write_text(" ".join(f"{n} times {n + 1} is {n * n + n}." for n in range(400)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_CACHE", str(folder / "cache"))
        yield folder


def load(folder, kind=AutoModelForCausalLM, **options):
    config = rung.QuantizationConfig(**options)
    model = kind.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    return model.eval()


def bytes_of(folder):
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def divergence(model, plain, windows):
    """KL in nats a token, by transformers' own network on both sides."""
    with torch.no_grad():
        p, q = (each(windows).logits[:, :-1].double().log_softmax(-1) for each in (plain, model))
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_model_within_a_kl_is_so_in_transformers_and_after_saving(home, tmp_path, tied):
    folder = home / f"tied-{tied}"
    text = str(home / "text.txt")
    model = load(folder, max_kl=0.02, text=text)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    windows = Calibration(open_card(folder), home / "text.txt", 1, lambda label, done, total: None).held_out
    expected = model.config.quantization_config.expected_kl
    assert 0.002 < expected <= 0.02
    layers = {name: each for name, each in model.named_modules() if hasattr(each, "stored")}
    for each in layers.values():
        each.exact = True  # weights alone: no activations in 8 bits
    assert divergence(model, plain, windows) == pytest.approx(expected, rel=0.5)
    assert len({each.stored.format.name for each in layers.values()}) > 1
    assert {"model.embed_tokens", "lm_head"} <= layers.keys()
    assert (model.lm_head.stored is model.model.embed_tokens.stored) is tied
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert torch.equal(again(windows).logits, model(windows).logits)
    assert again.config.quantization_config.expected_kl == expected
    saved = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert "max_kl" not in saved
    card = open_card(tmp_path)
    with Reader(card) as reader:
        for tensor in card.tensors:
            if (layer := layers.get(tensor.name.removesuffix(".weight"))) is not None:
                assert np.array_equal(formats.decode(reader.read(tensor)), layer.stored.decode().numpy())


def test_a_size_holds_for_what_is_saved_and_more_room_comes_nearer(home, tmp_path):
    expected = []
    for size, most in ((95_000, 95_000), ("120kB", 120 << 10)):
        model = load(home / "tied-False", size=size, text=str(home / "text.txt"))
        model.save_pretrained(tmp_path / str(size))
        expected.append(model.config.quantization_config.expected_kl)
        assert 0.95 * most < bytes_of(tmp_path / str(size)) <= most
    assert expected[1] < expected[0] / 1.5


def test_what_is_kept_or_skipped_stays_so(home):
    options = {"skip": ["lm_head"], "keep": {"*down_proj": "q8_0"}, "embeddings": "q5_1"}
    model = load(home / "tied-False", max_kl=0.05, text=str(home / "text.txt"), **options)
    assert type(model.lm_head) is torch.nn.Linear
    assert model.model.embed_tokens.stored.format.name == "q5_1"
    assert {each.mlp.down_proj.stored.format.name for each in model.model.layers} == {"q8_0"}


def test_a_body_alone_gets_the_same_formats(home):
    budget = {"max_kl": 0.02, "text": str(home / "text.txt")}
    whole, body = load(home / "tied-False", **budget), load(home / "tied-False", AutoModel, **budget)
    for one, other in zip(whole.model.layers, body.layers, strict=True):
        assert torch.equal(one.mlp.up_proj.stored.decode(), other.mlp.up_proj.stored.decode())


def test_what_formats_cost_is_kept_for_the_next_budget(home):
    labels: list[str] = []
    card = open_card(home / "tied-False")
    found = [Calibration(card, home / "text.txt", 1, lambda label, *_: labels.append(label)) for _ in range(2)]
    first = found[0].options
    labels.clear()
    assert found[1].options == first
    assert not labels


def test_a_cache_that_fails_costs_a_note(home):
    """Options that cannot be read, or are damaged, are found anew; those that cannot be written are used."""
    card, text = open_card(home / "tied-False"), home / "text.txt"
    right = Calibration(card, text, 1, lambda *_: None).options
    folder = Calibration(card, text, 1, lambda *_: None).rounder.statistics.folder
    (path,) = folder.glob("options-*.json")
    whole = path.read_text()
    try:
        for damaged in ("{", '{"nothing": [["q8_0", 1]]}'):
            path.write_text(damaged)
            found = Calibration(card, text, 1, lambda *_: None)
            for role, listed in found.options.items():
                costs = {one.format.name: one.divergence for one in right[role]}
                assert {one.format.name: one.divergence for one in listed} == pytest.approx(costs)
            assert (found.options.keys(), len(found.notes)) == (right.keys(), 1)
        path.unlink()
        path.mkdir()
        found = Calibration(card, text, 1, lambda *_: None)
        _, choice = budgeted(found, Budget(None, 0.02), {}, "rung")
        assert choice.divergence <= 0.02
        assert ["read" in note or "written" in note for note in found.notes] == [True, True]
        path.rmdir()
    finally:
        path.write_text(whole)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_kl": 0.1, "size": "1MB"}, "one of the three"),
        ({"max_kl": 0.1, "format": "nf4"}, "one of the three"),
        ({"text": "a.txt"}, "one of the three"),
        ({"max_kl": -1}, "no KL"),
        ({"max_kl": "small"}, "no KL"),
        ({"size": "huge"}, "not a size"),
        ({"size": 0}, "not above zero"),
    ],
)
def test_budgets_that_make_no_sense(arguments, says):
    with pytest.raises(UsageError, match=says) as refused:
        rung.QuantizationConfig(**arguments)
    assert refused.value.ways_out


def test_budgets_that_no_mixture_meets_are_refused_before_anything_is_loaded(home):
    for options, says in (({"size": 3000}, "No mixture is so small"), ({"max_kl": 1e-9}, "No mixture comes so near")):
        with pytest.raises(UsageError, match=says) as refused:
            load(home / "tied-False", text=str(home / "text.txt"), **options)
        assert refused.value.ways_out[0].startswith(f"{next(iter(options))}=")
    with pytest.raises(UsageError, match="skip: 'nothing' matches no layer"):
        load(home / "tied-False", max_kl=0.1, skip=["nothing"], text=str(home / "text.txt"))


def test_networks_that_rung_does_not_build_are_refused(tmp_path):
    config = GPTNeoXConfig(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(RungError) as refused:
        load(tmp_path, max_kl=0.1)
    assert "gpt_neox" in str(refused.value)


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """A T5 with a cache of its own: none of the networks that rung's decoder builds, and it answers with numbers."""
    from transformers import T5Config, T5EncoderModel

    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = T5Config(vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


def change(folder, end, value):
    """Give a tensor of a checkpoint one value everywhere."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name.endswith(end):
            tensors[name] = torch.full_like(tensors[name], value)
    save_file(tensors, path, {"format": "pt"})


def test_formats_that_are_settled_are_part_of_what_is_expected(encoder):
    from transformers import T5EncoderModel

    words = torch.randint(200, (3, 40), generator=torch.Generator().manual_seed(4))
    plain = T5EncoderModel.from_pretrained(encoder).eval()
    for options in (
        {"embeddings": "q4_0", "skip": ["relative_attention_bias"]},
        {"keep": {"wo": "q4_0", "wi": "q4_0"}, "skip": ["q", "k", "v", "o"]},
    ):
        with torch.no_grad():
            want, model = plain(words).last_hidden_state, load(encoder, T5EncoderModel, max_kl=0.02, **options)
            for each in model.modules():
                if hasattr(each, "stored"):
                    each.exact = True
            answer = model(words).last_hidden_state
        error = 0.5 * float((answer - want).square().sum() / want.square().sum())
        assert error == pytest.approx(model.config.quantization_config.expected_kl, rel=0.08)


def test_what_is_known_of_inputs_leaves_the_disk(encoder, tmp_path, monkeypatch):
    """After loading, and what a process that ended has left; a full disk is an error before anything is computed."""
    from transformers import T5EncoderModel

    left = tmp_path / "cache" / "moments-left"
    left.mkdir(parents=True)
    (left / "0.moments").write_bytes(bytes(64))
    load(encoder, T5EncoderModel, max_kl=1e-3)
    assert not list((tmp_path / "cache").glob("moments-*"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull):
        load(encoder, T5EncoderModel, max_kl=1e-3)


@pytest.mark.parametrize(("value", "says"), [(0.0, "zeros"), (float("nan"), "NaN")])
def test_answers_that_say_nothing_are_refused(value, says, encoder):
    from transformers import T5EncoderModel

    change(encoder, "final_layer_norm.weight", value)
    with pytest.raises(BadFile, match=says):
        load(encoder, T5EncoderModel, max_kl=1e-3)


def test_an_encoder_is_judged_by_its_answers(home, encoder, tmp_path):
    from transformers import T5EncoderModel

    words = torch.randint(200, (3, 40))
    with torch.no_grad():
        want = T5EncoderModel.from_pretrained(tmp_path / "t5").eval()(words).last_hidden_state
        model = load(tmp_path / "t5", T5EncoderModel, max_kl=5e-4)
        layers = [each for each in model.modules() if hasattr(each, "stored")]
        for each in layers:
            each.exact = True
        answer = model(words).last_hidden_state
    expected = model.config.quantization_config.expected_kl
    assert len({each.stored.format.name for each in layers}) > 1
    assert 5e-5 < expected <= 5e-4
    error = 0.5 * float((answer - want).square().sum() / want.square().sum())
    assert error == pytest.approx(expected, rel=0.7)
    with pytest.raises(UsageError, match="judged on inputs"):
        load(tmp_path / "t5", T5EncoderModel, max_kl=5e-4, text="a.txt")


def test_experts_are_left_and_a_settled_format_of_theirs_is_refused(home, tmp_path):
    """Their error is not judged, so the KL that is expected says nothing of them."""
    from transformers import MixtralConfig, MixtralModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(vocab_size=200, num_hidden_layers=1, num_local_experts=4, **sizes)
    MixtralModel(config).save_pretrained(tmp_path / "mixtral")
    plain = MixtralModel.from_pretrained(tmp_path / "mixtral").eval()
    model = load(tmp_path / "mixtral", AutoModel, max_kl=5e-3)
    assert type(model.layers[0].mlp.experts) is type(plain.layers[0].mlp.experts)
    assert hasattr(model.layers[0].self_attn.q_proj, "stored")
    assert "layers.0.mlp.experts" in model.config.quantization_config.skip
    with pytest.raises(UsageError, match="their error is not judged"):
        load(tmp_path / "mixtral", AutoModel, max_kl=5e-3, keep={"*experts": "q8_0"})
