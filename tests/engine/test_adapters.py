"""Adapters beside the linears of a running model: the logits are those of PEFT on transformers."""

import gc
import json
import os
import shutil
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests import tiny
from tests.fixtures import from_gguf
from tests.training.lora import IDS, KINDS, adapted, logits

import rung
from rung import formats
from rung.core.errors import BadFile, ModelNotFound, OutOfMemory, UnsafeFile, UsageError
from rung.engine.scheduling import speculator
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.kernels.cpu import thread_pool
from rung.models.adapters.adapter import CONFIG, WEIGHTS, read_adapter
from rung.models.adapters.roles import changes_by_role, path_and_weight, read_changes
from rung.models.open import open_card

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
VOCABULARY = open_card(GGUF / "mistral-f32.gguf").decoder.vocabulary


def base(folder, model_type="llama", **options):
    """A tiny checkpoint with a tokenizer beside it."""
    model = tiny.tiny_checkpoint(folder, model_type, **options)
    tiny.gguf_vocabulary(folder)
    return model


def ours(folder, *adapters, format="f32"):
    return rung.load(str(folder), format=format, device="cpu", context=64, adapters=adapters)


@pytest.mark.parametrize(
    ("kind", "model_type"), [*((kind, "llama") for kind in KINDS), ("lora", "phi3"), ("lora", "gemma2")]
)
def test_the_logits_are_those_of_peft(kind, model_type, tmp_path):
    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    plain = base(folder, model_type)
    without = logits(plain)
    model = adapted(plain, **KINDS[kind])
    model.save_pretrained(adapter)
    loaded, want = ours(folder, adapter), logits(model)
    assert (want - without).abs().max() > 0.3
    torch.testing.assert_close(loaded.logits(IDS), want, rtol=1e-4, atol=2e-4)
    reader = SequenceReader(loaded.backend)
    for token in IDS[:4]:  # a token at a time is the same
        step = reader.step(token)
    torch.testing.assert_close(torch.from_numpy(step), want[3], rtol=1e-4, atol=2e-4)


class LateThread(threading.Thread):
    """A thread that does not come where it is the first of a team."""

    def start(self):
        if self.name != "rung-1":
            super().start()


def test_sums_of_adapters_are_whole_where_a_thread_does_not_come(tmp_path, monkeypatch):
    """The first and the last of three threads take part."""
    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    adapted(base(folder)).save_pretrained(adapter)
    monkeypatch.setattr(thread_pool, "openmp", lambda: None)
    monkeypatch.setattr(thread_pool, "TEAMS", thread_pool.Teams())
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    found = []
    for threads, kind in ((1, threading.Thread), (3, LateThread)):
        monkeypatch.setattr(thread_pool.threading, "Thread", kind)
        model = rung.load(str(folder), format="q8_0", device="cpu", context=64, adapters=(adapter,), threads=threads)
        reader = SequenceReader(model.backend)
        found.append([reader.step(token).copy() for token in IDS[:3]])
    np.testing.assert_array_equal(*found)


def steps(model):
    """The rungs that have computed tokens of a model."""
    return {rung for work, rung in model.report.rungs.items() if work.startswith("decode_step")}


