"""Hold what a pipeline takes, found by asking it: the frames and the size that are asked for are made, or refused.

Pipelines round some numbers without an error, and refuse others in words about tensors. A rehearsal needs no weights,
so what is proposed instead has been rehearsed too; no rule of any pipeline is written down here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rung.core.errors import RungError, UsageError
from rung.core.text import size as sized
from rung.pipelines.folders import Settings

Size = tuple[int, int]
#: What is made of settings: the number of frames and (width, height). It raises what the pipeline raises.
OutputSize = Callable[[Settings], tuple[int, Size]]

#: What other people's code raises for numbers that it cannot work with; while nothing has weights, those of settings.
_REFUSALS = (ValueError, RuntimeError, ArithmeticError, AssertionError, LookupError)
#: How far from the number of frames that was asked for others are tried.
_AROUND = 8
#: What widths and heights of pipelines are multiples of.
_STEPS = (8, 16, 32, 64)
#: Bytes of a pixel in f32.
_PIXEL = 12


def check_output(pipeline: Any, settings: Settings, output: OutputSize) -> None:
    """Raises ``UsageError`` where the pipeline does not make the frames and the size of these settings.

    Its ways out have been tried: the nearest that it makes.
    """
    cause = None
    try:
        frames, size = output(settings)
        if _fits(settings, (frames, size)):
            return
        reason = f"asked for that it makes {_described(settings.frames and frames, size)}, without an error"
    except RungError:
        raise
    except _REFUSALS as error:
        reason, cause = " ".join(str(error).split())[:300] or type(error).__name__, error
    name = type(pipeline).__name__
    rules, ways = _Search(settings, output, _known(pipeline)).found()
    if not ways:  # so it is another setting, or the pipeline
        others = [f"--{each}" for each in ("negative", "guidance", "scheduler") if getattr(settings, each) is not None]
        ways = [f"leave out {' and '.join(others)}"] if others else []
        raise UsageError(f"{name} refuses this.", [reason], [*ways, "pip install -U diffusers transformers"]) from cause
    requested = _described(settings.frames, settings.size) or "its own frames in its own size"
    raise UsageError(f"{name} does not make {requested}.", [reason, *rules], ways) from cause


def check_steps(pipeline: Any, settings: Settings, begin: Callable[[Settings], None]) -> None:
    """Raises ``UsageError`` where the scheduler does not take so many steps. ``begin`` raises what it raises; the way
    out has been tried."""
    try:
        begin(settings)
        return
    except RungError:
        raise
    except _REFUSALS as error:
        reason, cause = " ".join(str(error).split())[:300] or type(error).__name__, error
    name, ways = type(pipeline.scheduler).__name__, ["leave out --scheduler"] if settings.scheduler else []
    if settings.steps is not None and (most := _most(settings, begin)):
        ways.insert(0, f"--steps {most}")
    requested = "its own number of" if settings.steps is None else f"{settings.steps:,}"
    raise UsageError(
        f"{name}, the scheduler of {type(pipeline).__name__}, does not take {requested} steps.", [reason], ways
    ) from cause


def _most(settings: Settings, begin: Callable[[Settings], None]) -> int:
    """The most steps below those asked for that are taken, found by halves; 0 where none are."""
    taken, refused = 0, settings.steps or 1
    while refused - taken > 1:
        middle = (taken + refused) // 2
        try:
            begin(replace(settings, steps=middle))
            taken = middle
        except (RungError, *_REFUSALS):
            refused = middle
    return taken


def check_room(pipeline: Any, settings: Settings, room: int) -> None:
    """Raises ``UsageError`` where the frames alone are more than ``room`` bytes: no rehearsal could hold its noise."""
    own = inspect.signature(type(pipeline).__call__).parameters
    defaults = [own[side].default if side in own else None for side in ("width", "height")]
    width, height = settings.size or tuple(side if isinstance(side, int) else 1 for side in defaults)
    need = (settings.frames or 1) * width * height * _PIXEL
    if 0 < room < need:
        raise UsageError(
            f"{_described(settings.frames or 1, (width, height))} do not fit this machine.",
            [f"they are {sized(need)} as the pipeline makes them, and the machine has {sized(room)}"],
            ["fewer --frames, or a smaller --size"],
        )


def check_inputs(pipeline: Any, arguments: dict[str, Any]) -> None:
    """Raises ``UsageError`` for a pipeline that does not make something of a text alone."""
    takes = inspect.signature(type(pipeline).__call__).parameters
    needs = [
        name
        for name, one in takes.items()
        if name != "self"
        and one.default is one.empty
        and one.kind is one.POSITIONAL_OR_KEYWORD
        and name not in arguments
    ]
    if "prompt" in takes and not needs:
        return
    problem = f"it needs {' and '.join(needs)} too" if needs else "it takes no prompt"
    raise UsageError(
        f"{type(pipeline).__name__} does not make pictures or videos from text alone.",
        [problem],
        ["take a pipeline that makes them from text:  rung video maxin-cn/Latte-1"],
    )


@dataclass
class _Search:
    """Looks for what is made near to what was asked for. ``known``: numbers of frames with where they stand."""

    settings: Settings
    output_size: OutputSize
    known: dict[int, str]
    tried: dict[tuple[int | None, Size | None], tuple[int, Size] | None] = field(default_factory=dict)

    def found(self) -> tuple[list[str], list[str]]:
        """Return the rule that the pipeline follows, in sentences, and the nearest options that it takes."""
        requested = self.settings
        rule, sizes = self.sizes(requested.frames)
        if sizes:
            return rule, [f"--size {width}x{height}" for width, height in sizes]
        rule, numbers = self.numbers(requested.size)
        if numbers:
            return rule, [f"--frames {number}" for number in numbers]
        for size in self.candidates():
            rule, numbers = self.numbers(size)
            if numbers:
                more, _ = self.sizes(numbers[0])
                return [*rule, *more], [f"--frames {number} --size {size[0]}x{size[1]}" for number in numbers]
        return [], []

    def candidates(self) -> Iterator[Size]:
        """Sizes near to the one asked for."""
        if self.settings.size is not None:
            for step in _STEPS:
                yield from _near(self.settings.size, step)

    def sizes(self, frames: int | None) -> tuple[list[str], list[Size]]:
        """Return the rule for sizes at so many frames and the nearest sizes; the pipeline's own size where none is
        near."""
        requested, taken = self.settings.size, list[Size]()
        if requested is None:
            return [], []
        for step in _STEPS:
            near = _near(requested, step)
            works = [size for size in near if self.works(frames, size)]
            if near and works == near:  # one of them is an odd multiple, and of smaller steps not all were taken
                return [f"its widths and heights are multiples of {step}"], works
            taken += [size for size in works if size not in taken]
        own = None if taken else self.of(frames, None)
        return [], taken or ([own[1]] if own and self.works(frames, own[1]) else [])

    def numbers(self, size: Size | None) -> tuple[list[str], list[int]]:
        """Return the rule for numbers of frames in that size and the nearest numbers; those of its configuration where
        none is near."""
        requested = self.settings.frames
        if requested is None:
            found = [number for number in self.known if self.works(number, size)]
            return self.stand(found), found
        fewer = next(
            (n for n in range(requested - 1, max(requested - 1 - _AROUND, 0), -1) if self.works(n, size)), None
        )
        more = next((n for n in range(requested + 1, requested + 1 + _AROUND) if self.works(n, size)), None)
        found = [n for n in (fewer, more) if n is not None] or [n for n in self.known if self.works(n, size)]
        rule = []
        if fewer and more:  # and nothing between them
            step = more - fewer
            if step > 1 and fewer % step == 1 and self.works(more + step, size):
                rule = [f"its numbers of frames are {step}k + 1: {fewer}, {more}, {more + step} ..."]
        return [*rule, *self.stand(found)], sorted(found, key=lambda n: abs(n - requested))

    def stand(self, numbers: list[int]) -> list[str]:
        """Where these numbers stand."""
        return [f"{self.known[number]} is {number}" for number in numbers if number in self.known]

    def works(self, frames: int | None, size: Size | None) -> bool:
        """Return whether what these ask for is made."""
        got = self.of(frames, size)
        return got is not None and _fits(replace(self.settings, frames=frames, size=size), got)

    def of(self, frames: int | None, size: Size | None) -> tuple[int, Size] | None:
        """Return the frames and the size that the pipeline makes; None where it refuses."""
        if (frames, size) not in self.tried:
            try:
                got = self.output_size(replace(self.settings, frames=frames, size=size))
            except (RungError, *_REFUSALS):
                got = None
            self.tried[frames, size] = got
        return self.tried[frames, size]


def _near(requested: Size, step: int) -> list[Size]:
    """The sizes whose sides are the next multiples of ``step`` below and above."""
    below = (requested[0] // step * step, requested[1] // step * step)
    above = (-(-requested[0] // step) * step, -(-requested[1] // step) * step)
    return [size for size in dict.fromkeys((below, above)) if size != requested and 0 not in size]


def _fits(settings: Settings, got: tuple[int, Size]) -> bool:
    frames, size = got
    return settings.frames in (None, frames) and settings.size in (None, size)


def _described(frames: int | None, size: Size | None) -> str:
    """``5 frames of 16x16``, or what of that is known."""
    counted = "" if frames is None else "1 frame" if frames == 1 else f"{frames:,} frames"
    sides = "" if size is None else f"{size[0]}x{size[1]}"
    return " of ".join(part for part in (counted, sides) if part)


def _known(pipeline: Any) -> dict[int, str]:
    """Numbers of frames in the configurations of a pipeline's networks, by where they stand."""
    found: dict[int, str] = {}
    for part in pipeline.config:
        config = getattr(getattr(pipeline, part, None), "config", None)
        for key, value in config.items() if isinstance(config, dict) else ():
            frames = "frames" in key or key in ("video_length", "motion_max_seq_length")
            if frames and type(value) is int and value > 0:
                found.setdefault(value, f"{part}: {key}")
    return found
