"""Architectures that the lean decoder does not build run in transformers: its own tokens, planned and reported."""

import importlib.metadata
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.planning.cards import cpu
from tests.tiny_pipelines import tokenizer

import rung
from rung import formats
from rung.core.errors import (
    BadFile,
    ContextTooLong,
    DoesNotFit,
    ModelNotFound,
    SoftwareMissing,
    UnknownArchitecture,
    UnsafeFile,
    UsageError,
)
from rung.engine.load import load
from rung.engine.open_model import open_any
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.hub.networks import language
from rung.kernels.cpu.pack.layouts import packed_bytes
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear, QuantWeight
from rung.nn.quantized import binding
from rung.nn.quantized.packed import PackedWeight
from rung.planning.network_spec import Subject
from rung.planning.weight_plan import plan_weights

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": 1, "max_position_embeddings": 256,
}  # fmt: skip
KINDS = {
    "gpt_neox": ("GPTNeoX", {"intermediate_size": 128}),
    "opt": ("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "mixtral": ("Mixtral", {"num_key_value_heads": 2, "intermediate_size": 96, "num_local_experts": 4}),
    "mamba": ("Mamba", {"state_size": 8}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 4}),  # its head is its embedding, as OPT's is
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
}
PROMPT = "a cat runs over the sea"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Makes the folder of a tiny model of a kind, once."""
    paths = {}

    def of(kind):
        if kind not in paths:
            paths[kind] = tmp_path_factory.mktemp("models") / kind
            name, own = KINDS[kind]
            torch.manual_seed(3)
            config = getattr(transformers, f"{name}Config")(**SMALL, **own)
            network = transformers.AutoModelForCausalLM.from_config(config)
            for parameter in network.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(0, 0.3)
            network.save_pretrained(paths[kind])
            tokenizer().save_pretrained(paths[kind])
        return paths[kind]

    return of


def theirs(folder, count, prompt=PROMPT, **options):
    """The tokens of transformers' own loop, greedily, until the end token."""
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    ids = tokenizer()(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    generated = network.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :].tolist()
    return generated[: generated.index(1)] if 1 in generated else generated


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bloom"])  # which answers nothing
def test_greedy_tokens_are_those_of_transformers(folders, kind):
    model = rung.load(folders(kind), format="f32", device="cpu", context=128)
    want = theirs(folders(kind), 12)
    answer = model.generate(PROMPT, raw=True, max_tokens=12)
    assert "".join(answer) == answer.result["text"] != ""
    assert answer.result["tokens"] == want
    again = model.generate(PROMPT + " and the dog", raw=True, max_tokens=12)  # another text: nothing held is taken
    list(again)
    assert again.result["tokens"] == theirs(folders(kind), 12, PROMPT + " and the dog")


@pytest.mark.parametrize("name", ["int8", "bf16"])
@pytest.mark.parametrize(
    ("kind", "layer"), [("gpt_neox", QuantLinear), ("mixtral", QuantExperts), ("bloom", QuantEmbedding)]
)
def test_weights_are_held_in_the_format_of_the_plan(folders, kind, layer, name):
    model = rung.load(folders(kind), format=name, device="cpu", context=128)
    network = model.backend.kept.network
    names = {weight.format.name for weight in network.modules() if isinstance(weight, QuantWeight)}
    assert any(isinstance(module, layer) for module in network.modules())
    assert names == {name} == {model.plan.format}
    packed = {weight for weight in network.modules() if isinstance(weight, PackedWeight)}
    resident = sum(part.nbytes for part in network.parameters()) + sum(each._packed.state.nbytes for each in packed)
    planned = model.plan.placements[0].memory.weights
    stored = sum(part.nbytes for each in packed for part in each.parts().values())
    assert resident <= planned  # which counts what is packed
    assert not packed or planned < resident + stored  # and not what is stored of it, too
    assert not getattr(network.hf_quantizer, "_groups", [])  # or it would hold what is stored
    ids = tokenizer()(PROMPT).input_ids
    coarse = model.logits(ids)
    exact = rung.load(folders(kind), format="f32", device="cpu", context=128).logits(ids)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folders(kind))
    torch.testing.assert_close(exact, whole(torch.tensor([ids])).logits[0].detach(), atol=1e-4, rtol=1e-4)
    assert 0.001 < float((coarse - exact).norm() / exact.norm()) < 0.15


