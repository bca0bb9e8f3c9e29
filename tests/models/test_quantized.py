"""Checkpoints of other quantizers: every decoded weight is what their own package decodes; contradictions are told."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import foreign
from tests.fixtures import references
from tests.foreign import VARIANTS, configure, write
from tests.tiny import tiny_checkpoint

import rung
from rung import formats
from rung.core.errors import BadFile, UnknownArchitecture
from rung.kernels.gpu import decoders
from rung.models import open_card
from rung.models.card import ModelCard
from rung.models.outline import open_outline
from rung.models.reader import Reader


def decoded(card):
    with Reader(card) as reader:
        found = {t.name: reader.read(t) for t in card.tensors if t.source}
        return {name: torch.from_numpy(formats.decode(encoded)) for name, encoded in found.items()}, found


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_are_what_the_package_decodes(tmp_path, name):
    pytest.importorskip(VARIANTS[name].package or "torch")
    expected = write(tmp_path, VARIANTS[name])
    card = open_card(tmp_path)
    values, stored = decoded(card)
    assert values.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(values[key].to(value.dtype), value), key
    assert card.quantized == VARIANTS[name].config["quant_method"]
    assert ModelCard.from_json(json.loads(json.dumps(card.to_json()))) == card
    for tensor in card.tensors:
        if tensor.source:
            assert tensor.bytes == stored[tensor.name].nbytes  # what a plan counts


@pytest.mark.parametrize(
    "name", ["gptq-2", "gptq-ordered", "gptq-8-asymmetric-16", "ct-int4-ordered", "hqq-bf16", "fp8-bf16", "llm-int8"]
)
def test_gpu_decoders_and_pieces_of_rows_give_the_same(tmp_path, name):
    write(tmp_path, VARIANTS[name])
    values, stored = decoded(open_card(tmp_path))
    for key, encoded in stored.items():
        rows, columns = encoded.shape
        decode = decoders.find(encoded.format)
        parts = {part: torch.from_numpy(np.array(array)) for part, array in encoded.parts.items()}
        assert torch.equal(decode(parts, encoded, 0, rows), values[key])
        assert torch.equal(decode(parts, encoded, 5, 11), values[key][5:11])
        assert np.array_equal(formats.decode(encoded, slice(3, 9)), values[key][3:9].numpy())
        codec = formats.coding._codec_of(encoded.format)
        out = np.empty(columns + 7, np.float32)
        codec.decode(encoded, columns - 3, out)  # neither a row's nor a block's start
        assert np.array_equal(out, values[key].flatten()[columns - 3 : 2 * columns + 4].numpy())


def test_e4m3_is_torchs():
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert torch.equal(torch.from_numpy(formats.families.grouped.E4M3).nan_to_num(777), every.nan_to_num(777))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptq-ordered", "gptq", "awq", "ct-fp8", "fp8", "hqq", "nf4", "llm-int8"])
def test_rung_load_computes_with_them(tmp_path, name):
    """The logits are those of a plain folder with the decoded weights."""
    from tests.fixtures import vocabularies

    expected = write(tmp_path / "stored", VARIANTS[name])
    plain = tiny_checkpoint(tmp_path / "plain", "llama", "bfloat16")
    with torch.no_grad():
        for key, value in expected.items():
            plain.get_parameter(key).copy_(value)
    vocabularies.write(tmp_path / "stored", "llama-bpe")
    (tmp_path / "stored" / "config.json").write_text(_with(tmp_path / "stored", vocab_size=320))
    model = rung.load(tmp_path / "stored", device="cpu", context=64)
    ids = [1, 17, 300, 4, 25, 60, 211, 5]
    with torch.no_grad():
        reference = plain(torch.tensor([ids])).logits[0].numpy()
    found = references.agreement(reference, model.logits(ids).numpy())
    assert found.divergence < 0.002
    assert found.same_choice == 1
    assert model.plan.format == "stored"
    assert model.report.steps == ()


def _with(folder, **more):
    return json.dumps(json.loads((folder / "config.json").read_text()) | more)


def test_another_format_may_be_asked_for(tmp_path):
    write(tmp_path, VARIANTS["gptq"])
    plan = rung.plan(tmp_path, format="q8_0")
    assert plan.format == "q8_0"
    assert rung.plan(tmp_path).format == "stored"


# --- bad input


def change(folder, rename=None, drop=None, replace=None):
    """Rewrites the weights of a folder: a suffix to rename, to drop, or (suffix, function of the tensor)."""
    path, found = folder / "model.safetensors", {}
    for name, tensor in load_file(path).items():
        if drop and name.endswith(drop):
            continue
        if rename and name.endswith(rename[0]):
            name = name.removesuffix(rename[0]) + rename[1]
        if replace and name.endswith(replace[0]):
            tensor = replace[1](tensor).contiguous()
        found[name] = tensor
    save_file(found, path, metadata={"format": "pt"})


CONTRADICTIONS = {
    "missing g_idx": ("gptq-ordered", {}, {"drop": ".g_idx"}, "no g_idx, and desc_act is true"),
    "missing scales": ("gptq", {}, {"drop": ".scales"}, "lacks scales"),
    "missing zero points": ("awq", {}, {"drop": ".qzeros"}, "lacks qzeros"),
    "other bits": ("gptq", {"bits": 8}, {}, "bits is 8: .* columns, g_idx"),
    "no bits": ("gptq", {"bits": 500}, {}, "bits is '500', no number of bits"),
    "groups of other columns": ("gptq-ordered", {}, {"replace": (".g_idx", torch.Tensor.float)}, "g_idx is .* of F32"),
    "groups of packed columns": ("ct-int4-ordered", {}, {"replace": ("g_idx", lambda t: t[:-1])}, "g_idx is .127."),
    "zero points of plain codes": (
        "ct-int8-asymmetric",
        {},
        {"replace": ("zero_point", lambda t: t[:-1])},
        "zero_point is",
    ),
    "layouts": ("llm-int8", {}, {"replace": ("weight_format", lambda t: t.repeat(2))}, "weight_format is .2."),
    "other group": ("gptq", {"group_size": 64}, {}, "scales is .* of F16"),
    "odd group": ("gptq", {"group_size": 48}, {}, "groups of 48 do not divide"),
    "no group": ("awq", {"group_size": "many"}, {}, "group_size is 'many'"),
    "floats for words": ("gptq", {}, {"replace": (".qweight", torch.Tensor.float)}, "of F32"),
    "other block": ("fp8", {"weight_block_size": [128, 128]}, {}, "blocks are 128 x 128"),
    "no scale": ("fp8", {}, {"drop": "_scale_inv"}, "lacks scale"),
    "scales of plain weights": ("fp8", {}, {"replace": ("proj.weight", torch.Tensor.bfloat16)}, "it has scales"),
    "other state": ("nf4", {}, {"drop": "bitsandbytes__nf4"}, "nothing beside it says how"),
    "short weight": ("nf4", {}, {"replace": ("proj.weight", lambda t: t[:-1])}, "its state says"),
    "no object": ("nf4", {}, {"replace": ("bitsandbytes__nf4", lambda t: t[:-1])}, "not valid JSON"),
    "no codebook": ("nf4", {}, {"drop": ".quant_map"}, "lacks quant_map"),
    "other shape": ("ct-int4", {}, {"replace": ("weight_shape", lambda t: t * 2)}, "weight_packed is"),
    "asymmetric": ("ct-int4-asymmetric", {}, {"drop": "zero_point"}, "there is no weight_zero_point"),
    "no groups": ("ct-int4", {"config_groups": {}}, {}, "no config_groups for model.layers.0"),
    "short codes": ("hqq", {}, {"replace": ("W_q", lambda t: t[:-1])}, "the weight .64, 128. of 4 bits"),
    "nothing quantized": ("gptq", {}, {"rename": (".qweight", ".weird")}, "no tensor is"),
    "no tensor": ("awq", {"quant_method": "fp8"}, {}, "no tensor is"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_config_that_contradicts_its_tensors_is_refused(tmp_path, case):
    name, config, changes, text = CONTRADICTIONS[case]
    write(tmp_path, VARIANTS[name])
    configure(tmp_path, VARIANTS[name].config | config)
    if changes:
        change(tmp_path, **changes)
    with pytest.raises(BadFile) as caught:
        open_card(tmp_path)
    import re

    assert re.search(text, f"{caught.value.cause} {' '.join(caught.value.facts)}")


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("gptq", (".qzeros", lambda t: t + 1), "sym is true, and zero points differ from 8"),
        ("gptq-ordered", (".g_idx", lambda t: torch.zeros_like(t)), "g_idx has groups of"),
        ("gptq-ordered", (".g_idx", lambda t: t - 1), "g_idx has groups of"),
        ("gptq-asymmetric", (".g_idx", lambda t: t.flip(0)), "desc_act is false, and g_idx does not"),
        ("nf4", (".quant_map", lambda t: t * 2), "is not bitsandbytes' own"),
    ],
)
def test_values_that_contradict_the_config_are_refused_when_they_are_read(tmp_path, name, changes, text):
    write(tmp_path, VARIANTS[name])
    change(tmp_path, replace=changes)
    with pytest.raises(BadFile) as caught:
        decoded(open_card(tmp_path))
    assert text in f"{caught.value.cause} {' '.join(caught.value.facts)}"


UNREAD = {
    "bits": ("gptq", {"bits": 5}, {}, "bits is 5, and rung reads 2, 3, 4, 8"),
    "layout": ("awq", {"version": "gemv"}, {}, "AWQ layout is 'gemv'"),
    "version": ("gptq", {"checkpoint_format": "marlin"}, {}, "checkpoint_format is 'marlin'"),
    "hqq": ("hqq", {}, {"replace": ("nbits", lambda t: t * 0 + 3)}, "HQQ of 3 bits"),
    "tiles": ("llm-int8", {}, {"replace": ("weight_format", lambda t: t + 2)}, "tiles for one .* .weight_format 2."),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_variant_that_rung_does_not_read_is_named(tmp_path, case):
    name, config, changes, text = UNREAD[case]
    write(tmp_path, VARIANTS[name])
    configure(tmp_path, VARIANTS[name].config | config)
    if changes:
        change(tmp_path, **changes)
    for opened in (open_card, open_outline):
        with pytest.raises(UnknownArchitecture, match=text):
            opened(tmp_path)


def test_a_method_that_rung_does_not_read_is_named(tmp_path):
    write(tmp_path, VARIANTS["gptq"])
    configure(tmp_path, {"quant_method": "aqlm"})
    with pytest.raises(UnknownArchitecture, match="quantized with aqlm"):
        open_card(tmp_path)
    configure(tmp_path, ["gptq"])
    with pytest.raises(BadFile, match="not an object"):
        open_card(tmp_path)


@pytest.mark.parametrize("name", ["u4:128:bf16", "u2:64", "e4m3:7168", "u8:32:ordered", "E4M3:128:BF16", "u4"])
def test_names_of_grouped_formats(name):
    found = formats.get(name)
    assert formats.get(found.name) == found
    sample = formats.families.grouped.sample(found, (3, 2 * found.block), np.random.default_rng(0))
    assert found.bytes(sample.shape) == sample.nbytes
    assert math.isclose(found.bits, 8 * found.block_bytes / found.block)


@pytest.mark.parametrize("name", ["u4:0", "u4:12:f8", "u4:-1", "u2:3", "e4m3:x", "u4:ordered:128", "u8:99999999"])
def test_names_that_are_no_grouped_formats(name):
    with pytest.raises(rung.RungError, match="There is no format"):
        formats.get(name)


def test_a_read_only_weight_offers_formats_that_rung_writes(tmp_path):
    from rung.core.errors import UsageError
    from rung.nn import QuantLinear, QuantWeight

    write(tmp_path, VARIANTS["awq"])
    _, stored = decoded(open_card(tmp_path))
    layer = QuantLinear(QuantWeight.of(next(iter(stored.values())), torch.float32))
    layer.weight.data = layer.weight.data  # what changes nothing is nothing to encode
    with pytest.raises(UsageError, match="u4:32, which rung reads and does not write") as caught:
        layer.weight.data = layer.weight.data + 1
    offered = caught.value.ways_out[1].split("format, ")[1].split(" ")[0]
    assert formats.get(offered).encodes


def test_three_bits_cross_the_ends_of_words():
    codes = torch.arange(64)[None] % 8
    words = foreign.pack_words(codes, 3)
    assert words.shape == (1, 6)
    assert torch.equal(foreign.unpack_words(words, 3, 64), codes)
