"""The card of a Hugging Face folder: config.json, safetensors in one file or shards, generation_config.json."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.text import count as counted
from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.models import architectures, checkpoints
from rung.models.architectures.family import Architecture
from rung.models.card import Decoder, ModelCard, Piece, Source
from rung.models.checkpoints import rung_folder
from rung.models.checkpoints.rung_folder import Site
from rung.models.files.jsonfile import LIMIT, SMALL, read_bounded, read_object
from rung.models.files.safetensors import weight_files
from rung.models.files.tensors import FileTensor
from rung.models.networks.values import Component
from rung.models.roles import Found, shape_of, tensors_of
from rung.models.settings import Settings, quantization, token_ids

if TYPE_CHECKING:
    from rung.models.checkpoints import Raw


#: safetensors' names of the types that are formats of rung.
_NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
#: The largest tensor that is read for its values while a folder is described.
_SMALL = 1 << 16


def joined(
    found: Sequence[Found],
    files: Sequence[Path],
    config: Mapping[str, Any],
    where: str,
    site: Callable[[str], rung_folder.Site | None],
) -> list[Found]:
    """Return the stored tensors; a quantized weight takes the place of the tensors that make it.

    ``site``: see ``rung_folder.gather``; other methods' tensors tell their shapes. Raises ``UnknownArchitecture`` for a
    method that rung does not read, ``BadFile`` for tensors that contradict the config or each other.
    """
    method = checkpoints.method_of(config, where)
    by_name = {item.stored.name: item for item in found}
    headers = [header_of(item.stored) for item in found]

    def peek(name: str) -> Raw:
        return _read(by_name[name], files)

    if method == checkpoints.OWN:
        weights, plain = rung_folder.gather(rung_folder.quantization_choice(config, where), headers, site)
    else:
        weights, plain = checkpoints.gather(method, config, headers, peek)
    whole = [by_name[header.name] for header in plain]
    if not weights:
        raise BadFile(f"{where} says that the model is quantized with {method}, and no tensor is")
    for weight in weights:
        stored = FileTensor(weight.name, weight.stored.shape, weight.stored.format, True, 0, weight.bytes)
        pieces = tuple(piece_of(part, by_name[name]) for part, name in weight.parts)
        whole.append(Found("", stored, pieces[0].file, Source(method, weight.stored, pieces)))
    return whole


def header_of(stored: FileTensor) -> checkpoints.Header:
    """The tensor as safetensors describes it."""
    return checkpoints.Header(stored.name, stored.shape, _NAMES.get(stored.format, stored.format))


def piece_of(part: str, item: Found) -> Piece:
    """The stored tensor as that part of a weight."""
    header, stored = header_of(item.stored), item.stored
    return Piece(part, stored.name, header.dtype, stored.shape, item.file, stored.offset, stored.bytes)


def _read(item: Found, files: Sequence[Path]) -> Raw:
    """The values of a small stored tensor. Raises ``BadFile``."""
    import numpy as np

    from rung.models.checkpoints.values import raw_of

    header, stored = header_of(item.stored), item.stored
    if stored.bytes > _SMALL:
        raise BadFile(f"{stored.name} has {stored.bytes:,} bytes; what describes a weight is smaller")
    with open(files[item.file], "rb") as file:
        file.seek(stored.offset)
        data = file.read(stored.bytes)
    return raw_of(header.dtype, header.shape, np.frombuffer(data, np.uint8))


_OUTSIDE = {"embed_tokens.weight": "embed", "norm.weight": "norm"}
_LAYER = re.compile(r"layers\.(0|[1-9]\d{0,3})\.(.+)")
#: Where the decoder lies in a checkpoint, by its kind and age.
_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
#: Buffers that old checkpoints store and everybody computes.
_COMPUTED = "rotary_emb.inv_freq"
_TEXT = 2**20
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}


def folder_card(folder: Path) -> ModelCard:
    """The card of the model in a folder.

    Raises ``BadFile``, ``UnsafeFile`` (pickles only), ``ModelNotFound`` (shards missing) or ``UnknownArchitecture``.
    """
    name = folder_name(folder)
    top, config, model = _configuration(folder, name)
    files = weight_files(folder)
    shape, names = model.from_config(config), model.names(config)
    site = functools.partial(_site, names=names, decoder=shape)
    found, vision = _find(_weights(files, top, config, site), names)
    decoder = _tie(shape, found, top.flag("tie_word_embeddings", model.tied))
    biases = tuple(role for role in names.values() if role.endswith("_bias"))
    generation = optional(folder / "generation_config.json", SMALL)
    tokenizer = tokenizer_of(folder)
    settings = optional(folder / "tokenizer_config.json")
    bare = tokenizer.endswith(".model")
    return ModelCard(
        name=name,
        kind="folder",
        path=str(folder),
        files=tuple(str(path) for path in files),
        decoder=replace(decoder, attention_bias="q_bias" in biases),
        tensors=tensors_of(_roled(found, decoder), decoder, biases, name),
        tokenizer=tokenizer,
        chat_template=template(folder, settings),
        end_tokens=_ends(top, config, generation, model, decoder.vocabulary),
        bos_token=_bos(top, config, generation, model, decoder.vocabulary),
        add_bos=settings.get("add_bos_token", bare and model.adds_bos) is True,
        defaults=sampling(generation),
        skipped=(f"vision ({counted(vision, 'tensor')})",) if vision else (),
        metadata=FrozenDict(top.values),
    )


def folder_name(folder: Path) -> str:
    """The folder's own name; in the hub's cache, where folders have the names of commits, the repository's."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots" and resolved.parent.parent.name.startswith("models--"):
        return resolved.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return resolved.name


