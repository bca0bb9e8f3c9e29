"""Rope scalings against transformers' functions and against ggml's arithmetic, written out position by position."""

import math

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rung.core.errors import BadFile
from rung.models import rope
from rung.models.architectures import MODEL_TYPES
from rung.models.settings import Settings

LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.03 * n for n in range(32)],
    "long_factor": [1.5 + 0.9 * n for n in range(32)],
}
SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 40.0, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.7},
    {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25, "truncate": False},
    {**LONG, "original_max_position_embeddings": 4096},
    {**LONG, "original_max_position_embeddings": 4096, "factor": 16.0},
    {**LONG, "original_max_position_embeddings": 4096, "attention_factor": 1.1},
]


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, list(scaling.values())[:2]))[:30])
def test_equal_to_transformers(scaling, base):
    values = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_parameters": {**scaling, "rope_theta": base},
    }
    decoder = MODEL_TYPES["llama"].from_config(Settings(values, "config.json"))
    (found,) = decoder.ropes
    config = transformers.LlamaConfig(**values)
    model = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    np.testing.assert_allclose(np.float32(found.inverse_frequencies), model.inv_freq.numpy(), rtol=5e-7)
    assert found.magnitude == pytest.approx(model.attention_scaling, rel=1e-12)
    if scaling["rope_type"] == "longrope":
        long, magnitude = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=4097)
        np.testing.assert_allclose(np.float32(found.long_inverse_frequencies), long.numpy(), rtol=5e-7)
        assert found.long_magnitude == pytest.approx(magnitude)
        assert found.original_context == 4096
    else:
        assert found.long_inverse_frequencies == ()


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_phi3_of_both_generations(kind):
    scaling = {"short_factor": LONG["short_factor"][:24], "long_factor": LONG["long_factor"][:24]}
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 131072}
    context = {"original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75}
    old = {**sizes, **context, "rope_theta": 10000.0, "rope_scaling": {"type": kind, **scaling}}
    # "su" is the first name of longrope, which the class of today no longer accepts
    config = transformers.Phi3Config(**{**old, "rope_scaling": {"type": "longrope", **scaling}})
    new = {**sizes, **context, "rope_parameters": dict(config.rope_parameters)}
    expected, magnitude = ROPE_INIT_FUNCTIONS["longrope"](config)
    for values in (old, new):
        (found,) = MODEL_TYPES["phi3"].from_config(Settings(values, "config.json")).ropes
        assert found.dims == 48
        np.testing.assert_allclose(np.float32(found.inverse_frequencies), expected.numpy(), rtol=5e-7)
        assert found.magnitude == pytest.approx(magnitude)
        assert magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


# ---- GGUF


def ggml_angle(index, position, dims, base, factor, divisor, yarn, original):
    """The angle of pair ``index`` and the factor of cos and sin, in float64, as ggml's rope computes them."""

    def dimension(rotations):
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    outer = position * base ** (-2 * index / dims) / divisor
    inner = outer / factor
    if not yarn:
        return inner, 1.0
    low, high = max(0, math.floor(dimension(32))), min(dims - 1, math.ceil(dimension(1)))
    mix = 1 - min(1, max(0, (index - low) / max(0.001, high - low)))
    scale = 1 + 0.1 * math.log(factor)
    # llama.cpp divides this out of attn_factor before ggml multiplies by it, and puts in its own (the same formula)
    return inner * (1 - mix) + outer * mix, (scale / scale) * scale


@pytest.mark.parametrize("yarn", [False, True])
@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
@pytest.mark.parametrize("divided", [False, True])
def test_gguf_formula(yarn, factor, divided):
    dims, base, original, position = 64, 10000.0, 4096, 77
    divisors = [1 + 0.2 * n for n in range(dims // 2)] if divided else []
    found = rope.from_gguf(
        dims,
        base,
        interleaved=True,
        kind="yarn" if yarn else "linear",
        factor=factor,
        original=original,
        magnitude=1.5,
        factors=divisors,
    )
    assert found.interleaved
    for index, frequency in enumerate(found.inverse_frequencies):
        divisor = divisors[index] if divided else 1.0
        angle, scale = ggml_angle(index, position, dims, base, factor, divisor, yarn, original)
        assert frequency * position == pytest.approx(angle, rel=2e-6)
        assert found.magnitude == pytest.approx(1.5 * scale)


def test_gguf_long_factors():
    short, long = [1.0 + n for n in range(8)], [2.0 + n for n in range(8)]
    found = rope.from_gguf(16, 10000.0, interleaved=False, original=64, magnitude=1.2, factors=short, long_factors=long)
    plain = np.array([10000.0 ** (-2 * n / 16) for n in range(8)])
    np.testing.assert_allclose(found.inverse_frequencies, plain / short, rtol=1e-6)
    np.testing.assert_allclose(found.long_inverse_frequencies, plain / long, rtol=1e-6)
    assert (found.magnitude, found.long_magnitude, found.original_context) == (1.2, 1.2, 64)


@pytest.mark.parametrize("base", [1.0, 0.5, 1e31])
def test_a_base_that_makes_no_frequencies(base):
    with pytest.raises(BadFile, match="makes no frequencies"):
        rope.plain(base, 16)
