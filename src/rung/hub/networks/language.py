"""Language models of any architecture that transformers knows: their parts, reading in a plan's formats, computing.

No code of a repository is run: classes are those of the installed transformers.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rung import formats
from rung.core.errors import BadFile, RungError, UnknownArchitecture
from rung.core.text import count as counted
from rung.core.types import Format
from rung.diagnosis import classify
from rung.formats.choice import Choice
from rung.hub.mmap_pages import give_back, give_back_files
from rung.hub.networks.modules import component_of, module_of
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.models.card import Tensor as Stored
from rung.models.cards.folder import NetworkCard, network_card
from rung.models.checkpoints import OWN, method_of
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.files.safetensors import weight_files
from rung.models.settings import QUANTIZATION, Settings, quantization
from rung.nn import QuantWeight
from rung.nn.quantize import kind_of, put, target_layers, turned
from rung.nn.quantized.weight import parameter_of

#: What networks call what they keep of the tokens so far.
_KEPT = ("past_key_values", "cache_params", "state")
#: The role of a weight that rung's layers do not hold: planning takes it for one that stays in floats.
_FLOATS = "table"
#: Bytes that are read of mapped files before their pages are given back.
_AT_ONCE = 64 << 20
#: One network is read at a time: what transformers says and how it reads are changed for the whole process meanwhile.
_reading = threading.Lock()


def card_of_network(folder: Path, why: str) -> NetworkCard:
    """The card of a language model in a folder, by its configuration; ``why`` the lean decoder does not build it.

    Raises ``UnknownArchitecture`` for one that transformers does not know either, or that writes no text one token
    after the other; ``BadFile``, ``SoftwareMissing``.
    """
    where = f"{folder.name}/config.json"
    values, described = _apart(read_object(folder / "config.json", SMALL), where)
    if described:
        method_of(described, where)
    named = importlib.import_module("transformers.models.auto.modeling_auto")
    kind = named.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(values.get("model_type"))
    found = module_of({**values, "architectures": [kind]} if isinstance(kind, str) else values, where)
    config: Any = found.config
    # BERT and its kin have a class that writes; only with ``is_decoder`` do their tokens not see those after them
    reads = values.get("model_type") in named.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_decoder
    writes = getattr(found, "can_generate", lambda: False)() and not reads
    if not writes or getattr(config, "is_encoder_decoder", False):
        raise UnknownArchitecture(f"{folder.name} is a {type(found).__name__}, which writes no text by itself", [why])
    files, text, component = weight_files(folder), config.get_text_config(), component_of(found)
    tensors = component.tensors
    if described:
        from rung.hub.quantized_layout import as_stored

        tensors = as_stored(found, tensors, files, described, where)
    with_sources = tuple(tensor if tensor.source else _as_quantized(found, tensor) for tensor in tensors)
    ends, bos = getattr(text, "eos_token_id", None), getattr(text, "bos_token_id", None)
    return network_card(folder, replace(component, tensors=with_sources), type(found).__name__, why, ends, bos)


def _apart(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """A configuration without what it says of quantization, and that; raises ``BadFile`` where that is no object."""
    rest = {key: value for key, value in values.items() if key not in QUANTIZATION}
    described = quantization(Settings(values, where))
    if isinstance(text := rest.get("text_config"), Mapping):
        rest["text_config"], inner = _apart(text, where)
        described = described or inner
    return rest, described


def _as_quantized(module: nn.Module, tensor: Stored) -> Stored:
    """The tensor as rung's layers hold it; with the role of a table where they do not."""
    if len(tensor.shape) < 2:
        return tensor
    owner = module.get_submodule(tensor.name.rpartition(".")[0])
    if not kind_of(owner):
        return replace(tensor, role=re.sub(r"\w+$", _FLOATS, tensor.role))
    return replace(tensor, shape=tensor.shape[::-1]) if turned(owner) else tensor


def write_tokenizer(folder: Path, target: Path) -> Path:
    """Writes the tokenizer of a folder that has only older files (``vocab.json``, ``merges.txt`` ...) as a
    ``tokenizer.json`` with its configuration into ``target``, and returns its path. Raises ``BadFile``.
    """
    library = importlib.import_module("transformers")
    try:
        with _silent(library):
            found = library.AutoTokenizer.from_pretrained(folder)
            found.save_pretrained(target)
    except Exception as error:  # other people's code on files that may say anything
        text = " ".join(str(error).split())[:200]
        raise BadFile(
            f"{folder.name} has no tokenizer", [f"transformers finds none either: {text}"], code="model-incomplete"
        ) from error
    written = target / "tokenizer.json"
    if not written.is_file() or len(found) <= len(found.all_special_tokens):  # it makes an empty one of nothing
        raise BadFile(
            f"{folder.name} has no tokenizer", ["nor files that transformers makes one of"], code="model-incomplete"
        )
    return written


