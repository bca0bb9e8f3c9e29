"""Folders that rung quantized, run: the lean decoder where it knows the model, else the network of transformers."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.engine.test_borrowed_quantized import IDS, KINDS, PROMPT, SMALL, apart, exact, logits, quantized_weights
from tests.fixtures import references
from tests.tiny_pipelines import tokenizer
from tests.training.rows import chat_folder
from transformers import AutoModelForCausalLM

import rung
from rung import formats
from rung.conversion.quantize import parse_keep, quantizing
from rung.conversion.writing import write
from rung.core.errors import BadFile
from rung.engine.open_model import open_any
from rung.models import open_card

TOKENS = [1, 17, 300, 4, 25, 60, 211, 5]


@pytest.mark.parametrize(
    ("tied", "format", "keep"),
    [
        (True, "q8_0", ["embed_tokens=q8_0"]),
        pytest.param(False, "nf4", [], marks=pytest.mark.slow),
        pytest.param(True, "nf4:64:nested", ["embed_tokens=int8"], marks=pytest.mark.slow),
        pytest.param(False, "q4_0", ["lm_head=nf4", "*down_proj=int8", "embed_tokens=q4_0"], marks=pytest.mark.slow),
        pytest.param(False, "mxfp4", ["lm_head=q5_0"], marks=pytest.mark.slow),
    ],
)
def test_the_lean_decoder_computes_with_them(tmp_path, tied, format, keep):
    chat_folder(tmp_path / "plain", dtype="bfloat16", tie_word_embeddings=tied)
    write(quantizing(open_card(tmp_path / "plain"), "rung", format, parse_keep(keep)), tmp_path / "made", 1)
    model = rung.load(tmp_path / "made", device="cpu", context=64)
    assert model.plan.format == "stored"
    assert model.plan.reasons[0] == "the formats are kept as they are stored"
    assert model.report.steps == ()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32).eval().dequantize()
    with torch.no_grad():
        reference = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    found = references.agreement(reference, model.logits(TOKENS).numpy())
    assert found.divergence < 0.002
    assert found.same_choice == 1
    answer = model.generate(PROMPT, raw=True, max_tokens=4)
    assert "".join(answer) == answer.result["text"]


@pytest.fixture
def saved(tmp_path):
    """Makes a tiny model that transformers saves quantized by rung; its folder, and the same network in f32."""

    def of(kind, **options):
        name, own = KINDS[kind]
        torch.manual_seed(3)
        config = getattr(transformers, f"{name}Config")(**SMALL, **own, dtype="bfloat16")
        network = AutoModelForCausalLM.from_config(config).bfloat16()
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
        network.save_pretrained(tmp_path / "plain")
        model = AutoModelForCausalLM.from_pretrained(
            tmp_path / "plain", quantization_config=rung.QuantizationConfig(**options), dtype=torch.bfloat16
        )
        model.save_pretrained(tmp_path / "saved")
        tokenizer().save_pretrained(tmp_path / "saved")
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
        return tmp_path / "saved", whole

    return of


CASES = [
    ("gpt_neox", {"format": "nf4"}),
    ("mixtral", {"format": "nf4:64:nested", "keep": {"*q_proj": "q8_0"}}),
    ("opt", {"format": "q4_0", "embeddings": "q8_0"}),  # whose head is its embedding
    pytest.param("falcon", {"format": "int8", "embeddings": "nf4"}, marks=pytest.mark.slow),
    pytest.param("deepseek_v3", {"format": "q8_0"}, marks=pytest.mark.slow),
    pytest.param("mixtral", {"format": "q4_0", "skip": ["layers.0"]}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_network_of_transformers_holds_what_is_stored(saved, kind, options):
    folder, whole = saved(kind, **options)
    model = rung.load(folder, device="cpu", context=64)
    assert model.plan.reasons[0] == "the formats are kept as they are stored"
    network = model.backend.kept.network
    planned = {tensor.name: tensor for tensor in model.card.component.tensors if tensor.source}
    layers, expected = quantized_weights(network), quantized_weights(whole)
    assert layers.keys() == expected.keys()
    for name, weights in layers.items():
        assert all(
            torch.equal(a.decode(torch.float32), b.decode(torch.float32))
            for a, b in zip(weights, expected[name], strict=True)
        )
        if name in planned:  # a tied head is planned as its embedding
            assert {weight.format.name for weight in weights} == {planned[name].format}
            assert sum(part.nbytes for weight in weights for part in weight.parts().values()) == planned[name].bytes
            assert len(planned[name].source.pieces) == sum(len(weight.parts()) for weight in weights)
    assert sum(part.nbytes for part in network.parameters()) <= model.plan.placements[0].memory.weights
    assert apart(model.logits(IDS), logits(whole)).median() < 0.05
    answer = model.generate(PROMPT, raw=True, max_tokens=4)
    assert "".join(answer) == answer.result["text"]
    assert apart(logits(exact(network)), logits(exact(whole))).max() < 1e-4


@pytest.mark.parametrize("kind", ["mixtral", pytest.param("opt", marks=pytest.mark.slow)])
def test_another_format_may_be_asked_for(saved, kind):
    folder, whole = saved(kind, format="q8_0", embeddings="q8_0")
    network = rung.load(folder, format="nf4:128", device="cpu", context=64).backend.kept.network
    layers, stored = quantized_weights(network), quantized_weights(whole)
    assert layers.keys() == stored.keys()
    for name, weights in layers.items():
        for weight, before in zip(weights, stored[name], strict=True):
            chosen = formats.get("q8_0" if "head" in name else "nf4:128")  # which is kept finer
            again = formats.convert(before.encoded(), chosen)
            assert again.parts.keys() == weight.parts().keys()
            assert all(
                torch.equal(torch.from_numpy(value), weight.parts()[part]) for part, value in again.parts.items()
            )
    if kind == "opt":
        assert network.lm_head.stored is network.model.decoder.embed_tokens.stored


def test_what_check_says_of_a_mixture_of_experts(saved):
    folder, _ = saved("mixtral", format="nf4", embeddings="q8_0")
    answer = rung.check(folder, ["cpu"])
    best, plan = answer.choices[answer.best], rung.plan(folder, device="cpu")
    assert best.format == "stored"
    assert best.memory.weights == plan.placements[0].memory.weights
    assert abs(best.memory.total - plan.placements[0].memory.total) < 0.02 * best.memory.total


def changed(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"format": "q8_0"}, r"contradicts .*expected: q8_0 .*there is no .*stored.q8_0"),
        ({"format": "nf5"}, "names a format that there is none of"),
        ({"keep": {"nothing": "q8_0"}}, "does not belong to a GPTNeoX.* matches no layer"),
        ({"skip": ["*"]}, "does not belong to a GPTNeoX.*skip leaves none"),
        ({"compute_dtype": "int3"}, "does not belong to a GPTNeoX.*compute_dtype"),
    ],
)
def test_contradictions_are_refused(saved, settings, says):
    folder, _ = saved("gpt_neox", format="nf4")
    changed(folder, **settings)
    with pytest.raises(BadFile) as caught:
        open_any(folder)
    import re

    assert re.search(says, f"{caught.value.cause} {' '.join(caught.value.facts)}")
    assert caught.value.ways_out


def test_missing_and_short_parts_are_refused(saved):
    folder, _ = saved("gpt_neox", format="nf4")
    path, stem = folder / "model.safetensors", "gpt_neox.layers.1.mlp.dense_h_to_4h.stored"
    weights = load_file(path)
    for part in ("nf4_64", "absmax"):
        save_file({**weights, f"{stem}.{part}": weights[f"{stem}.{part}"][:-1]}, path, {"format": "pt"})
        with pytest.raises(BadFile, match="contradicts the quantization config"):
            open_any(folder)
        save_file({name: value for name, value in weights.items() if name != f"{stem}.{part}"}, path, {"format": "pt"})
        with pytest.raises(BadFile, match="contradicts the quantization config") as caught:
            open_any(folder)
        assert f"{stem}.{part}" in str(caught.value)
