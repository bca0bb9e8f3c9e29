"""Cards of GGUF files: those that llama.cpp's converter made, and hand-made ones for each key."""

import json
import math
from pathlib import Path

import gguf as oracle
import handmade
import numpy as np
import pytest
from handmade import ARRAY, BOOL, F32, I32, STRING, U32, llama

from rung import formats
from rung.core.errors import BadFile, ModelNotFound, UnknownArchitecture
from rung.models import ModelCard, open_card
from rung.models.files.gguf import read_header
from rung.models.reader import Reader

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "gguf").glob("*.gguf"))
WHOLE = [path for path in FIXTURES if "-of-" not in path.name]


def test_there_are_fixtures():
    assert len(WHOLE) >= 8


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_header_equals_what_the_gguf_package_reads(path):
    reader = oracle.GGUFReader(path)
    header = read_header(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    for name, field in fields.items():
        found, expected = header.metadata[name], field.contents()
        assert (list(found) if isinstance(expected, list) else found) == expected, name
    assert len(header.tensors) == len(reader.tensors)
    for found, expected in zip(header.tensors, reader.tensors, strict=True):
        assert found.name == expected.name
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert (found.offset, found.bytes) == (expected.data_offset, expected.n_bytes)
        assert found.format == formats.gguf_type(int(expected.tensor_type)).name


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_card_of_the_converters_files(path):
    card = open_card(path)
    reader = oracle.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    names = {"gemma3": "gemma3_text"}
    assert card.decoder.model_type == names.get(architecture, architecture)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    used = {tensor.name for tensor in card.tensors}
    assert set(stored) - used <= {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}
    assert card.decoder.tied_head == ("output.weight" not in stored)
    assert card.decoder.norm_offset == 0.0
    assert card.decoder.ropes[0].interleaved == (architecture == "llama")
    assert card.decoder.vocabulary == len(card.metadata["tokenizer.ggml.tokens"])
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() in card.end_tokens
    assert ModelCard.from_json(json.loads(json.dumps(card.to_json()))) == card
    with Reader(card) as weights:
        for tensor in card.tensors:
            data = weights.read(tensor).parts["data"]
            np.testing.assert_array_equal(data.reshape(-1), stored[tensor.name].data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("path", [path for path in WHOLE if path.stem.startswith("gemma3-")], ids=lambda p: p.stem)
def test_gemma3_has_two_ropes(path):
    card = open_card(path)
    full, sliding = card.decoder.ropes
    assert sliding.inverse_frequencies[1] == pytest.approx(10000.0 ** (-2 / sliding.dims), rel=1e-6)
    stretched = card.metadata.get("gemma3.rope.scaling.factor", 1.0)
    base = card.metadata["gemma3.rope.freq_base"]
    assert full.inverse_frequencies[1] == pytest.approx(base ** (-2 / full.dims) / stretched, rel=1e-6)
    assert {layer.rope for layer in card.decoder.layers if layer.window is None} == {0}
    assert {layer.rope for layer in card.decoder.layers if layer.window} == {1}


@pytest.mark.parametrize(
    "path", [path for path in FIXTURES if "-00001-of-" in path.name], ids=lambda path: path.stem[:20]
)
def test_split_files(path, tmp_path):
    parts = sorted(path.parent.glob(path.name.replace("-00001-of-", "-?????-of-")))
    card = open_card(path)
    assert card.files == tuple(str(part) for part in parts)
    assert open_card(parts[-1]) == card
    assert {tensor.file for tensor in card.tensors} <= set(range(len(parts)))
    for part in parts[:-1]:
        (tmp_path / part.name).write_bytes(part.read_bytes())
    with pytest.raises(ModelNotFound, match="1 part cannot be found") as error:
        open_card(tmp_path / path.name)
    assert parts[-1].name in str(error.value)
    # a part under a name that is none of its own
    (tmp_path / parts[-1].name).write_bytes(parts[0].read_bytes())
    with pytest.raises(BadFile, match="says that it is part 0"):
        open_card(tmp_path / path.name)
    (tmp_path / "alone.gguf").write_bytes(parts[0].read_bytes())
    with pytest.raises(BadFile, match="must keep the names"):
        open_card(tmp_path / "alone.gguf")


def test_parts_that_do_not_hold_all_tensors(tmp_path):
    for path in sorted(FIXTURES[0].parent.glob("llama-split-*.gguf")):
        data = path.read_bytes()
        count = data.find(b"split.tensors.count") + len("split.tensors.count") + 4  # behind its type
        if count > 40:
            data = data[:count] + (99).to_bytes(4, "little") + data[count + 4 :]
        (tmp_path / path.name).write_bytes(data)
    with pytest.raises(BadFile, match=r"hold \d+ tensors, and should hold 99"):
        open_card(tmp_path / path.name)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments(tmp_path, alignment):
    values = np.arange(4, dtype="<f4").tobytes()
    infos = [handmade.info("a", (4,), 0, 0), handmade.info("b", (4,), 0, max(alignment, 16))]
    pairs = [handmade.pair("general.alignment", U32, alignment)]
    data = values.ljust(max(alignment, 16), b"\0") + values[::-1]
    path = tmp_path / "x.gguf"
    path.write_bytes(handmade.gguf(pairs, infos, data, alignment=alignment))
    first, second = read_header(path).tensors
    whole = path.read_bytes()
    assert whole[first.offset : first.end] == values
    assert whole[second.offset : second.end] == values[::-1]


# ---- keys, one by one


def test_missing_keys_mean_what_llama_cpp_takes_them_for(tmp_path):
    card = open_card(llama(tmp_path / "x.gguf"))
    decoder, (rope,) = card.decoder, card.decoder.ropes
    assert (decoder.kv_heads, decoder.head_dim, decoder.heads) == (2, 2, 2)
    assert decoder.attention_scale == pytest.approx(1 / math.sqrt(2))
    assert decoder.tied_head
    assert rope.interleaved
    assert rope.inverse_frequencies == (1.0,)
    assert rope.magnitude == 1.0
    assert (card.bos_token, card.add_bos, card.end_tokens) == (1, True, (2,))
    assert (card.name, card.kind, card.tokenizer, card.chat_template) == ("x.gguf", "gguf", "gguf", None)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (1, True, (2,))),
        ({"tokenizer.ggml.add_bos_token": (BOOL, False)}, (1, False, (2,))),
        ({"tokenizer.ggml.bos_token_id": (U32, 0), "tokenizer.ggml.eos_token_id": (U32, 1)}, (0, True, (1, 2))),
        ({"tokenizer.ggml.eos_token_id": (U32, 99)}, (1, True, (2,))),  # as if it were absent
        ({"tokenizer.ggml.eot_token_id": (U32, 0)}, (1, True, (0, 2))),
        ({"tokenizer.ggml.eom_token_id": (I32, 1)}, (1, True, (1, 2))),
        ({"tokenizer.ggml.model": (STRING, "gpt2")}, (None, False, (2,))),
        ({"tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "llama-bpe")}, (None, True, (2,))),
        ({"tokenizer.ggml.tokens": (ARRAY, (STRING, ["<|im_end|>", "<end_of_turn>", "x"]))}, (1, True, (0, 1, 2))),
        ({"tokenizer.ggml.tokens": (ARRAY, (STRING, ["<|end|>", "<|return|>", "<|call|>"]))}, (1, True, (1, 2))),
        ({"tokenizer.ggml.tokens": (ARRAY, (STRING, ["<|plamo:eos|>", "x", "</s>"]))}, (1, True, (2,))),
        (
            {
                "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<|plamo:eos|>", "x", "</s>"])),
                "tokenizer.ggml.eos_token_id": (U32, 0),
            },
            (1, True, (0,)),
        ),
        ({"tokenizer.ggml.tokens": None, "tokenizer.ggml.model": None}, (None, False, ())),
    ],
)
def test_where_text_begins_and_ends(tmp_path, keys, expected):
    card = open_card(llama(tmp_path / "x.gguf", keys))
    assert (card.bos_token, card.add_bos, card.end_tokens) == expected


