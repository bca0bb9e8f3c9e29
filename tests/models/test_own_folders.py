"""Folders that rung quantized: every weight is what transformers decodes with rung; contradictions are told."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny
from transformers import AutoModelForCausalLM

import rung
from rung import formats
from rung.conversion import job
from rung.conversion.quantize import parse_keep, quantizing
from rung.conversion.writing import write
from rung.core.errors import BadFile, ModelNotFound, RungError
from rung.kernels.cpu.pack.packing import mapping_of
from rung.models import open_card
from rung.models.card import ModelCard
from rung.models.outline import open_outline
from rung.models.reader import Reader
from rung.nn import QuantWeight

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64}
WRITTEN = [name for name, each in formats.FORMATS.items() if each.encodes and each.family != "floats"]
OTHER_BLOCKS = ["nf4:256:nested", "fp4:1024"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A function (tied) -> a folder in bf16 whose rows every block divides; not to be changed."""
    folders = {}

    def of(tied):
        if tied not in folders:
            folders[tied] = tmp_path_factory.mktemp("plain") / "model"
            tiny.tiny_checkpoint(folders[tied], "llama", "bfloat16", tie_word_embeddings=tied, **WIDE)
        return folders[tied]

    return of


def quantized(source, target, format, *keep):
    write(quantizing(open_card(source), "rung", format, parse_keep(keep)), target, 1)
    return target


def decoded(card):
    """By name what a card's weights hold; they are views of the files, and as large as the card says."""
    found = {}
    with Reader(card) as reader:
        for tensor in card.tensors:
            if tensor.source:
                encoded = reader.read(tensor)
                assert encoded.nbytes == tensor.bytes
                assert all(mapping_of(part) is not None for part in encoded.parts.values())
                found[tensor.name.removesuffix(".weight")] = torch.from_numpy(formats.decode(encoded))
    return found


def theirs(folder):
    """The same of the layers that transformers loads; of a tied head the embedding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers = {name: part for name, part in model.named_modules() if isinstance(part, QuantWeight)}
    return {name.removesuffix(".stored"): part.decode(torch.float32) for name, part in layers.items()}


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("format", [*dict.fromkeys(formats.get(name).name for name in WRITTEN), *OTHER_BLOCKS])
def test_every_format_that_rung_writes(plain, tmp_path, format):
    folder = quantized(plain(True), tmp_path / "made", format, f"embed_tokens={format}")
    card = open_card(folder)
    assert card.quantized == "rung"
    assert {tensor.format for tensor in card.tensors if tensor.source} == {format}
    assert ModelCard.from_json(json.loads(json.dumps(card.to_json()))) == card
    found = decoded(card)
    assert len(found) == 8
    same(found, theirs(folder))


@pytest.mark.parametrize("tied", [True, False])
def test_a_mixture_with_formats_of_its_own(plain, tmp_path, tied):
    folder = quantized(plain(tied), tmp_path / "made", "q4_k_m", "lm_head=nf4:64:nested", "*up_proj=int8")
    found = decoded(open_card(folder))
    same(found, theirs(folder))
    names = {tensor.role: tensor.format for tensor in open_card(folder).tensors if tensor.source}
    assert names["layers.0.up"] == "int8"
    assert names["embed" if tied else "head"] == "nf4:64:nested"
    assert {"q4_k", "q6_k"} < set(names.values())


@pytest.mark.parametrize("model_type", ["gemma", "gemma3_text", "phi3", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_saves(tmp_path, model_type, tied):
    """Fused q, k and v, biases, embeddings and heads in a format."""
    tiny.tiny_checkpoint(tmp_path / "plain", model_type, "bfloat16", tie_word_embeddings=tied)
    config = rung.QuantizationConfig("nf4:64:nested", embeddings="q8_0", skip=["layers.1"], keep={"*down_proj": "q4_0"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "saved")
    card = open_card(tmp_path / "saved")
    assert card.decoder.tied_head is tied
    names = {tensor.name.removesuffix(".weight"): tensor.format for tensor in card.tensors if tensor.source}
    assert names["model.embed_tokens"] == "q8_0"
    assert not any("layers.1." in name for name in names)
    same(decoded(card), theirs(tmp_path / "saved"))


def test_the_text_of_a_model_that_sees(tmp_path):
    """Its vision part is quantized too, and left aside; names are older ones than those of the network."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = tiny.tiny_config("gemma3_text").to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    model = Gemma3ForConditionalGeneration.from_pretrained(
        tmp_path / "plain",
        quantization_config=rung.QuantizationConfig("nf4", keep={"*language_model*down_proj": "q8_0"}),
    )
    model.save_pretrained(tmp_path / "saved")
    card = open_card(tmp_path / "saved")
    assert "vision" in card.skipped[0]
    names = {tensor.role: tensor.format for tensor in card.tensors if tensor.source}
    assert (names["layers.0.down"], names["layers.0.up"]) == ("q8_0", "nf4:64")
    want = {
        name.rpartition("layers.")[2].removesuffix(".stored"): part.decode(torch.float32)
        for name, part in model.model.language_model.named_modules()
        if isinstance(part, QuantWeight)
    }
    same({name.rpartition("layers.")[2]: value for name, value in decoded(card).items()}, want)


