"""A plan for training Gaussian splats: (scene, device, budget) -> SplatPlan; pure, without torch.

The plan is a contract: training stays below ``SplatPlan.peak`` bytes, on a CPU as the resident size of the process, on
a GPU of its memory. ``benchmarks/splat_memory.py`` holds it against training.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from rung.core.errors import DoesNotFit, UsageError
from rung.core.text import duration, quoted, size, tenths
from rung.core.types import Case, Device, MemoryUse, Placement, PlanFrame, Verdict
from rung.core.value import FrozenDict
from rung.models.card import SceneCard, View
from rung.ops import LADDERS
from rung.splats.planning.costs import Kept, Load, memory_use, step_seconds

#: What splats are kept in.
FORMATS = ("f32", "f32+sh16")
#: How harmonics are kept where memory gets short, the first that fits.
_LEVELS = (Kept(), Kept("8bit"), Kept("8bit", "f16"))
#: Shares of the photographs' resolution that are tried where nobody asks for one.
SCALES = (1.0, 0.5, 0.25)
#: Steps of the published schedules.
STEPS = 30_000
#: Seconds that training on a CPU takes where nobody says, and the fewest steps.
CPU_SECONDS, _FEWEST_STEPS = 1800, 500
#: Steps a second below which a CPU is given smaller pictures.
_SLOWEST = 3.0
#: Splats: the cap of the published strategies, the fewest of a plan, and the pixels of a view for each on a CPU.
_MOST, _FEWEST, _PIXELS = 1_000_000, 1_000, 4
#: Pixels of the longer side of pictures that are still worth training on.
_SMALLEST = 64
#: Host memory for pictures where a GPU computes.
_HOST_CACHE = 4 << 30
#: Suffixes of pictures that cannot be transparent.
_OPAQUE = (".jpg", ".jpeg")
#: Bytes of mapping the pixels of a bent photograph to those of a pinhole camera.
_PIECES = 64 << 20


@dataclass(frozen=True)
class SplatPlan(PlanFrame):
    """Hold what a training of splats gets on a device.

    ``splats`` is the most there will be; ``width`` and ``height`` are pixels of the largest view in training, ``scale``
    their share of the photograph's; ``cache_bytes`` are for pictures (of the device's memory on a CPU, of the host's
    beside a GPU); ``seconds`` are those of ``steps`` at the predicted speed; ``state`` and ``harmonics`` are those of
    ``Kept``.
    """

    device: str
    rung: str
    splats: int
    sh_degree: int
    width: int
    height: int
    scale: float
    cache_bytes: int
    steps: int
    steps_per_second: float
    seconds: float
    memory: MemoryUse
    budget: int
    reasons: tuple[str, ...] = ()
    state: str = "f32"
    harmonics: str = "f32"
    choices = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Its device."""
        return (Placement(self.device, 0, 0, self.memory, self.budget),)

    @property
    def speeds(self) -> tuple[str, ...]:
        """Steps a second, and the time of all of them."""
        return f"{self.steps_per_second:.3g} steps/s", f"{duration(self.seconds)} for {self.steps:,} steps"

    @property
    def verdict(self) -> Verdict:
        """Return whether the memory is within the budget."""
        return self.within_budget()

    @property
    def format(self) -> str:
        """How splats are kept: one of ``FORMATS``."""
        return _format(Kept(self.state, self.harmonics))

    @property
    def peak(self) -> int:
        """Bytes that training stays below."""
        return self.memory.most

    @property
    def fits(self) -> bool:
        """Return whether that is within the budget."""
        return self.verdict.ok

    @property
    def max_resolution(self) -> int:
        """Pixels of the longer side in training."""
        return max(self.width, self.height)


