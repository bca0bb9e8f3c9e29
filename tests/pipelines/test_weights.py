"""Networks as they are filled: what resides is what was planned, tables in 16 bits, layouts, reading in pieces."""

import json

import pytest
import torch
from torch import nn

import rung
from rung.engine import planning
from rung.hub.diffusers.pipelines import Folder
from rung.pipelines import weights
from rung.pipelines.generate import Pipeline, Settings
from rung.pipelines.weights import fill, network_of, tables
from rung.planning.pipeline import NetworkStorage, weight_bytes
from tests.models import meta_models
from tests.tiny_pipelines import saved

pytest.importorskip("diffusers")
WAYS = (
    NetworkStorage("f32", "f32", 1),
    NetworkStorage("bf16", "bf16", 1),
    NetworkStorage("int8", "f32", 1),
    NetworkStorage("nf4", "bf16", 1),
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["stable_diffusion", "wan"])
def folder(request, tmp_path_factory):
    return Folder(saved(request.param, tmp_path_factory.mktemp("pipelines") / request.param))


def filled(folder, name, storage):
    return fill(folder.network(name), folder.path / name, storage, CPU, lambda done, total: None)


@pytest.mark.parametrize("storage", WAYS, ids=str)
def test_what_resides_is_what_was_planned(folder, storage):
    for name in folder.networks:
        if name == "vae" and storage.quantized:  # never planned so
            continue
        planned = network_of(folder.network(name), name, "encode", (0, 0), 1, 0)
        network = filled(folder, name, storage)
        resident = {value.data_ptr(): value.nbytes for value in (*network.parameters(), *network.buffers())}
        assert sum(resident.values()) == weight_bytes(planned, storage) - _casts(folder.network(name), storage), name


def _casts(network, storage):
    """Bytes of buffers that are planned as they were built, in f32, and held in 16 bits."""
    floats = sum(value.nbytes for value in network.buffers() if value.is_floating_point())
    return floats // 2 if storage.dtype == "bf16" else 0


def test_beside_quantized_layers_a_table_is_in_16_bits_and_its_rows_are_not(folder):
    ids = torch.tensor([[3, 4, 5]])
    found = filled(folder, "text_encoder", NetworkStorage("int8", "f32", 1))
    names = tables(found)
    assert names
    assert {found.get_parameter(name).dtype for name in names} == {torch.bfloat16}
    assert found.get_input_embeddings()(ids).dtype == torch.float32
    wide = filled(folder, "text_encoder", NetworkStorage("int8", "f32", 1))
    for module in wide.modules():
        if isinstance(module, nn.Embedding) and module.weight.dtype == torch.bfloat16:
            module._forward_hooks.clear()
            module.weight = nn.Parameter(module.weight.float(), requires_grad=False)
    with torch.no_grad():
        assert torch.equal(found(ids)[0], wide(ids)[0])


def test_a_processor_convolves_without_copies(folder):
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    count = 0
    for name in set(folder.networks) - {"text_encoder"}:
        for module in filled(folder, name, NetworkStorage("f32", "f32", 1)).modules():
            if isinstance(module, (nn.Conv2d, nn.Conv3d)):
                count += 1
                assert module.weight.is_contiguous(memory_format=layouts[module.weight.dim()])
    assert count > 10


def test_what_is_converted_is_read_in_pieces(folder, monkeypatch):
    whole = filled(folder, "vae", NetworkStorage("bf16", "bf16", 1)).state_dict()
    monkeypatch.setattr(weights, "_PIECE", 52)  # no tensor is a multiple of it
    pieces = filled(folder, "vae", NetworkStorage("bf16", "bf16", 1)).state_dict()
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_what_is_f32_in_any_dtype_is_not_halved(tmp_path):
    """FLUX rotates queries in f32; CLIP computes all in the dtype that it has."""
    cpu = next(one for one in planning.proven_devices(lambda device: None) if one.kind == "cpu")
    settings = Settings("a cat", size=(32, 32), steps=2)
    found = {one.name: one for one in Pipeline(saved("flux", tmp_path / "flux"), cpu).rehearse([settings])}
    assert 2 * found["text_encoder"].narrow == found["text_encoder"].activations
    assert 0.55 < found["transformer"].narrow / found["transformer"].activations < 1


REAL = {
    "text_encoder": ("transformers", "UMT5EncoderModel", "umt5-xxl-encoder"),
    "transformer": ("diffusers", "WanTransformer3DModel", "wan2.1-t2v-1.3b-transformer"),
    "vae": ("diffusers", "AutoencoderKLWan", "wan2.1-vae"),
}
DTYPES = {"encode": "f32", "denoise": "bf16", "decode": "f32"}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int8", "nf4"])
def test_rung_check_counts_the_weights_that_are_planned_to_run(tmp_path, format):
    """Wan 2.1 from configurations alone; it does not know what is kept in f32, or plain before the blocks."""
    index = {"_class_name": "WanPipeline", "tokenizer": ["transformers", "PreTrainedTokenizerFast"]}
    index["scheduler"] = ["diffusers", "UniPCMultistepScheduler"]
    for name, (library, kind, config) in REAL.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(meta_models.config(config)))
        index[name] = [library, kind]
    for name in ("tokenizer", "scheduler"):
        (tmp_path / name).mkdir()
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    folder, (choice,) = Folder(tmp_path), rung.check(tmp_path, ["cpu"], formats=(format,)).choices
    for phase, name in zip(choice.phases, REAL, strict=True):
        storage = NetworkStorage("f32" if phase.name == "decode" else format, DTYPES[phase.name], 1)
        planned = network_of(folder.network(name), name, phase.name, (0, 0), 1, 0)
        assert phase.memory.weights == pytest.approx(weight_bytes(planned, storage), rel=0.05), name
