"""Growth as in 3D Gaussian Splatting (Kerbl et al., 2023): splats that the pictures pull at are copied or divided,
those that have gone out are dropped, and now and then all opacities begin anew. Constants are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rung.ops.rasterize import Camera, Picture
from rung.ops.rasterize.projecting import rotations
from rung.splats.training.model import Model
from rung.splats.training.settings import PUBLISHED, Beat

#: Mean gradient of a center in the picture, whose sides go from -1 to 1, above which a splat is one of too few.
_PULL = 2e-4
_FAINT = 0.005
#: Shares of the cameras' extent: above the first a splat is divided and not copied, above the second dropped.
_LARGE, _TOO_LARGE = 0.01, 0.1
_SMALLER = 1.6
_RESET = 3000 / PUBLISHED
#: Steps that opacities which begin anew need to come back, at the least.
_RECOVERS = 500


class Classic:
    """See the module; ``cap`` is the most splats there may be."""

    init_opacity, init_scale = 0.1, 1.0

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._grow = Beat(100 / PUBLISHED, 500 / PUBLISHED, 15_000 / PUBLISHED)
        self._reset = Beat(_RESET, 0, 15_000 / PUBLISHED, _RECOVERS)
        self._last = self._last_reset = 0
        self._pulls, self._visible_counts = torch.zeros(0), torch.zeros(0)

    def cost(self, opacities: Tensor, scales: Tensor) -> Tensor:
        """Nothing is added to the loss."""
        return opacities.new_zeros(())

    def screen(self, count: int, device: torch.device) -> Tensor | None:
        """Where the gradient of centers in the picture's plane goes."""
        return torch.zeros(count, 2, device=device, requires_grad=True)

    def watch(self, screen: Tensor | None, picture: Picture, camera: Camera) -> None:
        """Adds what a step pulled at splats."""
        assert screen is not None
        assert screen.grad is not None
        if len(self._pulls) != len(screen):
            self._pulls, self._visible_counts = (torch.zeros(len(screen), device=screen.device) for _ in range(2))
        half = torch.tensor([camera.width / 2, camera.height / 2], device=screen.device)
        self._pulls += (screen.grad * half).norm(dim=1)
        self._visible_counts += (picture.radii > 0).all(dim=1)

    @torch.no_grad()
    def change(self, model: Model, step: int, before: float, done: float, rate: float, chance: torch.Generator) -> None:
        """After a step: grows and drops splats when it is time to, and lets opacities begin anew."""
        if self._grow.falls(step, before, done, self._last):
            self._last = step
            self._growing(model, chance)
            self.drop(model, done)
            self._pulls = torch.zeros(0)
        if self._reset.falls(step, before, done, self._last_reset):
            self._last_reset = step
            logits = model.values["logits"]
            logits.clamp_(max=float(torch.tensor(2 * _FAINT).logit()))
            model.forget(torch.arange(len(model), device=model.device), "logits")

    def _growing(self, model: Model, chance: torch.Generator) -> None:
        pulls = self._pulls / self._visible_counts.clamp_min(1)
        room = self._cap - len(model)
        growing = (pulls > _PULL).nonzero()[:, 0]
        if len(growing) > room:  # those that are pulled at most
            growing = growing[torch.argsort(pulls[growing], descending=True, stable=True)[: max(room, 0)]].sort().values
        if not len(growing):
            return
        large = model.values["log_scales"].detach()[growing].exp().amax(dim=1) > _LARGE
        copied, divided = growing[~large], growing[large]
        stays = torch.ones(len(model), dtype=torch.bool, device=model.device)
        stays[divided] = False
        fresh = len(copied) + 2 * len(divided)
        model.choose(torch.cat([stays.nonzero()[:, 0], copied, divided, divided]), fresh=fresh)
        self._scatter(model, 2 * len(divided), chance)

    def _scatter(self, model: Model, count: int, chance: torch.Generator) -> None:
        """The last ``count`` splats go to random places of their own shape, and are smaller."""
        rows = torch.arange(len(model) - count, len(model), device=model.device)
        means, quats, logs = (model.values[name].detach()[rows] for name in ("means", "quats", "log_scales"))
        offsets = torch.randn(means.shape, generator=chance, device=model.device) * logs.exp()
        moved = means + torch.einsum("nij,nj->ni", rotations(quats), offsets)
        model.replace(rows, means=moved, log_scales=(logs.exp() / _SMALLER).log())

    def drop(self, model: Model, done: float) -> None:
        v = model.values
        good = ~(v["logits"].sigmoid() < _FAINT)  # what is no number stays, so that it is found
        if done > _RESET:
            good &= ~(v["log_scales"].exp().amax(dim=1) > _TOO_LARGE)
        if not bool(good.all()):
            model.choose(good.nonzero()[:, 0])

    def state(self) -> dict[str, Tensor | int]:
        """Return the state for a checkpoint, without the model."""
        result: dict[str, Tensor | int] = {"last": self._last, "last_reset": self._last_reset}
        return {**result, "pulls": self._pulls.cpu(), "seen": self._visible_counts.cpu()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Goes on from ``state``."""
        self._last, self._last_reset = int(state["last"]), int(state["last_reset"])
        self._pulls, self._visible_counts = state["pulls"], state["seen"]
