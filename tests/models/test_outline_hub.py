"""Outlines of hub repositories from a few bytes of them, against a hub of our own on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import meta_models
import pytest
from handmade import STRING, llama
from hub_server import Sparse

from rung.core.errors import BadFile, HubError, ModelNotFound
from rung.models.locate import locate
from rung.models.networks.component import describe
from rung.models.outline import Outline, open_outline


def header(tensors):
    """The bytes of a safetensors file before its data, and its length."""
    entries, end = {}, 0
    for tensor in tensors:
        dtype = {"f32": "F32", "bf16": "BF16"}[tensor.format]
        entries[tensor.name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes]}
        end += tensor.bytes
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end


def repository(name: str, shards: int, *, total: int = 0) -> dict[str, bytes | Sparse]:
    """A repository of a public configuration, as large as it is; ``total`` is added to what its index says."""
    config = meta_models.config(name)
    tensors = describe(config, name).tensors
    files: dict[str, bytes | Sparse] = {"config.json": json.dumps(config).encode(), "README.md": b"x"}
    if shards == 1:
        return files | {"model.safetensors": Sparse(*header(tensors))}
    names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    mapping = {tensor.name: names[index % shards] for index, tensor in enumerate(tensors)}
    for index, shard in enumerate(names):
        files[shard] = Sparse(*header(tensors[index::shards]))
    content = {"metadata": {"total_size": sum(t.bytes for t in tensors) + total}, "weight_map": mapping}
    return files | {"model.safetensors.index.json": json.dumps(content).encode()}


def requested(server):
    """The paths that were asked for, without what ``huggingface_hub`` asks once a process for itself."""
    return [path for _, path, _ in server.requests if "agent-harnesses" not in path]


def tensors_of(found: Outline):
    return {(t.name, t.role, t.shape, t.format, t.bytes) for t in found.components[0].tensors}


def test_a_model_of_140_gb_costs_three_requests(server):
    server.repositories["meta-llama/Llama-3.1-70B"] = repository("llama-3.1-70b", 30)
    found = open_outline("meta-llama/Llama-3.1-70B")
    assert (found.kind, found.name, found.card) == ("hub", "meta-llama/Llama-3.1-70B", None)
    assert (found.parameters, found.weight_bytes) == (70_553_706_496, 141_107_412_992)
    assert [path.rsplit("/", 1)[-1] for path in requested(server)] == [
        "Llama-3.1-70B",
        "config.json",
        "model.safetensors.index.json",
    ]
    assert server.sent < 5 * 10**6


def test_shards_are_asked_where_the_index_says_something_else(server):
    server.repositories["a/b"] = repository("llama-3.1-70b", 30, total=1)
    found = open_outline("a/b")
    config = meta_models.config("llama-3.1-70b")
    assert tensors_of(found) == {(t.name, t.role, t.shape, t.format, t.bytes) for t in describe(config, "x").tensors}
    assert {t.file for t in found.components[0].tensors} == set(range(30))
    assert len(requested(server)) <= 3 + 2 * 30
    assert server.sent < 5 * 10**6


def test_one_file_is_one_request(server):
    server.repositories["a/b"] = repository("qwen2.5-0.5b", 1)
    found = open_outline("a/b")
    assert found.parameters == 494_032_768
    assert found.components[0].decoder is not None
    assert ("GET", "a/b/resolve/main/model.safetensors", "bytes=0-32767") in server.requests
    assert server.sent < 10**6


def test_a_pipeline_of_the_hub(server):
    parts = {"transformer": "ltx-video-2b-transformer", "vae": "ltx-video-0.9.0-vae", "text_encoder": "t5-small"}
    index = {name: ["diffusers", "X"] for name in parts} | {
        "scheduler": ["diffusers", "Y"],
        "_class_name": "LTXPipeline",
    }
    files: dict[str, bytes | Sparse] = {"model_index.json": json.dumps(index).encode()}
    for name, config in parts.items():
        stem = "diffusion_pytorch_model" if name != "text_encoder" else "model"
        files[f"{name}/config.json"] = json.dumps(meta_models.config(config)).encode()
        tensors = describe(meta_models.config(config), config).tensors
        if name != "vae":
            files[f"{name}/{stem}.safetensors"] = Sparse(*header(tensors))
    server.repositories["Lightricks/LTX-Video"] = files
    found = open_outline("Lightricks/LTX-Video")
    assert (found.kind, [phase.name for phase in found.phases]) == ("pipeline", ["encode", "denoise", "decode"])
    assert found.parameters == sum(describe(meta_models.config(config), "x").parameters for config in parts.values())
    assert (
        len(requested(server)) == 8
    )  # the list, its index, three configurations, a header in two pieces and one in one
    assert server.sent < 10**6


def test_a_gguf_file_of_the_hub(server, tmp_path):
    names = [f"token {n:06d} of a long vocabulary" for n in range(60_000)]
    small = llama(
        tmp_path / "x.gguf", {"tokenizer.ggml.tokens": (9, (STRING, names))}, {"token_embd.weight": (60_000, 4)}
    )
    data = small.read_bytes()
    server.repositories["a/b-GGUF"] = {"b-Q4_K_M.gguf": data, "b-Q8_0.gguf": data, "README.md": b"x"}
    local = open_outline(small)
    for name in ("a/b-GGUF", "a/b-GGUF:Q8_0", "a/b-GGUF/b-Q4_K_M.gguf"):
        found = open_outline(name)
        assert (found.kind, found.path, tensors_of(found)) == ("hub", name, tensors_of(local))
    spans = [(path, span) for _, path, span in server.requests if span]
    assert spans[0] == ("a/b-GGUF/resolve/main/b-Q4_K_M.gguf", "bytes=0-65535")
    assert len(data) > 2 * 2**20
    assert server.sent < 2 * 2**20  # three files, of each some 600 kB: the vocabulary is stepped over
    with pytest.raises(ModelNotFound, match="has no Q2_K"):
        open_outline("a/b-GGUF:Q2_K")


def test_a_gguf_file_of_the_hub_that_is_none(server):
    server.repositories["a/b"] = {"b.gguf": Sparse(b"GGUF" + b"\3\0\0\0" + b"\1" + bytes(15), 10**11)}
    with pytest.raises(BadFile):
        open_outline("a/b")
    assert server.sent < 40 * 2**20
    server.repositories["a/b"] = {"b.gguf": Sparse(b"\x89PNG", 10**11)}
    before = server.sent
    with pytest.raises(BadFile, match="PNG"):
        open_outline("a/b")
    assert server.sent - before <= 2**20 + 2**16


@pytest.mark.parametrize(
    ("lie", "error", "match"),
    [
        ("shifted", HubError, "asked for byte 0 on, it gave bytes 8-"),
        ("longer", HubError, "in the list of files"),
        ("short", HubError, "were asked for"),
        ("drip", HubError, "within 1 seconds"),
        ("drip_list", HubError, "within 1 seconds"),
        ("drip_headers", HubError, "within 1 seconds"),
        ("round", HubError, "within 1 seconds"),
        ("bomb", HubError, "says more than"),
        ("page", HubError, "does not say which files a/b has"),
        ("lengths", HubError, "how long config.json is"),
    ],
)
def test_servers_that_lie_or_never_end(server, lie, error, match):
    server.repositories["a/b"] = repository("qwen2.5-0.5b", 1)
    server.lie = lie
    with pytest.raises(error, match=match):
        open_outline("a/b", seconds=1.0 if "1 seconds" in match else 30.0)


def test_a_server_without_ranges_gives_the_beginning_and_is_left(server, tmp_path):
    server.repositories["a/b"] = repository("all-minilm-l6-v2", 1)
    server.lie = "whole"
    assert open_outline("a/b").parameters == 22_713_216
    tokens = {"tokenizer.ggml.tokens": (9, (STRING, ["a" * 20] * 60_000))}
    file = llama(tmp_path / "x.gguf", tokens, {"token_embd.weight": (60_000, 4)})
    server.repositories["a/b-GGUF"] = {"b.gguf": file.read_bytes()}
    with pytest.raises(HubError, match="contradicts itself") as error:
        open_outline("a/b-GGUF")
    assert "whole files only" in str(error.value)


@pytest.mark.parametrize("length", [-5, 10**30, 2**44])
def test_lengths_that_no_file_has(server, length):
    server.repositories["a/b"] = repository("qwen2.5-0.5b", 1)
    server.sizes["model.safetensors"] = length
    with pytest.raises(HubError, match="how long model"):
        open_outline("a/b")


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "whisper-tiny"])
def test_an_error_in_what_came_names_the_repository(server, name):
    """And no folder of this machine, in which its headers lie for a moment."""
    files = repository(name, 1)
    server.repositories["a/b"] = files | {
        "config.json": json.dumps(meta_models.config(name) | {"vocab_size": -1}).encode()
    }
    with pytest.raises(BadFile, match=r"^a/b/config\.json: vocab_size is '-1'"):
        open_outline("a/b")


def test_weights_of_another_model_name_the_repository(server):
    server.repositories["a/b"] = repository("whisper-tiny", 1) | {
        "config.json": repository("qwen2.5-0.5b", 1)["config.json"]
    }
    with pytest.raises(BadFile, match=r"^a/b: .* without a place in a qwen2 model"):
        open_outline("a/b")


def test_an_index_that_names_strangers(server):
    files = repository("llama-3.1-70b", 2, total=1)
    del files["model-00002-of-00002.safetensors"]
    server.repositories["a/b"] = files
    with pytest.raises(BadFile, match="does not belong to a/b"):
        open_outline("a/b")
    files["config.json"] = Sparse(b"{", 10**10)
    with pytest.raises(HubError, match=r"config.json of a/b is 9.3 GB long"):
        open_outline("a/b")


def test_repositories_that_are_not_for_us(server, tmp_path):
    with pytest.raises(ModelNotFound, match="no model a/nothing on the hub"):
        open_outline("a/nothing")
    server.status["a/gated"] = (403, "GatedRepo")
    with pytest.raises(HubError, match="gated") as error:
        open_outline("a/gated")
    assert "hf auth login" in str(error.value)
    server.status["a/broken"] = (500, "")
    with pytest.raises(HubError, match="status 500"):
        open_outline("a/broken")
    server.repositories["a/empty"] = {"README.md": b"x"}
    with pytest.raises(ModelNotFound, match="holds no model"):
        open_outline("a/empty")
    server.repositories["a/b"] = repository("qwen2.5-0.5b", 1)
    with pytest.raises(HubError, match="no revision v9"):
        open_outline("a/b", revision="v9")
    for revision in ("v1", "refs/pr/1"):  # a name with slashes is one name
        assert open_outline("a/b", revision=revision).parameters == 494_032_768


def test_no_network(server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    with pytest.raises(HubError, match="cannot be reached") as caught:
        open_outline("a/b")
    assert len(caught.value.facts) == 1
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"HF_ENDPOINT=http://127\.0\.0\.1:9"):
        open_outline("a/b")
    with pytest.raises(HubError, match="not downloaded"):
        open_outline("a/b", offline=True)
    with pytest.raises(ModelNotFound, match="no name of a model on the hub"):
        open_outline(f"a/{'b' * 200}")


def test_without_a_network_what_was_downloaded_is_known(server, checkpoints, monkeypatch):
    from huggingface_hub import constants

    folder, _ = checkpoints("llama")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.repositories["a/b"] = files
    locate("a/b")
    whole = open_outline(folder)
    assert tensors_of(open_outline("a/b", offline=True)) == tensors_of(whole)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    found = open_outline("a/b")
    assert (found.kind, found.name, tensors_of(found)) == ("folder", "a/b", tensors_of(whole))


def test_names_that_are_no_place(server, tmp_path):
    for name in ("nothing", "./a/b", "a/b.gguf", "x" * 5000, "a\0b", "", "~nobody-here/x"):
        with pytest.raises((ModelNotFound, BadFile)):
            open_outline(name)
    assert not requested(server)
    server.repositories["a/b"] = {"../../outside.gguf": b"GGUF", "model_index.json": b'{"..": ["a", "b"]}'}
    with pytest.raises((HubError, BadFile)):
        open_outline("a/b")
    with pytest.raises((HubError, BadFile, ModelNotFound)):
        open_outline("a/b/../../outside.gguf")
    assert not list(Path(tmp_path).parent.glob("outside*"))