def test_shards(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "SHARD", 34_000)
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    assert len(list(folder.glob("*.safetensors"))) > 3
    card = open_card(folder)
    same(decoded(card), theirs(folder))
    parts = {len({piece.file for piece in tensor.source.pieces}) for tensor in card.tensors if tensor.source}
    assert 2 in parts  # codes in one file, scales in another
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ModelNotFound, match="cannot be found"):
        open_card(folder)


def test_another_format_may_be_asked_for(plain, tmp_path):
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    assert rung.plan(folder).format == "stored"
    assert rung.plan(folder, format="q8_0").format == "q8_0"
    answer = rung.check(folder, ["cpu"])
    best = answer.choices[answer.best]
    assert best.format == "stored"
    assert best.memory == rung.plan(folder, device="cpu").placements[0].memory


# --- bad input


def rewritten(folder, change):
    """The folder with other weights: ``change`` is called with all of them by name."""
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights) or weights, folder / "model.safetensors", metadata={"format": "pt"})


def configured(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


UP = "model.layers.0.mlp.up_proj"
CONFIGS = {
    "another format": ({"format": "q8_0"}, r"_proj.weight lacks q8_0 .*there is .*stored.nf4_64"),
    "another block": ({"format": "nf4:128"}, "lacks nf4_128"),
    "scales in another way": ({"format": "nf4:64:nested"}, "lacks nf4_64_nested"),
    "one layer in another": ({"keep": {UP: "q8_0"}}, "up_proj.weight lacks q8_0"),
    "one layer that is none": ({"skip": [UP]}, "up_proj.weight contradicts .*expected: as it is"),
    "a head that is": ({"embeddings": "q8_0"}, "weight contradicts .*stored as BF16 .*expected: q8_0"),
    "no such format": ({"format": "nf5"}, "names a format that there is none of .*no format 'nf5'"),
    "no format of a layer": ({"keep": {UP: "q9"}}, "no format 'q9'"),
    "no format of embeddings": ({"embeddings": "auto"}, "no format 'auto'"),
    "no name": ({"format": 4}, "format is '4', not a text"),
    "no list": ({"skip": 4}, "skip is '4', not an array of texts"),
    "no object": ({"keep": ["q8_0"]}, "keep is .* not an object"),
    "a format that is a list": ({"keep": {UP: ["q8_0"]}}, "not a text"),
    "a newer key": ({"rotation": "hadamard"}, "has the key rotation .*rung knows quant_method, format"),
}


def refused(folder, says):
    for opened in (open_card, open_outline):
        with pytest.raises(BadFile) as caught:
            opened(folder)
        assert re.search(says, f"{caught.value.cause} {' '.join(caught.value.facts)}")
        assert caught.value.ways_out


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_contradicts_its_tensors(plain, tmp_path, case):
    changes, says = CONFIGS[case]
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    configured(folder, **changes)
    refused(folder, says)
    if case in ("another format", "one layer in another", "no such format"):  # what transformers refuses as well
        with pytest.raises((RungError, ValueError)):
            theirs(folder)


def without(name):
    return lambda weights: weights.pop(name) is None


def with_(name, change):
    def changed(weights):
        weights[name] = change(weights[name]).contiguous()

    return changed


TENSORS = {
    "no codes": (without(f"{UP}.stored.nf4_64"), "up_proj.weight lacks nf4_64"),
    "no scales": (without(f"{UP}.stored.absmax"), "up_proj.weight lacks absmax"),
    "fewer codes": (with_(f"{UP}.stored.nf4_64", lambda t: t[:-2]), r"nf4_64 is \[65534\] of U8 .*expected: \[65536\]"),
    "codes in rows": (with_(f"{UP}.stored.nf4_64", lambda t: t.view(512, 128)), r"is \[512, 128\] of U8"),
    "scales in 16 bits": (with_(f"{UP}.stored.absmax", torch.Tensor.half), r"absmax is \[2048\] of F16"),
    "a part too many": (lambda weights: weights.update({f"{UP}.stored.zero": torch.zeros(3)}), "zero.* expected: nf4"),
    "a weight too many": (lambda weights: weights.update({f"{UP}.weight": torch.zeros(512, 256)}), "stored as F32"),
    "a layer that is not there": (
        lambda weights: weights.update({"model.layers.0.other.stored.nf4_64": torch.zeros(4)}),
        "without a place .*other.stored.nf4_64",
    ),
    "no layer": (
        lambda weights: {name: value for name, value in weights.items() if ".stored." not in name},
        "no tensor is",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_contradict_the_config(plain, tmp_path, case):
    change, says = TENSORS[case]
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    rewritten(folder, change)
    refused(folder, says)


def test_another_network(plain, tmp_path):
    """Codes without rows fit a network of another shape only by its whole size."""
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 384}))
    refused(folder, r"nf4_64 is \[65536\] of U8 .*expected: \[49152\]")