def test_several_adapters_with_weights(tmp_path):
    plain = base(tmp_path / "base")
    model = adapted(plain, seed=1)
    model.add_adapter("other", model.peft_config["default"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B.other" in name:
                parameter.normal_(0, 0.1)
    model.save_pretrained(tmp_path / "saved")
    model.add_weighted_adapter(["default", "other"], [0.5, -1.5], "sum", combination_type="cat")
    model.set_adapter("sum")
    loaded = ours(tmp_path / "base", f"{tmp_path / 'saved'}:0.5", f"{tmp_path / 'saved' / 'other'}:-1.5")
    torch.testing.assert_close(loaded.logits(IDS), logits(model), rtol=1e-4, atol=2e-4)
    assert "2 adapters beside 14 linears, unmerged" in " ".join(loaded.report.notes)
    plain = rung.load(str(tmp_path / "base"), device="cpu")
    list(plain.generate("the", max_tokens=1))
    assert steps(loaded) == steps(plain)


@pytest.mark.parametrize("file", ["mistral-f32.gguf", "gemma-f32.gguf"])
@pytest.mark.parametrize("kind", ["peft", "gguf"])
def test_a_gguf_model_with_an_adapter_of_either_kind(file, kind, tmp_path):
    """llama.cpp's converter pairs neighboring rows of q and k of a Llama, and so does the one for adapters."""
    model_type = file.partition("-")[0]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "vocab_size": VOCABULARY}
    model = adapted(from_gguf.fill(tiny.tiny_model(model_type, **sizes), GGUF / file))
    model.save_pretrained(tmp_path / "adapter")
    adapter = tmp_path / "adapter"
    if kind == "gguf":
        adapter = tmp_path / "adapter.gguf"
        as_gguf(tmp_path / "adapter", adapter, model)
    loaded = rung.load(str(GGUF / file), device="cpu", context=64, adapters=[adapter])
    torch.testing.assert_close(loaded.logits(IDS), logits(model), rtol=1e-4, atol=3e-4)


def as_gguf(folder, path, model):
    """Write an adapter as llama.cpp's convert_lora_to_gguf.py does, with the ``gguf`` package."""
    config = model.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, values in load_file(folder / WEIGHTS).items():
        module, _, part = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(module.split(".")[-1])
        if arch == "llama" and heads and part == "lora_B":
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"{names.get_name(module)}.weight.{part.lower()}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("value", [float("nan"), "eight", -1.0])
def test_a_gguf_adapters_alpha_is_a_number(value, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    add = writer.add_string if isinstance(value, str) else writer.add_float32
    add("adapter.lora.alpha", value)
    for part, shape in (("lora_a", (4, 32)), ("lora_b", (64, 4))):
        writer.add_tensor(f"blk.0.ffn_up.weight.{part}", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadFile, match=r"adapter\.lora\.alpha is .* not a number above zero"):
        read_adapter(tmp_path / "a.gguf")


def test_copies_of_the_base_are_not_kept(saved, tmp_path):
    adapter = Path(shutil.copytree(saved[1], tmp_path / "adapter"))
    table = {"base_model.model.model.embed_tokens.weight": np.full((320, 64), np.nan, np.float32)}
    _tensors(adapter, lambda tensors: tensors.update(table))
    read = read_adapter(adapter)
    assert read.copies == {"model.embed_tokens.weight": (320, 64)}
    assert changes_by_role(read, open_card(saved[0]))


def test_weights_of_adapters(tmp_path):
    assert path_and_weight("dir:0.5") == ("dir", 0.5)
    assert path_and_weight("dir:-1") == ("dir", -1.0)
    assert path_and_weight("C:dir") == ("C:dir", 1.0)
    assert path_and_weight("dir") == ("dir", 1.0)
    (tmp_path / "a:2").mkdir()
    assert path_and_weight(str(tmp_path / "a:2")) == (str(tmp_path / "a:2"), 1.0)
    with pytest.raises(UsageError, match="The weight of an adapter is nan"):
        path_and_weight("dir:nan")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A base and an adapter of it; neither must be changed."""
    folder = tmp_path_factory.mktemp("saved")
    adapted(base(folder / "base")).save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter"


def _config(folder, **changes):
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
BAD = {
    "rank": (lambda f: _config(f, r=8), BadFile, r"says rank 8, and lora_A of model\.layers\.0\S+ has 4"),
    "ia3": (
        lambda f: _config(f, peft_type="IA3"),
        UsageError,
        r"of the kind IA3; rung adds LoRA[\s\S]*merge_and_unload",
    ),
    "prompt": (
        lambda f: _config(f, peft_type="PROMPT_TUNING", num_virtual_tokens=4),
        UsageError,
        r"of the kind PROMPT_TUNING[\s\S]*cannot be merged either[\s\S]*run it in PEFT",
    ),
    "pissa": (lambda f: _config(f, init_lora_weights="pissa"), UsageError, "began with pissa, which changes"),
    "dora": (lambda f: _config(f, use_dora=True), BadFile, "use_dora contradicts"),
    "alpha": (lambda f: _config(f, lora_alpha="x"), BadFile, "lora_alpha is 'x', not a number"),
    "pattern": (lambda f: _config(f, rank_pattern={"(": 3}), BadFile, "not a pattern"),
    "saved": (lambda f: _config(f, modules_to_save=3), BadFile, "modules_to_save is '3', not an array"),
    "half": (lambda f: _tensors(f, lambda t: t.pop(FIRST)), BadFile, "one of the two matrices of .* is missing"),
    "nan": (lambda f: _tensors(f, lambda t: t[FIRST].__setitem__((0, 0), np.nan)), BadFile, "holds NaN or Inf"),
    "empty": (lambda f: _tensors(f, dict.clear), BadFile, "holds no adapter"),
    "foreign": (
        lambda f: _tensors(f, lambda t: t.update({"base_model.model.x.lora_embedding_A": t[FIRST]})),
        BadFile,
        "a part of an adapter that rung does not read",
    ),
    "trained": (
        lambda f: (
            _config(f, modules_to_save=["lm_head"]),
            _tensors(f, lambda t: t.update({"base_model.model.lm_head.weight": np.zeros((320, 64), np.float32)})),
        ),
        UsageError,
        r"trains more than linear layers: lm_head\.weight\.[\s\S]*rung merge",
    ),
    "vocabulary": (
        lambda f: _tensors(
            f, lambda t: t.update({"base_model.model.model.embed_tokens.weight": np.zeros((321, 64), np.float32)})
        ),
        UsageError,
        "made for another model.*[\\s\\S]*vocabulary has 321 tokens",
    ),
    "pickle": (
        lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin"),
        UnsafeFile,
        "only as a pickle",
    ),
    "interrupted": (lambda f: (f / WEIGHTS).unlink(), BadFile, "saving it was interrupted"),
    "no config": (lambda f: (f / CONFIG).unlink(), BadFile, "is no adapter"),
    "cut": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-9]), BadFile, "is not a whole"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_adapters(kind, saved, tmp_path):
    change, error, message = BAD[kind]
    adapter = Path(shutil.copytree(saved[1], tmp_path / "adapter"))
    change(adapter)
    with pytest.raises(error, match=message):
        changes_by_role(read_adapter(adapter), open_card(saved[0]))


def test_an_adapter_of_another_base(saved, tmp_path):
    tiny.tiny_checkpoint(tmp_path / "wide", "llama", hidden_size=128)
    with pytest.raises(UsageError, match=r"made for another model than wide\.[\s\S]*it changes 64 x 128 weights, wide"):
        changes_by_role(read_adapter(saved[1]), open_card(tmp_path / "wide"))
    tiny.tiny_checkpoint(tmp_path / "flat", "llama", num_hidden_layers=1)
    with pytest.raises(UsageError, match=r"layers\.1\.\S+: flat has 1 layers[\s\S]*and 3 tensors more"):
        changes_by_role(read_adapter(saved[1]), open_card(tmp_path / "flat"))
    with pytest.raises(ModelNotFound, match="There is no adapter"):
        read_adapter(tmp_path / "nowhere")
    with pytest.raises(BadFile, match=r"is no adapter[\s\S]*it holds a whole model"):
        read_adapter(tmp_path / "flat")
    with pytest.raises(BadFile, match="is a model and no adapter"):
        read_adapter(GGUF / "llama-f32.gguf")
    with pytest.raises(BadFile, match=r"a change to a model and not one[\s\S]*rung run MODEL --adapter"):
        open_card(saved[1])


def test_two_doras_on_one_weight_are_refused(saved, tmp_path):
    adapted(base(tmp_path / "base"), use_dora=True).save_pretrained(tmp_path / "dora")
    with pytest.raises(UsageError, match="changed by a DoRA and by another adapter"):
        read_changes([str(saved[1]), str(tmp_path / "dora")], open_card(saved[0]))


@pytest.mark.parametrize(("format", "kind"), [("q8_0", "lora"), ("q8_0", "dora"), ("int8", "lora")])
def test_on_a_base_that_is_encoded_when_it_is_loaded(format, kind, tmp_path):
    """The change is that of the adapter whatever the base is stored in; a DoRA's lengths are of the encoded weight."""
    plain = base(tmp_path / "base")
    chosen = formats.get(format)
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.from_numpy(formats.decode(formats.encode(parameter.numpy(), chosen))))
    without = logits(plain)
    model = adapted(plain, **KINDS[kind])
    model.save_pretrained(tmp_path / "adapter")
    found = ours(tmp_path / "base", tmp_path / "adapter", format=format).logits(IDS)
    assert formats.sqnr(logits(model).numpy(), without.numpy()) < 15
    assert formats.sqnr(logits(model).numpy(), found.numpy()) > 30


def test_guesses_change_no_token_of_an_adapter(tmp_path, monkeypatch):
    """Prompt lookup guesses with adapters too, since they add rows in one order; every guess that may be made is."""
    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    adapted(base(folder, head_dim=16)).save_pretrained(adapter)
    model = ours(folder, adapter, format="q8_0")
    assert model.backend.same_bytes
    assert not any("last digits" in note for note in model.report.notes)
    monkeypatch.setattr(speculator.StepSeconds, "is_first", lambda seconds, rows: False)  # no program costs too much
    found = {}
    for name, most in (("none", 0), ("all", 8)):
        monkeypatch.setattr(
            speculator,
            "allocate",
            lambda seconds, rows, sequences, _, n=most: [min(each.most, n) for each in sequences],
        )
        answer = model.generate("the cat the cat the cat", raw=True, max_tokens=32)
        list(answer)
        found[name] = answer
    assert found["all"].tokens == found["none"].tokens
    assert found["all"].result["guessed_tokens"] > found["none"].result["guessed_tokens"] == 0


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A base, and adapters of it by name with what PEFT makes of ``IDS`` with them: one trains all linears, one is of
    another rank and leaves most out, one is a DoRA."""
    folder, want = tmp_path_factory.mktemp("several"), {}
    want["__base__"] = logits(base(folder / "base", head_dim=16))
    kinds = {
        "wide": {"seed": 1},
        "narrow": {"seed": 2, "r": 19, "target_modules": ["q_proj", "down_proj"]},
        "dora": {"seed": 3, "use_dora": True},
    }
    for name, options in kinds.items():
        model = adapted(base(folder / "again", head_dim=16), **options)
        model.save_pretrained(folder / name)
        want[name] = logits(model)
    return folder, want


def tokens(model, text="the cat", **options):
    answer = model.generate(text, raw=True, max_tokens=12, **options)
    list(answer)
    return answer.tokens, answer.result["cached_tokens"]


def test_sequences_have_adapters_of_their_own(several):
    """Each adapter gives PEFT's logits, alone and where answers with several are computed in one batch."""
    folder, want = several
    model = ours(folder / "base", format="f32")
    for name in ("wide", "narrow", "dora"):
        model.load_adapter(folder / name, name)
    for name, expected in want.items():
        torch.testing.assert_close(model.logits(IDS, adapter=name), expected, rtol=1e-4, atol=3e-4)
    torch.testing.assert_close(model.logits(IDS), want["__base__"], rtol=1e-4, atol=2e-4)
    packed = ours(folder / "base", format="q8_0")
    packed.load_adapter(folder / "wide", "wide")
    packed.load_adapter(f"{folder / 'narrow'}:2", "narrow")
    names = ["wide", None, "narrow", "wide", "__base__", "narrow"]
    alone = [tokens(packed, text, adapter=name)[0] for name, text in zip(names, "abcdef", strict=True)]
    options = [{"raw": True, "max_tokens": 12, "adapter": name} for name in names]
    together = [answer.tokens for answer in packed.generate_many("abcdef", options, progress=False)]
    assert together == alone
    assert len({tuple(found) for found in alone}) > 3


def test_adapters_given_when_a_model_is_loaded_are_for_answers_that_name_none(several):
    folder, want = several
    model = ours(folder / "base", folder / "wide")
    model.load_adapter(folder / "narrow", "narrow")
    for name, found in (("wide", None), ("narrow", "narrow"), ("__base__", "__base__")):
        torch.testing.assert_close(model.logits(IDS, adapter=found), want[name], rtol=1e-4, atol=3e-4)


def test_keys_and_values_are_shared_by_those_with_the_same_adapter(several):
    """An adapter of the same name that is another one has prefixes of its own; the same one has its old ones."""
    folder, _ = several
    model = rung.load(str(folder / "base"), format="q8_0", device="cpu", context=512)
    text = "the cat sat on the mat and the dog sat on the cat"
    model.load_adapter(folder / "wide", "a")
    plain, wide = tokens(model, text), tokens(model, text, adapter="a")
    assert plain[1] == wide[1] == 0
    assert wide[0] != plain[0]
    for options, first in (({}, plain), ({"adapter": "a"}, wide)):
        found, cached = tokens(model, text, **options)
        assert found == first[0]
        assert cached > 0
    model.delete_adapter("a")
    model.load_adapter(folder / "narrow", "a")
    narrow = tokens(model, text, adapter="a")
    assert narrow[1] == 0
    assert narrow[0] != wide[0]
    model.load_adapter(folder / "wide", "b")
    again = tokens(model, text, adapter="b")
    assert again[0] == wide[0]
    assert again[1] > 0


def test_an_answer_ends_with_the_adapter_that_it_began_with(several):
    """Deleting one forbids its name to later answers, and what it takes is free once the last answer has ended."""
    folder, _ = several
    model = ours(folder / "base", format="q8_0")
    model.load_adapter(folder / "wide", "a")
    expected, _ = tokens(model, adapter="a")
    before = model.report.predicted["memory_bytes"]
    answer = model.generate("the cat", raw=True, max_tokens=12, adapter="a")
    pieces = iter(answer)
    next(pieces)
    model.delete_adapter("a")
    with pytest.raises(UsageError, match=r"There is no adapter a\.[\s\S]*no adapter has been loaded"):
        model.generate("the cat", adapter="a")
    model.load_adapter(folder / "narrow", "a")
    list(pieces)
    assert answer.tokens == expected
    model.delete_adapter("a")
    del answer, pieces
    tokens(model)
    gc.collect()
    assert model.report.predicted["memory_bytes"] == model.plan.memory < before


def test_adapters_that_cannot_be_named(several, tmp_path):
    folder, _ = several
    model = ours(folder / "base")
    model.load_adapter(folder / "wide", "a")
    for name, message in (
        ("a", "is an adapter a already"),
        ("", "cannot have the name ''"),
        ("__base__", "without an"),
    ):
        with pytest.raises(UsageError, match=message):
            model.load_adapter(folder / "wide", name)
    with pytest.raises(UsageError, match="made for another model"):
        rung.load(str(folder / "base"), device="cpu").load_adapter(other_adapter(tmp_path), "b")
    with pytest.raises(UsageError, match=r"There is no adapter c\.[\s\S]*adapters: a"):
        model.logits(IDS, adapter="c")
    with pytest.raises(UsageError, match="There is no adapter b"):
        model.delete_adapter("b")
    most = model.plan.placements[0].memory.most
    tight = rung.load(str(folder / "base"), format="f32", device="cpu", context=64, memory=most)
    with pytest.raises(OutOfMemory, match=r"no room for the adapter a: it takes \d[\s\S]*are left"):
        tight.load_adapter(folder / "wide", "a")


def other_adapter(folder):
    """An adapter of a model with other shapes."""
    adapted(tiny.tiny_model("llama", hidden_size=128)).save_pretrained(folder / "adapter")
    return folder / "adapter"
