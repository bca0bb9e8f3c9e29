"""Folders that contradict themselves, miss something or hold what rung does not read: all named."""

import shutil

import pytest
import torch
from handmade import edit
from safetensors.torch import save_file

import tiny
from rung.core.errors import BadFile, ModelNotFound, UnknownArchitecture, UnsafeFile
from rung.models import open_card


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 128}, r"contradicts its tensors: lm_head.weight has the shape \[320, 64\]"),
        ({"num_key_value_heads": 4}, r"k_proj.weight has the shape \[32, 64\]"),
        ({"vocab_size": 321}, r"embed_tokens.weight|lm_head.weight"),
        ({"intermediate_size": 64}, r"_proj.weight has the shape"),
        ({"num_hidden_layers": 1}, "describes 1 layer, and its tensors go on"),
        ({"num_hidden_layers": 3}, "lacks 9 tensors.*"),
        ({"attention_bias": True}, "lacks 8 tensors"),
        ({"num_hidden_layers": 10**9}, "whole number from 1 to 1024"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"rms_norm_eps": -1}, "above zero"),
        ({"rms_norm_eps": float("nan")}, "above zero"),
        ({"head_dim": 15}, "even number"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e300}}, "base of the rotary embedding"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}}, "list of 8 numbers"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
    ],
)
def test_contradictions_are_named(folder, changes, words):
    edit(folder / "config.json", **changes)
    with pytest.raises(BadFile, match=words):
        open_card(folder)


def test_a_head_that_is_missing_is_named(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints("gemma")[0], tmp_path / "gemma")
    edit(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(BadFile, match="lacks 1 tensor") as error:
        open_card(folder)
    assert "head" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba9"}, "'mamba9', which rung does not build"),
        ({"hidden_act": "relu6"}, "activation 'relu6'"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope scaling 'spiral'"),
        ({"quantization_config": {"quant_method": "aqlm", "bits": 4}}, "quantized with aqlm"),
        ({"compression_config": {"quant_method": "sparseml"}}, "sparseml"),
    ],
)
def test_what_rung_does_not_build_is_named(folder, changes, words):
    edit(folder / "config.json", **changes)
    with pytest.raises(UnknownArchitecture, match=words):
        open_card(folder)


def test_unknown_type_lists_the_known(folder):
    edit(folder / "config.json", model_type="bloom")
    with pytest.raises(UnknownArchitecture) as error:
        open_card(folder)
    assert all(name in str(error.value) for name in tiny.MODEL_TYPES)


def test_a_strange_tensor_is_named(folder, checkpoints):
    state = {name: value.contiguous() for name, value in checkpoints("llama")[1].state_dict().items()}
    save_file({**state, "score.weight": torch.zeros(2, 64)}, folder / "model.safetensors")
    with pytest.raises(BadFile, match="1 tensor without a place") as error:
        open_card(folder)
    assert "score.weight" in str(error.value)
    state["model.norm.weight"] = state["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(BadFile, match=r"model.norm.weight is stored as F8_E4M3"):
        open_card(folder)


def test_two_tensors_for_one_place_are_named(folder, checkpoints):
    state = {name: value.contiguous() for name, value in checkpoints("llama")[1].state_dict().items()}
    twin = state["model.layers.1.mlp.up_proj.weight"].clone()
    save_file({**state, "layers.1.mlp.up_proj.weight": twin}, folder / "model.safetensors")
    with pytest.raises(BadFile, match="have the same place in the model") as error:
        open_card(folder)
    assert "model.layers.1.mlp.up_proj.weight" in str(error.value)


def test_pickles_are_refused_with_the_way_out(folder, checkpoints):
    (folder / "model.safetensors").unlink()
    torch.save(checkpoints("llama")[1].state_dict(), folder / "pytorch_model.bin")
    for path in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(UnsafeFile, match=r"pytorch_model.bin is a pickle") as error:
            open_card(path)
        assert f"rung convert {folder} NEW_FOLDER" in str(error.value)
    (folder / "pytorch_model.bin").rename(folder / "weights.gguf")
    with pytest.raises(UnsafeFile):
        open_card(folder / "weights.gguf")


def test_missing_things(tmp_path, folder):
    for nowhere in (tmp_path / "nowhere", "x" * 5000, "~nobody-of-that-name/x.gguf", "with\0zero"):
        with pytest.raises(ModelNotFound, match="no file or folder"):
            open_card(nowhere)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="holds no model"):
        open_card(tmp_path / "empty")
    (folder / "model.safetensors").rename(tmp_path / "loose.safetensors")
    with pytest.raises(ModelNotFound, match="has no weights"):
        open_card(folder)
    with pytest.raises(BadFile, match=r"no config.json beside it"):
        open_card(tmp_path / "loose.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(BadFile, match="LoRA"):
        open_card(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[1]", "holds a list"),
        ("{" * 100000, "nested|valid JSON"),
        ('{"a":' * 100000, "nested too deeply"),
        ('{"model_type": "llama", "model_type": "gemma"}', "'model_type' twice"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"a": "' + "x" * 3_000_000 + '"}', "longer than 512 kB"),
    ],
)
def test_hostile_configurations(folder, text, words):
    (folder / "config.json").write_text(text)
    with pytest.raises(BadFile, match=words):
        open_card(folder)
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(BadFile, match="not UTF-8"):
        open_card(folder)