def test_sampling_and_template(tmp_path):
    keys = {
        "general.sampling.temp": (F32, 0.5),
        "general.sampling.top_k": (I32, 40),
        "general.sampling.penalty_repeat": (F32, 1.25),
        "general.sampling.min_p": (F32, float("nan")),
        "tokenizer.chat_template": (STRING, "{{ messages }}"),
    }
    card = open_card(llama(tmp_path / "x.gguf", keys))
    assert dict(card.defaults) == {"temperature": 0.5, "top_k": 40, "repeat_penalty": 1.25}
    assert card.chat_template == "{{ messages }}"


def test_rope_keys(tmp_path):
    scaled = {"llama.rope.scaling.type": (STRING, "linear"), "llama.rope.scaling.factor": (F32, 4.0)}
    old = {"llama.rope.scale_linear": (F32, 4.0)}
    none = {**scaled, "llama.rope.scaling.type": (STRING, "none")}
    for keys, first in ((scaled, 0.25), (old, 0.25), (none, 1.0)):
        assert open_card(llama(tmp_path / "x.gguf", keys)).decoder.ropes[0].inverse_frequencies == (first,)
    attention = {"llama.rope.scaling.attn_factor": (F32, 1.5)}
    assert open_card(llama(tmp_path / "x.gguf", attention)).decoder.ropes[0].magnitude == 1.5
    freqs = open_card(llama(tmp_path / "x.gguf", tensors={"rope_freqs.weight": (1,)}))
    assert freqs.decoder.ropes[0].inverse_frequencies == (1.0,)
    assert "rope_freqs.weight" not in {tensor.name for tensor in freqs.tensors}