def read(folder: Path, kind: str, weight_formats: Mapping[str, Format], dtype: str, target: torch.device) -> nn.Module:
    """The network ``kind`` of transformers with its weights, computing in ``dtype`` on ``target``.

    ``weight_formats`` has the formats of weights by the names of their parameters; layers of other weights, and
    those in ``dtype``, are torch's own. Of a quantized folder they are those of the weights that it holds quantized.
    Raises ``BadFile``, also where the folder lacks weights.
    """
    from rung.hub import transformers as ours  # makes rung known to transformers

    values, described = _apart(read_object(folder / "config.json", SMALL), folder.name)
    empty: Any = module_of({**values, "architectures": [kind]}, folder.name)
    # transformers reads it with rung by itself
    own = bool(described) and method_of(described or {}, folder.name) == OWN
    at = "cpu" if described else str(target)  # a card would hold what is stored beside what is made of it
    options: dict[str, Any] = {"dtype": TORCH_DTYPE[dtype], "device_map": {"": at}, "use_safetensors": True}
    if described and not own:
        from rung.hub.quantized_layout import ReadConfig

        options |= {"config": empty.config, "quantization_config": ReadConfig(described, folder.name, weight_formats)}
    # a single row of 16 bits takes torch on a processor up to twice the time of rung's layers
    elif not described and (config := _config(empty, weight_formats, "f32" if target.type == "cpu" else dtype)):
        options["quantization_config"] = ours.QuantizationConfig(**config)
    network = _load(folder, kind, options, target)
    if own:
        _convert(network, weight_formats)
    read: nn.Module = network.eval().requires_grad_(False).to(target)
    return read


