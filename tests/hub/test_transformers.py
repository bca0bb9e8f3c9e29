"""Models of transformers, quantized while they are loaded, saved, loaded again, trained and decoded."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import rung
from rung import formats
from rung.core.errors import BadFile, CannotEncode, DoesNotFit, UnknownFormat, UsageError
from rung.hub import quantizer, register
from rung.nn import QuantEmbedding, QuantExperts, QuantLinear
from rung.nn.quantized import binding
from rung.planning.check_result import Question
from tests.tiny import tiny_checkpoint, tiny_model

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])


def load(folder, kind=AutoModelForCausalLM, **options):
    model = kind.from_pretrained(folder, attn_implementation="eager", **options)
    assert not [name for name, part in model.state_dict().items() if part.is_meta]
    return model


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits.float()


def quantized(model):
    return {n: layer.stored.format.name for n, layer in model.named_modules() if hasattr(layer, "stored")}


@pytest.mark.parametrize("model_type", ["llama", "gemma", "mistral"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("embeddings", [None, "q8_0"])
def test_the_way_there_and_back(tmp_path, model_type, tied, embeddings):
    """The same layers and logits as ``rung.quantize``; saved and loaded again, the same to the bit."""
    tiny_checkpoint(tmp_path / "plain", model_type, tie_word_embeddings=tied)
    config = rung.QuantizationConfig(format="nf4", embeddings=embeddings)
    model = load(tmp_path / "plain", quantization_config=config, dtype=torch.float32)
    same = rung.quantize(tiny_model(model_type, tie_word_embeddings=tied), "nf4", embeddings=embeddings)
    assert quantized(model) == quantized(same)
    assert len(quantized(model)) == 14 + (2 if embeddings else 0)
    want = logits(same)
    assert torch.equal(logits(model), want)
    if tied and embeddings:
        assert model.lm_head.stored is model.model.embed_tokens.stored
    model.save_pretrained(tmp_path / "saved")
    model.tie_weights()
    assert torch.equal(logits(model), want)
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert (saved["quant_method"], saved["format"]) == ("rung", "nf4:64")
    again = load(tmp_path / "saved", dtype=torch.float32)
    assert torch.equal(logits(again), want)
    if tied and embeddings:
        assert again.lm_head.stored is again.model.embed_tokens.stored


def test_a_fresh_process_needs_only_import_rung(tmp_path):
    tiny_checkpoint(tmp_path / "plain", "llama")
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig("q8_0"))
    model.save_pretrained(tmp_path / "saved")
    code = """if True:
        import sys
        import rung
        assert "torch" not in sys.modules
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
        print(type(model.model.layers[1].mlp.up_proj).__name__, model.dtype)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "saved")], capture_output=True, text=True)
    assert done.stdout.split() == ["QuantLinear", "torch.float32"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import transformers.quantizers.auto, rung",
        "import rung, rung.hub.transformers",
        "import rung, rung.hub.quantizer",
        "import rung, rung.hub.quantized",
    ],
)
def test_the_method_is_registered_in_any_order(first):
    code = f"{first}; from transformers.quantizers import auto; print('rung' in auto.AUTO_QUANTIZER_MAPPING)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """A module that nobody has imported, and how often what was to follow its import has happened."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "waited_for.py").write_text("value = 3\n")
    happened = []
    register.after_import("waited_for", lambda: happened.append(sys.modules["waited_for"].value))
    yield happened
    register.forget("waited_for")
    sys.modules.pop("waited_for", None)


def test_looking_whether_a_module_is_there_is_not_importing_it(waited_for):
    """As transformers looks for bitsandbytes before anybody imports it."""
    specs = [importlib.util.find_spec("waited_for") for _ in range(2)]
    assert None not in specs
    assert waited_for == []
    module = importlib.import_module("waited_for")
    assert waited_for == [3]
    importlib.reload(module)
    assert waited_for == [3]


def test_what_was_forgotten_does_not_happen(waited_for):
    spec = importlib.util.find_spec("waited_for")
    register.forget("waited_for")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert waited_for == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_of_a_model_leaves_scales_alone(tmp_path, dtype):
    tiny_checkpoint(tmp_path / "plain", "llama", dtype="bfloat16")
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig("nf4"), dtype=dtype)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.stored.absmax.dtype == torch.float32
    assert layer.weight.dtype == model.dtype == dtype
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved", dtype=dtype)
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(again.model.layers[0].mlp.up_proj.stored.absmax, layer.stored.absmax)


def test_generate_and_train(tmp_path):
    """Greedy tokens; a step of training moves what is not quantized, and nothing else."""
    tiny_checkpoint(tmp_path / "plain", "llama")
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig("q8_0"), dtype=torch.float32)
    out = model.generate(IDS, max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 11)
    before = {name: part.clone() for name, part in model.state_dict().items()}
    model.train()
    model.gradient_checkpointing_enable()
    model(IDS, labels=IDS).loss.backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    changed = {name for name, part in model.state_dict().items() if not torch.equal(part, before[name])}
    assert "model.embed_tokens.weight" in changed
    assert not [name for name in changed if ".stored." in name]