def test_window_patterns(tmp_path):
    path = next(path for path in WHOLE if path.stem.startswith("gemma2"))
    header = read_header(path)
    layers = header.metadata["gemma2.block_count"]
    card = open_card(path)
    span = header.metadata["gemma2.attention.sliding_window"]
    assert [layer.window for layer in card.decoder.layers] == [None if n % 2 else span for n in range(layers)]
    assert card.decoder.post_norms
    assert card.decoder.attention_softcap == header.metadata["gemma2.attn_logit_softcapping"]


def test_optional_biases_and_fused_weights(tmp_path):
    tensors = {
        "blk.0.attn_q.weight": None,
        "blk.0.attn_k.weight": None,
        "blk.0.attn_v.weight": None,
        "blk.0.attn_qkv.weight": (12, 4),
        "blk.0.attn_qkv.bias": (12,),
        "blk.0.attn_output.bias": (4,),
        "blk.0.ffn_up.bias": (4,),
        "output.weight": (3, 4),
    }
    card = open_card(llama(tmp_path / "x.gguf", tensors=tensors))
    roles = {tensor.role for tensor in card.tensors}
    assert {"layers.0.qkv", "layers.0.qkv_bias", "layers.0.o_bias", "layers.0.up_bias", "head"} <= roles
    assert card.decoder.attention_bias
    assert not card.decoder.tied_head


@pytest.mark.parametrize(
    ("keys", "tensors", "words"),
    [
        ({"general.architecture": None}, {}, "has no general.architecture"),
        ({"general.architecture": (U32, 3)}, {}, "not a text"),
        ({"general.type": (STRING, "adapter")}, {}, "LoRA"),
        ({"llama.context_length": None}, {}, "has no llama.context_length"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, {}, "layer_norm_rms_epsilon"),
        ({"llama.attention.head_count": (U32, 0)}, {}, "whole number"),
        ({"llama.attention.head_count": (ARRAY, (U32, [2, 4]))}, {}, "same for all layers"),
        ({"llama.attention.head_count_kv": (U32, 3)}, {}, "do not divide"),
        ({"llama.attention.key_length": (U32, 4)}, {}, "different lengths"),
        ({"llama.block_count": (U32, 2)}, {}, "lacks 9 tensors"),
        ({"llama.block_count": (U32, 2**31)}, {}, "whole number"),
        ({"llama.embedding_length": (U32, 8)}, {}, "contradicts its tensors"),
        ({"llama.feed_forward_length": (STRING, "4")}, {}, "whole number"),
        ({"llama.rope.scaling.type": (STRING, "spiral")}, {}, "llama.cpp does not know"),
        ({"llama.rope.dimension_count": (U32, 4)}, {}, "dimensions"),
        ({"llama.rope.freq_base": (F32, 0.0)}, {}, "above zero"),
        ({"tokenizer.ggml.tokens": (ARRAY, (STRING, ["a"]))}, {}, "vocabulary has 1 tokens, its embedding 3 rows"),
        ({"tokenizer.ggml.tokens": (ARRAY, (U32, [1, 2, 3]))}, {}, "array of strings"),
        ({}, {"token_embd.weight": None}, "lacks the tensor token_embd"),
        ({}, {"blk.0.ffn_up.weight": None}, "lacks 1 tensor"),
        ({}, {"blk.0.ffn_up.weight": (4, 8)}, "ffn_up.weight has the shape"),
        ({}, {"blk.7.ffn_up.weight": (4, 4)}, "describes 1 layer, and its tensors go on"),
        ({}, {"blk.0.ffn_up_exps.weight": (4, 4)}, "without a place"),
        ({}, {"v.patch.weight": (4, 4)}, "without a place"),
        ({}, {"rope_freqs.weight": (1, 1)}, "rope_freqs.weight"),
    ],
)
def test_contradictions_are_named(tmp_path, keys, tensors, words):
    with pytest.raises((BadFile, UnknownArchitecture), match=words):
        open_card(llama(tmp_path / "x.gguf", keys, tensors))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": (STRING, "rwkv99")}, "'rwkv99', which rung does not build"),
        ({"llama.expert_count": (U32, 8)}, "mixture of experts"),
        ({"llama.attention.causal": (BOOL, False)}, "encoder"),
    ],
)
def test_what_rung_does_not_build_is_named(tmp_path, keys, words):
    with pytest.raises(UnknownArchitecture, match=words):
        open_card(llama(tmp_path / "x.gguf", keys))


