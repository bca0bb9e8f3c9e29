"""Folders of GPTQ and compressed-tensors, decoded as their formats are defined, and opened by rung again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from rung import formats
from rung.cli.app import main
from rung.models import open_card
from rung.models.reader import Reader
from tests.tiny import gguf_vocabulary, tiny_checkpoint

KINDS = ("gptq", "compressed-tensors")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    tiny_checkpoint(folder / "model", "llama", vocab_size=320, hidden_size=64, intermediate_size=96)
    gguf_vocabulary(folder / "model")
    (folder / "text.txt").write_text(" ".join(f"{n} times {n + 1} is {n * n + n}." for n in range(300)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_CACHE", str(folder / "cache"))
        yield folder


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["quantize", *map(str, arguments)])
    out, said = capsys.readouterr()
    return ended.value.code, out, said


def streams(words, bits, count):
    """Codes [n, count] of rows of 32-bit words, the lowest bits first: by whole numbers, one code at a time."""
    found = np.zeros((len(words), count), np.int64)
    for row, values in enumerate(words.astype(np.int64) & 0xFFFFFFFF):
        for at in range(count):
            found[row, at] = (int(values[at * bits // 32]) >> (at * bits % 32)) & (2**bits - 1)
    return found


def decoded(tensors, module, config):
    """A weight float64 [out, in] as the format is defined: (code - zero) * scale of the column's group."""
    if config["quant_method"] == "gptq":
        bits = config["bits"]
        words, scales = tensors[f"{module}.qweight"], tensors[f"{module}.scales"].astype(np.float64)
        columns, rows = words.shape[0] * 32 // bits, words.shape[1]
        codes = streams(words.T, bits, columns)
        zeros = streams(tensors[f"{module}.qzeros"], bits, rows) + 1
        group = tensors[f"{module}.g_idx"]
        return (codes - zeros[group].T) * scales[group].T
    bits = config["config_groups"]["group_0"]["weights"]["num_bits"]
    rows, columns = tensors[f"{module}.weight_shape"]
    codes = streams(tensors[f"{module}.weight_packed"], bits, columns) - 2 ** (bits - 1)
    scales = tensors[f"{module}.weight_scale"].astype(np.float64)
    return codes * np.repeat(scales, columns // scales.shape[1], axis=1)


def modules(tensors):
    return sorted({name.rpartition(".")[0] for name in tensors if name.endswith((".qweight", ".weight_packed"))})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ["q4_0", "q8_0"])
def test_values_are_those_of_the_format_to_the_bit(home, tmp_path, capsys, kind, fmt):
    target = tmp_path / "out"
    code, _, said = run(capsys, home / "model", target, "--as", kind, "--format", fmt)
    assert code in (0, None), said
    config = json.loads((target / "config.json").read_text())["quantization_config"]
    tensors, before = load_file(target / "model.safetensors"), load_file(home / "model" / "model.safetensors")
    assert len(modules(tensors)) == 14
    values = {module: decoded(tensors, module, config) for module in modules(tensors)}
    for module, found in values.items():
        weight = before[f"{module}.weight"].astype(np.float32)
        assert np.array_equal(found, formats.decode(formats.encode(weight, formats.get(fmt), module)))
    assert np.array_equal(tensors["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    card = open_card(target)
    with Reader(card) as reader:
        for tensor in card.tensors:
            if (module := tensor.name.removesuffix(".weight")) in values:
                assert tensor.format == fmt
                assert np.array_equal(formats.decode(reader.read(tensor)), values[module])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_brings_the_folder_nearer_to_its_source(home, tmp_path, capsys, kind):
    """Error feedback: less KL on held-out text than the plain encoder's folder has."""
    from rung.conversion.within_budget import Calibration
    from rung.quantization.divergence import Reference

    text = ("--text", home / "text.txt")
    target = tmp_path / "rounded"
    code, out, said = run(capsys, home / "model", target, "--as", kind, "--format", "q4_0", *text, "--json")
    assert code in (0, None), said
    assert run(capsys, home / "model", tmp_path / "plain", "--as", kind, "--format", "q4_0")[0] in (0, None)
    card = open_card(home / "model")
    windows = Calibration(card, home / "text.txt", 1, lambda label, done, total: None).held_out
    reference = Reference(card, windows)
    rounded, plain = (reference.compare(open_card(tmp_path / name)).divergence for name in ("rounded", "plain"))
    assert json.loads(out)["measured"]["divergence"] == pytest.approx(rounded, rel=1e-6)
    assert rounded < 0.9 * plain


def test_layers_that_stay_plain_are_ignored_by_compressed_tensors(home, tmp_path, capsys):
    options = ("--as", "compressed-tensors", "--format", "q4_0", "--keep", "*.q_proj=f32")
    code, _, said = run(capsys, home / "model", tmp_path / "out", *options)
    assert code in (0, None), said
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    before = load_file(home / "model" / "model.safetensors")
    assert {"model.layers.0.self_attn.q_proj", "lm_head"} <= set(config["ignore"])
    for module in modules(tensors):
        weight = before[f"{module}.weight"].astype(np.float32)
        assert np.array_equal(
            decoded(tensors, module, config), formats.decode(formats.encode(weight, formats.get("q4_0"), module))
        )
    assert {tensor.format for tensor in open_card(tmp_path / "out").tensors} == {"q4_0", "f32"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--as", "gptq", "--format", "nf4"), "A folder of gptq holds no nf4"),
        (("--as", "compressed-tensors", "--format", "q4_1"), "A folder of compressed-tensors holds no q4_1"),
        (("--as", "gptq", "--format", "q4_0", "--keep", "*down_proj=q8_0"), "all linear layers in one format"),
        (("--as", "gptq", "--format", "q4_0", "--keep", "*down_proj=f32"), "all linear layers in one format"),
        (("--as", "gptq", "--format", "q4_0", "--keep", "lm_head=q4_0"), "leaves embeddings and heads as they are"),
        (("--as", "compressed-tensors", "--format", "q4_0", "--keep", "*down_proj=q8_0"), "all linear layers in one"),
        (("--as", "gptq"), "--as gptq --format q4_0"),
        (("--as", "gptq", "--max-kl", "0.1"), "writes GGUF files"),
        (("--as", "gptqq", "--format", "q4_0"), "there is no such kind"),
    ],
)
def test_what_does_not_fit_is_refused(home, tmp_path, capsys, options, said):
    code, _, error = run(capsys, home / "model", tmp_path / "out", *options)
    assert code == 2
    assert said in " ".join(error.split())
    assert not (tmp_path / "out").exists()
