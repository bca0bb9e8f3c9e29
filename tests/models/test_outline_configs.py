"""Outlines of configurations alone against the models that transformers and diffusers build from them."""

import json
import math
import re
from pathlib import Path

import catalog_models
import meta_models
import pytest

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.networks.component import DESCRIPTIONS, describe, known
from rung.models.outline import open_outline

REFERENCES = json.loads(meta_models.REFERENCES.read_text())
#: Totals that the models' pages and papers give, in the digits they give them in.
PUBLISHED = {
    "gemma-2b": 2_506_172_416,  # https://huggingface.co/google/gemma-2b, safetensors
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b-it": 999_885_952,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-v0.1": 7_241_732_096,
    "phi-3-mini-4k": 3_821_079_552,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": "0.6B",
    "qwen3-8b": 8_190_735_360,
    "mixtral-8x7b-v0.1": 46_702_792_704,
    "mixtral-8x22b-v0.1": "141B",
    "qwen1.5-moe-a2.7b": "14.3B",
    "qwen2-57b-a14b": "57B",
    "qwen3-30b-a3b": "30.5B",
    "qwen3-235b-a22b": "235B",
    "deepseek-v2-lite": "15.7B",
    "deepseek-v2": "236B",
    "deepseek-v3": "671B",  # without the layer that predicts a second token
    "gpt-oss-20b": "20.91B",  # arXiv 2508.10925, table 1
    "gpt-oss-120b": "116.83B",
    "t5-small": 60_506_624,
    "t5-v1_1-xxl-encoder": 4_762_310_656,
    "umt5-xxl-encoder": 5_680_910_336,
    "bert-base-uncased": "110M",
    "bert-large-uncased": "335M",
    "all-minilm-l6-v2": "22.7M",
    "bge-large-en-v1.5": "335M",
    "roberta-base": "125M",
    "xlm-roberta-large": "560M",
    "distilbert-base-uncased": "67M",
    "whisper-tiny": 37_760_640,  # the paper says 39M: it counts the head twice
    "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": "809M",
    "clip-vit-base-patch32": 151_277_313,
    "clip-vit-large-patch14": 427_616_513,
    "siglip-base-patch16-224": 203_155_970,
    "siglip-so400m-patch14-384": 877_960_498,
    "sd-1.5-text-encoder": 123_060_480,
    "sdxl-text-encoder-2": 694_659_840,
    "sd-1.5-unet": "860M",
    "sd-1.5-vae": 83_653_863,
    "sdxl-unet": "2.6B",  # arXiv 2307.01952, table 1
    "sd3.5-medium-transformer": "2.5B",
    "sd3.5-large-transformer": "8.1B",
    "flux.1-dev-transformer": "12B",
    "ltx-video-2b-transformer": "1.9B",  # arXiv 2501.00103
    "ltx-video-13b-transformer": "13B",
    "wan2.1-vae": "127M",  # arXiv 2503.20314, table 2
    "wan2.2-ti2v-5b-transformer": "5B",
    "latte-1-transformer": "1.1B",
}
#: Weights that one token multiplies, as published; Mixtral, Qwen and DeepSeek count the embedding in.
ACTIVE = {
    "mixtral-8x7b-v0.1": (12.9, "embed"),
    "qwen1.5-moe-a2.7b": (2.7, "embed"),
    "qwen3-30b-a3b": (3.3, "embed"),
    "qwen3-235b-a22b": (22, "embed"),
    "deepseek-v2-lite": (2.4, ""),
    "deepseek-v2": (21, ""),
    "deepseek-v3": (37, ""),
    "gpt-oss-20b": (3.61, ""),
    "gpt-oss-120b": (5.13, ""),
}
#: Bytes of whole checkpoints: gpt-oss as its card gives them in GiB.
CHECKPOINTS = {"gpt-oss-20b": 12.8, "gpt-oss-120b": 60.8}


def outline(name):
    return open_outline(meta_models.FOLDER / f"{name}.json")


def component(name):
    return describe(meta_models.config(name), name)


def shapes(found):
    return {tensor.name: tensor.shape for tensor in found.tensors}


