"""CLIP and SigLIP: towers for text and for pictures, alone or together, and the safety checker of Stable Diffusion."""

from __future__ import annotations

from rung.core.errors import BadFile, UnknownArchitecture
from rung.models.networks.describing import Description, Parts, layer_count, model_class, width
from rung.models.networks.values import Shape
from rung.models.settings import Settings

_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
_TEXT |= {"vocab_size": 49408, "max_position_embeddings": 77, "projection_dim": 512}
_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_VISION |= {"image_size": 224, "patch_size": 32, "num_channels": 3, "projection_dim": 512}
_SIGLIP_TEXT = _VISION | {"vocab_size": 32000, "max_position_embeddings": 64}
_SIGLIP_VISION = _VISION | {"patch_size": 16, "vision_use_head": True}


def _layers(at: Parts, shape: Shape) -> None:
    hidden, wide = shape.hidden, shape.feed_forward
    for block in at.blocks("encoder.layers", shape.layers):
        for name in ("k", "v", "q"):
            block.linear(f"self_attn.{name}_proj", hidden, hidden, role=name)
        block.linear("self_attn.out_proj", hidden, hidden, role="o")
        block.norm("layer_norm1", hidden, role="attn_norm")
        block.linear("mlp.fc1", hidden, wide, role="up")
        block.linear("mlp.fc2", wide, hidden, role="down")
        block.norm("layer_norm2", hidden, role="mlp_norm")


def _shape(config: Settings, vocabulary: int, context: int) -> Shape:
    hidden, heads = width(config, "hidden_size"), width(config, "num_attention_heads")
    return Shape(
        layers=layer_count(config),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        feed_forward=width(config, "intermediate_size"),
        vocabulary=vocabulary,
        context=context,
    )


def _text(config: Settings, at: Parts) -> Shape:
    """The tower for text, without what projects its result."""
    shape = _shape(config, width(config, "vocab_size"), width(config, "max_position_embeddings"))
    at.table("embeddings.token_embedding", shape.vocabulary, shape.hidden)
    at.table("embeddings.position_embedding", shape.context, shape.hidden, "positions")
    _layers(at, shape)
    at.norm("final_layer_norm", shape.hidden)
    return shape