def test_dequantize(tmp_path):
    for tied in (False, True):
        tiny_checkpoint(tmp_path / str(tied), "gemma3_text", tie_word_embeddings=tied)
        config = rung.QuantizationConfig("q8_0", embeddings="q8_0")
        model = load(tmp_path / str(tied), quantization_config=config, dtype=torch.float32)
        want = logits(model)
        model.dequantize()
        assert not quantized(model)
        assert formats.sqnr(want.numpy(), logits(model).numpy()) > 25
        assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
        model.save_pretrained(tmp_path / "back")
        assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())


def test_a_new_head_stays_plain(tmp_path):
    """A layer that the checkpoint lacks is initialized and not quantized, and is found plain when loaded again."""
    tiny_checkpoint(tmp_path / "plain", "llama")
    config = rung.QuantizationConfig("nf4")
    model = load(tmp_path / "plain", AutoModelForSequenceClassification, quantization_config=config, num_labels=3)
    assert type(model.score) is nn.Linear
    assert torch.isfinite(model.score.weight).all()
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved", AutoModelForSequenceClassification)
    assert torch.equal(again.score.weight, model.score.weight)
    assert isinstance(again.model.layers[0].mlp.up_proj, QuantLinear)


def test_every_linear_layer_of_t5_is_quantized(tmp_path):
    """``wo`` too, which transformers keeps in 32 bits: with f32 sums what overflowed in f16 does not."""
    config = transformers.T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    plain = transformers.T5EncoderModel(config)
    plain.save_pretrained(tmp_path)
    model = load(
        tmp_path, transformers.T5EncoderModel, quantization_config=rung.QuantizationConfig("q8_0"), dtype=torch.float16
    )
    assert len(quantized(model)) == 14
    with torch.no_grad():
        got = model.eval()(torch.arange(9)[None]).last_hidden_state
        want = plain.eval()(torch.arange(9)[None]).last_hidden_state
    assert formats.sqnr(want.numpy(), got.float().numpy()) > 25


def test_experts_are_quantized_while_they_are_merged(tmp_path):
    config = transformers.MixtralConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    plain = transformers.MixtralForCausalLM(config).eval()
    plain.save_pretrained(tmp_path / "plain")
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig("q8_0"), dtype=torch.float32)
    assert isinstance(model.model.layers[0].mlp.experts, QuantExperts)
    assert formats.sqnr(logits(plain).numpy(), logits(model).numpy()) > 25
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved", dtype=torch.float32)), logits(model))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"format": "nf5"}, UnknownFormat, "no format 'nf5'"),
        ({"bits": 4}, UsageError, "no argument bits"),
        ({"compute_dtype": "int8"}, UsageError, "compute_dtype is torch.int8"),
        ({"compute_dtype": "float33"}, UsageError, "compute_dtype is 'float33'"),
        ({"embeddings": "q9"}, UnknownFormat, "no format 'q9'"),
        ({"keep": {"up_proj": "q9"}}, UnknownFormat, "no format 'q9'"),
        ({"threshold": -1}, UsageError, "threshold is -1; it is a number that is not negative"),
    ],
)
def test_bad_configs(arguments, error, says):
    with pytest.raises(error, match=says) as refused:
        rung.QuantizationConfig(**arguments)
    assert refused.value.ways_out


def test_what_does_not_fit_is_refused_before_anything_is_loaded(tmp_path):
    tiny_checkpoint(tmp_path, "llama")
    for config, says in (
        (rung.QuantizationConfig(skip=["nothing_like_it"]), "skip: 'nothing_like_it' matches no layer"),
        (rung.QuantizationConfig("q4_k"), "q4_k cannot store model.layers.0.self_attn.q_proj.weight"),
        (rung.QuantizationConfig(skip="*"), "LlamaForCausalLM has no layer to quantize: skip leaves none"),
    ):
        with pytest.raises(UsageError, match=says):
            load(tmp_path, quantization_config=config)


def test_a_checkpoint_without_what_its_config_says_is_refused(tmp_path):
    tiny_checkpoint(tmp_path / "plain", "llama")
    load(tmp_path / "plain", quantization_config=rung.QuantizationConfig("nf4")).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["format"] = "q8_0"
    path.write_text(json.dumps(config))
    with pytest.raises(BadFile, match=r"no weight of model.layers.0.self_attn.q_proj in q8_0.*\n.*14 weights"):
        load(tmp_path / "saved")


def test_values_that_no_format_holds_are_told_by_their_name(tmp_path):
    plain = tiny_checkpoint(tmp_path, "llama")
    with torch.no_grad():
        plain.model.layers[1].mlp.up_proj.weight[3, 7] = float("inf")
    plain.save_pretrained(tmp_path)
    with pytest.raises(CannotEncode, match=r"Row 3 of model.layers.1.mlp.up_proj.weight holds Inf"):
        load(tmp_path, quantization_config=rung.QuantizationConfig("nf4"))


