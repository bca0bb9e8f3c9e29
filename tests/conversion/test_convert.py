"""``rung convert``: GGUF files as folders, against the folders they were made of, and checkpoints of PyTorch."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rung.cli.app import main
from rung.conversion.convert import converting
from rung.conversion.tokenizers.tokenizer_json import merge_list, tokenizer_files
from rung.conversion.writing import write
from rung.core.errors import BadFile, UnknownArchitecture, UnsafeFile, UsageError
from rung.models import open_card
from tests import tiny

FIXTURES = Path(__file__).parents[1] / "fixtures"
sys.path += [str(FIXTURES), str(FIXTURES.parent)]

import texts  # noqa: E402

TOKENS = torch.tensor([[1, 17, 300, 5, 9, 200, 33, 34, 35, 36, 37, 38]])
INDEX = json.loads((FIXTURES / "gguf" / "index.json").read_text())
PLAIN = {e["name"]: e for e in INDEX if e["format"] == "F32" and len(e["files"]) == 1}


def command(*words) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        return ended.code or 0
    return 0


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "mistral-f32"])
def test_llama_cpps_files_become_the_folders_they_were_made_of(name, tmp_path):
    """Logits of transformers on the folder are those of the model that llama.cpp's converter was given."""
    entry = PLAIN[name]
    shape = dict(entry["model"])
    own = tiny.tiny_model(shape.pop("model_type"), **shape)
    tiny.mix_signs(own)
    write(converting(open_card(FIXTURES / "gguf" / entry["files"][0]), False, None), tmp_path / "x", 1)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "x", attn_implementation="eager").eval()
    assert type(converted) is type(own)
    weights = converted.state_dict()
    for key, value in own.state_dict().items():
        assert torch.allclose(weights[key], value, rtol=0, atol=3e-7), key
    with torch.no_grad():
        assert torch.allclose(converted(TOKENS).logits, own(TOKENS).logits, atol=2e-4)


@pytest.mark.parametrize("name", [path.stem for path in sorted((FIXTURES / "tokenizers").glob("*.gguf"))])
def test_tokenizers_give_the_ids_of_the_folder(name, tmp_path):
    from rung.models.files.gguf import read_header

    header = read_header(FIXTURES / "tokenizers" / f"{name}.gguf")
    card = type("Card", (), {"metadata": header.metadata, "name": name, "chat_template": None})()
    card.decoder = type("Decoder", (), {"context": 128})()
    for file, data in tokenizer_files(card).items():
        (tmp_path / file).write_bytes(data)
    own, converted = (
        AutoTokenizer.from_pretrained(FIXTURES / "tokenizers" / name),
        AutoTokenizer.from_pretrained(tmp_path),
    )
    # Llama 2's own class takes a leading space for the one that goes before every text, llama.cpp adds another;
    # of many spaces llama.cpp takes the longest token of Gemma first, checkpoints merge them by halves
    other = {"llama2": lambda text: text[:1].isspace(), "gemma": lambda text: " " * 32 in text}.get(name)
    strings = [text for text in texts.plain() if other is None or not other(text)]
    assert len(strings) > 400
    assert [text for text in strings if own(text)["input_ids"] != converted(text)["input_ids"]] == []


def test_a_folder_becomes_a_file_and_a_folder_again(tmp_path):
    tiny.tiny_checkpoint(tmp_path / "a", "gemma2", "bfloat16", query_pre_attn_scalar=16)
    assert command("convert", tmp_path / "a", tmp_path / "x.gguf", "--quiet") == 0
    own = load_file(tmp_path / "a" / "model.safetensors")
    card = open_card(tmp_path / "x.gguf")
    assert {tensor.format for tensor in card.tensors if len(tensor.shape) > 1} == {"bf16"}
    assert {tensor.format for tensor in card.tensors if len(tensor.shape) == 1} == {"f32"}
    assert command("convert", tmp_path / "x.gguf", tmp_path / "b", "--quiet") == 0
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert again.keys() == own.keys()
    assert all(torch.equal(again[name], own[name]) for name in own if "norm" not in name)
    assert all(torch.allclose(again[name], own[name], atol=0.004) for name in own)  # one more, one less: in bf16


def test_what_a_gguf_file_cannot_say_is_refused(tmp_path):
    """llama.cpp scales q by the dimensions of a head in every Gemma 2 but the largest."""
    tiny.tiny_checkpoint(tmp_path / "a", "gemma2", "bfloat16", query_pre_attn_scalar=24)
    with pytest.raises(UnknownArchitecture, match="its attention scale would be another"):
        converting(open_card(tmp_path / "a"), True, None)


def test_what_is_of_that_kind_already_is_refused(tmp_path):
    card = open_card(FIXTURES / "gguf" / "llama-f32.gguf")
    with pytest.raises(UsageError, match="is a GGUF file already"):
        converting(card, True, None)
    with pytest.raises(UsageError, match="q8_0 is no float"):
        converting(card, False, "q8_0")


def test_a_quantized_file_is_decoded(tmp_path):
    write(converting(open_card(FIXTURES / "gguf" / "llama-q8_0.gguf"), False, "f32"), tmp_path / "x", 1)
    from gguf import GGUFReader
    from gguf.quants import dequantize

    theirs = {
        t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(FIXTURES / "gguf" / "llama-q8_0.gguf").tensors
    }
    mine = load_file(tmp_path / "x" / "model.safetensors")
    np.testing.assert_array_equal(mine["model.layers.0.mlp.up_proj.weight"], theirs["blk.0.ffn_up.weight"])


# ---- checkpoints of PyTorch