def test_a_truncated_file(plain, tmp_path):
    folder = quantized(plain(False), tmp_path / "made", "nf4")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, "is not a whole safetensors file")
    card = open_card(quantized(plain(False), tmp_path / "again", "nf4"))
    path = tmp_path / "again" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])  # after the card was made
    with pytest.raises(BadFile, match="not a whole safetensors file"):
        decoded(card)


def test_pairs_of_a_flat_format_that_swap_their_shapes(tmp_path):
    """q and o of the same size and another shape: only the network tells them apart."""
    tiny.tiny_checkpoint(tmp_path / "plain", "llama", "bfloat16", head_dim=32, num_hidden_layers=1)
    card = open_card(quantized(tmp_path / "plain", tmp_path / "made", "nf4"))
    shapes = {tensor.role: tensor.shape for tensor in card.tensors if tensor.source}
    assert (shapes["layers.0.q"], shapes["layers.0.o"]) == ((128, 64), (64, 128))
    same(decoded(card), theirs(tmp_path / "made"))
    exact = load_file(tmp_path / "plain" / "model.safetensors")
    for name, value in decoded(card).items():
        assert formats.sqnr(exact[f"{name}.weight"].float().numpy(), value.numpy()) > 18


# --- what else reads folders


def test_it_becomes_other_files(plain, tmp_path):
    from rung.conversion.convert import converting

    folder = quantized(plain(True), tmp_path / "made", "nf4:64:nested", "embed_tokens=q8_0")
    card = open_card(folder)
    write(converting(card, False, "f32"), tmp_path / "floats", 1)
    want = {f"{name}.weight": value for name, value in decoded(card).items()}
    got = load_file(tmp_path / "floats" / "model.safetensors")
    assert all(torch.equal(got[name], value) for name, value in want.items())
    assert "quantization_config" not in json.loads((tmp_path / "floats" / "config.json").read_text())
    again = quantized(folder, tmp_path / "again", "int8")
    same(decoded(open_card(again)), theirs(again))
    assert {t.format for t in open_card(again).tensors if t.source} == {"int8", "q8_0"}
    write(quantizing(card, "gguf", "q8_0", {}), tmp_path / "x.gguf", 1)
    assert open_card(tmp_path / "x.gguf").parameters == card.parameters


def test_an_adapter_is_merged_into_its_own_formats(plain, tmp_path):
    from tests.training.lora import adapted

    from rung.conversion.merge import merging

    folder = quantized(plain(False), tmp_path / "made", "nf4", "lm_head=q8_0")
    model = AutoModelForCausalLM.from_pretrained(plain(False), dtype=torch.float32)
    adapted(model, target_modules=["up_proj"]).save_pretrained(tmp_path / "adapter")
    card = open_card(folder)
    write(merging(card, [str(tmp_path / "adapter")], tmp_path / "out", None), tmp_path / "out", 1)
    merged = open_card(tmp_path / "out")
    assert [t.format for t in merged.tensors] == [t.format for t in card.tensors]
    before, after = decoded(card), decoded(merged)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {UP}
    same(after, theirs(tmp_path / "out"))