def test_an_embedding_that_scales_its_rows_is_right_after_loading(tmp_path):
    tiny_checkpoint(tmp_path, "gemma3_text")
    model = load(tmp_path, quantization_config=rung.QuantizationConfig(embeddings="bf16"), dtype=torch.float32)
    assert isinstance(model.model.embed_tokens, QuantEmbedding)
    want = tiny_model("gemma3_text").model.embed_tokens(IDS)
    torch.testing.assert_close(model.model.embed_tokens(IDS), want, rtol=1e-2, atol=1e-3)


@pytest.fixture
def small_device(monkeypatch):
    """Says how much memory the device has."""
    real = binding.device_of

    def has(free):
        monkeypatch.setattr(binding, "device_of", lambda device: replace(real(device), free=free))

    return has


def test_format_auto_is_the_plans(tmp_path):
    tiny_checkpoint(tmp_path / "plain", "llama", intermediate_size=96)
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig(format="auto"))
    config = model.config.quantization_config
    expected = rung.check(tmp_path / "plain", ["cpu"])
    assert config.format == expected.choices[expected.best].format
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.config.quantization_config.format == config.format
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, {"": torch.device("cpu")}])
def test_format_auto_with_a_device_map(tmp_path, device_map):
    tiny_checkpoint(tmp_path, "llama")
    config = rung.QuantizationConfig(format="auto")
    assert quantized(load(tmp_path, quantization_config=config, device_map=device_map))


@pytest.mark.parametrize(
    ("device_map", "device"),
    [
        ("sequential", "cuda"),
        ({"model": "cpu", "lm_head": "cuda:1"}, "cuda:1"),
        ({"model": "disk"}, "cpu"),
        (None, "cpu"),
    ],
)
def test_format_auto_is_planned_for_the_accelerator_of_a_device_map(device_map, device):
    with rung.simulate("rtx2080ti"):
        assert quantizer._main_device(device_map) == torch.device(device)


def test_format_auto_in_layers_that_it_does_not_divide(tmp_path, monkeypatch):
    """The plan's answer is given: a tiny model has no need of it."""
    tiny_checkpoint(tmp_path / "plain", "llama", hidden_size=256, intermediate_size=96)
    original = quantizer.check

    def answer(outline, devices, question):
        found = original(outline, devices, Question(formats=("q4_k",)))
        there = tiny_model("llama", hidden_size=256, intermediate_size=96).parameters()
        assert outline.parameters == sum(parameter.numel() for parameter in there)
        return found

    monkeypatch.setattr(quantizer, "check", answer)
    model = load(tmp_path / "plain", quantization_config=rung.QuantizationConfig(format="auto"))
    names = quantized(model)
    assert names["model.layers.0.self_attn.q_proj"] == "q4_k"
    assert names["model.layers.0.mlp.down_proj"] == formats.next_better(formats.get("q4_k"), 96).name
    model.save_pretrained(tmp_path / "saved")
    assert quantized(load(tmp_path / "saved")) == names


def test_format_auto_counts_what_is_packed_beside_the_weight(tmp_path, monkeypatch):
    """A layer keeps its weight as it is stored; of a file of llama.cpp only what is packed stays, which is less."""
    tiny_checkpoint(tmp_path, "llama")
    original, sizes = quantizer.check, []

    def answer(outline, devices, question):
        only = Question(formats=("q8_0",))
        sizes.extend(
            original(each, devices, only).choices[0].memory.weights for each in (outline, replace(outline, kind="gguf"))
        )
        return original(outline, devices, only)

    monkeypatch.setattr(quantizer, "check", answer)
    model = load(tmp_path, quantization_config=rung.QuantizationConfig(format="auto"))
    layers = [layer for layer in model.modules() if isinstance(layer, QuantLinear)]
    stored = sum(part.nbytes for layer in layers for part in layer.stored.parts().values())
    packs = binding.device_of(torch.device("cpu")).capability("isa.kernels")
    assert sizes[0] - sizes[1] >= (stored if packs else 0)


def test_format_auto_where_nothing_fits(tmp_path, small_device):
    tiny_checkpoint(tmp_path, "llama")
    small_device(1 << 20)
    with pytest.raises(DoesNotFit, match=r"fits .* in no format"):
        load(tmp_path, quantization_config=rung.QuantizationConfig(format="auto"))


def test_trainer_trains_an_adapter_with_a_device_map(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_checkpoint(tmp_path / "plain", "llama")
    config = rung.QuantizationConfig("nf4")
    model = load(tmp_path / "plain", quantization_config=config, device_map={"": "cpu"})
    assert model.model_tags == ["rung"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    rows = [{"input_ids": IDS[0], "labels": IDS[0]}] * 4
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    trainer = transformers.Trainer(model=adapted, args=options, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
