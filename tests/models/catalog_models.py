"""References of the catalog's outlines: what transformers builds on the meta device from the same configurations.

``python tests/models/catalog_models.py`` writes ``catalog_references.json``; rows of one shape share an entry.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import meta_models

from rung.models.catalog import KnownModel, known_models

REFERENCES = Path(__file__).parent / "catalog_references.json"
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
_SIZES |= {"num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 256}
_ROUTED = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
#: Small configurations of types that are described and in no row, by a name for each.
SMALL: dict[str, dict[str, Any]] = {
    "ernie4_5": _SIZES | {"model_type": "ernie4_5", "head_dim": 16},
    "granitemoe": _SIZES | {"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": _SIZES
    | _ROUTED
    | {"model_type": "glm4_moe", "use_qk_norm": True, "attention_bias": True, "head_dim": 16},
    "hunyuan_v1_dense": _SIZES | {"model_type": "hunyuan_v1_dense", "head_dim": 16},
    "hunyuan_v1_moe": _SIZES | {"model_type": "hunyuan_v1_moe", "head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "internlm3": _SIZES | {"model_type": "internlm3", "head_dim": 16},
    "nemotron": _SIZES | {"model_type": "nemotron", "head_dim": 16},
    "phimoe": _SIZES
    | {"model_type": "phimoe", "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"attention_bias": True, "lm_head_bias": True},
    "cohere with norms": _SIZES | {"model_type": "cohere", "use_qk_norm": True},
    "lfm2_moe": _SIZES
    | {"model_type": "lfm2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    | {"num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "stablelm in parallel": _SIZES | {"model_type": "stablelm", "use_parallel_residual": True, "use_qkv_bias": True},
}


def configs() -> dict[str, dict[str, Any]]:
    """Return a configuration for each shape of the table, and the small ones."""
    return {model.name: model.config() for model in shapes().values()} | SMALL


def built(config: dict[str, Any]) -> meta_models.Shapes:
    """Names and shapes of the weights of the class that transformers has for the model type."""
    import torch
    import transformers

    config = {key: value for key, value in config.items() if key not in ("torch_dtype", "quantization_config")}
    kind = config.pop("model_type")
    configuration = transformers.CONFIG_MAPPING[kind](**config)
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(configuration)
    tied = set(getattr(network, "all_tied_weights_keys", None) or {})
    return {name: tuple(value.shape) for name, value in network.state_dict().items() if name not in tied}


def shapes() -> dict[str, KnownModel]:
    """One model of the catalog for each shape."""
    return {model.shape: model for model in reversed(known_models())}


@functools.cache
def read() -> dict[str, Any]:
    """Return the references by the name of one model of each shape."""
    found: dict[str, Any] = json.loads(REFERENCES.read_text())
    return found


def write() -> None:
    """Write the references of all shapes; those in the arguments alone, if there are some."""
    found = read() if sys.argv[1:] else {}
    for name, config in configs().items():
        if name in (sys.argv[1:] or configs()):
            found[name] = meta_models.reference(built(config))
    REFERENCES.write_text(json.dumps({name: found[name] for name in sorted(found)}, indent=0) + "\n")


if __name__ == "__main__":
    write()