def test_pickles_of_a_folder(tmp_path):
    model = tiny.tiny_checkpoint(tmp_path / "a", "qwen3", "bfloat16")
    state = load_file(tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "model.safetensors").unlink()
    names = sorted(state)
    torch.save({name: state[name] for name in names[:9]}, tmp_path / "a" / "pytorch_model-00001-of-00002.bin")
    torch.save({name: state[name] for name in names[9:]}, tmp_path / "a" / "pytorch_model-00002-of-00002.bin")
    assert command("convert", tmp_path / "a", tmp_path / "b", "--quiet") == 0
    assert open_card(tmp_path / "b").decoder.model_type == "qwen3"
    loaded = load_file(tmp_path / "b" / "model.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in names)
    assert model is not None


def gemma_checkpoint(folder: Path, model) -> Path:
    """The weights of a Gemma of transformers as Gemma PyTorch keeps them."""
    state = dict(model.state_dict())
    found = {"embedder.weight": state.pop("model.embed_tokens.weight")}
    state.pop("lm_head.weight", None)
    for name in [name for name in state if "self_attn.q_proj" in name]:
        parts = [state.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        found[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    width = model.config.head_dim
    angles = torch.polar(torch.ones(2 * model.config.max_position_embeddings, width // 2), torch.zeros(1))
    folder.mkdir()
    torch.save({"model_state_dict": {**found, **state, "freqs_cis": angles}}, folder / "gemma-2b.ckpt")
    return folder / "gemma-2b.ckpt"


def test_gemma_pytorchs_checkpoint(tmp_path):
    model = tiny.tiny_model("gemma", num_key_value_heads=2)
    path = gemma_checkpoint(tmp_path / "a", model)
    shutil.copy(FIXTURES / "tokenizers" / "gemma" / "tokenizer.model", tmp_path / "a")
    assert command("convert", path, tmp_path / "b", "--quiet") == 0
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.allclose(converted(TOKENS).logits, model(TOKENS).logits, atol=1e-5)
    assert open_card(tmp_path / "b").add_bos


def test_another_checkpoint_is_not_taken_for_the_one_before(tmp_path, monkeypatch, capsys):
    """The run that was killed after reading a checkpoint left its tensors; the checkpoint is another one now."""
    from rung.conversion import convert

    def killed(*arguments):
        raise KeyboardInterrupt

    target = "x.gguf"
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = tiny.tiny_model("gemma", num_key_value_heads=2)
        path = gemma_checkpoint(tmp_path / str(seed), model)
        shutil.copy(FIXTURES / "tokenizers" / "gemma" / "tokenizer.model", path.parent)
    with monkeypatch.context() as patch:
        patch.setattr(convert, "converting", killed)
        assert command("convert", tmp_path / "0" / "gemma-2b.ckpt", tmp_path / target) == 130
    (kept,) = tmp_path.glob("x.gguf.unpickled-*")
    assert f"is kept in {kept}" in "".join(capsys.readouterr().err.split("\n"))
    assert command("convert", path, tmp_path / target, "--quiet") == 0
    assert not list(tmp_path.glob("x.gguf.*"))
    assert command("convert", tmp_path / target, tmp_path / "back", "--quiet") == 0
    own, loaded = model.state_dict(), load_file(tmp_path / "back" / "model.safetensors")
    assert torch.equal(loaded["model.embed_tokens.weight"], own["model.embed_tokens.weight"])


def test_what_is_wrong_is_said_before_a_checkpoint_is_read(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    torch.save({"weight": torch.zeros(4)}, tmp_path / "a" / "x.pt")
    (tmp_path / "there.gguf").touch()
    for words, says in (
        (("there.gguf",), "is there already"),
        (("new.gguf", "--format", "q8_0"), "q8_0 is no float"),
    ):
        assert command("convert", tmp_path / "a" / "x.pt", tmp_path / words[0], *words[1:]) == 2
        assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("*unpickled*"))
    assert command("convert", tmp_path / "gone.ckpt", tmp_path / "new.gguf") == 2
    assert "rung run demo" not in capsys.readouterr().err


def test_a_token_of_a_megabyte_is_cut_only_where_tokens_end():
    """At every character it would take minutes."""
    nothing = SimpleNamespace(metadata={})
    assert merge_list({"a": 0, "aa": 1, "": 2, "ab" * 500_000: 3}, nothing) == [["a", "a"]]


class Dangerous:
    def __reduce__(self):
        return print, ("this was run",)


def test_a_pickle_of_more_than_weights_is_refused(tmp_path, capfd):
    torch.save({"weight": torch.zeros(4), "more": Dangerous()}, tmp_path / "x.pt")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    from rung.conversion.pickles import unpickled

    with pytest.raises(UnsafeFile, match="holds more than weights"):
        unpickled(tmp_path / "x.pt", tmp_path / "y")
    assert "this was run" not in "".join(capfd.readouterr())
    assert not (tmp_path / "y").exists()


def test_a_checkpoint_that_says_nothing_of_its_model(tmp_path):
    torch.save({"weight": torch.zeros(4)}, tmp_path / "x.pt")
    from rung.conversion.pickles import unpickled

    with pytest.raises(BadFile, match=r"^x\.pt has no config.json beside it.*\n  it holds 1 tensor, weight") as refused:
        unpickled(tmp_path / "x.pt", tmp_path / "y")
    assert refused.value.ways_out == (f"put the config.json of its model into {tmp_path}",)


def test_a_file_that_is_only_named_as_a_checkpoint(tmp_path, capfd):
    (tmp_path / "x.pt").write_text("weights, I promise")
    assert command("convert", tmp_path / "x.pt", tmp_path / "y") == 1
    said = capfd.readouterr().err
    assert "x.pt is no checkpoint of PyTorch" in said
    assert "rung convert" not in said