@pytest.mark.parametrize("name", meta_models.names())
def test_every_tensor_is_the_one_that_the_library_builds(name):
    found, reference = component(name), REFERENCES[name]
    assert len(found.tensors) == reference["tensors"]
    assert found.parameters == reference["parameters"]
    assert meta_models.fingerprint(shapes(found).items()) == reference["names_and_shapes"]
    assert all(tensor.role for tensor in found.tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", meta_models.names())
def test_the_references_are_what_the_libraries_build(name):
    config = meta_models.config(name)
    pytest.importorskip("diffusers" if "_class_name" in config else "transformers")
    built = meta_models.built(config)
    assert shapes(component(name)) == built
    assert meta_models.reference(built) == REFERENCES[name]


def test_there_are_at_least_forty_and_each_type_is_among_them():
    assert len(REFERENCES) >= 40
    kinds = {meta_models.config(n).get("model_type") or meta_models.config(n)["_class_name"] for n in REFERENCES}
    kinds |= {config["model_type"] for config in catalog_models.configs().values()}
    assert set(DESCRIPTIONS) <= kinds
    assert set(REFERENCES) == set(meta_models.names())


def test_the_page_names_every_type_and_counts_right():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    described = page[page.index("## What can be described") : page.index("## Phases")]
    assert [kind for kind in known() if not re.search(rf"\b{kind}\b", described)] == []
    assert f"holds {len(REFERENCES)} configurations" in page
    assert f"Of {len(PUBLISHED)} the published total" in page


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones(name):
    published, found = PUBLISHED[name], outline(name).parameters
    if isinstance(published, int):
        assert found == published
    else:
        unit = {"B": 1e9, "M": 1e6}[published[-1]]
        digits = len(published.partition(".")[2]) - 1 if "." in published else 0
        assert round(found / unit, max(digits, 0)) == float(published[:-1])


@pytest.mark.parametrize("name", ACTIVE)
def test_weights_multiplied_for_a_token_are_the_published_ones(name):
    (billions, also), found = ACTIVE[name], outline(name).components[0]
    extra = sum(math.prod(t.shape) for t in found.tensors if t.role == also)
    assert (found.active_parameters + extra) / 1e9 == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_bytes_of_quantized_checkpoints_are_the_published_ones(name):
    assert round(outline(name).weight_bytes / 2**30, 1) == CHECKPOINTS[name]


def test_weight_bytes_follow_the_dtype():
    assert outline("llama-3.1-8b").weight_bytes == 2 * 8_030_261_248
    assert outline("gemma-2-2b").weight_bytes == 4 * 2_614_341_888
    config = meta_models.config("llama-3.1-8b")
    del config["torch_dtype"]
    assert describe(config, "x").weight_bytes == 4 * 8_030_261_248
    assert describe(config | {"dtype": "float16"}, "x").weight_bytes == 2 * 8_030_261_248


def test_fp8_in_blocks_has_scales_and_leaves_the_embedding_alone():
    found = outline("deepseek-v3").components[0]
    by_name = {tensor.name: tensor for tensor in found.tensors}
    experts = by_name["model.layers.3.mlp.experts.gate_up_proj"]
    assert (experts.format, experts.bytes) == ("F8_E4M3", 256 * 4096 * 7168)
    scale = by_name["model.layers.3.mlp.experts.gate_up_proj_scale_inv"]
    assert (scale.role, scale.shape, scale.format) == ("layers.3.experts_gate_up_scale", (256, 32, 56), "f32")
    latent = by_name["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"]
    assert latent.shape == (5, 56)  # 576 rows: the last block is short
    assert {by_name[n].format for n in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")} == {"bf16"}
    assert by_name["model.layers.3.mlp.gate.weight"].format == "bf16"
    assert found.parameters == REFERENCES["deepseek-v3"]["parameters"]  # scales are no weights


def test_caches():
    """Numbers kept for a sequence, counted by hand."""
    names = ("llama-3.1-8b", "mistral-7b-v0.1", "gpt-oss-20b", "deepseek-v2", "gemma-2-2b")
    shape = {name: outline(name).components[0].shape for name in names}
    assert shape["llama-3.1-8b"].cached(4096) == 32 * 4096 * 2 * 8 * 128
    assert shape["mistral-7b-v0.1"].cached(10_000) == 32 * 4096 * 2 * 8 * 128
    assert shape["gpt-oss-20b"].cached(4096) == 12 * (128 + 4096) * 2 * 8 * 64
    # https://arxiv.org/abs/2405.04434, 2.1.4: 4.5 head dimensions of 128 a token and layer
    assert shape["deepseek-v2"].cached(1) == 60 * 4.5 * 128
    assert shape["deepseek-v2"].cached(1000) == 1000 * shape["deepseek-v2"].cached(1)
    assert shape["gemma-2-2b"].cached(8192) == 13 * (4096 + 8192) * 2 * 4 * 256


def test_caches_of_models_with_an_encoder():
    shape = {name: outline(name).components[0].shape for name in ("whisper-large-v3", "t5-small", "bert-base-uncased")}
    whisper, t5 = shape["whisper-large-v3"], shape["t5-small"]
    assert whisper.cached(448) == 32 * (448 + 1500) * 2 * 1280
    assert t5.cached(100, encoder_tokens=30) == 6 * (100 + 30) * 2 * 512
    assert outline("bert-base-uncased").components[0].role == "encoder"
    assert outline("t5-small").components[0].role == "encoder-decoder"
    assert outline("t5-v1_1-xxl-encoder").components[0].role == "encoder"


def test_a_head_of_its_own_of_t5_counts():
    """Flan-T5 has one: its page says 248M, where a tied one would give 223M."""
    config = {"model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    config |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    assert describe(config, "x").parameters == 247_577_856


def test_classes_that_nobody_described():
    for name in ("bert-base-uncased", "roberta-base", "t5-small", "whisper-tiny", "clip-vit-base-patch32"):
        with pytest.raises(UnknownArchitecture, match=r"class 'FooModel'") as error:
            describe(meta_models.config(name) | {"architectures": ["FooModel"]}, "x")
        assert "known: " in str(error.value)
        with pytest.raises(BadFile, match="architectures"):
            describe(meta_models.config(name) | {"architectures": "FooModel"}, "x")


def test_a_configuration_of_quantized_weights_that_cannot_be_derived_says_so():
    config = meta_models.config("llama-2-7b") | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    with pytest.raises(UnknownArchitecture, match="quantized with gptq"):
        describe(config, "x")
    with pytest.raises(BadFile, match="weight_block_size"):
        describe(config | {"quantization_config": {"quant_method": "fp8"}}, "x")
    with pytest.raises(BadFile, match="quantization_config"):
        describe(config | {"quantization_config": "yes"}, "x")


def test_unknown_types_name_the_known_ones():
    with pytest.raises(UnknownArchitecture, match="'rwkv7'") as error:
        describe({"model_type": "rwkv7"}, "x")
    assert "deepseek_v3" in str(error.value)
    assert "llama" in known()
    for nothing in ({}, {"model_type": None}):
        with pytest.raises(BadFile, match="nothing says"):
            describe(nothing, "x")
    with pytest.raises(BadFile, match="model_type"):
        describe({"model_type": ["llama"]}, "x")


ABSURD = (0, -1, 2**24, 2**31 - 2, 10**12, 2.5, "32", [32], {}, True, float("nan"))


@pytest.mark.parametrize("name", meta_models.names())
def test_absurd_values_are_refused_and_cost_nothing(name):
    """Every number of every configuration, replaced: an error with the file and the key, or a model of sane size."""
    config = meta_models.config(name)
    layers = next(key for key in ("num_hidden_layers", "num_layers", "encoder_layers", *config) if key in config)
    if isinstance(config[layers], int):
        for value in ABSURD:
            with pytest.raises(BadFile, match=f"absurd.json.*{layers}"):
                describe(config | {layers: value}, "absurd.json")
        config[layers] = 8
        config.pop("layer_types", None)
    for key in [k for k, v in config.items() if isinstance(v, int) and not isinstance(v, bool)]:
        for value in ABSURD:
            assert _tensors_or_refusal(config | {key: value}) <= 2**16, (key, value)


def _tensors_or_refusal(config):
    """The number of tensors; 0 where the configuration is refused with the file's name."""
    try:
        return len(describe(config, "absurd.json").tensors)
    except BadFile as error:
        return 0 if "absurd.json" in str(error) else float("inf")
