"""A pipeline of diffusers from its folder to frames: rehearsed, planned, performed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from rung.core.errors import UsageError
from rung.core.types import Device, StepDown
from rung.engine import planning
from rung.hub.diffusers.pipelines import Folder, Perform, quiet, scheduler, stand_in
from rung.models.networks.pipeline import phases_of
from rung.pipelines import validate
from rung.pipelines.execute import Performance, Progress
from rung.pipelines.folders import Settings as Settings
from rung.pipelines.trace import Rehearsal
from rung.pipelines.weights import check_files, fill_buffers
from rung.planning.pipeline import Network, PhasesPlan, plan_phases, with_runtime
from rung.planning.request import parse_memory
from rung.run.journal import Journal

_CPU = torch.device("cpu")
#: (steps done, steps in all)
OnStep = Callable[[int, int], None]
#: What pipelines call the number of frames.
_FRAMES = ("num_frames", "video_length", "num_frames_per_chunk")
#: Steps of a rehearsal: some schedulers divide by one less.
_REHEARSED = 2


@dataclass
class Generated:
    """Frames uint8 [number, height, width, 3], with the seconds that they took, and of those each phase's networks.

    ``peak`` is the largest resident size of the process in bytes, 0 where another device computed.
    """

    frames: np.ndarray
    settings: Settings
    seconds: float
    phases: dict[str, float]
    plan: PhasesPlan
    peak: int


@dataclass
class Watcher:
    """Hold who hears: of bytes that are read, of steps that are done, of steps down, of the plan."""

    progress: Progress = lambda label, done, total: None
    steps: OnStep = lambda done, total: None
    step: Callable[[StepDown], None] = lambda step: None
    note: Callable[[str], None] = lambda note: None
    plan: Callable[[PhasesPlan], None] = field(default=lambda plan: None)


class Pipeline:
    """A pipeline in a folder, on a device, inside a budget: ``plan``, then ``make``.

    A ``Folder`` must have been opened before a card is simulated. ``memory`` is a budget as ``--memory`` takes it,
    ``format`` one for all that encodes and denoises. Raises ``BadFile``, ``UnknownArchitecture`` and
    ``SoftwareMissing`` as ``Folder`` does.
    """

    def __init__(
        self,
        folder: Folder | Path,
        device: Device,
        *,
        memory: str | int | Mapping[str, str | int] | None = None,
        format: str | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.folder = Folder(folder) if isinstance(folder, Path) else folder
        self.device, self.format = device, format
        self.watcher = watcher or Watcher()
        self._budgets = parse_memory(memory)
        self.journal = Journal(on_step=self.watcher.step, on_note=self.watcher.note)
        self._perform: Perform
        self._say: OnStep | None = None
        self.built: Any = None
        self._scheduler: Any = None

    @property
    def budget(self) -> int:
        """Bytes that may be used on the device."""
        return self._budgets.get(self.device.id, self._budgets.get("*", self.device.budget))

    def rehearse(self, several: Iterable[Settings]) -> list[Network]:
        """The networks that these settings need, with what their largest calls need.

        Raises ``UsageError`` for what the pipeline refuses or would make otherwise, and for a prompt that no encoder
        takes whole.
        """
        rehearsal, unread = Rehearsal(self.folder), ""
        for settings in several:
            rehearsal.tokens.clear()
            rehearsal.texts.clear()
            pipeline = self._pipeline(rehearsal.perform, settings)

            def output_size(chosen: Settings, pipeline: Any = pipeline) -> tuple[int, tuple[int, int]]:
                frames, height, width, _ = self._call(pipeline, chosen, steps=_REHEARSED).shape
                return frames, (width, height)

            validate.check_room(pipeline, settings, planning.machine_memory())
            with quiet():
                validate.check_output(pipeline, settings, output_size)
            _whole_text(pipeline, "prompt", settings.prompt, rehearsal.tokens)
            if settings.negative and self._reads_negative(rehearsal, output_size, settings):
                _whole_text(pipeline, "negative prompt", settings.negative, rehearsal.tokens)
            elif settings.negative:
                unread = f"--negative is not read: {type(pipeline).__name__} gives it to no encoder"
            validate.check_steps(pipeline, settings, functools.partial(self._begin, rehearsal))
        if unread:
            self.watcher.note(unread)
        return rehearsal.networks()

    @staticmethod
    def _reads_negative(rehearsal: Rehearsal, output: validate.OutputSize, settings: Settings) -> bool:
        """Return whether encoders are given anything else without the negative prompt."""
        with_negative = set(rehearsal.texts)
        rehearsal.texts.clear()
        with quiet():
            output(replace(settings, negative=None))
        return with_negative != rehearsal.texts

    def _begin(self, rehearsal: Rehearsal, settings: Settings) -> None:
        """The pipeline's own code with all of its steps, until the first of them; raises what it raises."""
        phases = phases_of(self.folder.networks)
        encoders = {name for phase in phases if phase.name == "encode" for name in phase.components}

        def perform(name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if name not in encoders:
                raise _Encoded
            return rehearsal.perform(name, method, args, kwargs)

        with contextlib.suppress(_Encoded), quiet():
            self._call(self._pipeline(perform, settings), settings)

    def plan(self, *several: Settings) -> PhasesPlan:
        """How each network is held. Raises ``DoesNotFit`` beside what ``rehearse`` raises."""
        return self._planned(self.rehearse(several))

    def _planned(self, networks: list[Network]) -> PhasesPlan:
        device = with_runtime(self.device, planning.resident_memory()) if self._here else self.device
        return plan_phases(self.folder.path.name, networks, device, self.budget, self.format)

    @property
    def _here(self) -> bool:
        return self.device.real and self.device.kind == "cpu"

    def make(self, several: Iterable[Settings]) -> Iterator[Generated]:
        """The frames of each, in order. All prompts are encoded before the first is denoised.

        Raises beside what ``plan`` raises what ``check_files`` does, before anything is computed.
        """
        requested = list(several)
        if not requested:
            return
        networks = self.rehearse(requested)
        if not self.folder.whole:
            self.folder.bring_weights()
            self.built = None  # and built again with the buffers that its files have
        pipeline = self._pipeline(self._perform, requested[0])
        for network in networks:
            check_files(getattr(pipeline, network.name), self.folder.path / network.name)
        plan = self._planned(networks)
        self.watcher.plan(plan)
        performance = Performance(
            self.folder, networks, plan, self.device, self.journal, self.format, self.watcher.progress
        )
        try:
            for one in requested if len(requested) > 1 else []:
                self._encode(performance, one)
            for one in requested:
                yield self._generated(performance, one)
        finally:
            performance.drop()

    def _encode(self, performance: Performance, settings: Settings) -> None:
        """Calls the encoders and stops where the first other network is called."""

        def perform(name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if performance.phase(name) != "encode":
                raise _Encoded
            return performance.perform(name, method, args, kwargs)

        try:
            self._call(self._pipeline(perform, settings), settings)
        except _Encoded:
            return

    def _generated(self, performance: Performance, settings: Settings) -> Generated:
        started, before = time.monotonic(), dict(performance.seconds)
        frames = self._call(self._pipeline(performance.perform, settings, self.watcher.steps), settings)
        peak = planning.peak_memory() if self._here else 0
        phases = {phase: spent - before.get(phase, 0.0) for phase, spent in performance.seconds.items()}
        return Generated(frames, settings, time.monotonic() - started, phases, performance.plan, peak)

    def _pipeline(self, perform: Perform, settings: Settings, say: OnStep | None = None) -> Any:
        """The pipeline, whose networks ``perform`` stands for and whose steps are told to ``say``."""
        self._perform, self._say = perform, say
        if self.built is None:
            self.built = self._build()
            self._scheduler = self.built.scheduler
        named = settings.scheduler
        self.built.scheduler = self._scheduler if named is None else scheduler(self.built, named)
        return self.built

    def _build(self) -> Any:
        def perform(name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._perform(name, method, args, kwargs)

        def progress(_: object, iterable: Any = None, total: int | None = None) -> _Steps:
            return _Steps(iterable, total, self._say)

        stand_ins = {}
        for name in self.folder.networks:
            network = self.folder.network(name)
            if self.folder.whole:
                fill_buffers(network, self.folder.path / name)
            stand_ins[name] = stand_in(network, name, _CPU, perform)
        return self.folder.pipeline(stand_ins, _CPU, progress)

    def _call(self, pipeline: Any, settings: Settings, steps: int | None = None) -> np.ndarray:
        arguments = call_arguments(pipeline, settings, steps)
        with torch.no_grad():
            output = pipeline(**arguments)
        return to_frames(getattr(output, "frames", None) if hasattr(output, "frames") else output.images)


class _Encoded(BaseException):
    """All of a prompt's encoders have been called."""


class _Steps:
    """Stands for the progress bar of a pipeline."""

    def __init__(self, iterable: Any = None, total: int | None = None, say: OnStep | None = None) -> None:
        self._iterable, self._say, self._done = iterable, say, 0
        self._total = total if total is not None else len(iterable or ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        for one in self._iterable:
            yield one
            self.update()

    def update(self, count: int = 1) -> None:
        """So many steps more are done."""
        self._done += count
        if self._say is not None:
            self._say(self._done, self._total)


def call_arguments(pipeline: Any, settings: Settings, steps: int | None) -> dict[str, Any]:
    """Return the arguments of the pipeline's call. Raises ``UsageError`` for a setting that it does not have."""
    accepted = inspect.signature(type(pipeline).__call__).parameters
    frames = next((name for name in _FRAMES if name in accepted), "num_frames")
    arguments = {
        "negative_prompt": settings.negative,
        frames: settings.frames,
        "width": settings.size and settings.size[0],
        "height": settings.size and settings.size[1],
        "num_inference_steps": steps or settings.steps,
        "guidance_scale": settings.guidance,
    }
    options = {frames: "--frames", "negative_prompt": "--negative", "guidance_scale": "--guidance", "width": "--size"}
    stated: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    if frames not in accepted and settings.frames == 1:
        del stated[frames]  # a pipeline of pictures makes one
    for name in stated:
        if name not in accepted:
            raise UsageError(f"{type(pipeline).__name__} has no {options.get(name, name)}.")
    stated |= {"prompt": settings.prompt, "generator": torch.Generator().manual_seed(settings.seed)}
    validate.check_inputs(pipeline, stated)
    if "output_type" in accepted:
        stated["output_type"] = "np"
    if settings.size and "use_resolution_binning" in accepted:  # it would take the next of its own sizes
        stated["use_resolution_binning"] = False
    if "clean_caption" in accepted:  # it would need packages, and changes prompts behind the back
        stated["clean_caption"] = False
    return stated


def to_frames(output: Any) -> np.ndarray:
    """Return uint8 [number, height, width, 3] of what a pipeline returns: f32 in [0, 1], with or without frames."""
    values = np.asarray(output, np.float32)
    values = values[0] if values.ndim == 5 else values
    values = values[None] if values.ndim == 3 else values
    finite = np.nan_to_num(values[..., :3], nan=0.0)
    return (finite.clip(0, 1) * 255).round().astype(np.uint8)


def _whole_text(pipeline: Any, kind: str, text: str, tokens: Mapping[str, int]) -> None:
    """Raises ``UsageError`` when no encoder gets the whole of a prompt: pipelines cut it without a word."""
    cut = []
    for name, limit in tokens.items():
        tokenizer = getattr(pipeline, name.replace("text_encoder", "tokenizer"), None)
        if tokenizer is None:
            return
        ids = tokenizer(text).input_ids
        if len(ids) <= limit:
            return
        cut.append((len(ids), limit, tokenizer.decode(ids[limit - 1 :], skip_special_tokens=True)))
    if cut:
        has, limit, lost = max(cut, key=lambda one: one[1])
        raise UsageError(
            f"The {kind} has {has} tokens, and {type(pipeline).__name__} reads {limit}.",
            [f"what it would not read: ... {lost[:120]}"],
            [f"shorten the {kind}"],
        )
