"""Configurations with anything in the place of any value: an answer of sane size, or one of rung's errors."""

import json

import meta_models
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.core.errors import RungError
from rung.models.networks.component import describe

NUMBERS = st.sampled_from([0, -1, 1, 2, 3, 64, 10**9, 10**12, 2**63, 1.5, float("nan"), float("inf"), True])
VALUES = st.recursive(
    st.none() | NUMBERS | st.sampled_from(["", "llama", "silu", "sliding_attention", "fp8", "mxfp4", "\0", "x" * 300]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["a", "type", "quant_method"]), inner),
    max_leaves=6,
)
EXTRA = ["quantization_config", "architectures", "torch_dtype", "dtype", "rope_scaling", "layer_types", "text_config"]
EXTRA += ["vision_config", "id2label", "mlp_only_layers", "dual_attention_layers", "tie_word_embeddings", "image_dim"]


@st.composite
def configurations(draw):
    """A public configuration, of few layers, in which up to three keys are changed or gone."""
    config = meta_models.config(draw(st.sampled_from(meta_models.names())))
    for key in ("num_hidden_layers", "num_layers", "num_single_layers", "encoder_layers", "decoder_layers"):
        if key in config:
            config[key] = 3
    for key in draw(st.lists(st.sampled_from([*config, *EXTRA]), min_size=1, max_size=3)):
        if draw(st.booleans()) or key not in config:
            config[key] = draw(VALUES)
        else:
            del config[key]
    return config


def _described(config):
    try:
        return describe(config, "fuzzed.json")
    except RungError as error:
        return error


@given(configurations())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_configuration_is_described_or_refused(config):
    found = _described(config)
    if isinstance(found, RungError):
        assert 0 < len(str(found)) < 5000
        return
    assert 0 < len(found.tensors) <= 2**16
    assert found.parameters > 0
    assert found.weight_bytes > 0
    assert found.active_parameters >= 0
    assert found.shape.cached(128) >= 0
    json.dumps(found.shape.to_json())
