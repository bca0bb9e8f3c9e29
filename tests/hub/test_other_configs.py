"""A model that is quantized already, loaded with another config: what is stored counts, and that is said."""

import json

import pytest
import torch
import transformers

import rung
from rung.core.errors import BadFile
from rung.nn import QuantLinear
from tests.support.models import load_causal, logits_of
from tests.tiny import tiny_checkpoint
from tests.tiny_pipelines import saved

IDS = torch.tensor([[1, 17, 300, 4, 25, 60]])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder in nf4."""
    folder = tmp_path_factory.mktemp("stored")
    tiny_checkpoint(folder / "plain", "llama")
    load_causal(folder / "plain", quantization_config=rung.QuantizationConfig("nf4")).save_pretrained(folder / "nf4")
    return folder / "nf4"


@pytest.mark.parametrize(
    "other",
    [rung.QuantizationConfig("q8_0"), rung.QuantizationConfig("auto"), rung.QuantizationConfig(embeddings="int8")],
    ids=lambda config: f"{config.format}-{config.embeddings}",
)
def test_another_config_of_rung_is_told_that_the_stored_one_counts(stored, other):
    with pytest.warns(UserWarning, match="already has a `quantization_config` attribute.* from the model will be used"):
        model = load_causal(stored, quantization_config=other)
    assert model.config.quantization_config.format == "nf4:64"
    names = {layer.stored.format.name for layer in model.modules() if isinstance(layer, QuantLinear)}
    assert names == {"nf4:64"}
    assert torch.equal(logits_of(model, IDS), logits_of(load_causal(stored), IDS))


def others():
    """Configs of other quantizers."""
    return {
        "4 bits": lambda: transformers.BitsAndBytesConfig(load_in_4bit=True),
        "8 bits": lambda: transformers.BitsAndBytesConfig(load_in_8bit=True),
        "fp8": transformers.FineGrainedFP8Config,
        "gptq": lambda: transformers.GPTQConfig(bits=4),
        "auto-round": transformers.AutoRoundConfig,
    }


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("other", others())
def test_another_quantizers_config_is_refused(stored, other, installed):
    """By transformers, before anything is loaded, and with the words for it where rung takes that quantizer's place."""
    pytest.importorskip("bitsandbytes")
    from rung.hub import transformers as hub

    if installed:
        hub.install()
    try:
        with pytest.raises((ValueError, NotImplementedError), match=r"quantized with QuantizationConfig but|Failed to"):
            load_causal(stored, quantization_config=others()[other]())
    finally:
        hub.uninstall()


METHODS = {
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "gptq": {"bits": 4},
    "fp8": {},
    "mxfp4": {},
}


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_of_another_quantizer_is_not_quantized_again(tmp_path, method, installed):
    from rung.hub import transformers as hub

    tiny_checkpoint(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    stored = {"quant_method": method, **METHODS[method]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": stored}))
    if installed:
        hub.install()
    try:
        with pytest.raises(ValueError, match="you are passing a QuantizationConfig config"):
            load_causal(tmp_path, quantization_config=rung.QuantizationConfig("nf4"))
    finally:
        hub.uninstall()


def test_weights_that_nobody_reads_are_not_taken_for_a_model(tmp_path):
    """A method that transformers does not know is left aside by it: what would be quantized are random values."""
    plain = tiny_checkpoint(tmp_path, "llama")
    names = {name: f"{name}_packed" for name in plain.state_dict() if name.endswith("_proj.weight")}
    state = {names.get(name, name): value for name, value in plain.state_dict().items()}
    plain.save_pretrained(tmp_path, state_dict=state)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mine"}}))
    with pytest.raises(BadFile, match="has none of the 14 weights that were to be quantized") as refused:
        load_causal(tmp_path, quantization_config=rung.QuantizationConfig("nf4"))
    assert "random values" in refused.value.facts[0]


def test_one_config_for_two_models(tmp_path):
    """The second model does not leave out the layers of the first, nor is the first's format planned for it."""
    tiny_checkpoint(tmp_path, "llama")
    for config in (rung.QuantizationConfig("nf4"), rung.QuantizationConfig("auto")):
        before = config.to_dict()
        first = transformers.LlamaForSequenceClassification.from_pretrained(  # of which no Auto class makes a copy
            tmp_path, quantization_config=config, num_labels=3
        )
        assert "score" in first.config.quantization_config.skip
        assert config.to_dict() == before
        second = transformers.LlamaForCausalLM.from_pretrained(tmp_path, quantization_config=config)
        assert "score" not in second.config.quantization_config.skip


def test_a_part_of_a_pipeline_keeps_what_it_was_stored_in(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    kind = diffusers.LatteTransformer3DModel
    folder = saved("latte", tmp_path / "latte")
    options = {"subfolder": "transformer", "quantization_config": rung.QuantizationConfig("nf4")}
    kind.from_pretrained(folder, **options).save_pretrained(tmp_path / "nf4")
    others = [rung.QuantizationConfig("int8")]
    if transformers.utils.is_bitsandbytes_available():
        others.append(diffusers.BitsAndBytesConfig(load_in_8bit=True))
    want = kind.from_pretrained(tmp_path / "nf4").state_dict()
    for other in others:
        with pytest.warns(UserWarning, match="from the model will be used"):
            again = kind.from_pretrained(tmp_path / "nf4", quantization_config=other)
        assert again.config.quantization_config.format == "nf4:64"
        assert all(torch.equal(value, want[name]) for name, value in again.state_dict().items())
