"""Hold what a module of transformers or diffusers is fed with for a trace: tensors of the sizes that its configuration
has.

Tokens are zeros with values, so that masks and positions can be computed; pictures, latents and texts have shapes only.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from rung.core.errors import CannotTrace
from rung.models.networks.pipeline import usual

_SPEECH = 16_000


class Decoding(torch.nn.Module):
    """An autoencoder as a pipeline uses it: from latents to a picture."""

    def __init__(self, autoencoder: torch.nn.Module) -> None:
        super().__init__()
        self.autoencoder: Any = autoencoder
        self.config = autoencoder.config

    def forward(self, latents: torch.Tensor) -> Any:
        """The picture of ``latents`` [batch, channels, height, width]."""
        if getattr(self.config, "timestep_conditioning", False):  # LTX-Video's is told how much noise is left
            return self.autoencoder.decode(latents, torch.zeros(len(latents), dtype=latents.dtype), return_dict=False)
        return self.autoencoder.decode(latents, return_dict=False)


def fed(module: torch.nn.Module, tokens: int, batch: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The module to trace and its arguments for ``batch`` inputs, texts of ``tokens`` tokens.

    Raises ``CannotTrace`` where the module wants something that rung does not know.
    """
    if type(module).__name__.startswith("Autoencoder"):
        return Decoding(module), {"latents": _Sizes(module, tokens, batch).latents(half=True)}
    accepted = inspect.signature(module.forward).parameters
    if hasattr(module, "main_input_name") and hasattr(module, "can_generate"):
        return module, _transformers(module, accepted, tokens, batch)
    sizes, inputs = _Sizes(module, tokens, batch), {}
    for name, parameter in accepted.items():
        value = getattr(sizes, name, None)
        if value is not None:
            inputs[name] = value() if callable(value) else value
        elif parameter.default is inspect.Parameter.empty:
            raise _unknown(module, name)
    return module, {name: value for name, value in inputs.items() if value is not None}


def _unknown(module: torch.nn.Module, name: str) -> CannotTrace:
    return CannotTrace(
        f"{type(module).__name__} wants {name[:60]!r}, and rung does not know of which size.",
        ways_out=[f"rung.trace(module, {name[:60]}=...) from Python, with inputs of your own"],
    )


def _transformers(module: Any, accepted: Any, tokens: int, batch: int) -> dict[str, Any]:
    config = module.config
    vision = getattr(config, "vision_config", None) or config
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None) or tokens
    words = torch.zeros(batch, min(tokens, most), dtype=torch.long, device="cpu")
    name = module.main_input_name
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    inputs: dict[str, Any] = {}
    if name == "input_ids":
        inputs[name] = words
        if "return_loss" in accepted and "pixel_values" in accepted:  # CLIP and its like see both
            inputs["pixel_values"] = _pictures(vision, batch, dtype)
    elif name == "pixel_values":
        inputs[name] = _pictures(vision, batch, dtype)
    elif name == "input_features":
        frames = 2 * getattr(config, "max_source_positions", tokens)
        inputs[name] = _empty(batch, getattr(config, "num_mel_bins", 80), frames, dtype=dtype)
    elif name == "input_values":
        inputs[name] = _empty(batch, _SPEECH, dtype=dtype)
    else:
        raise _unknown(module, name)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        limit = getattr(config, "max_target_positions", None) or tokens
        inputs["decoder_input_ids"] = words[:, :limit]
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


def _pictures(config: Any, batch: int, dtype: torch.dtype) -> torch.Tensor:
    side = getattr(config, "image_size", 224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return _empty(batch, getattr(config, "num_channels", 3), height, width, dtype=dtype)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class _Sizes:
    """The arguments of denoisers by their names in diffusers; None for what this one does not take."""

    def __init__(self, module: torch.nn.Module, tokens: int, batch: int) -> None:
        self._config: Any = module.config
        self._class = type(module).__name__
        self._usual = usual(self._class, module.config)  # type: ignore[arg-type]
        self._batch, self._tokens = batch, min(tokens, self._usual.text)
        self._dtype = next(module.parameters()).dtype

    def _get(self, *names: str, default: Any = None) -> Any:
        return next((v for name in names if (v := getattr(self._config, name, None)) is not None), default)

    def _of(self, *shape: int) -> torch.Tensor:
        return _empty(self._batch, *shape, dtype=self._dtype)

    @property
    def _packed(self) -> bool:
        """Return whether latents are a list of patches: [batch, patches, channels]."""
        return self._class.startswith(("Flux", "LTX"))

    def latents(self, half: bool = False) -> torch.Tensor:
        """Return the latents to denoise; ``half``: the latents that an autoencoder decodes."""
        sizes = self._usual
        channels = self._get("latent_channels", "z_dim") if half else self._get("in_channels", default=4)
        if self._packed and not half:
            return self._of(sizes.frames * sizes.height * sizes.width, channels)
        video = any(word in self._class for word in ("3D", "Video", "Wan"))
        return self._of(channels, *((sizes.frames,) if video else ()), sizes.height, sizes.width)

    sample = hidden_states = latents

    def timestep(self) -> torch.Tensor:
        """A step of each input."""
        return torch.ones(self._batch, device="cpu")

    def encoder_hidden_states(self) -> torch.Tensor | None:
        """The text."""
        names = ("joint_attention_dim", "caption_channels", "text_dim", "encoder_hid_dim", "cross_attention_dim")
        width = self._get(*names)
        return self._of(self._tokens, width) if isinstance(width, int) else None

    def encoder_attention_mask(self) -> torch.Tensor | None:
        """Which words of the text count: all of them."""
        needed = self._class.startswith("LTX")
        return _empty(self._batch, self._tokens, dtype=self._dtype) if needed else None

    def pooled_projections(self) -> torch.Tensor | None:
        """The text as one vector."""
        width = self._get("pooled_projection_dim")
        return self._of(width) if width else None

    def guidance(self) -> torch.Tensor | None:
        """How closely the text is followed."""
        return torch.ones(self._batch, device="cpu") if self._get("guidance_embeds") else None

    def img_ids(self) -> torch.Tensor:
        """Places of patches."""
        return torch.zeros(self._usual.height * self._usual.width, 3, device="cpu")

    def txt_ids(self) -> torch.Tensor:
        """Places of words."""
        return torch.zeros(self._tokens, 3, device="cpu")

    def added_cond_kwargs(self) -> dict[str, torch.Tensor] | None:
        """Return the conditions of Stable Diffusion XL other than text, or None."""
        if self._get("addition_embed_type") != "text_time":
            return None
        times = 6
        width = self._get("projection_class_embeddings_input_dim") - times * self._get("addition_time_embed_dim")
        return {"text_embeds": self._of(width), "time_ids": self._of(times)}

    def num_frames(self) -> int:
        """Frames of packed latents."""
        return self._usual.frames

    def height(self) -> int:
        """Rows of packed latents."""
        return self._usual.height

    def width(self) -> int:
        """Columns of packed latents."""
        return self._usual.width