def plan(
    card: SceneCard,
    device: Device,
    memory: int | None = None,
    *,
    max_splats: int | None = None,
    max_resolution: int | None = None,
    sh_degree: int = 3,
    steps: int | None = None,
    seconds: float | None = None,
    format: str | None = None,
) -> SplatPlan:
    """The plan for a scene within ``memory`` bytes (default: what is free on the device).

    ``max_splats`` and ``max_resolution`` (pixels of the longer side) are the most there may be. Without a resolution
    it is the largest of full, a half and a quarter at which half of the splats fit that such pictures are worth, and on
    a CPU three steps take no more than a second. Where memory is too little, Adam's means of the harmonics go into 8
    bits, then the harmonics into 16 (``format``, one of ``FORMATS``, says which of it), then splats are taken away; the
    cache of pictures gets what is left in any case. Without ``steps`` a GPU does those of the published schedules, a
    CPU what it can in ``seconds`` (default: half an hour). Raises ``DoesNotFit`` and ``UsageError``.
    """
    request = SplatRequest(card, device, memory, max_splats, max_resolution, sh_degree, steps, seconds, format)
    plans = request.plans()
    fitting = [each for each in plans if each.fits]
    if not fitting:
        raise _does_not_fit(request, plans[-1])
    return best(fitting, request)