def _patches(config: Settings) -> int:
    """Patches of a square picture."""
    side, patch = config.integer("image_size", most=2**16), config.integer("patch_size", most=2**16)
    if patch > side:
        raise BadFile(f"{config.where}: patch_size {patch} is above image_size {side}")
    return (side // patch) ** 2


def _vision(config: Settings, at: Parts) -> Shape:
    """CLIP's tower for pictures: a token of its own before the patches, and a norm before the layers."""
    patch, shape = config.integer("patch_size"), _shape(config, 0, _patches(config) + 1)
    at.tensor("embeddings.class_embedding", "table", shape.hidden)
    at.conv("embeddings.patch_embedding", width(config, "num_channels"), shape.hidden, patch, patch, bias=False)
    at.table("embeddings.position_embedding", shape.context, shape.hidden, "positions")
    at.norm("pre_layrnorm", shape.hidden)
    _layers(at, shape)
    at.norm("post_layernorm", shape.hidden)
    return shape


def _siglip_text(config: Settings, at: Parts) -> Shape:
    shape = _text(config, at)
    at.linear("head", shape.hidden, width(config, "projection_size", shape.hidden))
    return shape


def _siglip_vision(config: Settings, at: Parts) -> Shape:
    """SigLIP's tower for pictures, with attention over its result."""
    patch, shape = config.integer("patch_size"), _shape(config, 0, _patches(config))
    hidden = shape.hidden
    at.conv("embeddings.patch_embedding", width(config, "num_channels"), hidden, patch, patch)
    at.table("embeddings.position_embedding", shape.context, hidden, "positions")
    _layers(at, shape)
    at.norm("post_layernorm", hidden)
    if config.flag("vision_use_head", True):
        head = at / "head"
        head.tensor("probe", "table", 1, 1, hidden)
        head.tensor("attention.in_proj_weight", "qkv", 3 * hidden, hidden)
        head.tensor("attention.in_proj_bias", "qkv_bias", 3 * hidden)
        head.linear("attention.out_proj", hidden, hidden, role="o")
        head.norm("layernorm", hidden)
        head.linear("mlp.fc1", hidden, shape.feed_forward, role="up")
        head.linear("mlp.fc2", shape.feed_forward, hidden, role="down")
    return shape


def _tower(config: Settings, key: str, defaults: dict[str, int | bool]) -> Settings:
    return Settings({**defaults, **config.table(key)}, f"{config.where}, {key}")


def _refuse(config: Settings, *known: str) -> UnknownArchitecture:
    return UnknownArchitecture(
        f"{config.where} asks for the class {model_class(config)[:60]!r}", [f"known: {', '.join(known)}"]
    )


def _clip_text(config: Settings, parts: Parts) -> Shape:
    kind = model_class(config)
    if kind == "CLIPTextModel":
        return _text(config, parts)
    if kind != "CLIPTextModelWithProjection":
        raise _refuse(config, "CLIPTextModel", "CLIPTextModelWithProjection")
    shape = _text(config, parts / "text_model")
    parts.linear("text_projection", shape.hidden, width(config, "projection_dim"), bias=False)
    return shape


def _clip_vision(config: Settings, parts: Parts) -> Shape:
    kind = model_class(config)
    if kind == "CLIPVisionModel":
        return _vision(config, parts)
    if kind != "CLIPVisionModelWithProjection":
        raise _refuse(config, "CLIPVisionModel", "CLIPVisionModelWithProjection")
    shape = _vision(config, parts / "vision_model")
    parts.linear("visual_projection", shape.hidden, width(config, "projection_dim"), bias=False)
    return shape


def _clip(config: Settings, parts: Parts) -> Shape:
    """Both towers, or with ``StableDiffusionSafetyChecker`` the one for pictures and 20 concepts to compare with."""
    kind, projected = model_class(config), width(config, "projection_dim")
    shape = _vision(_tower(config, "vision_config", _VISION), parts / "vision_model")
    parts.linear("visual_projection", shape.hidden, projected, bias=False)
    if kind == "StableDiffusionSafetyChecker":
        for name, rows in (("concept_embeds", 17), ("special_care_embeds", 3)):
            parts.tensor(name, "table", rows, projected)
            parts.tensor(f"{name}_weights", "table", rows)
        return shape
    if kind != "CLIPModel":
        raise _refuse(config, "CLIPModel", "StableDiffusionSafetyChecker")
    text = _text(_tower(config, "text_config", _TEXT), parts / "text_model")
    parts.linear("text_projection", text.hidden, projected, bias=False)
    parts.tensor("logit_scale", "scalar")
    return shape


def _siglip(config: Settings, parts: Parts) -> Shape:
    if model_class(config) != "SiglipModel":
        raise _refuse(config, "SiglipModel")
    _siglip_text(_tower(config, "text_config", _SIGLIP_TEXT), parts / "text_model")
    parts.tensor("logit_scale", "scalar", 1)
    parts.tensor("logit_bias", "scalar", 1)
    return _siglip_vision(_tower(config, "vision_config", _SIGLIP_VISION), parts / "vision_model")


DESCRIPTIONS = (
    Description("clip_text_model", "encoder", _clip_text, _TEXT, model="CLIPTextModel"),
    Description("clip_vision_model", "vision", _clip_vision, _VISION, model="CLIPVisionModel"),
    Description("clip", "vision", _clip, {"projection_dim": 512}, model="CLIPModel"),
    Description("siglip_text_model", "encoder", _siglip_text, _SIGLIP_TEXT, model="SiglipTextModel"),
    Description("siglip_vision_model", "vision", _siglip_vision, _SIGLIP_VISION, model="SiglipVisionModel"),
    Description("siglip", "vision", _siglip, model="SiglipModel"),
)
