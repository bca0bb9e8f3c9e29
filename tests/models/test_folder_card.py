"""Cards of Hugging Face folders against what transformers makes of the same folder."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
import transformers
from handmade import edit
from safetensors.torch import save_file

import tiny
from rung import formats
from rung.core.errors import BadFile, ModelNotFound
from rung.models import ModelCard, open_card
from rung.models.architectures import MODEL_TYPES
from rung.models.reader import Reader
from rung.models.settings import Settings


def windows(config):
    """The window of each layer as the class computes with it."""
    kinds = getattr(config, "layer_types", None)
    if config.model_type in ("mistral", "phi3"):
        return [config.sliding_window] * config.num_hidden_layers
    if kinds is None:
        return [None] * config.num_hidden_layers
    return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]


def check_decoder(decoder, config):
    """Every field against the configuration object of transformers."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    gemma = config.model_type.startswith("gemma")
    assert decoder.model_type == config.model_type
    assert [layer.window for layer in decoder.layers] == windows(config)
    assert decoder.hidden == config.hidden_size
    assert (decoder.heads, decoder.kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert decoder.head_dim == head_dim
    assert decoder.feed_forward == config.intermediate_size
    assert decoder.vocabulary == config.vocab_size
    assert decoder.context == config.max_position_embeddings
    assert decoder.norm_epsilon == config.rms_norm_eps
    assert decoder.norm_offset == (1.0 if gemma else 0.0)
    assert decoder.activation == ("gelu_tanh" if gemma else "silu")
    assert decoder.attention_scale == pytest.approx(getattr(config, "query_pre_attn_scalar", head_dim) ** -0.5)
    assert decoder.embedding_scale == (math.sqrt(config.hidden_size) if gemma else 1.0)
    assert decoder.attention_softcap == getattr(config, "attn_logit_softcapping", None)
    assert decoder.logit_softcap == getattr(config, "final_logit_softcapping", None)
    assert decoder.qk_norm == (config.model_type in ("qwen3", "gemma3_text"))
    assert decoder.post_norms == (config.model_type in ("gemma2", "gemma3_text"))


def check_ropes(decoder, model):
    """Frequencies and magnitudes against the buffers of the model; in f32 within a rounding of the power."""
    rotary = model.model.rotary_emb
    two = decoder.model_type == "gemma3_text"
    for rope, kind in zip(decoder.ropes, ("full_attention_", "sliding_attention_") if two else ("",), strict=True):
        buffer = getattr(rotary, f"{kind}inv_freq").numpy()
        np.testing.assert_allclose(np.float32(rope.inverse_frequencies), buffer, rtol=2.5e-7)
        assert rope.magnitude == pytest.approx(getattr(rotary, f"{kind}attention_scaling"), rel=1e-12)
        assert rope.dims == 2 * len(buffer)
        assert not rope.interleaved


@pytest.mark.parametrize("model_type", tiny.MODEL_TYPES)
def test_card_says_what_transformers_builds(checkpoints, model_type):
    folder, model = checkpoints(model_type)
    card = open_card(folder)
    check_decoder(card.decoder, model.config)
    check_ropes(card.decoder, model)
    assert card.decoder.tied_head == model.config.tie_word_embeddings
    assert card.decoder.attention_bias == (model_type in ("qwen2", "seed_oss"))
    assert card.end_tokens == (2,)
    assert card.bos_token == 1
    assert (card.kind, card.tokenizer, card.chat_template, card.skipped) == ("folder", "", None, ())


@pytest.mark.parametrize("model_type", tiny.MODEL_TYPES)
def test_every_tensor_has_a_role_and_its_values(checkpoints, model_type):
    folder, model = checkpoints(model_type)
    card = open_card(folder)
    stored = model.state_dict()
    if card.decoder.tied_head:
        del stored["lm_head.weight"]
    assert {tensor.name for tensor in card.tensors} == set(stored)
    assert len({tensor.role for tensor in card.tensors}) == len(card.tensors)
    assert card.parameters == sum(value.numel() for value in stored.values())
    with Reader(card) as reader:
        for tensor in card.tensors:
            expected = stored[tensor.name].numpy()
            assert tensor.shape == expected.shape
            decoded = formats.decode(reader.read(tensor))
            np.testing.assert_array_equal(decoded, np.atleast_2d(expected))


def test_roles_are_those_of_the_card(checkpoints):
    plain = ["attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"]
    layer = [*plain, "q_norm", "k_norm", "attn_post_norm", "mlp_post_norm"]
    fused = ["attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down"]
    biased = [*plain, "q_bias", "k_bias", "v_bias"]
    for model_type, names in (("gemma3_text", layer), ("phi3", fused), ("qwen2", biased)):
        card = open_card(checkpoints(model_type)[0])
        found = {tensor.role for tensor in card.tensors if tensor.role.startswith("layers.1.")}
        assert found == {f"layers.1.{name}" for name in names}
    assert card.tensor("head").shape == (320, 64)
    # the role goes with the meaning, not with the name: Gemma 2 calls another norm post_attention_layernorm
    gemma = open_card(checkpoints("gemma2")[0])
    assert gemma.tensor("layers.0.attn_post_norm").name == "model.layers.0.post_attention_layernorm.weight"
    assert gemma.tensor("layers.0.mlp_norm").name == "model.layers.0.pre_feedforward_layernorm.weight"


@pytest.mark.parametrize("model_type", tiny.MODEL_TYPES)
def test_older_configurations_mean_the_same(checkpoints, tmp_path, model_type):
    folder, _ = checkpoints(model_type)
    older = shutil.copytree(folder, tmp_path / model_type)
    tiny.older_generation(older)
    assert "rope_parameters" not in json.loads((older / "config.json").read_text())
    assert open_card(older).decoder == open_card(folder).decoder


@pytest.mark.parametrize("model_type", tiny.MODEL_TYPES)
def test_absent_keys_mean_the_default_of_the_class(model_type):
    name = {"gemma3_text": "Gemma3Text", "seed_oss": "SeedOss"}.get(model_type, model_type.capitalize())
    config = getattr(transformers, f"{name}Config")()
    architecture = MODEL_TYPES[model_type]
    decoder = architecture.from_config(Settings({"model_type": model_type}, "config.json"))
    check_decoder(decoder, config)
    assert architecture.tied == config.tie_word_embeddings
    ends = config.eos_token_id
    assert architecture.ends == (() if ends is None else (ends,))
    assert architecture.bos == config.bos_token_id


def test_the_whole_gemma3_of_the_hub_is_understood(checkpoints):
    """The text configuration of google/gemma-3-4b-it leaves most keys to the class."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    decoder = MODEL_TYPES["gemma3_text"].from_config(Settings(text, "config.json"))
    config = transformers.Gemma3TextConfig(**text)
    check_decoder(decoder, config)
    assert [layer.rope for layer in decoder.layers] == [0 if (n + 1) % 6 == 0 else 1 for n in range(34)]
    full, sliding = decoder.ropes
    assert full.inverse_frequencies[0] == 0.125
    assert sliding.inverse_frequencies[0] == 1.0
    assert full.inverse_frequencies[64] == pytest.approx(1e6**-0.5 / 8)


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0, "head_dim": 32}),
        ("mistral", {"sliding_window": 24}),
        ("phi3", {"sliding_window": 12}),
        ("gemma2", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"], "attn_logit_softcapping": None}),
        ("gemma3_text", {"sliding_window_pattern": 2, "num_hidden_layers": 4}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True}),
        ("gemma", {"attention_bias": True}),
        ("qwen2", {"num_key_value_heads": None}),
    ],
)
def test_variants(tmp_path, model_type, more):
    model = tiny.tiny_checkpoint(tmp_path, model_type, **more)
    card = open_card(tmp_path)
    check_decoder(card.decoder, model.config)
    check_ropes(card.decoder, model)
    assert {tensor.name for tensor in card.tensors} == set(model.state_dict()) - (
        {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    )
    tiny.older_generation(tmp_path)
    assert open_card(tmp_path).decoder == card.decoder


def test_sixteen_bit_tensors_are_read_as_they_are(tmp_path):
    for dtype, name in (("bfloat16", "bf16"), ("float16", "f16")):
        model = tiny.tiny_checkpoint(tmp_path / name, "llama", dtype=dtype)
        card = open_card(tmp_path / name)
        assert {tensor.format for tensor in card.tensors} == {name}
        with Reader(card) as reader:
            values = formats.decode(reader.read(card.tensor("layers.1.down")))
        np.testing.assert_array_equal(values, model.model.layers[1].mlp.down_proj.weight.detach().numpy())


def test_shards(checkpoints, tmp_path):
    folder, model = checkpoints("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    card = open_card(tmp_path)
    assert len(card.files) > 2
    assert {(t.role, t.shape) for t in card.tensors} == {(t.role, t.shape) for t in open_card(folder).tensors}
    with Reader(card) as reader:
        head = formats.decode(reader.read(card.tensor("head")))
    np.testing.assert_array_equal(head, model.lm_head.weight.detach().numpy())
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelNotFound, match="1 shard cannot be found") as error:
        open_card(tmp_path)
    assert gone.name in str(error.value)


def test_gemma3_with_vision_runs_as_text(tmp_path):
    text = tiny.tiny_config("gemma3_text").to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).float()
    model.save_pretrained(tmp_path)
    card = open_card(tmp_path)
    check_decoder(card.decoder, model.config.text_config)
    names = {name for name in model.state_dict() if "language_model" in name}
    skipped = len(model.state_dict()) - 1 - len(names)  # less the tied head
    assert card.skipped == (f"vision ({skipped} tensors)",)
    assert len(card.tensors) == len(names)
    with Reader(card) as reader:
        embed = formats.decode(reader.read(card.tensor("embed")))
    np.testing.assert_array_equal(embed, model.get_input_embeddings().weight.detach().numpy())


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model.", ""])
def test_prefixes_of_all_ages(checkpoints, tmp_path, prefix):
    folder, model = checkpoints("gemma")
    shutil.copy(folder / "config.json", tmp_path)
    state = {prefix + name.removeprefix("model."): value for name, value in model.model.state_dict().items()}
    state |= {f"{prefix}layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "model.safetensors")
    assert {tensor.role for tensor in open_card(tmp_path).tensors} == {t.role for t in open_card(folder).tensors}


def test_a_stored_head_counts_though_the_configuration_ties(checkpoints, tmp_path):
    folder, model = checkpoints("gemma")
    shutil.copy(folder / "config.json", tmp_path)
    state = {name: value.clone().contiguous() for name, value in model.state_dict().items()}
    state["lm_head.weight"] += 1
    save_file(state, tmp_path / "model.safetensors")
    card = open_card(tmp_path)
    assert not card.decoder.tied_head
    assert card.tensor("head").name == "lm_head.weight"
    del state["model.embed_tokens.weight"]
    save_file(state, tmp_path / "model.safetensors")
    card = open_card(tmp_path)
    assert card.decoder.tied_head
    assert card.tensor("embed").name == "lm_head.weight"


# ---- what stands beside the weights


def test_end_tokens_and_sampling_of_the_generation_config(folder):
    edit(folder / "config.json", eos_token_id=5)
    edit(folder / "generation_config.json", eos_token_id=[7, 9, 999999], temperature=0.6, top_p=0.9, do_sample=True)
    card = open_card(folder)
    assert card.end_tokens == (5, 7, 9)
    assert card.defaults == {"temperature": 0.6, "top_p": 0.9}
    edit(folder / "generation_config.json", do_sample=False, repetition_penalty=1.1, top_k=20, min_p=0.05)
    assert dict(open_card(folder).defaults) == {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
    }


def test_end_tokens_default_to_those_of_the_class(folder):
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id="absent", bos_token_id="absent")
    card = open_card(folder)
    assert (card.end_tokens, card.bos_token) == ((2,), 1)
    edit(folder / "config.json", eos_token_id=None, bos_token_id=None)
    card = open_card(folder)
    assert (card.end_tokens, card.bos_token) == ((), None)


def test_chat_templates_in_every_place(folder):
    edit(folder / "tokenizer_config.json", chat_template="{{ a }}")
    assert open_card(folder).chat_template == "{{ a }}"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    edit(folder / "tokenizer_config.json", chat_template=several)
    assert open_card(folder).chat_template == "d"
    (folder / "chat_template.json").write_text('{"chat_template": "j"}')
    assert open_card(folder).chat_template == "j"
    (folder / "chat_template.jinja").write_text("{{ ü }}", encoding="utf-8")
    assert open_card(folder).chat_template == "{{ ü }}"
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match="not UTF-8"):
        open_card(folder)


def test_where_the_tokenizer_is_and_whether_it_adds_bos(folder):
    (folder / "tokenizer.model").write_bytes(b"x")
    card = open_card(folder)
    assert card.tokenizer == str(folder / "tokenizer.model")
    assert card.add_bos  # Llama's sentencepiece tokenizer does, unless told not to
    edit(folder / "tokenizer_config.json", add_bos_token=False)
    assert not open_card(folder).add_bos
    (folder / "tokenizer.json").write_text("{}")
    edit(folder / "tokenizer_config.json", add_bos_token="absent")
    card = open_card(folder)
    assert card.tokenizer == str(folder / "tokenizer.json")
    assert not card.add_bos  # there the file itself says so


def test_card_travels_as_json(folder):
    card = open_card(folder)
    assert ModelCard.from_json(json.loads(json.dumps(card.to_json()))) == card


def test_a_file_of_the_folder_stands_for_it(folder):
    assert open_card(folder / "model.safetensors") == open_card(folder)
    assert open_card(str(folder / "config.json")) == open_card(folder)


def test_models_of_the_hubs_cache_have_the_name_of_their_repository(folder, tmp_path):
    path = tmp_path / "hub" / "models--google--gemma-2b" / "snapshots" / "0123abc"
    shutil.copytree(folder, path)
    assert open_card(path).name == "google/gemma-2b"
    assert open_card(folder).name == "model"
