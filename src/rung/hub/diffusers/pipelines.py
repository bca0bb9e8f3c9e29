"""Pipelines of diffusers without their weights: their own code, over networks whose parameters have shapes only.

No code of a repository is run: classes are those of the installed diffusers and transformers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rung.core.errors import BadFile, SoftwareMissing, UnknownArchitecture, UsageError
from rung.core.text import did_you_mean
from rung.models.files.jsonfile import SMALL, read_object
from rung.models.networks.pipeline import INDEX, components

#: What performs the call of a network: (its name, the method that was called, arguments, named arguments) -> result.
Perform = Callable[[str, str, tuple[Any, ...], dict[str, Any]], Any]
#: The methods through which pipelines compute with a network.
_METHODS = ("forward", "decode", "encode")
_PACKAGES = ("diffusers", "transformers", "accelerate")


class Folder:
    """A folder with ``model_index.json``: what its pipeline is made of.

    ``networks`` are the names of the components with weights. Raises ``SoftwareMissing`` without diffusers,
    transformers or accelerate, ``BadFile`` and ``UnknownArchitecture`` for an index that names what is not there.
    ``fetch`` brings the weights and returns their folder, where so far only the small files are in ``path``.
    """

    def __init__(self, path: Path, fetch: Callable[[], Path] | None = None) -> None:
        need_packages()
        self.path, self._fetch = path, fetch
        self.index = read_object(path / INDEX, SMALL)
        where = f"{path.name}/{INDEX}"
        self.networks = components(self.index, where)
        self.kind = _class(self.index.get("_class_name"), "diffusers", where)
        if not issubclass(self.kind, _library("diffusers").DiffusionPipeline):
            raise UnknownArchitecture(f"{where}: {self.kind.__name__} is no pipeline of diffusers")
        self._missing(where)
        for name, entry in self.index.items():  # their modules are imported before a card is simulated
            if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None:
                _class(entry[1], str(entry[0]), f"{where}: {name}")

    def _missing(self, where: str) -> None:
        """Raises ``BadFile`` for a component that the pipeline needs and the index or the folder lacks."""
        parameters = inspect.signature(self.kind).parameters
        optional = set(getattr(self.kind, "_optional_components", ()))
        lacking = [
            name
            for name, parameter in parameters.items()
            if name not in (*self.index, *optional) and parameter.default is inspect.Parameter.empty
        ]
        gone = [
            name
            for name, entry in self.index.items()
            if isinstance(entry, list) and entry[-1] is not None and not (self.path / name).is_dir()
        ]
        if lacking or gone:
            raise BadFile(
                f"{self.path.name} lacks {', '.join([*lacking, *gone])}",
                [f"{self.kind.__name__} is made of {', '.join(name for name in parameters)}"],
                code="model-incomplete",
            )

    @property
    def whole(self) -> bool:
        """Return whether the weights are here."""
        return self._fetch is None

    def bring_weights(self) -> None:
        """Fetches the weights where they are not here yet. Raises ``HubError``."""
        if self._fetch is not None:
            self.path, self._fetch = self._fetch(), None

    def network(self, name: str) -> nn.Module:
        """A component with parameters on the meta device, and buffers with the values that its class gives them.

        Raises ``BadFile`` for a configuration that cannot be built, ``UsageError`` for a network stored quantized.
        """
        kind = self._kind(name)
        config = read_object(self.path / name / "config.json", SMALL)
        stored = config.get("quantization_config")
        if isinstance(stored, dict):
            raise UsageError(
                f"{name} of {self.path.name} is stored quantized, by {stored.get('quant_method', 'somebody')}.",
                ["pipelines are read from 32 or 16 bits, and quantized while they are read where that is planned"],
                ["take the pipeline that it was made from:  --format nf4"],
                code="already-quantized",
            )
        module: Any
        with _empty(), quiet():
            try:
                if issubclass(kind, _library("diffusers").ModelMixin):
                    module = kind.from_config(config)  # type: ignore[attr-defined]
                else:
                    module = kind._from_config(kind.config_class.from_dict(config))  # type: ignore[attr-defined]
            except Exception as error:  # other people's code on a configuration that may say anything
                text = " ".join(str(error).split())[:200]
                raise BadFile(f"{name}/config.json cannot be built: {type(error).__name__}: {text}") from error
        if hasattr(module, "tie_weights"):
            module.tie_weights()  # what the network has twice is one weight; not in the block, which makes two of it
        result: nn.Module = module.eval()
        return result

    def _kind(self, name: str) -> type[nn.Module]:
        library, kind = self.index[name]
        found = _class(kind, str(library), f"{self.path.name}/{INDEX}: {name}")
        if not issubclass(found, nn.Module):
            raise UnknownArchitecture(f"{name} is a {found.__name__}, which is no network")
        return found

    def pipeline(self, stand_ins: dict[str, nn.Module], device: torch.device, progress: Callable[..., Any]) -> Any:
        """The pipeline with these in the place of its networks, and everything else read from the folder.

        It believes to run on ``device``, and says its steps to ``progress``.
        """
        components: dict[str, Any] = dict(stand_ins)
        for name, entry in self.index.items():
            if name.startswith("_") or name in components:
                continue
            components[name] = self._small(name, entry) if isinstance(entry, list) else entry
        accepted = inspect.signature(self.kind).parameters
        kind = _named_like(self.kind, _execution_device=device, progress_bar=progress)
        with quiet():
            return kind(**{name: value for name, value in components.items() if name in accepted})

    def _small(self, name: str, entry: list[Any]) -> Any:
        """A tokenizer, scheduler or processor; None where the index says so."""
        if len(entry) != 2 or entry[1] is None:
            return None
        kind: Any = _class(entry[1], str(entry[0]), f"{self.path.name}/{INDEX}: {name}")
        try:
            return kind.from_pretrained(self.path / name)
        except Exception as error:  # as above
            text = " ".join(str(error).split())[:200]
            raise BadFile(
                f"{name} of {self.path.name} cannot be read: {type(error).__name__}: {text}", code="file-unreadable"
            ) from error


def stand_in(network: nn.Module, name: str, device: torch.device, perform: Perform) -> nn.Module:
    """The network as a pipeline sees it: f32, on ``device``, computed by ``perform``. Its parameters stay empty."""
    own: Any = network
    own.__class__ = _named_like(type(network), device=device, dtype=torch.float32)
    for method in _METHODS:
        if hasattr(network, method):
            object.__setattr__(network, method, _performed(getattr(network, method), name, method, perform))
    return network


def _performed(original: Any, name: str, method: str, perform: Perform) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return perform(name, method, args, kwargs)

    call.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # pipelines look at it
    return call


def _named_like(kind: type, **members: Any) -> Any:
    """A subclass that goes by the name of its base; what is no function becomes a property."""
    candidates = {
        key: value if callable(value) else property(functools.partial(_unchanged, value))
        for key, value in members.items()
    }
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **candidates})


def _unchanged(value: Any, _: object) -> Any:
    return value


def scheduler(pipeline: Any, name: str) -> Any:
    """The scheduler of that name (``ddim``, ``EulerDiscreteScheduler``) with the configuration of the pipeline's own.

    Raises ``UsageError`` with those that the pipeline takes.
    """
    known = {_short(kind.__name__): kind for kind in (type(pipeline.scheduler), *pipeline.scheduler.compatibles)}
    chosen = known.get(_short(name))
    if chosen is None:
        raise UsageError(
            f"{type(pipeline).__name__} has no scheduler {name!r}.{did_you_mean(_short(name), known)}",
            [f"it takes {', '.join(sorted(known))}"],
            code="name-unknown",
        )
    return chosen.from_config(pipeline.scheduler.config)


def _short(name: str) -> str:
    """``DPMSolverMultistepScheduler`` -> ``dpmsolvermultistep``."""
    return (
        "".join(letter for letter in name.lower() if letter.isalnum())
        .removesuffix("scheduler")
        .removesuffix("discrete")
    )


def kept_in_f32(network: nn.Module) -> tuple[str, ...]:
    """Parts of names of the parameters that the network's authors want in f32."""
    return tuple(getattr(network, "_keep_in_fp32_modules", None) or ())


