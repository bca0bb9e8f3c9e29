"""Phi-3 and Phi-4 mini: fused q, k, v and fused gate and up, longrope."""

from __future__ import annotations

from rung.models.architectures import family
from rung.models.architectures.family import Architecture, Factors
from rung.models.card import Decoder, Rope
from rung.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def names(config: Settings) -> dict[str, str]:
    """Names inside a layer."""
    return family.FUSED_NAMES


def _rope(config: Settings) -> Rope:
    """Older files say ``su`` or ``yarn`` where longrope is meant; the original context stands beside the scaling."""
    values = dict(config.table("rope_scaling") or config.table("rope_parameters"))
    kind = values.get("rope_type") or values.get("type")
    values["rope_type"] = "longrope" if kind in ("su", "yarn") else kind
    values["original_max_position_embeddings"] = config.integer("original_max_position_embeddings", 4096, least=2)
    values["partial_rotary_factor"] = values.get("partial_rotary_factor") or config.raw("partial_rotary_factor", 1.0)
    theta = values.get("rope_theta") or config.raw("rope_theta") or 10000.0
    return family.rope_of(config, values, theta, family.head_dim(config, DEFAULTS), family.context(config, DEFAULTS))


def from_config(config: Settings) -> Decoder:
    """The decoder of a Hugging Face configuration."""
    count, span = family.layer_count(config, DEFAULTS), family.window(config, None)
    return family.decoder(
        config,
        "phi3",
        DEFAULTS,
        layers=family.layers(Settings({}, config.where), count, span, lambda index: True),
        ropes=(_rope(config),),
    )


def from_gguf(meta: Settings, factors: Factors) -> Decoder:
    """The decoder of a GGUF file; llama.cpp gives it no window, whatever the file says."""
    return family.gguf_decoder(meta, Factors(short=factors.short, long=factors.long), "phi3")


ARCHITECTURE = Architecture(
    "phi3",
    names,
    from_config,
    network="Phi3",
    gguf="phi3",
    gguf_names={name: role for name, role in family.GGUF_NAMES.items() if role != "gate"}
    | {"ffn_up.weight": "gate_up"},
    gguf_factors=("short", "long"),
    from_gguf=from_gguf,
    ends=(32000,),
    bos=1,
)
