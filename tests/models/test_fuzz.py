"""Both readers over mutated files: a card or a RungError, within bounds of time and memory, never anything else."""

import json
import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import handmade
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.core.errors import RungError
from rung.models import open_card
from rung.models.reader import Reader

MUTATIONS = 250
FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "gguf").glob("*.gguf"))
QUIET = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def attempt(path, size):
    """Opens and reads all; returns whether that worked."""
    tracemalloc.start()
    try:
        card = open_card(path)
        with Reader(card) as reader:
            for tensor in card.tensors:
                assert reader.read(tensor).nbytes == tensor.bytes
        return True
    except RungError as error:
        refusal = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * size + 64 * 2**20
    assert refusal.ways_out
    return False


def mutate(rng, data, header):
    """One to four changes in the header: bytes, lengths of 8 bytes, pieces taken out, doubled or moved."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, max(5, min(header, len(data) - 9)))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**32, 2**60, 2**63, 2**64 - 1]))
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", rng.choice([0, 4, 9, 13, 2**16, 2**31, 2**32 - 1]))
        elif kind == 3:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        else:
            data = data[: rng.randrange(len(data))]
        if len(data) < 16:
            break
    return bytes(data)


@pytest.mark.parametrize("source", ["converter", "hand"])
def test_mutated_gguf_files(tmp_path, source):
    whole = (FIXTURES[0] if source == "converter" else handmade.llama(tmp_path / "whole.gguf")).read_bytes()
    rng = random.Random(source)
    path = tmp_path / "x.gguf"
    opened = 0
    for _ in range(MUTATIONS):
        data = mutate(rng, whole, len(whole) if source == "hand" else 20_000)
        path.write_bytes(data)
        opened += attempt(path, len(data))
    # otherwise the mutations are so harmless, or so rough, that they test nothing
    assert 0 < opened < MUTATIONS * 0.9


def test_mutated_safetensors(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints("llama")[0], tmp_path / "model")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = random.Random(3)
    opened = 0
    for _ in range(MUTATIONS):
        data = mutate(rng, whole, header)
        path.write_bytes(data)
        opened += attempt(folder, len(data))
    assert opened < MUTATIONS / 2


TEMPLATES = st.lists(st.fixed_dictionaries({"name": st.just("default") | st.lists(st.text()), "template": st.text()}))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "phi3"])
def model_folder(request, checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / request.param
    return shutil.copytree(checkpoints(request.param)[0], folder)


@pytest.fixture(scope="module")
def llama_folder(checkpoints, tmp_path_factory):
    return shutil.copytree(checkpoints("llama")[0], tmp_path_factory.mktemp("fuzz") / "beside")


@QUIET
@given(data=st.data())
def test_any_value_in_any_key_of_a_configuration(model_folder, data):
    original = (model_folder / "config.json").read_text()
    try:
        values = json.loads(original)
        for key in data.draw(
            st.lists(st.sampled_from([*values, "rope_scaling", "rope_theta", "text_config"]), max_size=3)
        ):
            values[key] = data.draw(JSON)
        if data.draw(st.booleans()) and isinstance(values.get("rope_parameters"), dict):
            kind = data.draw(st.sampled_from(["linear", "llama3", "yarn", "longrope", "su"]))
            keys = [
                "factor",
                "original_max_position_embeddings",
                "low_freq_factor",
                "short_factor",
                "mscale",
                "beta_fast",
            ]
            values["rope_parameters"] = {"rope_type": kind, **{key: data.draw(JSON) for key in keys}}
        (model_folder / "config.json").write_text(json.dumps(values))
        attempt(model_folder, 0)
    finally:
        (model_folder / "config.json").write_text(original)


@QUIET
@given(data=st.data())
def test_any_value_in_any_file_beside_the_weights(llama_folder, data):
    names = ["generation_config.json", "tokenizer_config.json", "chat_template.json"]
    keys = ["eos_token_id", "bos_token_id", "temperature", "top_k", "chat_template", "add_bos_token", "do_sample"]
    for name in names:
        (llama_folder / name).write_text(json.dumps({key: data.draw(JSON | TEMPLATES) for key in keys}))
    assert attempt(llama_folder, 0)


VALUES = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda number: (handmade.U32, number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: (handmade.I64, number)),
    st.floats().map(lambda number: (handmade.F64, number)),
    st.booleans().map(lambda flag: (handmade.BOOL, flag)),
    st.text(max_size=8).map(lambda text: (handmade.STRING, text)),
    st.lists(st.integers(0, 9), max_size=4).map(lambda items: (handmade.ARRAY, (handmade.U32, items))),
    st.lists(st.text(max_size=3), max_size=4).map(lambda items: (handmade.ARRAY, (handmade.STRING, items))),
)
KEYS = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "rope.freq_base"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.dimension_count", "expert_count"),
    *("attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.original_context_length"),
)
OTHERS = (
    *("tokenizer.ggml.tokens", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.model", "tokenizer.ggml.pre"),
    *("tokenizer.chat_template", "split.count", "general.type", "general.sampling.temp"),
)


@QUIET
@given(
    architecture=st.sampled_from(["llama", "gemma", "gemma2", "gemma3", "qwen2", "qwen3", "phi3"]),
    more=st.dictionaries(
        st.sampled_from((*KEYS, *OTHERS, "tokenizer.chat_template", "split.count")), VALUES, max_size=4
    ),
    scaling=st.sampled_from(["linear", "yarn", "longrope"]),
)
def test_any_value_in_any_key_of_a_gguf_file(tmp_path, architecture, more, scaling):
    sizes = {key.replace("llama.", f"{architecture}."): value for key, value in BASE.items()}
    changed = {key if "." in key and key not in KEYS else f"{architecture}.{key}": value for key, value in more.items()}
    keys = {
        "llama.context_length": None,
        **sizes,
        "general.architecture": (handmade.STRING, architecture),
        f"{architecture}.rope.scaling.type": (handmade.STRING, scaling),
        **changed,
    }
    path = handmade.llama(tmp_path / "x.gguf", keys)
    attempt(path, path.stat().st_size)


BASE = {
    "llama.context_length": (handmade.U32, 64),
    "llama.embedding_length": (handmade.U32, 4),
    "llama.block_count": (handmade.U32, 1),
    "llama.feed_forward_length": (handmade.U32, 4),
    "llama.attention.head_count": (handmade.U32, 2),
    "llama.attention.layer_norm_rms_epsilon": (handmade.F32, 1e-5),
}


@QUIET
@given(
    data=st.binary(max_size=400), start=st.sampled_from([b"", b"GGUF", b"GGUF\x03\0\0\0", b"PK\x03\x04", b"\x80\x02"])
)
def test_any_bytes(tmp_path, data, start):
    for name in ("x.gguf", "model.safetensors"):
        path = tmp_path / name
        path.write_bytes(start + data)
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        assert not attempt(path, len(data))