def need_packages() -> None:
    """Raises ``SoftwareMissing`` for what pipelines need and is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SoftwareMissing(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; pipelines need them.",
            ways_out=["pip install 'rung[video]'"],
        )


def _class(name: Any, library: str, where: str) -> type:
    """A class of diffusers, of transformers, or of a pipeline's own module in diffusers."""
    module = _library(library) if library in ("diffusers", "transformers") else None
    if module is None and library.isidentifier():
        module = getattr(_library("diffusers").pipelines, library, None)
    found = getattr(module, str(name), None) if str(name).isidentifier() else None
    if not isinstance(found, type):
        raise UnknownArchitecture(
            f"{where}: there is no {str(name)[:60]} in {library[:60]}",
            [f"{part} {_library(part).__version__}" for part in ("diffusers", "transformers")],
            ["pip install -U diffusers transformers"],
        )
    return found


def _library(name: str) -> Any:
    return importlib.import_module(name)


def _empty() -> Any:
    """Parameters get no memory; buffers get their values."""
    return _library("accelerate").init_empty_weights(include_buffers=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of the libraries about configurations, which matter to nobody here."""
    loggers = [_library(name).utils.logging for name in ("diffusers", "transformers")]
    levels = [logger.get_verbosity() for logger in loggers]
    for logger in loggers:
        logger.set_verbosity_error()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.set_verbosity(level)
