"""The card of an encoder of texts, from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rung.core.errors import BadFile, UnknownArchitecture
from rung.core.text import count as counted
from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.models import architectures
from rung.models.architectures.encoders import OUTSIDE, EncoderArchitecture, shapes
from rung.models.card import Encoder, Tensor
from rung.models.cards.folder import folder_name
from rung.models.files.gguf import is_gguf, part_names, read_parts
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.files.safetensors import weight_files
from rung.models.files.tensors import FileTensor
from rung.models.networks.values import Component, Shape
from rung.models.pooling import pooling_of_folder
from rung.models.settings import Settings, quantization


@dataclass(frozen=True)
class EncoderCard(Value):
    """Hold what an encoder is, read from headers alone; the fields that ``ModelCard`` has too mean the same.

    ``tokenizer`` is ``gguf``, or the path of tokenizer.json or vocab.txt; empty where there is none.
    """

    name: str
    kind: str
    path: str
    files: tuple[str, ...]
    encoder: Encoder
    tensors: tuple[Tensor, ...]
    tokenizer: str
    metadata: FrozenDict[Any] = field(default=EMPTY, compare=False)

    @property
    def context(self) -> int:
        """The most tokens that a text may have."""
        return self.encoder.context

    @property
    def chat_template(self) -> str | None:
        """Return None: an encoder holds no conversation."""
        return None

    @property
    def tied_head(self) -> bool:
        """Return False: an encoder has no head."""
        return False

    def tensor(self, role: str) -> Tensor:
        """The tensor of that role; raises ``KeyError``."""
        for tensor in self.tensors:
            if tensor.role == role:
                return tensor
        raise KeyError(role)

    @property
    def component(self) -> Component:
        """Describe the network."""
        shape = self.encoder
        measures = Shape(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.heads,
            head_dim=shape.head_dim,
            feed_forward=shape.feed_forward,
            vocabulary=shape.vocabulary,
            context=shape.context,
        )
        return Component("model", shape.model_type, "encoder", self.tensors, measures)


def open_encoder(path: Path) -> EncoderCard | None:
    """The card of an encoder in a folder, a file of one, or a GGUF file; None for what holds no encoder.

    Raises ``BadFile``, ``UnsafeFile``, ``ModelNotFound`` (parts missing) or ``UnknownArchitecture``.
    """
    if path.is_file() and not is_gguf(path):
        path = path.parent
    if (path / "config.json").is_file():
        kind = read_object(path / "config.json", SMALL).get("model_type")
        model = architectures.ENCODERS.get(kind) if isinstance(kind, str) else None
        return _folder_card(path, model) if model else None
    if path.is_dir():
        models = sorted(file for file in path.glob("*.gguf") if part_names(file.name)[0] == file.name)
        if len(models) != 1:
            return None
        path = models[0]
    return _gguf_card(path)


def _folder_card(folder: Path, model: EncoderArchitecture) -> EncoderCard:
    name = folder_name(folder)
    config = Settings(read_object(folder / "config.json", SMALL), f"{name}/config.json")
    if quantization(config):
        raise UnknownArchitecture(
            f"{name} is an encoder whose weights another program quantized, which rung does not read",
            (),
            ["name the original, and let rung quantize it: --format q8_0"],
            code="architecture-unsupported",
        )
    pooling, encoder = pooling_of_folder(folder), model.from_config(config)
    encoder = replace(
        encoder,
        pooling=pooling.kind or encoder.pooling,
        normalize=pooling.normalize,
        most_tokens=pooling.most_tokens or encoder.context,
    )
    files = weight_files(folder)
    stored = [
        (_role(item.name, model), item, number)
        for number, tensors in enumerate(files.values())
        for item in tensors
        if not _without_base(item.name, model).startswith(model.skipped)
    ]
    tokenizer = next((str(folder / each) for each in ("tokenizer.json", "vocab.txt") if (folder / each).is_file()), "")
    return EncoderCard(
        name,
        "folder",
        str(folder),
        tuple(map(str, files)),
        encoder,
        _placed(stored, encoder, name),
        tokenizer,
        FrozenDict(config.values),
    )


def _gguf_card(path: Path) -> EncoderCard | None:
    headers = read_parts(path)
    name, metadata = headers[0].path.name, headers[0].metadata
    kind = metadata.get("general.architecture")
    model = next((each for each in architectures.ENCODERS.values() if each.gguf == kind), None)
    if model is None:
        return None
    stored = [
        (_gguf_role(item.name, model), item, number)
        for number, header in enumerate(headers)
        for item in header.tensors
        if not item.name.startswith(("cls.", "cls_norm", "pooler"))
    ]
    rows = {role: item.shape[0] for role, item, _ in stored if len(item.shape) == 2}
    encoder = model.from_gguf(Settings(metadata, name, f"{model.gguf}."))
    encoder = replace(encoder, vocabulary=rows.get("embed", 0), types=rows.get("types", 0))
    files = tuple(str(header.path) for header in headers)
    tensors = _placed(stored, encoder, name)
    return EncoderCard(name, "gguf", str(headers[0].path), files, encoder, tensors, "gguf", FrozenDict(metadata))


def _without_base(name: str, model: EncoderArchitecture) -> str:
    base = next((base for base in model.bases if name.startswith(base)), "")
    return name.removeprefix(base)


def _role(name: str, model: EncoderArchitecture) -> str:
    """The role of a tensor of a checkpoint; "" for none."""
    rest = _without_base(name, model)
    if not rest.startswith(model.layer):
        role = model.names.get(rest, "")
        return role if role in OUTSIDE else ""
    number, _, inside = rest.removeprefix(model.layer).partition(".")
    return _layered(number, model.names.get(inside, ""))


def _gguf_role(name: str, model: EncoderArchitecture) -> str:
    """The same of a GGUF file."""
    block, _, rest = name.partition(".")
    if block != "blk":
        role = model.gguf_names.get(name, "")
        return role if role in OUTSIDE else ""
    number, _, inside = rest.partition(".")
    return _layered(number, model.gguf_names.get(inside, ""))


def _layered(number: str, role: str) -> str:
    whole = number.isascii() and number.isdigit() and len(number) < 5 and str(int(number)) == number
    return f"layers.{number}.{role}" if whole and role and role not in OUTSIDE else ""


def _placed(stored: Sequence[tuple[str, FileTensor, int]], encoder: Encoder, where: str) -> tuple[Tensor, ...]:
    """The card's tensors. Raises ``BadFile`` that names what has no place, is there twice, is missing, has another
    shape, or is stored in a type that rung does not read."""
    expected = shapes(encoder)
    found: dict[str, Tensor] = {}
    for role, item, number in stored:
        if role not in expected:
            raise BadFile(f"{where}: the tensor {item.name[:100]} has no place in a {encoder.model_type} model")
        if role in found:
            raise BadFile(f"{where}: the tensors {found[role].name} and {item.name} have the same place in the model")
        if not item.known:
            raise BadFile(f"{where}: tensor {item.name} is stored as {item.format}, which rung does not read")
        if math.prod(item.shape) == 0 or item.shape != expected[role]:
            raise BadFile(
                f"{where} contradicts its tensors: {item.name} has the shape {list(item.shape)}",
                [f"its description says {list(expected[role])}"],
            )
        found[role] = Tensor(role, item.name, item.shape, item.format, number, item.offset, item.bytes)
    missing = [role for role in expected if role not in found]
    if missing:
        raise BadFile(
            f"{where} lacks {counted(len(missing), 'tensor')} that a {encoder.model_type} model of "
            f"{counted(encoder.layers, 'layer')} needs",
            [f"missing: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"],
            code="model-incomplete",
        )
    return tuple(found.values())
