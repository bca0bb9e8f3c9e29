"""Modules of transformers and diffusers from a configuration alone, on torch's meta device: no weight is made.

No code of a repository is run: what a configuration brings with it (``auto_map``) is known only where the installed
library has the same type.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch.nn.modules import module as registry

from rung.core.errors import BadFile, CannotTrace, RungError, SoftwareMissing, UnknownArchitecture
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.models.architectures.family import MOST_LAYERS
from rung.models.card import Tensor
from rung.models.networks.pipeline import usual
from rung.models.networks.values import Component, Shape
from rung.run.torch_private import Convolution

#: Keys that say how often something is repeated, which costs time to build, and how many names a table gets.
_MOST = {re.compile(r"layers|n_layer|num_layer|blocks|depth"): MOST_LAYERS, re.compile(r"num_labels"): 2**20}
#: Modules and parameters that one may consist of. 60 layers of 384 experts, each of three matrices, have 200,000.
_MOST_PARTS = 2**18
_LAYER = re.compile(r"\.(?:layers?|h|blocks?|transformer_blocks)\.(\d+)\.")
_DENOISERS = re.compile(r"UNet|Transformer|Prior|ControlNet")


def module_of(values: Mapping[str, Any], where: str) -> torch.nn.Module:
    """The module that a configuration describes, ready for inference; ``where`` names it in messages.

    Raises ``UnknownArchitecture`` for a type that the installed library does not have, ``BadFile`` for values with
    which it cannot be built, ``SoftwareMissing`` without the library.
    """
    _check_counts(values, where)
    build = _diffusers if "_class_name" in values else _transformers
    with torch.device("meta"), _bounded(where):
        return build(values, where).eval()


def _check_counts(values: Mapping[str, Any], where: str) -> None:
    """Raises ``BadFile`` for what would take long or much only because a number says so, in the tables within too."""
    for table in (values, *(value for value in values.values() if isinstance(value, Mapping))):
        for key, value in table.items():
            most = next((most for words, most in _MOST.items() if words.search(str(key))), None)
            if most is None:
                continue
            # in a list numbers below zero count layers from the end
            counts, least = (value, -most) if isinstance(value, list) else ([value], 0)
            strange = [count for count in counts if isinstance(count, int) and not least <= count <= most]
            if strange:
                raise BadFile(f"{where}: {key} is {strange[0]:,}, and rung builds up to {most:,}")


@contextlib.contextmanager
def _bounded(where: str) -> Iterator[None]:
    """While in the block no module grows beyond ``_MOST_PARTS``, whatever its configuration calls its repetitions."""
    built = 0

    def count(*_: Any) -> None:
        nonlocal built
        built += 1
        if built > _MOST_PARTS:
            raise BadFile(f"{where} describes a module of more than {_MOST_PARTS:,} parts")

    hooks = (
        registry.register_module_module_registration_hook(count),
        registry.register_module_parameter_registration_hook(count),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _transformers(values: Mapping[str, Any], where: str) -> torch.nn.Module:
    library = _library("transformers")
    kind = str(values.get("model_type", ""))
    if kind not in library.CONFIG_MAPPING:
        facts = ["it brings code of its own, and rung runs no code of models"] if "auto_map" in values else []
        raise UnknownArchitecture(f"{where} is of the type {kind[:60]!r}, which {_named(library)} does not know", facts)
    classes = values.get("architectures") or []
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()  # it warns of tokens that no tokenizer has, and more that matters to no trace
    try:
        config = library.CONFIG_MAPPING[kind].from_dict(dict(values))
        if getattr(config.get_text_config(), "num_hidden_layers", None) == 0:
            raise BadFile(f"{where} describes a model without a layer")
        network_class = next((getattr(library, name) for name in classes if hasattr(library, str(name))), None)
        result: torch.nn.Module = (
            network_class._from_config(config) if network_class else library.AutoModel.from_config(config)
        )
        return result
    except RungError:
        raise
    except Exception as error:  # other people's code on a configuration that may say anything
        raise _refused(library, where, error) from error
    finally:
        library.logging.set_verbosity(verbosity)


def _diffusers(values: Mapping[str, Any], where: str) -> torch.nn.Module:
    library = _library("diffusers")
    name = str(values["_class_name"])
    network_class: Any = getattr(library, name, None) if name.isidentifier() else None
    if not (isinstance(network_class, type) and issubclass(network_class, library.ModelMixin)):
        raise UnknownArchitecture(f"{where} is of the class {name[:60]!r}, which {_named(library)} does not have")
    try:
        result: torch.nn.Module = cast(Any, network_class).from_config(dict(values))
        return result
    except RungError:
        raise
    except Exception as error:  # as above
        raise _refused(library, where, error) from error


def _refused(library: Any, where: str, error: Exception) -> BadFile:
    text = " ".join(str(error).split())[:200]
    return BadFile(f"{_named(library)} cannot build what {where} describes", [f"{type(error).__name__}: {text}"])


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SoftwareMissing(
            f"{name} is not installed; rung builds the model with it.", [str(error)], [f"pip install {name}"]
        ) from error


def _named(library: Any) -> str:
    return f"{library.__name__} {library.__version__}"


def component_of(module: torch.nn.Module, name: str = "model") -> Component:
    """Describe a module; its tensors have the roles that planning tells apart, and no position in a file."""
    config = getattr(module, "config", None)
    roles = _roles(module)
    tensors = [
        Tensor(roles[key], key, tuple(value.shape), DTYPE_NAME.get(value.dtype, "f32"), 0, 0, value.nbytes)
        for key, value in module.named_parameters()
    ]
    return Component(name, _kind(module), _role(module), tuple(tensors), _shape(config))


def _kind(module: torch.nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "model_type", "") or type(module).__name__)


def _role(module: torch.nn.Module) -> str:
    name = type(module).__name__
    if name.startswith("Autoencoder"):
        return "autoencoder"
    writes = getattr(module, "can_generate", None)
    if writes is not None and writes():
        return "encoder-decoder" if getattr(module.config, "is_encoder_decoder", False) else "decoder"
    return "denoiser" if _DENOISERS.search(name) and writes is None else "encoder"


def _roles(module: torch.nn.Module) -> dict[str, str]:
    """By the name of each parameter: its layer, and what it is in there."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    tables = {one.weight: one for one in module.modules() if isinstance(one, torch.nn.Embedding)}
    tokens = _tokens(module, max((one.num_embeddings for one in tables.values()), default=0))
    convolutions = {one.weight for one in module.modules() if isinstance(one, Convolution)}
    found = {}
    for name, value in module.named_parameters():
        if value in tables:
            role = "embed" if tables[value].num_embeddings == tokens else "positions"
        elif head is not None and value is getattr(head, "weight", None):
            role = "head"
        elif value.dim() < 2:
            role = "bias" if name.endswith("bias") else "norm"
        else:
            role = "conv" if value in convolutions else "experts" if value.dim() == 3 else "linear"
        layer = _LAYER.search(f".{name}")
        found[name] = f"layers.{layer[1]}.{role}" if layer else role
    return found