def test_the_report_says_which_engine_and_why(folders):
    notes = []
    model = load(str(folders("opt")), format="f32", device="cpu", on_note=notes.append)
    list(model.generate(PROMPT, raw=True, max_tokens=2))
    said = f"transformers {importlib.metadata.version('transformers')}: OPTForCausalLM"
    assert model.report.rungs["decode_step"] == said
    assert any(said in note and "which rung does not build" in note for note in notes)
    assert any("which rung does not build" in note for note in model.report.notes)
    assert model.report.measured["decode_tokens_per_second"] > 0


def test_a_prompt_of_several_chunks_equals_one_of_transformers(folders, monkeypatch):
    monkeypatch.setattr("rung.engine.transformers_decoder.CHUNK", 3)
    model = rung.load(folders("gpt_neox"), format="f32", device="cpu", context=128)
    answer = model.generate(PROMPT, raw=True, max_tokens=8)
    list(answer)
    assert answer.result["tokens"] == theirs(folders("gpt_neox"), 8)


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba"])
def test_what_is_held_is_used_where_the_text_goes_on(folders, kind):
    model = rung.load(folders(kind), format="f32", device="cpu", context=128)
    ids = [3, 9, 4, 7, 12, 5, 3]
    want = model.logits(ids)
    with SequenceReader(model.backend) as reader:
        reader.prefill(ids[:4])
        torch.testing.assert_close(torch.from_numpy(reader.prefill(ids[4:])), want[-1], atol=1e-4, rtol=1e-4)
        reader.cache.truncate(0)
        torch.testing.assert_close(torch.from_numpy(reader.prefill(ids)), want[-1], atol=1e-4, rtol=1e-4)
        with pytest.raises(ContextTooLong):
            reader.prefill(ids * 20)
        assert reader.cache.length == 7


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba"])
def test_a_text_that_goes_on_is_not_read_again(folders, kind):
    model = rung.load(folders(kind), format="f32", device="cpu", context=128)
    first = model.generate("the", raw=True, max_tokens=2)
    text = "the" + "".join(first)
    longer = model.generate(f"{text} and the dog", raw=True, max_tokens=2)
    list(longer)
    assert longer.result["cached_tokens"] in (0, first.result["prompt_tokens"] + 1)
    other = model.generate("a dog", raw=True, max_tokens=2)
    list(other)
    assert other.result["cached_tokens"] == 0


@pytest.mark.parametrize("kind", ["gpt_neox", "mixtral"])
def test_layers_are_packed_before_the_first_token_and_attend_through_the_ladder(folders, kind, monkeypatch):
    model = rung.load(folders(kind), format="q8_0", device="cpu", context=128)
    network = model.backend.kept.network
    assert network.config._attn_implementation == "rung"
    packed = []
    bind = binding.bind
    monkeypatch.setattr(binding, "bind", lambda state, x: packed.append(state) or bind(state, x))
    SequenceReader(model.backend).prefill([3, 9, 4])
    assert not packed


def test_the_head_sees_one_row_that_is_no_view_of_several(folders):
    """For such a view torch would copy all weights of a head in bf16."""
    model = rung.load(folders("gpt_neox"), format="f32", device="cpu", context=128)
    strides = []
    model.backend.kept.network.get_output_embeddings().register_forward_hook(
        lambda head, inputs, found: strides.append(inputs[0].stride())
    )
    SequenceReader(model.backend).prefill([3, 9, 4, 7])
    assert strides == [(64, 64, 1)]


def test_a_call_that_is_broken_off_leaves_nothing_behind(folders):
    """Ctrl-C in the second layer: the first holds the token already, and the next answer must not see it."""
    model = rung.load(folders("gpt_neox"), format="f32", device="cpu", context=128)
    ids = [3, 9, 4, 7]
    want = model.logits([*ids, 5])[-1]
    reader = SequenceReader(model.backend)
    reader.prefill(ids)

    def stop(*arguments):
        raise KeyboardInterrupt

    hook = model.backend.kept.network.gpt_neox.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        reader.step(5)
    hook.remove()
    found = torch.from_numpy(reader.prefill([*ids, 5][reader.cache.length :]))
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)


def test_what_transformers_does_not_know_either(folders, tmp_path):
    folder = shutil.copytree(folders("opt"), tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "brandnew"}))
    with pytest.raises(UnknownArchitecture, match="brandnew"):
        rung.load(folder)
    t5 = transformers.T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_heads=4)
    transformers.T5EncoderModel(t5).save_pretrained(tmp_path / "t5")
    with pytest.raises(UnknownArchitecture, match="no text"):
        rung.load(tmp_path / "t5")


