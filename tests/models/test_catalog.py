"""The catalog of models: every row against its published count, and what names mean."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import catalog_models
import meta_models
import pytest
from tests.support.rows import each_row

from rung.core.errors import HubError, ModelNotFound, UsageError
from rung.models import lookup
from rung.models.catalog import card_of, find, find_near, known_models, outline_of
from rung.models.catalog.names import Match
from rung.models.catalog.outline import dense_config
from rung.models.catalog.rows import KnownModel, sources
from rung.models.lookup import find_outline, find_path
from rung.models.networks.component import describe

MODELS = known_models()


def ids(model: KnownModel) -> str:
    return model.name


@each_row("model", MODELS, ids)
def test_the_computed_number_of_weights_is_the_published_one(model: KnownModel) -> None:
    found = outline_of(Match(model.name, model))
    assert found.parameters == pytest.approx(model.parameters, rel=0.005)
    assert found.components[0].role == "decoder"
    assert found.components[0].shape.context >= 2048


def test_rows_are_whole() -> None:
    names = [model.name for model in MODELS]
    assert len(names) >= 240
    assert len(set(names)) == len(names)
    known = set(sources())
    for model in MODELS:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", model.name), model.name
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", model.released), model.name
        assert model.weights.count("/") == 1, model.name
        assert model.license, model.name
        cited = [model.shape_source, model.parameters_source, *(file.source for file in model.files)]
        assert {source.split(" ")[0] for source in cited} <= known, model.name
    usual: dict[str, list[str]] = {}
    for model in MODELS:
        usual.setdefault(model.family, []).extend([model.name] * model.usual)
    assert {family: len(marked) for family, marked in usual.items() if len(marked) != 1} == {}


@each_row("model", MODELS, ids)
def test_every_spelling_of_a_row_means_that_row(model: KnownModel) -> None:
    for spelling in (model.name, *model.aliases, model.title, model.name.upper(), model.name.replace("-", " ")):
        found = find(spelling)
        assert found is not None, spelling
        assert found.model is model, spelling
    found = find(f"{model.name}:Q4_K_M")
    assert found is not None
    assert (found.model, found.format) == (model, "q4_k_m")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama 3.1 8b", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("LLAMA3.1:8B", "llama-3.1-8b"),
        ("llama-3-1-8b", "llama-3.1-8b"),
        ("llama 3 8b", "llama-3-8b"),
        ("gemma-2b", "gemma-2b"),
        ("gemma 2 2b it", "gemma-2-2b"),
        ("qwen3:4b", "qwen3-4b"),
        ("qwen25 7b", "qwen2.5-7b"),
        ("qwen2 57b", "qwen2-57b-a14b"),
        ("deepseek-r1:8b", "deepseek-r1-0528-qwen3-8b"),
        ("8x7b", "mixtral-8x7b"),
        ("maverick 17b", "llama-4-maverick"),
        ("llama4:scout", "llama-4-scout"),
        ("gemma 3n", "gemma-3n-e4b"),
        ("gemma3n:e2b", "gemma-3n-e2b"),
        ("gemma-4", "gemma-4-e4b"),
        ("google/gemma-4-E2B-it", "gemma-4-e2b"),
        ("gemma-4-26b", "gemma-4-26b-a4b"),
        ("deepseek v3.2", "deepseek-v3.2"),
        ("glm 4.6", "glm-4.6"),
        ("glm-4.5", "glm-4.5"),
        ("nemotron nano", "nemotron-3-nano-30b-a3b"),
        ("granite-4.0-h-tiny", "granite-4-h-tiny"),
        ("qwen3-vl", "qwen3-vl-8b"),
        ("qwen 8b", "qwen3-8b"),
        ("devstral-small-2", "devstral-small-2-24b"),
        ("kimi-k2-thinking", "kimi-k2-thinking"),
        ("ｌｌａｍａ ３．１ ８ｂ", "llama-3.1-8b"),
        ("日本語", None),
        ("a" * 100_000, None),
        ("llama-3.1-8b" + " " * 200, None),
        ("llama\0", None),
        ("", None),
        ("instruct", None),
        ("./llama-3.1-8b", None),
        ("llama-3.1-8b.gguf", None),
        ("https://huggingface.co/meta-llama/Llama-3.1-8B", None),
        ("models/llama/llama-3.1-8b", None),
    ],
)
def test_what_people_type(typed: str, name: str | None) -> None:
    try:
        found = find(typed)
    except ModelNotFound:
        found = None
    assert (found.name if found else None) == name or typed == "llama\0"


@pytest.mark.parametrize(
    ("typed", "bare", "format"),
    [
        ("llama-3.1-8b:q4_k_m", "llama-3.1-8b", "q4_k_m"),
        ("qwen3:4b-q4_K_M", "qwen3-4b", "q4_k_m"),
        ("llama3.1:8b-instruct-fp16", "llama-3.1-8b", "f16"),
        ("Llama-3.1-8B-Instruct-IQ3_XXS", "llama-3.1-8b", "iq3_xxs"),
        ("8b:q8_0", "8b", "q8_0"),
    ],
)
def test_a_format_after_the_name(typed: str, bare: str, format: str) -> None:
    found = find(typed)
    assert found is not None
    assert (found.name, found.format) == (bare, format)


def test_a_family_without_a_size_means_its_most_used_one_and_says_so() -> None:
    found = find("llama 3.1")
    assert found is not None
    assert found.name == "llama-3.1-8b"
    assert "Llama 3.1 8B" in found.notes[0]
    assert "llama-3.1-70b" in found.notes[0]
    line = find("llama")
    assert line is not None
    assert line.model is not None
    assert line.notes
    downloads: dict[str, int] = {}
    for model in MODELS:
        if model.family.startswith("llama"):
            downloads[model.family] = downloads.get(model.family, 0) + model.downloads
    assert line.model.family == max(downloads, key=lambda family: downloads[family])


def test_a_true_tie_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="fits 2 models") as caught:
        find("llama 8b")
    assert caught.value.exit_code == 2
    assert "llama-3-8b" in str(caught.value)
    assert "llama-3.1-8b" in str(caught.value)


def test_a_size_that_a_family_lacks_names_those_that_it_has() -> None:
    with pytest.raises(ModelNotFound, match="none of these has 8B") as caught:
        find("llama 3.2 8b")
    assert "llama-3.2-1b, llama-3.2-3b" in str(caught.value)
    assert "rung check 8b" in caught.value.ways_out[1]


@pytest.mark.parametrize("size", ["0.3b", "1b", "8b", "13b", "24b", "70b", "123b", "405b"])
def test_a_size_alone_is_a_dense_model_of_that_size(size: str) -> None:
    found = find(size)
    assert found is not None
    assert found.model is None
    assert found.notes
    config = dense_config(found.size)
    assert describe(config, size).parameters == pytest.approx(found.size, rel=0.02)
    assert not outline_of(found).writes  # a size is nothing that can be run


@pytest.mark.parametrize("size", ["1b", "3b", "7b", "8b", "14b", "20b", "34b", "70b", "123b"])
def test_a_size_alone_has_the_widths_that_fast_kernels_take(size: str) -> None:
    """k-quants store 256 weights together: a row of another width is decoded first, as in no model of that size."""
    found = find(size)
    assert found is not None
    config = dense_config(found.size)
    assert config["intermediate_size"] % 256 == config["hidden_size"] % 256 == 0
    matrices = [t for t in outline_of(found).components[0].tensors if len(t.shape) == 2]
    assert not [tensor.name for tensor in matrices if tensor.shape[1] % 256]
    assert describe(config, size).parameters == pytest.approx(found.size, rel=0.01)


@pytest.mark.parametrize("size", ["0.001b", "9999b", "0.0b"])
def test_sizes_that_no_model_comes_near_are_refused(size: str) -> None:
    found = find(size)
    if found is None:
        return
    with pytest.raises(ModelNotFound, match="cannot be guessed"):
        outline_of(found)


def test_near_misses() -> None:
    assert find_near("lama-3.1-8b")[0] == "llama-3.1-8b"
    assert find_near("quen3 8b")[0] == "qwen3-8b"
    assert find_near("日本語") == [] == find_near("x" * 100_000)
    with pytest.raises(ModelNotFound, match=r"Did you mean llama-3\.1-8b"):
        find_outline("lama-3.1-8b")


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma-2b").mkdir()
    assert lookup.find_known("gemma-2b") is None
    assert lookup.find_known("demo") is None


def test_names_work_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("a name of the catalog asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert find_outline("llama 3.1 8b").parameters == 8_030_261_248


def test_a_hub_name_is_known_where_the_hub_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object, **more: object) -> None:
        raise HubError("The hub is away.")

    monkeypatch.setattr(lookup, "open_outline", away)
    notes: list[str] = []
    found = find_outline("meta-llama/Llama-3.1-8B-Instruct", on_note=notes.append)
    assert found.name == "llama-3.1-8b"
    assert "hub was not reached" in notes[0]
    with pytest.raises(HubError):
        find_outline("nobody/knows-this")
    with pytest.raises(HubError):
        find_outline("meta-llama/Llama-3.1-8B-Instruct", revision="v1")


def test_running_a_known_name_says_where_its_weights_are() -> None:
    with pytest.raises(ModelNotFound, match="weights are not here") as caught:
        find_path("llama 3.1 8b")
    assert "rung run meta-llama/Llama-3.1-8B-Instruct" in caught.value.ways_out
    assert any(way.endswith("-GGUF:Q4_K_M") for way in caught.value.ways_out)
    with pytest.raises(ModelNotFound, match="is a size and no model"):
        find_path("8b")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_cards_for_plans_hold_every_tensor(name: str) -> None:
    found = find(name)
    assert found is not None
    outline = outline_of(found)
    card = card_of(outline)
    assert card.context == outline.components[0].shape.context
    assert card.path == outline.path == (found.model.weights if found.model else "")


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        # 15 of 35 layers have a cache: three for all tokens with heads of 512, twelve for 512 tokens with heads of 256
        ("gemma-4-e2b", 3 * 8192 * 2 * 512 + 12 * 512 * 2 * 256),
        # five of 30 layers see all tokens, with two heads of 512; the others have eight of 256 for 1024 tokens
        ("gemma-4-26b-a4b", 5 * 8192 * 2 * 2 * 512 + 25 * 1024 * 2 * 8 * 256),
        # ten of the last layers take the keys and values of two others
        ("gemma-3n-e2b", 4 * 8192 * 2 * 2 * 256 + 16 * 512 * 2 * 2 * 256),
        # six layers attend, 23 keep a state and the last inputs of a convolution
        ("nemotron-3-nano-30b-a3b", 6 * 8192 * 2 * 2 * 128 + 23 * (64 * 64 * 128 + (64 * 64 + 2 * 8 * 128) * 4)),
        ("deepseek-v3.2", 61 * 8192 * (512 + 64 + 128)),
    ],
)
def test_what_a_context_of_8192_tokens_keeps(name: str, numbers: int) -> None:
    found = find(name)
    assert found is not None
    assert outline_of(found).components[0].shape.cached(8192) == numbers


def test_embeddings_of_layers_are_looked_up_and_not_multiplied() -> None:
    """Gemma 4 E2B is called so for the 2.3 billion weights that it multiplies."""
    found = find("gemma-4-e2b")
    assert found is not None
    component = outline_of(found).components[0]
    assert component.active_parameters == component.parameters - 35 * 256 * 262144
    assert component.active_parameters == pytest.approx(2.3e9, rel=0.01)


@pytest.mark.parametrize("name", catalog_models.read())
def test_every_tensor_is_the_one_that_transformers_builds(name: str) -> None:
    """Names and shapes, held against what the library builds from the same configuration on the meta device."""
    config = {**catalog_models.configs()[name], "quantization_config": None}
    tensors = describe(config, name).tensors
    assert meta_models.reference({tensor.name: tensor.shape for tensor in tensors}) == catalog_models.read()[name]
    assert all(tensor.role for tensor in tensors)


def test_every_shape_of_the_table_has_a_reference() -> None:
    assert set(catalog_models.configs()) == set(catalog_models.read())


@pytest.mark.slow
@pytest.mark.parametrize("name", catalog_models.read())
def test_the_references_are_what_transformers_builds(name: str) -> None:
    pytest.importorskip("transformers")
    built = catalog_models.built(catalog_models.configs()[name])
    assert meta_models.reference(built) == catalog_models.read()[name]
