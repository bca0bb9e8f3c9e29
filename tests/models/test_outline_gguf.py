"""GGUF files of mixtures of experts, with the names and keys that llama.cpp's converter writes."""

import math

import pytest
from handmade import ARRAY, F32, STRING, U32, gguf, info, pair

from rung import formats
from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.outline import OTHER, open_outline

Q4_0, F32_TYPE = 2, 0
H, W, E, V, KV = 64, 32, 4, 96, 32  # hidden, wide of an expert, experts, vocabulary, keys
PLAIN = {"attn_norm.weight": (H,), "attn_q.weight": (H, H), "attn_k.weight": (KV, H), "attn_v.weight": (KV, H)}
PLAIN |= {"attn_output.weight": (H, H), "ffn_gate_inp.weight": (E, H)}
STACKED = {"ffn_gate_exps.weight": (E, W, H), "ffn_up_exps.weight": (E, W, H), "ffn_down_exps.weight": (E, H, W)}
NORM = {"ffn_norm.weight": (H,)}
SINGLE = {
    f"ffn_{part}.{n}.weight": s for n in range(E) for part, s in (("gate", (W, H)), ("up", (W, H)), ("down", (H, W)))
}
SHARED = {f"ffn_{part}_shexp.weight": shape for part, shape in (("gate", (W, H)), ("up", (W, H)), ("down", (H, W)))}
LATENT = {
    "attn_norm.weight": (H,),
    "attn_q_a.weight": (32, H),
    "attn_q_a_norm.weight": (32,),
    "attn_q_b.weight": (96, 32),
}
LATENT |= {"attn_kv_a_mqa.weight": (40, H), "attn_kv_a_norm.weight": (32,), "attn_k_b.weight": (4, 32, 32)}
LATENT |= {"attn_v_b.weight": (4, 16, 32), "attn_output.weight": (H, 64), "ffn_gate_inp.weight": (E, H)}
KINDS = {
    "llama": PLAIN | NORM | STACKED,
    "qwen2moe": PLAIN | NORM | STACKED | SHARED | {"ffn_gate_inp_shexp.weight": (H,), "attn_q.bias": (H,)},
    "qwen3moe": PLAIN | NORM | STACKED | {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)},
    "deepseek2": LATENT | NORM | STACKED | SHARED | {"exp_probs_b.bias": (E,)},
    "gpt-oss": PLAIN
    | STACKED
    | {"post_attention_norm.weight": (H,), "attn_sinks.weight": (4,), "ffn_gate_exps.bias": (E, W)},
}


def write(path, kind, block=None, layers=2, **more):
    """A file of that architecture; ``more`` are keys of it."""
    keys = {"context_length": 128, "embedding_length": H, "block_count": layers, "feed_forward_length": W}
    keys |= {"attention.head_count": 4, "attention.head_count_kv": 2, "expert_count": E, "expert_used_count": 2} | more
    pairs = [pair("general.architecture", STRING, kind), pair("tokenizer.ggml.model", STRING, "gpt2")]
    pairs.append(pair("tokenizer.ggml.tokens", ARRAY, (STRING, [f"t{n}" for n in range(V)])))
    pairs.append(pair(f"{kind}.attention.layer_norm_rms_epsilon", F32, 1e-6))
    pairs += [pair(f"{kind}.{key}", U32, value) for key, value in keys.items()]
    shapes = {"token_embd.weight": (V, H), "output_norm.weight": (H,), "some_table.weight": (8,)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in (block or KINDS[kind]).items()}
    infos, end = [], 0
    for name, shape in shapes.items():
        number = Q4_0 if len(shape) > 1 else F32_TYPE
        infos.append(info(name, shape, number, end))
        end += -(-formats.gguf_type(number).bytes(shape) // 32) * 32
    path.write_bytes(gguf(pairs, infos, bytes(end)))
    return shapes


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_has_its_role(tmp_path, kind):
    shapes = write(tmp_path / "x.gguf", kind)
    found = open_outline(tmp_path / "x.gguf")
    (component,) = found.components
    assert (found.kind, found.card, component.role) == ("gguf", None, "decoder")
    assert {t.name for t in component.tensors if t.role == OTHER} == {"some_table.weight"}
    assert {t.name: t.shape for t in component.tensors} == shapes
    assert len({t.role for t in component.tensors}) == len(shapes)
    assert found.parameters == sum(math.prod(shape) for shape in shapes.values()) - 8
    assert {t.format for t in component.tensors if len(t.shape) > 1} == {"q4_0"}
    assert component.shape.experts == 4
    share = sum(math.prod(s) for n, s in shapes.items() if "_exps" in n) // 2
    assert component.active_parameters == found.parameters - share  # the embedding is the head, two of four experts


def test_experts_one_by_one_are_the_same_weights(tmp_path):
    write(tmp_path / "new.gguf", "llama")
    write(tmp_path / "old.gguf", "llama", PLAIN | NORM | SINGLE)
    new, old = open_outline(tmp_path / "new.gguf"), open_outline(tmp_path / "old.gguf")
    assert (old.parameters, old.weight_bytes) == (new.parameters, new.weight_bytes)
    assert old.components[0].active_parameters == new.components[0].active_parameters
    assert "layers.1.experts.3.down" in {t.role for t in old.components[0].tensors}


def test_caches(tmp_path):
    latent = {"attention.kv_lora_rank": 32, "rope.dimension_count": 8, "attention.key_length": 40}
    latent |= {"attention.key_length_mla": 24, "attention.value_length_mla": 16, "attention.value_length": 32}
    write(tmp_path / "deepseek.gguf", "deepseek2", **{**latent, "attention.head_count_kv": 1})
    shape = open_outline(tmp_path / "deepseek.gguf").components[0].shape
    assert (shape.cached(10), shape.head_dim, shape.value_dim) == (2 * 10 * 40, 24, 16)
    write(tmp_path / "oss.gguf", "gpt-oss", **{"attention.sliding_window": 16})
    assert open_outline(tmp_path / "oss.gguf").components[0].shape.windows == (16, None)


def test_what_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    write(path, "mamba", PLAIN)
    with pytest.raises(UnknownArchitecture, match="'mamba'"):
        open_outline(path)
    for key in ("block_count", "expert_count", "expert_used_count"):
        write(path, "qwen3moe", **{key: 10**9})
        with pytest.raises(BadFile, match=key):
            open_outline(path)