def _configuration(folder: Path, name: str) -> tuple[Settings, Settings, Architecture]:
    """The whole configuration, the part that describes the text decoder, and the architecture."""
    where = f"{name}/config.json"
    top = Settings(read_object(folder / "config.json", SMALL), where)
    config = Settings(top.table("text_config"), where) if top.raw("model_type") == "gemma3" else top
    kind = "gemma3_text" if top.raw("model_type") == "gemma3" else top.text("model_type")
    if kind not in architectures.MODEL_TYPES:
        raise UnknownArchitecture(
            f"{name} holds a model of the type {kind[:60]!r}, which rung does not build",
            [f"known: {', '.join(sorted(architectures.MODEL_TYPES))}, and the text of gemma3"],
        )
    return top, config, architectures.MODEL_TYPES[kind]


def _weights(
    files: Mapping[Path, tuple[FileTensor, ...]], top: Settings, config: Settings, site: Callable[[str], Site | None]
) -> list[Found]:
    """The tensors of all files, without their roles; those of a quantized checkpoint as the weights that they make."""
    found = [Found("", stored, number) for number, tensors in enumerate(files.values()) for stored in tensors]
    described = quantization(top) or quantization(config)
    return joined(found, tuple(files), described, config.where, site) if described else found


def _site(name: str, names: Mapping[str, str], decoder: Decoder) -> Site | None:
    """The matrix that a decoder has under a name; its layer goes by any prefix, as checkpoints of other ages do."""
    role = role_of(name, names)
    shape = shape_of(role, decoder) if role else ()
    if len(shape) != 2:
        return None
    layer = name.removesuffix(".weight")
    tail = layer.removeprefix(next(prefix for prefix in _PREFIXES if layer.startswith(prefix)))
    spelled = ("lm_head",) if role == "head" else tuple(prefix + tail for prefix in _PREFIXES)
    return Site((shape[0], shape[1]), spelled, role in ("embed", "head"))


def _find(weights: list[Found], names: Mapping[str, str]) -> tuple[list[Found], int]:
    """Every weight of the decoder with its role, and the number of those of the vision part."""
    found, vision = [], 0
    for item in weights:
        if item.stored.name.startswith(_VISION):
            vision += 1
        elif not item.stored.name.endswith(_COMPUTED):
            found.append(replace(item, role=role_of(item.stored.name, names)))
    return found, vision


def role_of(name: str, names: Mapping[str, str]) -> str:
    """The role of a tensor of a checkpoint, given its architecture's names inside a layer; "" for none."""
    if name in _HEADS:
        return "head"
    prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
    rest = name.removeprefix(prefix)
    if rest in _OUTSIDE:
        return _OUTSIDE[rest]
    layer = _LAYER.fullmatch(rest)
    role = names.get(layer[2], "") if layer else ""
    return f"layers.{int(layer[1])}.{role}" if layer and role else ""


