"""The performance: networks are read when they are needed and dropped when their phase is over.

A call that the device refuses is repeated one rung lower; what the pipeline has done so far stays.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rung.core.errors import DeviceLost
from rung.core.types import Device, StepClass, StepDown
from rung.diagnosis import classify
from rung.engine import planning
from rung.hub.diffusers.pipelines import Folder
from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.pipelines.weights import fill
from rung.planning.pipeline import Network, NetworkStorage, PhasesPlan, plan_phases, rungs
from rung.run.journal import Journal
from rung.run.torch_device import torch_name
from rung.run.torch_private import tree_flatten, tree_leaves, tree_map, tree_unflatten

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def converted(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Arguments:
    """The arguments on a device, their floating-point tensors in a dtype.

    Steps in time and positions stay in f32: in bfloat16 a step of 999 is 1000, and the 301st place is the 300th.
    """

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() and value.dim() > 1 else None)

    def positions(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    named = {key: tree_map(positions if key.endswith("ids") else moved, value) for key, value in kwargs.items()}
    return tree_map(moved, args), named


def restored(result: Any, device: torch.device) -> Any:
    """A result as the pipeline goes on with it: on its device, floating-point tensors in f32."""

    def back(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, torch.float32 if value.is_floating_point() else None)

    return tree_map(back, result)


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many inputs a call has: the length of its first tensor."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    return 1


def divisible(kwargs: dict[str, Any]) -> bool:
    """Return whether the inputs of a call do not depend on each other; those of a temporal decoder are frames of one
    video."""
    return "num_frames" not in kwargs


def in_slices(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], at_once: int) -> Any:
    """The call with so many inputs of its batch at a time: the same result with less memory."""
    batch = batch_of(args, kwargs)
    if at_once >= batch or not divisible(kwargs):
        return call(*args, **kwargs)

    def cut(value: Any, first: int) -> Any:
        batched = isinstance(value, Tensor) and value.dim() and len(value) == batch
        return value[first : first + at_once] if batched else value

    parts, tree = [], None
    for first in range(0, batch, at_once):
        sliced = tree_map(lambda value, first=first: cut(value, first), args)
        named = {
            key: value if key.endswith("ids") and value is not kwargs.get("input_ids")
            else tree_map(lambda one, first=first: cut(one, first), value)
            for key, value in kwargs.items()
        }  # fmt: skip
        leaves, tree = tree_flatten(call(*sliced, **named))
        parts.append(leaves)
    assert tree is not None
    joined = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*parts, strict=True)]
    return tree_unflatten(joined, tree)


_CPU = torch.device("cpu")
#: (what is read, bytes done, bytes in all)
Progress = Callable[[str, int, int], None]


class Performance:
    """Answers the calls of a pipeline with the results of its networks, held as a plan says.

    What is between the calls is the pipeline's own, on the processor and in f32. Calls of encoders are remembered: of
    many prompts all can be encoded before what denoises is read.
    """

    def __init__(
        self,
        folder: Folder,
        networks: Sequence[Network],
        plan: PhasesPlan,
        device: Device,
        journal: Journal,
        format: str | None = None,
        progress: Progress = lambda label, done, total: None,
    ) -> None:
        self.plan = plan
        #: Seconds that the calls of each phase have taken so far, with the reading of its networks.
        self.seconds: dict[str, float] = {}
        self._folder, self._device, self._journal, self._format = folder, device, journal, format
        self._networks = {network.name: network for network in networks}
        self._torch_device = torch.device(torch_name(device.id))
        self._progress = progress
        self._resident: dict[str, tuple[NetworkStorage, nn.Module]] = {}
        self._failed: list[tuple[str, NetworkStorage]] = []
        self._encoded: dict[object, Any] = {}

    def perform(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call. Raises ``DoesNotFit`` when every way to hold the network has failed."""
        started, phase = time.monotonic(), self.phase(name)
        try:
            return self._performed(name, method, args, kwargs)
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started

    def _performed(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = _key(name, method, args, kwargs) if self._networks[name].phase == "encode" else None
        if key is not None and key in self._encoded:
            return self._encoded[key]
        while True:
            stored = self.plan.storage(name)
            try:
                result = self._call(name, method, stored, args, kwargs)
                break
            except Exception as error:
                self._step_down(name, stored, error)
        result = restored(result, _CPU)
        if key is not None:
            self._encoded[key] = result
        return result

    def phase(self, name: str) -> str:
        """The phase that a network belongs to."""
        return self._networks[name].phase

    def _call(
        self, name: str, method: str, stored: NetworkStorage, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        network = self._network(name, stored)
        converted_args, named = converted(args, kwargs, self._torch_device, TORCH_DTYPE[stored.dtype])
        with torch.no_grad():
            result = in_slices(getattr(network, method), converted_args, named, stored.at_once)
        if self._torch_device.type != "cpu":
            getattr(torch, self._torch_device.type).synchronize()  # or an error would be another call's
        if stored.dtype == "f16" and not all(_finite(value) for value in tree_leaves(result)):
            raise _Overflow(f"{name} in f16 gives numbers that are not finite")
        return result

    def _network(self, name: str, stored: NetworkStorage) -> nn.Module:
        """The network, read if it is not here; those of other phases go first."""
        phase = self._networks[name].phase
        for other in [one for one in self._resident if self._networks[one].phase != phase]:
            self.drop(other)
        found = self._resident.get(name)
        if found is not None and (found[0].format, found[0].dtype) != (stored.format, stored.dtype):
            self.drop(name)
            found = None
        if found is None:
            empty = self._folder.network(name)

            def read(done: int, total: int) -> None:
                self._progress(f"reading {name}", done, total)

            filled = fill(empty, self._folder.path / name, stored, self._torch_device, read)
            found = self._resident[name] = (stored, filled)
        return found[1]

    def drop(self, name: str | None = None) -> None:
        """Let a network go, or all of them, and give its memory back."""
        for one in list(self._resident) if name is None else [name]:
            self._resident.pop(one, None)
        planning.give_back()
        if self._torch_device.type != "cpu":
            getattr(torch, self._torch_device.type).empty_cache()

    def _step_down(self, name: str, stored: NetworkStorage, error: Exception) -> None:
        """Plans again without what has failed; raises the error where it is no question of what the device can do."""
        step, reason = _judged(error)
        if step is StepClass.DEVICE_LOST:
            raise DeviceLost(f"{self._device.name} is lost: nothing more runs there", [reason]) from error
        if step is None:
            raise error
        ways = rungs(self._networks[name], self._device, self._format)
        # of a refused dtype no format will do
        failed = [stored] if step is StepClass.OUT_OF_MEMORY else [way for way in ways if way.dtype == stored.dtype]
        self._failed += [(name, way) for way in failed]
        error.__traceback__ = None  # it holds the tensors of the call
        self.plan = plan_phases(
            self._folder.path.name, list(self._networks.values()), self._device, self.plan.budget, self._format,
            without=self._failed,
        )  # fmt: skip
        now = self.plan.storage(name)
        self._journal.step(StepDown(name, _words(stored), self._device.id, step, reason, _words(now)))
        if (now.format, now.dtype) != (stored.format, stored.dtype):
            self.drop(name)


class _Overflow(ArithmeticError):
    """A result in f16 that is not finite."""


def _judged(error: Exception) -> tuple[StepClass | None, str]:
    """The class of an error and why; None for one that is no question of compatibility."""
    if isinstance(error, _Overflow):
        return StepClass.BROKEN, str(error)
    found = classify(error)
    if found is not None:
        return found.signature.step, found.reason
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return StepClass.OUT_OF_MEMORY, " ".join(str(error).split())[:120] or "out of memory"
    return None, ""


def _words(stored: NetworkStorage) -> str:
    return f"{stored}, {stored.at_once} at once"


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(torch.isfinite(value).all())


def _key(name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return a key that tells calls apart by their arguments, tensors by their values."""

    def traced(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        data = value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.dim() else value.numpy()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(data.tobytes()).hexdigest()

    return name, method, str(tree_map(traced, (args, kwargs)))
