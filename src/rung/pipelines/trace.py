"""A rehearsal: the pipeline's own code runs over networks without weights, which shows what each will be asked for.

So the plan knows the memory of any pipeline, size and number of frames, and what a pipeline refuses it refuses before
any weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rung.hub.diffusers.pipelines import Folder
from rung.models.networks.pipeline import phases_of
from rung.pipelines.execute import batch_of, converted
from rung.pipelines.weights import cast, network_of
from rung.planning.pipeline import Network
from rung.run.torch_private import tree_map
from rung.run.trace import traced

_CPU = torch.device("cpu")


@dataclass
class _Needs:
    """Hold what the calls of one network needed, and the largest of them; bytes in f32."""

    activations: int = 0
    batch: int = 1
    results: int = 0
    method: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Rehearsal:
    """Answers the calls of a pipeline with zeros of the right shapes, and keeps what they would have needed."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._modules: dict[str, nn.Module] = {}
        self._known: dict[object, Any] = {}
        self._records: dict[str, _Needs] = {}
        #: The longest text that each encoder was given, in tokens.
        self.tokens: dict[str, int] = {}
        #: The texts that encoders were given, as they were given.
        self.texts: set[tuple[str, bytes]] = set()

    def perform(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, without values."""
        converted_args = converted(args, kwargs, _CPU, torch.float32)
        shapes = str(tree_map(lambda value: tuple(value.shape) if isinstance(value, Tensor) else value, converted_args))
        key = (name, method, shapes)
        if key not in self._known:
            self._known[key] = self._traced(name, method, *converted_args)
        text = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(text, Tensor) and not text.is_floating_point() and text.dim() == 2:
            self.tokens[name] = max(self.tokens.get(name, 0), text.shape[1])
            self.texts.add((name, text.cpu().numpy().tobytes()))
        return tree_map(_zeros, self._known[key])

    def _traced(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name not in self._modules:
            self._modules[name] = self._folder.network(name)
        found, result = traced(_Method(self._modules[name], method), *args, **kwargs)
        record = self._records.setdefault(name, _Needs())
        if found.peak_activations > record.activations:
            record.activations, record.batch = found.peak_activations, batch_of(args, kwargs)
            record.results, record.method, record.args, record.kwargs = found.outputs, method, args, kwargs
        return result

    def networks(self) -> list[Network]:
        """The networks that were called, in the order of the phases."""
        found = []
        for phase in phases_of(self._folder.networks):
            for name in phase.components:
                if name in self._records:
                    record = self._records[name]
                    alive = (record.activations, self._narrow(name, record))
                    found.append(network_of(self._modules[name], name, phase.name, alive, record.batch, record.results))
        return found

    def _narrow(self, name: str, record: _Needs) -> int:
        """Bytes of the largest call in 16 bits: more than half of f32's where a network widens what it computes."""
        module = cast(self._folder.network(name), torch.bfloat16)
        args, kwargs = converted(record.args, record.kwargs, _CPU, torch.bfloat16)
        return traced(_Method(module, record.method), *args, **kwargs)[0].peak_activations


class _Method(nn.Module):
    """A method of a network as a module."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network: Any = network
        self._method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method and return its result."""
        return getattr(self.network, self._method)(*args, **kwargs)


def _zeros(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.zeros(value.shape, dtype=torch.float32 if value.is_floating_point() else value.dtype)