@dataclass(frozen=True)
class SplatRequest:
    """Hold what plans are made of: see ``plan``."""

    card: SceneCard
    device: Device
    memory: int | None = None
    max_splats: int | None = None
    max_resolution: int | None = None
    sh_degree: int = 3
    steps: int | None = None
    seconds: float | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_splats", "max_resolution", "steps", "seconds", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1 << 50:
                raise UsageError(
                    f"--{name.replace('_', '-')} {value} makes no sense: it is a number above 0.",
                    code="value-out-of-range",
                )
        if not 0 <= self.sh_degree <= 3:
            raise UsageError(
                f"--sh-degree {self.sh_degree}: harmonics have a degree of 0 to 3.", code="value-out-of-range"
            )
        if self.format not in (None, *FORMATS):
            raise UsageError(f"--format {self.format}: there are {' and '.join(FORMATS)}.", code="name-unknown")

    @property
    def budget(self) -> int:
        """Bytes that the plan may use."""
        return self.device.budget if self.memory is None else self.memory

    @cached_property
    def view(self) -> View:
        """The view with the most pixels."""
        return max(self.card.views, key=lambda view: view.width * view.height)

    @cached_property
    def _views(self) -> Counter[tuple[int, int, int]]:
        """How many views there are of each width, height and number of channels: a plan is made dozens of times, of
        thousands of views."""
        return Counter((view.width, view.height, _channels(view)) for view in self.card.views)

    @cached_property
    def _bent(self) -> bool:
        return any(view.lens != "pinhole" for view in self.card.views)

    def plans(self) -> list[SplatPlan]:
        """One plan for each resolution, the largest first; one that does not fit is the smallest there is for it."""
        return [self.at(scale) for scale in self.scales]

    @property
    def scales(self) -> tuple[float, ...]:
        """Shares of the photographs' resolution that are tried."""
        if self.max_resolution is None:
            return SCALES
        return (min(1.0, self.max_resolution / max(self.view.width, self.view.height)),)

    def target_splats(self, pixels: int) -> int:
        """The splats that pictures of so many pixels are worth, or that were asked for."""
        worth = _MOST if self.device.kind != "cpu" else min(_MOST, max(_FEWEST, pixels // _PIXELS))
        return worth if self.max_splats is None else self.max_splats

    def at(self, scale: float) -> SplatPlan:
        """The plan at one resolution: all splats wanted, kept as they fit, or as many as fit."""
        width, height = self.size(scale)
        target = self.target_splats(width * height)
        levels = [kept for kept in _LEVELS if self.format in (None, _format(kept))]
        for kept in levels:
            if (plan := self.plan_with(scale, target, kept)).fits:
                return plan
        low, high = min(_FEWEST, target), target
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.plan_with(scale, middle, kept).fits else (low, middle - 1)
        return self.plan_with(scale, low, kept)

    def size(self, scale: float) -> tuple[int, int]:
        """Width and height of the largest view in training."""
        return max(1, round(self.view.width * scale)), max(1, round(self.view.height * scale))

    def plan_with(self, scale: float, splats: int, kept: Kept) -> SplatPlan:
        """The plan with these choices; the cache of pictures gets what is left."""
        (width, height), device = self.size(scale), self.device
        options = FrozenDict({"degree": self.sh_degree, "antialiased": False})
        rung = (
            LADDERS["rasterize"].climb(device, Case("rasterize", "f32", "f32", (splats, height, width), options)).rung
        )
        name = rung.name if rung is not None else "ref"
        load = Load(splats, width * height, self.sh_degree)
        bare = memory_use(device, name, load, 0, kept)
        if device.kind == "cpu":
            bare = replace(bare, workspace=bare.workspace + self._decoding(scale))
        least, all_of_them = self._pictures(scale)
        room = self.budget - bare.most if device.kind == "cpu" else _HOST_CACHE
        cache = max(least, min(all_of_them, room))
        memory = replace(bare, workspace=bare.workspace + cache) if device.kind == "cpu" else bare
        rate = 1 / step_seconds(device, name, load)
        steps, reasons = self._steps(rate)
        reasons += self._reasons(splats, width * height, kept)
        return SplatPlan(
            *(device.id, name, splats, self.sh_degree, width, height, scale, cache),
            *(steps, rate, steps / rate, memory, self.budget, tuple(reasons), *kept),
        )

    def _pictures(self, scale: float) -> tuple[int, int]:
        """Bytes of two pictures of the largest view in the cache, and of all pictures there."""
        sizes = [(round(w * scale) * round(h * scale) * each, count) for (w, h, each), count in self._views.items()]
        return 2 * max(sizes)[0], sum(each * count for each, count in sizes)

    def _decoding(self, scale: float) -> int:
        """Bytes that decoding the largest photograph takes: Pillow has four for a pixel, and turning or reducing holds
        two pictures; a lens's distortion is mapped in pieces."""
        (width, height), view = self.size(scale), self.view
        return 8 * (view.width * view.height + width * height) + (_PIECES if self._bent else 0)

    def _steps(self, rate: float) -> tuple[int, list[str]]:
        if self.steps is not None:
            return self.steps, []
        if self.seconds is None and self.device.kind != "cpu":
            return STEPS, []
        limit = self.seconds or CPU_SECONDS
        possible = int(rate * limit)
        steps = min(STEPS, max(_FEWEST_STEPS, possible - possible % 100))
        if self.seconds is not None or steps == STEPS:
            return steps, []
        return steps, [f"{steps:,} steps instead of {STEPS:,}: what this processor does in {CPU_SECONDS // 60} minutes"]

    def _reasons(self, splats: int, pixels: int, kept: Kept) -> list[str]:
        found = []
        if kept.state == "8bit":
            halves = ", harmonics in 16" if kept.harmonics == "f16" else ""
            found.append(f"Adam's means of harmonics in 8 bits{halves}")
        if splats < self.target_splats(pixels):
            found.append(f"{splats:,} splats fit where {self.target_splats(pixels):,} would be of use")
        return found


def _channels(view: View) -> int:
    """Bytes of a pixel: a mask is held as alpha, which any file but a JPEG may have too."""
    return 3 if not view.mask and view.image.lower().endswith(_OPAQUE) else 4


def _format(kept: Kept) -> str:
    return FORMATS[kept.harmonics == "f16"]


def best(fitting: list[SplatPlan], request: SplatRequest) -> SplatPlan:
    """Return the plan that is taken, of those that fit, the largest first."""
    worthy = [plan for plan in fitting if 2 * plan.splats >= request.target_splats(plan.width * plan.height)]
    quick = [plan for plan in worthy if request.device.kind != "cpu" or plan.steps_per_second >= _SLOWEST]
    return (quick or worthy[-1:] or fitting[-1:])[0]


def ways_out(request: SplatRequest, smallest: SplatPlan) -> list[str]:
    """Commands whose plan would fit: smaller pictures, or more memory."""
    scene, sides = quoted(request.card.path), (smallest.max_resolution >> halved for halved in range(1, 16))
    smaller = (replace(request, max_resolution=side).plans()[0] for side in sides if side >= _SMALLEST)
    lower = next((plan for plan in smaller if plan.fits), None)
    ways = [] if lower is None else [f"rung splat train {scene} --out DIR --max-resolution {lower.max_resolution}"]
    return [*ways, f"rung splat train {scene} --out DIR --memory {tenths(smallest.peak)}GB"]


def _does_not_fit(request: SplatRequest, smallest: SplatPlan) -> DoesNotFit:
    return DoesNotFit(
        f"Training splats of {request.card.path} does not fit into {size(request.budget)}.",
        [
            f"the smallest plan, {smallest.splats:,} splats at {smallest.width} x {smallest.height}, "
            f"needs {size(smallest.peak)}, {size(smallest.memory.runtime)} of it for torch and its libraries"
        ],
        ways_out(request, smallest),
    )