def test_pictures_are_for_another_file(tmp_path):
    with pytest.raises(BadFile, match="sees pictures"):
        open_card(llama(tmp_path / "x.gguf", {"general.architecture": (STRING, "clip")}))


def test_a_folder_with_one_gguf_file(tmp_path):
    llama(tmp_path / "a.gguf")
    assert open_card(tmp_path) == open_card(tmp_path / "a.gguf")
    llama(tmp_path / "b.gguf")
    with pytest.raises(BadFile, match="holds 2 GGUF models"):
        open_card(tmp_path)


def test_all_types_of_values(tmp_path):
    content = {
        "a": (handmade.U8, 255),
        "b": (handmade.I8, -128),
        "c": (handmade.U16, 65535),
        "d": (handmade.I16, -32768),
        "e": (handmade.U32, 2**32 - 1),
        "f": (handmade.I32, -(2**31)),
        "g": (handmade.F32, 0.5),
        "h": (handmade.BOOL, True),
        "i": (handmade.STRING, "grüße"),
        "j": (handmade.U64, 2**64 - 1),
        "k": (handmade.I64, -(2**63)),
        "l": (handmade.F64, 0.1),
    }
    arrays = {f"{key}s": (ARRAY, (kind, [item, item])) for key, (kind, item) in content.items()}
    empty = {"nothing": (ARRAY, (STRING, [])), "no numbers": (ARRAY, (U32, []))}
    for version in (2, 3):
        pairs = [handmade.pair(key, *item) for key, item in {**content, **arrays, **empty}.items()]
        path = tmp_path / "x.gguf"
        path.write_bytes(handmade.gguf(pairs, [], version=version))
        header = read_header(path)
        assert header.version == version
        for key, (_, item) in content.items():
            assert header.metadata[key] == item
            assert type(header.metadata[key]) is type(item)
            assert list(header.metadata[f"{key}s"]) == [item, item]
            assert header.metadata[f"{key}s"][1] == item
            assert header.metadata[f"{key}s"][0:1] == [item]
        assert list(header.metadata["nothing"]) == []


def test_strings_are_found_without_decoding(tmp_path):
    words = [f"w{n}" for n in range(70000)] + ["", "</s>", "x</s>", "</s>", "\n" + "é" * 300, "<eos>"]
    path = tmp_path / "x.gguf"
    path.write_bytes(handmade.gguf([handmade.pair("t", ARRAY, (STRING, words))], []))
    found = read_header(path).metadata["t"]
    assert len(found) == len(words)
    assert found.tolist() == words
    assert found.find(["</s>", "w65535", "w65536", "<eos>", "absent", "/s>", words[-2]]) == {
        "</s>": words.index("</s>"),
        "w65535": 65535,
        "w65536": 65536,
        "<eos>": len(words) - 1,
        words[-2]: len(words) - 2,
    }


def test_tokens_that_are_no_utf8_stay_in_their_place(tmp_path):
    path = tmp_path / "x.gguf"
    raw = handmade.text("t") + handmade.struct.pack("<IIQ", ARRAY, STRING, 2)
    path.write_bytes(handmade.gguf([raw + handmade.text(b"\xff\xfe") + handmade.text("b")], []))
    assert list(read_header(path).metadata["t"]) == ["\ufffd\ufffd", "b"]
