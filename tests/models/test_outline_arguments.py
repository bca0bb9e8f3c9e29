"""Every argument of a described class of diffusers is read or refused: one that is not read calls files corrupt."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import diffusers
import meta_models
import pytest

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.networks.component import describe

#: Configurations that build quickly; everything else has the default of the class.
SMALL: dict[str, dict[str, Any]] = {
    "LatteTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8, "sample_size": 8,
        "patch_size": 2, "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "caption_channels": 16,
        "cross_attention_dim": 16,
    },
    "LTXVideoTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "cross_attention_dim": 16,
        "caption_channels": 16,
    },
    "WanTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 2, "ffn_dim": 32, "text_dim": 16,
    },
    "SD3Transformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "caption_projection_dim": 16,
        "joint_attention_dim": 16, "pooled_projection_dim": 16, "sample_size": 8, "pos_embed_max_size": 8,
    },
    "FluxTransformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "num_single_layers": 2,
        "joint_attention_dim": 16, "pooled_projection_dim": 16, "axes_dims_rope": [2, 2, 4],
    },
    "AutoencoderKL": {"block_out_channels": [32], "norm_num_groups": 8},
    "AutoencoderKLWan": {"base_dim": 8, "z_dim": 4},
    "AutoencoderKLLTXVideo": {},
    "UNet2DConditionModel": {"block_out_channels": [32, 32, 32, 32], "norm_num_groups": 8, "cross_attention_dim": 16},
}  # fmt: skip
TEXTS = ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu", "silu", "relu", "rms_norm")


def _others(value: Any) -> Iterator[Any]:
    """Other values that an argument may take."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (2 * value, value + 1)
    elif isinstance(value, str):
        yield from (text for text in TEXTS if text != value)
    elif value is None:
        yield from (16, True, "rms_norm")


def _arguments(name: str) -> Iterator[tuple[str, Any]]:
    for key, parameter in inspect.signature(getattr(diffusers, name).__init__).parameters.items():
        if key not in ("self", "kwargs"):
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            yield key, SMALL[name].get(key, default)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "UNet2DConditionModel" else ()) for name in SMALL]
)
def test_every_argument_is_read_or_refused(name):
    """One argument after the other is changed; what diffusers builds from that must be what is described."""
    changes = [{}, *({key: other} for key, value in _arguments(name) for other in _others(value))]
    wrong, compared = [], 0
    for change in changes:
        config = {"_class_name": name, **SMALL[name], **change}
        try:
            expected = meta_models.built(config)
        except Exception:  # diffusers refuses it, in many ways
            continue
        try:
            found = {tensor.name: tensor.shape for tensor in describe(config, "config.json").tensors}
        except (UnknownArchitecture, BadFile):
            assert change, f"the plain {name} is refused"
            continue
        compared += 1
        if found != expected:
            different = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
            wrong.append((change, different[:2]))
    assert not wrong, "\n".join(map(str, wrong))
    assert compared >= 2