def _tokens(module: torch.nn.Module, largest: int) -> int:
    """How many rows the table of tokens has: what the module says, else ``largest``. Positions may be more."""
    try:
        table = getattr(module, "get_input_embeddings", lambda: None)()
    except NotImplementedError:  # transformers' answer for a module without one
        return largest
    return table.num_embeddings if isinstance(table, torch.nn.Embedding) else largest


def _shape(config: Any) -> Shape:
    """The measures that a configuration of transformers names; 0 where it has no such thing."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config

    def number(*names: str) -> int:
        values = (getattr(text, name, None) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0 and value is not True), 0)

    heads, hidden = number("num_attention_heads"), number("hidden_size", "d_model")
    experts = number("num_local_experts", "num_experts", "n_routed_experts")
    return Shape(
        layers=number("num_hidden_layers", "num_layers", "decoder_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads") or heads,
        head_dim=number("head_dim") or (hidden // heads if heads else 0),
        feed_forward=number("intermediate_size"),
        vocabulary=number("vocab_size"),
        context=number("max_position_embeddings"),
        experts=experts,
        experts_per_token=number("num_experts_per_tok") if experts else 0,
    )


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
        return module, _inputs_of_transformers(module, accepted, tokens, batch)
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


def _inputs_of_transformers(module: Any, accepted: Any, tokens: int, batch: int) -> dict[str, Any]:
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