def _load(folder: Path, kind: str, options: Mapping[str, Any], target: torch.device) -> nn.Module:
    """Return the network as transformers reads it, with all of its weights. Raise ``BadFile``."""
    library = importlib.import_module("transformers")
    network_class: Any = getattr(library, kind)
    try:
        with _reading, _silent(library), _sparing(folder):
            network, found = network_class.from_pretrained(folder, output_loading_info=True, **options)
            if target.type == "cpu":
                _attention().use(network)
    except (RungError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # other people's code on files that may say anything
        if classify(error) is not None:  # a device that fails, not a file
            raise
        text = " ".join(str(error).split())[:200]
        raise BadFile(f"transformers cannot read {folder.name}", [f"{type(error).__name__}: {text}"]) from error
    _complete(folder, network, found)
    loaded: nn.Module = network
    return loaded


def _convert(network: nn.Module, weight_formats: Mapping[str, Format]) -> None:
    """Brings what layers of rung's hold into those formats, one weight after the other."""
    names: dict[nn.Module, list[str]] = {}  # several where a head is its embedding
    for layer_name, layer in network.named_modules(remove_duplicate=False):
        if isinstance(layer, QuantWeight):
            names.setdefault(layer, []).append(layer_name)
    while names:
        weight, several = names.popitem()
        assert isinstance(weight, QuantWeight)
        chosen = next(
            (weight_formats[name] for name in map(parameter_of, several) if name in weight_formats), weight.format
        )
        if chosen == weight.format:
            continue
        encoded = formats.convert(weight.encoded(), chosen, several[0], torch.get_num_threads())
        weight_of_format = QuantWeight.of(encoded, weight.dtype)
        for layer_name in several:
            put(network, layer_name, weight_of_format)
        give_back(weight.parameters())


def _complete(folder: Path, network: nn.Module, found: Mapping[str, Any]) -> None:
    """Raises ``BadFile`` where the files lack weights: transformers has filled those with random values."""
    empty = (name for name, part in network.named_parameters() if part.is_meta)
    lacking = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"]), *empty})
    if lacking:
        raise BadFile(
            f"{folder.name} lacks {counted(len(lacking), 'weight')} of a {type(network).__name__}",
            [", ".join(lacking[:3]) + (" ..." if len(lacking) > 3 else "")],
            code="model-incomplete",
        )


def _config(module: nn.Module, weight_formats: Mapping[str, Format], plain: str) -> dict[str, Any]:
    """The arguments of ``QuantizationConfig`` for these formats; none where torch's, in ``plain``, hold every layer."""
    layers = target_layers(module, Choice.named("int8", embeddings="int8"))
    # by the parameters themselves: a head that is an embedding has no name of its own among them
    format_of = {id(value): weight_formats[name] for name, value in module.named_parameters() if name in weight_formats}
    chosen: dict[str, Format] = {}
    for layer in layers:
        matrix = layer.module.weight if kind_of(layer.module) != "experts" else layer.module.gate_up_proj
        found = format_of.get(id(matrix))
        if found is not None and found.name != plain:
            chosen[layer.name] = found
    if not chosen:
        return {}
    names = [one.name for one in chosen.values()]
    most = max(names, key=names.count)
    return {
        "format": most,
        "skip": [layer.name for layer in layers if layer.name not in chosen],
        "embeddings": most,
        "keep": {name: one.name for name, one in chosen.items() if one.name != most},
    }


@contextlib.contextmanager
def _sparing(folder: Path) -> Iterator[None]:
    """While transformers reads the files of a folder, their pages do not stay beside what it makes of them.

    It stacks experts, and converts, out of mapped files, which one weight that still lies there keeps whole: the peak
    of a mixture of experts in bfloat16 was nearly twice its weights.
    """
    transform = importlib.import_module("transformers.core_model_loading").WeightTransform
    theirs, files, read = transform.materialize_tensors, list(weight_files(folder)), 0

    def materialised(self: Any) -> Any:
        nonlocal read
        found = theirs(self)
        read += sum(each.nbytes for several in found.values() for each in several)
        if read >= _AT_ONCE:
            give_back_files(files)
            read = 0
        return found

    transform.materialize_tensors = materialised
    try:
        yield
    finally:
        transform.materialize_tensors = theirs
        give_back_files(files)


@contextlib.contextmanager
def _silent(library: Any) -> Iterator[None]:
    """Without the library's warnings and bars about how it loads."""
    verbosity, bars = library.logging.get_verbosity(), library.logging.is_progress_bar_enabled()
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    try:
        yield
    finally:
        library.logging.set_verbosity(verbosity)
        if bars:
            library.logging.enable_progress_bar()


class Kept:
    """A network with what it keeps of the tokens so far: keys and values, or a state."""

    def __init__(self, network: nn.Module, target: torch.device, context: int) -> None:
        self.network, self._device, self._context = network, target, context
        accepted = inspect.signature(network.forward).parameters
        self._name = next((name for name in _KEPT if name in accepted), None)
        self._last = "logits_to_keep" in accepted
        self._kept: Any = None
        self.ids: list[int] = []
        if (head := getattr(network, "get_output_embeddings", lambda: None)()) is not None:
            head.register_forward_pre_hook(_with_own_strides)
        self.forget()

    def forget(self) -> None:
        """As if no token had been read."""
        fresh = None
        if self._name == _KEPT[0]:
            fresh = _attention().with_rows(_caches().DynamicCache(config=self.network.config), self._context)
        self._kept, self.ids = fresh, []

    def at_once(self, most: int) -> int:
        """How many tokens a call may have now, ``most`` where it may be any number; 0: all that there are.

        Networks with a state take it on one token at a time, and start it with all of the prompt.
        """
        if self._name is None:
            return 0
        if self._name == _KEPT[0] and all(isinstance(one, _caches().DynamicLayer) for one in self._kept.layers):
            return most
        return 1 if self.ids else 0

    def forward(self, ids: Sequence[int], each: bool = False) -> Tensor:
        """Logits [1, vocabulary] f32 after the last of ``ids``, which follow those before; ``each``: a row for each."""
        before = self.ids if self._name is None else []
        input_ids = torch.tensor([[*before, *ids]], device=self._device)
        options: dict[str, Any] = {"use_cache": self._name is not None}
        if self._kept is not None and self._name is not None:
            options[self._name] = self._kept
        if self._last and not each:
            options["logits_to_keep"] = 1
        with torch.inference_mode():
            found = self.network(input_ids=input_ids, **options)
        self._kept = getattr(found, self._name, None) if self._name is not None else None
        if self._kept is None:  # it keeps nothing after all
            self._name = None
        self.ids += ids
        rows: Tensor = found.logits[0, -len(ids) :] if each else found.logits[0, -1:]
        return rows.float().cpu()


def _with_own_strides(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The last row of several has the strides of all, for which torch lays a head of 16 bits out anew: a copy of it."""
    return (inputs[0].clone(memory_format=torch.contiguous_format), *inputs[1:])


def _caches() -> Any:
    return importlib.import_module("transformers.cache_utils")


def _attention() -> Any:
    """Imported late, for it imports transformers."""
    return importlib.import_module("rung.hub.networks.attention")