def _tie(decoder: Decoder, found: list[Found], tied: bool) -> Decoder:
    """Return whether the head is the embedding. As in transformers, a head that is stored counts, whatever the file
    says."""
    roles = {item.role for item in found}
    return replace(decoder, tied_head=tied and not {"head", "embed"} <= roles)


def _roled(found: list[Found], decoder: Decoder) -> list[Found]:
    """With a tied head either of the two may be the one that is stored."""
    if decoder.tied_head and not any(item.role == "embed" for item in found):
        return [replace(item, role="embed") if item.role == "head" else item for item in found]
    return found


def optional(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """The object in a file of JSON; empty where there is none."""
    return read_object(path, limit) if path.is_file() else {}


def tokenizer_of(folder: Path) -> str:
    """The path of the tokenizer; empty where there is none."""
    for name in ("tokenizer.json", "tokenizer.model"):
        if (folder / name).is_file():
            return str(folder / name)
    return ""


def template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, else the one in tokenizer_config.json (of several the default one)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return read_bounded(path, _TEXT).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{path.name} is not UTF-8 at byte {error.start}") from error
    value = optional(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(value, list):
        named = (item for item in value if isinstance(item, Mapping) and item.get("name") == "default")
        value = next((item.get("template") for item in named), None)
    return value if isinstance(value, str) else None


def _ends(
    top: Settings, config: Settings, generation: Mapping[str, Any], model: Architecture, vocabulary: int
) -> tuple[int, ...]:
    values = [generation.get("eos_token_id"), top.raw("eos_token_id"), config.raw("eos_token_id")]
    if all(value is None for value in values) and "eos_token_id" not in config.values:
        values.append(model.ends)
    return tuple(sorted({token for value in values for token in token_ids(value, vocabulary)}))


def _bos(
    top: Settings, config: Settings, generation: Mapping[str, Any], model: Architecture, vocabulary: int
) -> int | None:
    default = None if "bos_token_id" in config.values else model.bos
    for value in (top.raw("bos_token_id"), config.raw("bos_token_id"), generation.get("bos_token_id"), default):
        if found := token_ids(value, vocabulary):
            return found[0]
    return None


def sampling(generation: Mapping[str, Any]) -> FrozenDict[Any]:
    """The sampling that the checkpoint asks for; one that says not to sample is greedy."""
    found: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        value = generation.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
            found[name] = value
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0
    return FrozenDict(found)


@dataclass(frozen=True)
class NetworkCard(Value):
    """A folder of such a model; the fields that ``ModelCard`` has too mean the same.

    ``component`` is what its network is made of, under the names of its parameters; ``network`` the class of
    transformers that builds it; ``why`` says why the lean decoder does not. ``context`` is 0 where nothing limits it.
    """

    name: str
    path: str
    component: Component
    network: str
    why: str
    tokenizer: str
    chat_template: str | None
    end_tokens: tuple[int, ...]
    bos_token: int | None
    add_bos: bool
    defaults: FrozenDict[Any] = EMPTY
    metadata: FrozenDict[Any] = field(default=EMPTY, compare=False)

    @property
    def context(self) -> int:
        """The most tokens that it holds."""
        return self.component.shape.context


def network_card(folder: Path, component: Component, network: str, why: str, ends: Any, bos: Any) -> NetworkCard:
    """The card of a folder; ``ends`` and ``bos`` are the ids that its configuration has, by name or by default."""
    generation = optional(folder / "generation_config.json", SMALL)
    settings = optional(folder / "tokenizer_config.json")
    tokenizer, vocabulary = tokenizer_of(folder), component.shape.vocabulary
    known = {token for value in (generation.get("eos_token_id"), ends) for token in token_ids(value, vocabulary)}
    return NetworkCard(
        name=folder_name(folder),
        path=str(folder),
        component=component,
        network=network,
        why=why,
        tokenizer=tokenizer,
        chat_template=template(folder, settings),
        end_tokens=tuple(sorted(known)),
        bos_token=next(iter(token_ids(bos, vocabulary)), None),
        add_bos=settings.get("add_bos_token") is True,
        defaults=sampling(generation),
    )
