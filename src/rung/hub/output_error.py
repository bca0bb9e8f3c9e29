"""Choose formats for a network that answers with numbers and not tokens, by how far its answers move on drawn inputs.

An answer is taken for the mean of a Gaussian as wide as answers are. The KL of a changed network is then half the
squared error of its answers, relative to their squares. What a weight [out, in] that became W + D adds to it is
expected to second order from gradients of random projections of the answer: ``rung.quantization.statistics`` has the
formula.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rung import formats
from rung.core.errors import BadFile, CannotTrace, UsageError
from rung.core.files import writing
from rung.core.locks import try_lock
from rung.core.settings import CACHE
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.choice import Choice
from rung.formats.codec import Floats
from rung.formats.grids import has_grid
from rung.hub.error_budget import Rounding, as_argument, check_budget, plain_torch
from rung.hub.networks.modules import fed
from rung.kernels.cpu import target
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.nn.quantize import TargetLayer, kind_of, target_layers, turned
from rung.nn.quantized.weight import encode
from rung.nn.rounding import Metric, round_weight

#: The modules that choose, which stand above this package.
_BUDGET, _STATISTICS = "rung.quantization.budget", "rung.quantization.statistics"
#: Inputs that statistics come from, and as many others that expectations are corrected by.
_DRAWS = 4
#: Seeds of projections begin here, far from those of inputs: a projection that is an input is none.
_PROJECTIONS = 1 << 20
#: Tokens of a drawn text.
_TOKENS = 77
#: The last step of a schedule, as the pipelines of diffusers pass it to their networks.
_STEPS = dict.fromkeys(
    (
        *("AuraFlowTransformer2DModel", "ChromaTransformer2DModel", "Flux2Transformer2DModel"),
        *("FluxTransformer2DModel", "LongCatImageTransformer2DModel", "Lumina2Transformer2DModel"),
        *("OvisImageTransformer2DModel", "PRXTransformer2DModel", "QwenImageTransformer2DModel"),
    ),
    1,
) | dict.fromkeys(
    (
        *("AllegroTransformer3DModel", "CogVideoXTransformer3DModel", "CogView3PlusTransformer2DModel"),
        *("CogView4Transformer2DModel", "DiTTransformer2DModel", "HunyuanVideoTransformer3DModel"),
        *("LatteTransformer3DModel", "LTXVideoTransformer3DModel", "MochiTransformer3DModel"),
        *("PixArtTransformer2DModel", "PriorTransformer", "SD3Transformer2DModel", "UNet2DConditionModel"),
        *("UNet2DModel", "UNet3DConditionModel", "WanTransformer3DModel"),
    ),
    1000,
)
#: Rows of a weight that are tried, the KL that layers of a kind are tried at, and what a correction may be.
_ROWS, _TRIED, _LEAST, _MOST = 64, 0.004, 0.1, 20.0
#: Bytes of a safetensors header beside names, for each tensor, and in all.
_ENTRY, _HEAD = 100, 256
#: What is called, and with what.
Draw = tuple[nn.Module, dict[str, Any]]
#: What the name of a file has before its end, and after the variant.
_VARIANT = re.compile(r"\.(\w+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)$")


def choose_by_output(model: Any, config: Any, files: Iterable[str], left: Collection[str] = ()) -> Rounding:
    """Put the mixture that a budget allows into the config, and return a function that rounds weights for the inputs.

    ``model`` is still empty; ``files`` hold its weights; layers with a name that has one of ``left`` among its parts
    stay as they are. Raises ``UsageError`` for a budget that no mixture meets and where weights come from no file;
    ``CannotTrace`` for networks whose inputs rung does not know.
    """
    budget: Any = importlib.import_module(_BUDGET)
    most = check_budget(None, config.max_kl, config.size, config.text)
    if config.text is not None:
        raise UsageError(
            f"text judges language models; what a {type(model).__name__} answers is judged on inputs that are drawn.",
            (),
            ["leave text out"],
            code="options-exclude-each-other",
        )
    threads = torch.get_num_threads()
    target.configure()
    layers = _layers(model, config, left)
    room = None if most is None else _room(model, layers, most, left)
    with plain_torch():
        judge = _Judge(_network(model, files), model, threads)
        options = judge.options(layers)
        try:
            choice = budget.choose(options, room, config.max_kl)
        except UsageError as error:
            raise UsageError(error.cause, error.facts, map(as_argument, error.ways_out), code=error.code) from error
    _write(config, choice)
    return judge.rounding()


@dataclass(frozen=True)
class _Layer:
    """A layer that may be quantized: its target, the format that the config settles, and what it is left in."""

    target: TargetLayer
    fixed: Format | None
    plain: Format

    @property
    def weight(self) -> Tensor:
        """Return its weight [rows, columns], which has no values yet."""
        return self.target.weights[0][1]

    def formats(self) -> list[Format]:
        """Return those that it may have, in any order."""
        if self.fixed is not None:
            return [self.fixed]
        names: Sequence[str] = importlib.import_module(_BUDGET).CANDIDATES
        listed = [formats.get(name) for name in names]
        return [*(each for each in listed if each.divides(self.weight.shape[1])), self.plain]


def _layers(model: nn.Module, config: Any, left: Collection[str]) -> dict[str, _Layer]:
    """Return the layers that may be quantized, by name. A format of the config that does not depend on the one for all
    layers is settled. Layers of several weights (experts), which nothing here judges, are put into what the config
    skips. Raises ``UsageError`` where it settles the format of such a layer."""
    one, other = (
        target_layers(model, Choice.named(name, config.skip, config.embeddings, config.keep))
        for name in ("q8_0", "q4_0")
    )
    found = {}
    for mine, its in zip(one, other, strict=True):
        if set(left) & set(mine.name.split(".")):
            continue
        if len(mine.weights) != 1:
            _leave(mine, config, mine.format == its.format)
            continue
        plain = formats.get(DTYPE_NAME[mine.weights[0][1].dtype])
        found[mine.name] = _Layer(mine, mine.format if mine.format == its.format else None, plain)
    return found


def _leave(layer: TargetLayer, config: Any, settled: bool) -> None:
    """Put a layer of several weights into what the config skips."""
    if settled:
        raise UsageError(
            f"keep: {layer.name} has {len(layer.weights)} weights, and their error is not judged.",
            ["max_kl and size leave such layers as they are"],
            ["leave it out of keep", "a format, not max_kl or size"],
            code="options-exclude-each-other",
        )
    config.skip = [*config.skip, layer.name]


def _room(model: nn.Module, layers: Mapping[str, _Layer], most: int, left: Collection[str]) -> int:
    """Return the bytes that weights of layers may have. Raises ``UsageError`` where they have more in every mixture."""
    room = most - _outside(model, layers, left)
    smallest = sum(min(fmt.bytes(tuple(each.weight.shape)) for fmt in each.formats()) for each in layers.values())
    if smallest > room:
        raise UsageError(
            "No mixture is so small.",
            [f"the smallest has {smallest - room:,} bytes too many; all but linear layers stays as it is"],
            [f"size={most + smallest - room}"],
            code="value-out-of-range",
        )
    return room


def _outside(model: nn.Module, layers: Mapping[str, _Layer], left: Collection[str]) -> int:
    """Return the bytes, at most, of a file beside the weights of these layers. What is left is stored in f32."""
    chosen = {f"{name}.weight" for name in layers}
    tied: Collection[str] = getattr(model, "all_tied_weights_keys", None) or ()
    named = [(name, values) for name, values in model.state_dict().items() if name not in tied]
    header = sum(_ENTRY + len(name) for name, _ in named)
    others: int = sum(
        4 * values.numel() if values.is_floating_point() and set(left) & set(name.split(".")) else values.nbytes
        for name, values in named
        if name not in chosen
    )
    return _HEAD + header + others


def _network(model: Any, files: Iterable[str]) -> nn.Module:
    """Return the network with its weights in f32, on the processor. Raises ``UsageError`` where no file has them."""
    first = next(iter(files), None)
    if first is None or Path(first).suffix == ".gguf":
        raise UsageError(
            "max_kl and size judge a network by the files of its folder; these weights are in none.",
            (),
            ["from_pretrained(FOLDER)"],
            code="format-does-not-suit",
        )
    variant = _VARIANT.search(Path(first).name)
    library: Any = importlib.import_module(type(model).__module__.partition(".")[0])
    dtype = "torch_dtype" if library.__name__ == "diffusers" else "dtype"
    options = {dtype: torch.float32, "local_files_only": True} | ({"variant": variant[1]} if variant else {})
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()  # it misses weights that it does not tie while another model is loaded
    try:
        network: Any = type(model).from_pretrained(Path(first).parent, **options)
    finally:
        library.logging.set_verbosity(verbosity)
    for name, source in getattr(network, "all_tied_weights_keys", {}).items():
        owner, _, last = name.rpartition(".")
        setattr(network.get_submodule(owner), last, network.get_parameter(source))
    found: nn.Module = network.eval().requires_grad_(False)
    return found


def _drawn(name: str, value: Any, step: float, generator: torch.Generator, words: int) -> Any:
    """Return an argument with values: Gaussian where it had only a shape, tokens of a vocabulary of ``words``."""
    if isinstance(value, Mapping):
        return {key: _drawn(key, each, step, generator, words) for key, each in value.items()}
    if not isinstance(value, Tensor):
        return value
    if name == "timestep":
        return torch.full_like(value, step)
    if name.endswith("input_ids"):
        return torch.randint(words, value.shape, generator=generator)
    if not value.is_meta:
        return value
    if name.endswith("mask"):
        return torch.ones(value.shape)
    return torch.randn(value.shape, generator=generator)


def _draws(network: nn.Module, shapes: Any) -> list[Draw]:
    """Return the calls to make, with their arguments, at steps from the whole schedule.

    ``shapes`` is the network without values.
    """
    generator, found = torch.Generator().manual_seed(0), []
    steps = (torch.arange(2 * _DRAWS) + 0.5) / (2 * _DRAWS)
    named = fed(shapes, _TOKENS, 1)[1]
    scale = _last_step(type(network).__name__) if "timestep" in named else 1
    words = _words(network) if any(name.endswith("input_ids") for name in named) else 0
    for step in steps:
        arguments = fed(shapes, _TOKENS, 1)[1]
        called = fed(network, _TOKENS, 1)[0]
        step_here = float((step * scale).floor() if scale > 1 else step)
        found.append((called, {n: _drawn(n, v, step_here, generator, words) for n, v in arguments.items()}))
    return found


def _last_step(name: str) -> int:
    """Return the last step of a schedule for networks of a class. Raises ``CannotTrace`` where nobody knows it."""
    if name not in _STEPS:
        raise CannotTrace(
            f"{name} takes a time step, and rung does not know whether its steps end at 1 or at 1000.",
            ["judged at steps of the wrong size its error would say nothing"],
            ["a format, not max_kl or size:  rung.QuantizationConfig('q8_0')"],
        )
    return _STEPS[name]


def _words(network: Any) -> int:
    """Return the tokens that a network knows. Raises ``CannotTrace`` where it does not say."""
    config: Any = getattr(network, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = getattr(text, "vocab_size", None)
    if not isinstance(count, int) or count < 1:
        raise CannotTrace(
            f"{type(network).__name__} takes tokens, and its configuration does not say how many there are.",
            ["vocab_size says it"],
            ["a format, not max_kl or size:  rung.QuantizationConfig('q8_0')"],
        )
    return count


def _answer(called: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    """Return the first tensor of an answer."""
    answer: Any = called(**arguments)
    while not isinstance(answer, Tensor):
        answer = next(iter(answer.to_tuple() if hasattr(answer, "to_tuple") else answer))
    return answer


class _Judge:
    """A network with inputs for it, and what they say of its layers."""

    def __init__(self, network: nn.Module, shapes: nn.Module, threads: int) -> None:
        self.network, self.threads = network, threads
        draws = _draws(network, shapes)
        self._first, self._others = draws[::2], draws[1::2]
        self._folder = _Folder()
        self._known: dict[str, Any] = {}

    def options(self, layers: Mapping[str, _Layer]) -> dict[str, tuple[Any, ...]]:
        """Return the options of each layer with the KL that is expected of them, corrected by real passes."""
        option: Any = importlib.import_module(_BUDGET).Option
        self._gather([name for name, each in layers.items() if kind_of(each.target.module) == "linear"])
        found: dict[str, tuple[Any, ...]] = {}
        met: set[int] = set()  # weights of layers so far: tied ones are one
        for name, each in layers.items():
            values = self.network.get_submodule(name).weight
            listed, shape = each.formats(), tuple(each.weight.shape)
            if name not in self._known:  # no input reaches it, or it is an embedding
                listed = listed[-1:]
            costs = self._costs(name, [fmt for fmt in listed if fmt != each.plain])
            if each.fixed is not None and name not in self._known:
                costs = {each.fixed: 0.0 if id(values) in met else self._alone(name, each.fixed)}
            met.add(id(values))
            found[name] = tuple(option(fmt, fmt.bytes(shape), costs.get(fmt, 0.0)) for fmt in listed)
        return self._corrected(found)

    def _alone(self, name: str, fmt: Format) -> float:
        """Return the KL of a layer in a format, of which nothing but that is known."""
        option: Any = importlib.import_module(_BUDGET).Option
        return self._measured({name: option(fmt, 0, 0.0)}, self._others[::2])

    def _gather(self, names: Sequence[str]) -> None:
        statistics: Any = importlib.import_module(_STATISTICS)
        gathering = _Gathering(self.network, names, self._folder)
        with gathering.listening(), torch.enable_grad(), statistics.fast_products():
            for number, (called, arguments) in enumerate(self._first):
                answer = _answer(called, arguments)
                generator = torch.Generator().manual_seed(_PROJECTIONS + number)
                projected = (answer * torch.randn(answer.shape, generator=generator)).sum()
                gathering.squares += float(answer.detach().square().sum())
                projected.backward()
        self._check(gathering.squares)
        self._known = {
            name: statistics.Sensitivity(*sums.means(gathering.squares)) for name, sums in gathering.sums.items()
        }

    def _check(self, squares: float) -> None:
        """Raise ``BadFile`` for answers whose sum of squares says that no error can be told from them."""
        if not (np.isfinite(squares) and squares > 0):
            what = "zeros" if squares == 0 else "NaN or Inf"
            raise BadFile(
                f"A {type(self.network).__name__} answers drawn inputs with {what}.",
                ["no error can be told from that", "a damaged file does that, or activations beyond float32"],
                ["rung check MODEL", "a format, not max_kl or size"],
            )

    def _weight(self, name: str) -> Floats:
        layer: Any = self.network.get_submodule(name)
        values = layer.weight.T if turned(layer) else layer.weight
        found: Floats = np.ascontiguousarray(values.detach().numpy())
        return found

    def _costs(self, name: str, listed: Sequence[Format]) -> dict[Format, float]:
        """Return the KL that is expected of a layer in each format, by a sample of its rows."""
        if name not in self._known:
            return {}
        known = self._known[name]
        rows = known.sample(_ROWS)
        weights, metric = self._weight(name)[rows], Metric(known.metric)
        return {
            fmt: known.sampled(formats.decode(self._rounded(weights, fmt, metric, name)) - weights, rows)
            for fmt in listed
        }

    def _rounded(self, weights: Floats, fmt: Format, metric: Metric | None, name: str) -> Encoded:
        if metric is not None and has_grid(fmt, weights.shape[1]):
            return round_weight(weights, fmt, metric, self.threads, name)
        return encode(torch.from_numpy(weights), fmt, name)

    def _corrected(self, options: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        """Return options times what real passes find of their expectation: for each kind of layers, and for all."""
        free = {name: listed for name, listed in options.items() if len(listed) > 1}
        settled = {n: listed[0] for n, listed in options.items() if len(listed) == 1 and listed[0].divergence > 0}
        kinds = dict.fromkeys(map(_kind, [*free, *settled]))
        factors, tried = dict.fromkeys(kinds, 1.0), dict[str, Any]()
        for kind in kinds:
            chosen = _near({name: listed for name, listed in free.items() if _kind(name) == kind})
            chosen |= {name: one for name, one in settled.items() if _kind(name) == kind}
            factors[kind] = self._factor(chosen, self._others[::2])
            tried |= {name: replace(one, divergence=one.divergence * factors[kind]) for name, one in chosen.items()}
        together = self._factor(tried, self._others)
        return {
            name: tuple(
                replace(each, divergence=each.divergence * factors.get(_kind(name), 1.0) * together) for each in listed
            )
            for name, listed in options.items()
        }

    def _factor(self, chosen: Mapping[str, Any], draws: Sequence[Draw]) -> float:
        """Return the measured KL of layers in their formats by the expected one: 1 where there are none."""
        if not chosen:
            return 1.0
        expected = sum(option.divergence for option in chosen.values())
        return float(np.clip(self._measured(chosen, draws) / max(expected, 1e-12), _LEAST, _MOST))

    def _measured(self, chosen: Mapping[str, Any], draws: Sequence[Draw]) -> float:
        """Return the KL of layers in their formats."""
        answers = [_answer(*draw) for draw in draws]
        with self._replaced(chosen):
            moved = [_answer(*draw) for draw in draws]
        size = sum(float(each.square().sum()) for each in answers)
        squares = sum(float((a - b).square().sum()) for a, b in zip(answers, moved, strict=True))
        self._check(size + squares)
        return 0.5 * squares / size

    @contextmanager
    def _replaced(self, chosen: Mapping[str, Any]) -> Iterator[None]:
        """While in the block layers have the weights of their formats; with no gradients."""
        before: dict[str, Tensor] = {}
        with torch.no_grad():
            try:
                for name, option in chosen.items():
                    layer: Any = self.network.get_submodule(name)
                    metric = Metric(self._known[name].metric) if name in self._known else None
                    values = formats.decode(self._rounded(self._weight(name), option.format, metric, name))
                    before[name] = layer.weight.data
                    layer.weight.data = torch.from_numpy(values.T.copy() if turned(layer) else values)
                yield
            finally:
                for name, weight in reversed(before.items()):  # two layers may share one
                    layer = self.network.get_submodule(name)
                    layer.weight.data = weight

    def rounding(self) -> Rounding:
        """Return a function that rounds the weights of layers for their inputs, others plainly. The files of moments
        are there as long as it is."""
        return _Rounder(self._known, self.threads, self._folder)


@dataclass(frozen=True)
class _Rounder:
    """Round weights by what is known of layers, by name; the folder of their moments lives as long as this."""

    known: Mapping[str, Any]
    threads: int
    folder: _Folder

    def __call__(self, values: Tensor, fmt: Format, name: str) -> Encoded:
        """Return a weight rounded for its inputs; plainly where nothing is known of them."""
        sensitivity = self.known.get(name.removesuffix(".weight"))
        if sensitivity is None or not has_grid(fmt, values.shape[1]):
            return encode(values, fmt, name)
        weights = np.ascontiguousarray(values.detach().to("cpu", torch.float32).numpy())
        with plain_torch():
            return round_weight(weights, fmt, Metric(sensitivity.metric), self.threads, name)


class _Folder:
    """A folder in the cache for files of this process, removed with this object. Folders of processes that have ended
    are removed first. Raises ``DiskFull`` and ``UsageError`` where the cache cannot be written."""

    def __init__(self) -> None:
        cache = CACHE.read()
        with writing(cache):
            cache.mkdir(parents=True, exist_ok=True)
            for left in cache.glob("moments-*"):
                if (lock := try_lock(left / "lock")) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    lock()
            self._folder = tempfile.TemporaryDirectory(dir=cache, prefix="moments-", ignore_cleanup_errors=True)
            self.path = Path(self._folder.name)
            self._lock = try_lock(self.path / "lock")  # until the file is collected with this object

    def reserve(self, name: str, count: int) -> Path:
        """Return a file of so many bytes of zeros that the disk has room for: a mapped file that grows into a full
        disk ends the process. Raises ``DiskFull``."""
        path = self.path / name
        with writing(path), path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, count)
            else:
                file.truncate(count)
        return path


class _Sums:
    """Sums over the rows that a layer meets: ``|g|^2 x x^T`` [in, in] in a file of zeros, and ``g^2`` [out]."""

    def __init__(self, path: Path, rows: int, columns: int) -> None:
        self._moments = torch.from_numpy(np.memmap(path, np.float32, "r+", shape=(columns, columns)))
        self._rows, self._met = torch.zeros(rows, dtype=torch.float64), 0

    def add(self, x: Tensor, gradient: Tensor) -> None:
        """Add inputs [..., in] with the gradients of outputs [..., out]."""
        x, squares = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1]).square()
        self._moments.addmm_(x.T, x * squares.sum(dim=1, keepdim=True))
        self._rows += squares.sum(dim=0)
        self._met += len(x)

    def means(self, squares: float) -> tuple[Floats, Floats, Floats]:
        """Return the matrix relative to the squares of answers, the shares of rows, and the diagonal.

        Where fewer inputs were met than there are columns (time steps are few) most of the matrix is taken from its
        mean: errors would else hide in what these inputs do not show, and others do.
        """
        columns = len(self._moments)
        unknown = columns / (columns + self._met)
        mean = float(self._moments.diagonal().mean())
        self._moments.mul_((1 - unknown) / squares).diagonal().add_(unknown * mean / squares)
        shares = (self._rows / self._rows.sum().clamp_min(1e-300)).float().numpy()
        matrix: Floats = self._moments.numpy()
        return matrix, shares, np.diagonal(matrix).copy()


class _Gathering:
    """Listen to linear layers while a network answers and its gradients are taken."""

    def __init__(self, network: nn.Module, names: Sequence[str], folder: _Folder) -> None:
        """Reserve the files of all layers, before anything is computed."""
        self._layers: dict[str, Any] = {name: network.get_submodule(name) for name in names}
        self._paths = {
            name: folder.reserve(f"{number}.moments", 4 * layer.weight.shape[0 if turned(layer) else 1] ** 2)
            for number, (name, layer) in enumerate(self._layers.items())
        }
        self.squares = 0.0
        self.sums: dict[str, _Sums] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While in the block what layers meet is added up."""
        hooks = [
            layer.register_forward_hook(partial(self._met, name), with_kwargs=True)
            for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _met(self, name: str, layer: Any, inputs: Any, named: Mapping[str, Any], output: Tensor) -> Tensor:
        x = (inputs[0] if inputs else next(iter(named.values()))).detach()
        if not output.requires_grad:  # nothing before it was quantized: gradients begin here
            output = output.detach().requires_grad_().clone()
        output.register_hook(partial(self._add, name, x))
        return output

    def _add(self, name: str, x: Tensor, gradient: Tensor) -> None:
        if name not in self.sums:
            self.sums[name] = _Sums(self._paths[name], gradient.shape[-1], x.shape[-1])
        self.sums[name].add(x, gradient)


def _kind(name: str) -> str:
    """Return the last part of a layer's name that is no number: ``to_out``."""
    return next((part for part in reversed(name.split(".")) if not part.isdigit()), name)


def _near(options: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return an option of each layer, at the same place in their lists: together near ``_TRIED``."""
    if not options:
        return {}
    count = min(len(listed) for listed in options.values()) - 1  # the last one is what the layer is left in
    sums = [sum(listed[index].divergence for listed in options.values()) for index in range(count)]
    index = min(range(count), key=lambda at: abs(np.log(max(sums[at], 1e-12) / _TRIED)))
    return {name: listed[index] for name, listed in options.items()}


def _write(config: Any, choice: Any) -> None:
    """Put a mixture into a config: the most frequent format, and those of other layers by their names.

    Raises ``UsageError`` where every layer would be left as it is.
    """
    quantized = {name: fmt.name for name, fmt in choice.formats.items() if fmt.name not in DTYPE_NAME.values()}
    if not quantized:
        budget = f"size={config.size}" if config.max_kl is None else f"max_kl={config.max_kl:g}"
        raise UsageError(
            f"Within {budget} every layer is left as it is.",
            ["q8_0 costs some 1e-5"],
            ["load it without a quantization_config"],
            code="value-out-of-range",
        )
    config.format = Counter(quantized.values()).most_common(1)[0][0]
    config.keep = {name: fmt for name, fmt in quantized.items() if fmt != config.format}
    config.skip = list(dict.fromkeys([*config.skip, *(name for name in choice.formats if name not in quantized)]))
    config.max_kl = config.size = config.text = None
    config.expected_kl, config.embeddings = choice.divergence, None
