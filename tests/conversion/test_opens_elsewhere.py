"""Test that files of rung open in the programs of their formats: transformers, bitsandbytes and the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import rung
from rung.conversion.quantize import parse_keep, quantizing
from rung.conversion.writing import write
from rung.models import open_card
from tests import tiny
from tests.support.models import logits_of

TOKENS = torch.tensor([[1, 17, 300, 5, 9, 200]])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    tiny.tiny_checkpoint(folder, "llama", "float32", head_dim=16)
    return folder


def written(source, kind, format, target, *keep):
    write(quantizing(open_card(source), kind, format, parse_keep(keep)), target, 1)
    return target


def loaded(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, **more).eval()


@pytest.mark.parametrize("model_type", ["llama", "gemma"])
@pytest.mark.parametrize("format", ["nf4", "q8_0", "int8"])
def test_a_folder_of_rung_is_what_transformers_would_have_saved(model_type, format, tmp_path):
    tiny.tiny_checkpoint(tmp_path / "a", model_type, "float32")
    keep = {"embed_tokens": "q8_0"} | ({"lm_head": "q8_0"} if model_type == "gemma" else {})
    own = loaded(tmp_path / "a", quantization_config=rung.QuantizationConfig(format, keep=keep))
    mine = loaded(written(tmp_path / "a", "rung", format, tmp_path / "b", "embed_tokens=q8_0"))
    a, b = own.state_dict(), mine.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_a_mixture_in_a_folder(tmp_path):
    tiny.tiny_checkpoint(tmp_path / "a", "llama", "float32", hidden_size=256, intermediate_size=512, head_dim=64)
    mine = loaded(written(tmp_path / "a", "rung", "q4_k_m", tmp_path / "b"))
    formats_of = {name: m.stored.format.name for name, m in mine.named_modules() if hasattr(m, "stored")}
    assert formats_of["lm_head"] == "q6_k"
    assert formats_of["model.embed_tokens"] == "q4_k"
    assert formats_of["model.layers.1.mlp.down_proj"] == "q6_k"
    assert formats_of["model.layers.1.mlp.up_proj"] == "q4_k"
    exact = loaded(tmp_path / "a").state_dict()
    for name, module in mine.named_modules():
        if hasattr(module, "stored"):
            weight = exact[f"{name}.weight"]
            assert (module.weight.data - weight).norm() < 0.1 * weight.norm(), name


@pytest.mark.parametrize("format", ["nf4", "nf4:64:nested", "fp4", "int8"])
def test_a_folder_of_bitsandbytes_is_its_own(format, source, tmp_path):
    bnb = pytest.importorskip("bitsandbytes")
    kind, nested = format.split(":")[0], "nested" in format
    mine = loaded(written(source, "bitsandbytes", format, tmp_path / "b"))
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    config = BitsAndBytesConfig(**({"load_in_8bit": True} if kind == "int8" else four))
    own = loaded(source, quantization_config=config, dtype=torch.float32)
    for name, layer in own.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            other = mine.get_submodule(name).weight
            assert torch.equal(layer.weight.data, other.data), name
            one, two = (bnb.functional.dequantize_4bit(w.data, w.quant_state) for w in (layer.weight, other))
            assert (one - two).abs().max() <= 1e-2 * one.abs().max() if nested else torch.equal(one, two)
        if isinstance(layer, bnb.nn.Linear8bitLt):
            other = mine.get_submodule(name)
            assert type(other) is type(layer), name
            # bitsandbytes casts to f16 first, so that a code may be the neighbor
            assert (layer.weight.data.int() - other.weight.data.int()).abs().max() <= 1
    assert torch.allclose(logits_of(own, TOKENS), logits_of(mine, TOKENS), atol=0.2, rtol=0.05)


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "iq4_nl", "mxfp4", "bf16"])
def test_a_gguf_file_opens_in_the_gguf_package(format, source, tmp_path):
    from rung import formats
    from rung.models.reader import Reader

    written(source, "gguf", format, tmp_path / "x.gguf")
    card = open_card(tmp_path / "x.gguf")
    own = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    assert len(own) == len(card.tensors)
    with Reader(card) as reader:
        for tensor in card.tensors:
            theirs = dequantize(own[tensor.name].data, own[tensor.name].tensor_type)
            np.testing.assert_array_equal(formats.decode(reader.read(tensor)).reshape(theirs.shape), theirs)


def test_transformers_reads_the_gguf_file(source, tmp_path):
    exact = logits_of(loaded(source), TOKENS)
    written(source, "gguf", "q8_0", tmp_path / "x.gguf")
    found = logits_of(loaded(tmp_path, gguf_file="x.gguf"), TOKENS)
    assert (found - exact).norm() < 0.02 * exact.norm()


def test_a_quantized_folder_becomes_a_gguf_file(source, tmp_path):
    """Codes that do not lie in rows are decoded before the rows change their order."""
    from safetensors.torch import load_file

    from rung import formats
    from rung.conversion.convert import converting
    from rung.conversion.writing import order_of_heads

    written(source, "bitsandbytes", "nf4", tmp_path / "b")
    write(converting(open_card(tmp_path / "b"), True, "f32"), tmp_path / "x.gguf", 1)
    weight = load_file(source / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"].numpy()
    decoded = formats.decode(formats.encode(weight, formats.get("nf4")))
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    np.testing.assert_array_equal(found["blk.1.attn_q.weight"], decoded[order_of_heads(len(decoded), 4, True)])