def test_a_simulated_card(folders):
    """In its f16, near what f32 gives; the device is asked for by name as in ``rung run --device sim:2080ti``."""
    ids = tokenizer()(PROMPT).input_ids
    exact = rung.load(folders("gpt_neox"), format="f32", device="cpu", context=128).logits(ids)
    with rung.simulate("2080 Ti") as card:
        model = rung.load(folders("gpt_neox"), format="int8", device=card.id, context=128)
        found = model.logits(ids)
    assert model.plan.dtype == "f16"
    assert model.plan.placements[0].device == card.id
    assert 0 < float((found - exact).norm() / exact.norm()) < 0.15


def test_a_tokenizer_of_older_files(folders, tmp_path):
    """``vocab.json`` and ``merges.txt``, as OPT's folders have them; and none at all."""
    folder = shutil.copytree(folders("gpt2"), tmp_path / "older")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(BadFile, match="no tokenizer"):
        rung.load(folder, format="f32", device="cpu", context=64)
    pieces = ["<|endoftext|>", "a", "c", "t", "r", "u", "n", "s", "\u0120", "ca", "cat"]
    (folder / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nc a\nca t\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    model = rung.load(folder, format="f32", device="cpu", context=64)
    want = transformers.AutoTokenizer.from_pretrained(folder)("a cat runs").input_ids
    assert model.tokenizer.encode("a cat runs", special=True, bos=False) == want == [1, 8, 10, 8, 4, 5, 6, 7]
    assert model.tokenizer.decode(want) == "a cat runs"


def test_a_method_that_rung_does_not_read_says_what_to_do(folders, tmp_path):
    folder = shutil.copytree(folders("opt"), tmp_path / "quantized")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "qux"}}))
    with pytest.raises(UnknownArchitecture, match="quantized with qux") as refused:
        rung.load(folder)
    assert refused.value.ways_out


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("opt", {"target_modules": "all-linear", "use_dora": True}),
        ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ],
)
def test_adapters_stand_beside_the_network(folders, tmp_path, kind, options):
    """As PEFT computes them; a second one with half its weight."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(4)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folders(kind)).eval()
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **options)
    adapted = peft.get_peft_model(plain, config).eval()
    adapted.save_pretrained(tmp_path / "one")
    names, ids = [str(tmp_path / "one")], [5, 9, 3, 17]
    if not config.use_dora:
        adapted.add_adapter("other", config)
        adapted.save_pretrained(tmp_path, selected_adapters=["other"])
        adapted.base_model.set_adapter(["default", "other"])
        for layer in adapted.modules():
            if isinstance(getattr(layer, "scaling", None), dict):
                layer.scaling["other"] /= 2
        names.append(f"{tmp_path / 'other'}:0.5")
    with torch.no_grad():
        want = adapted(torch.tensor([ids])).logits[0]
    model = load(str(folders(kind)), format="f32", device="cpu", context=64, adapters=names)
    torch.testing.assert_close(model.logits(ids), want, rtol=1e-4, atol=1e-4)
    assert any("unmerged" in note for note in model.report.notes)
    quantized = load(str(folders(kind)), format="q8_0", device="cpu", context=64, adapters=names)
    assert float((quantized.logits(ids) - want).norm() / want.norm()) < 0.05
    with pytest.raises(UsageError, match="made for another model"):
        load(str(folders("bloom")), adapters=names)


def test_a_folder_that_lacks_weights_is_no_model(folders, tmp_path):
    """Transformers itself goes on with random values."""
    folder = shutil.copytree(folders("gpt_neox"), tmp_path / "lacking")
    weights = load_file(folder / "model.safetensors")
    del weights["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name in ("f32", "int8"):
        with pytest.raises(BadFile, match="lacks 1 weight") as refused:
            rung.load(folder, format=name, device="cpu", context=64)
        assert "layers.1.mlp.dense_h_to_4h.weight" in str(refused.value)


def test_a_network_whose_tokens_see_those_after_them_writes_no_text(tmp_path):
    own = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    for is_decoder in (False, True):
        config = transformers.RobertaConfig(**own, intermediate_size=128, is_decoder=is_decoder)
        transformers.RobertaForCausalLM(config).save_pretrained(tmp_path / "roberta")
        tokenizer().save_pretrained(tmp_path / "roberta")
        if is_decoder:
            model = rung.load(tmp_path / "roberta", format="f32", device="cpu", context=64)
            assert model.logits([3, 4]).shape == (2, 64)
        else:
            with pytest.raises(UnknownArchitecture, match="no text"):
                rung.load(tmp_path / "roberta")


def test_a_network_that_gives_no_cache_back_reads_all_again(folders):
    ids = [3, 9, 4, 7, 12, 5, 3]
    model = rung.load(folders("gpt_neox"), format="f32", device="cpu", context=128)
    want = model.logits(ids)[-1]
    reader, network = SequenceReader(model.backend), model.backend.kept.network
    hook = network.register_forward_hook(lambda module, inputs, found: setattr(found, "past_key_values", None))
    reader.prefill(ids[:4])
    torch.testing.assert_close(torch.from_numpy(reader.prefill(ids[4:])), want, atol=1e-4, rtol=1e-4)
    hook.remove()


def test_missing_packages_are_named_with_the_reason(folders, monkeypatch):
    monkeypatch.setattr("rung.engine.open_model.find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(SoftwareMissing, match="accelerate is not installed") as refused:
        rung.load(folders("opt"))
    assert "'opt', which rung does not build" in refused.value.facts[0]
    assert refused.value.ways_out == ("pip install 'rung[run]' transformers accelerate",)


def test_folders_without_readable_weights(folders, tmp_path):
    folder = shutil.copytree(folders("gpt_neox"), tmp_path / "pickled")
    weights = load_file(folder / "model.safetensors")
    weights["gpt_neox.final_layer_norm.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadFile, match="pickled"):
        rung.load(folder, format="f32", device="cpu", context=64)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound):
        rung.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UnsafeFile):
        rung.load(folder)


def test_a_plan_of_its_card_packs_every_layer(folders):
    """As the layers do: where that does not fit, nothing does."""
    card = open_any(folders("opt"))
    plan = rung.plan(card, format="int8", device="cpu", context=64)
    assert plan.packing == "r16"
    needed = plan.placements[0].memory
    with pytest.raises(DoesNotFit):
        rung.plan(card, format="int8", device="cpu", context=64, memory=needed.most - 1)


def test_of_what_is_looked_up_and_multiplied_both_are_counted(folders):
    """A head that is its embedding keeps what is stored, for its rows; of other matrices only what is packed stays."""
    subject = Subject.of_card(open_any(folders("bloom")))
    weights = plan_weights(subject, formats.get("q8_0"), cpu(), "f32", packed=True)
    assert {weight.packing for weight in weights if weight.multiplies} == {"r16"}
    for weight in weights:
        if weight.multiplies:
            both = weight.format.bytes(weight.tensor.shape) if weight.tensor.role == "embed" else 0
            assert weight.bytes == packed_bytes(weight.format, weight.tensor.shape) + both


def test_check_counts_a_mixture_of_experts_as_it_will_be_held(folders):
    """It knows the network from headers; the plan has asked transformers."""
    folder = folders("mixtral")
    for choice in rung.check(folder, ["cpu"], formats=("q8_0", "nf4", "bf16"), context=64).choices:
        planned = rung.plan(open_any(folder), format=choice.format, device="cpu", context=64)
        (there,) = planned.placements
        for name in ("weights", "kv_cache", "activations", "runtime"):
            assert getattr(choice.memory, name) == pytest.approx(getattr(there.memory, name), rel=0.01), choice.format
        if choice.speed.reason:  # the rung of these tiny weights decodes them first, for which no rate is known
            assert choice.speed.decode_tokens_per_second is None
        else:
            assert choice.speed.decode_tokens_per_second == pytest.approx(planned.decode_rate, rel=0.05)
        assert choice.command.startswith(f"rung run {folder} --format {choice.format} ")
    assert not any(choice.command for choice in rung.check(folder, ["2x3090"], context=64).choices)


def test_pages_of_files_do_not_stay_beside_what_is_made_of_them(folders, monkeypatch):
    """Experts are stacked out of them while the files are read."""
    calls, folder, transform = [], folders("mixtral"), transformers.core_model_loading.WeightTransform
    theirs_alone = transform.materialize_tensors
    monkeypatch.setattr(language, "_AT_ONCE", 0)
    monkeypatch.setattr(language, "give_back_files", calls.append)
    language.read(folder, "MixtralForCausalLM", {}, "f32", torch.device("cpu"))
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert len(calls) > 2 * layers  # two stacks a layer
    assert all(files == [folder / "model.safetensors"] for files in calls)
    assert transform.materialize_tensors is theirs_alone


def test_a_configuration_without_a_limit_of_tokens(tmp_path):
    """XLNet's says -1."""
    config = transformers.XLNetConfig(vocab_size=64, d_model=64, n_layer=1, n_head=4, d_inner=64)
    transformers.XLNetLMHeadModel(config).save_pretrained(tmp_path / "xlnet")
    assert open_any(tmp_path / "xlnet").context == 0
