"""A rung of rasterize against ``ref`` on a real view: what goes wrong only at size is not in a small self-check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.projecting import Flat, composite, project

#: Tiles that are compared, splats that are projected at a time, and pixels times splats of a tile that are composited
#: at a time: random splats, with which training may begin, lie there by thousands. The pieces are so small that ``ref``
#: needs less memory than a step of training, which the plan counts.
TILES, _PIECE, _PAIRS = 64, 1 << 13, 1 << 15
_SEED = 20
#: A pixel may decide another way where it lies on a threshold: how far off most pixels may be and how many others,
#: and the gradients of a tensor as a share of it.
_PIXEL, _OTHERS, _MEAN, _SLOPE = 1 / 128, 0.005, 1e-3, 0.02


def differs(draw: Callable[..., Picture], splats: Splats, pose: Tensor, camera: Camera) -> str:
    """How the picture and its gradients differ from those of ``ref`` on ``TILES`` tiles of a view; empty if they do
    not. Splats as ``rung.ops.rasterize`` has them, of any device; nothing that is passed in changes.

    Their scales are varied a little: round splats, with which training begins, have no gradient by their rotation.
    """
    splats = Splats(*(tensor.detach() for tensor in splats))
    splats = splats._replace(scales=_uneven(splats.scales))
    tiles = random_tiles(camera)
    pixels, slopes, weights = _drawn(draw, splats, pose.detach(), camera, tiles)
    pose = pose.detach().cpu()
    chosen = splats_near(splats, pose, camera, tiles)
    own = Splats(*(tensor[chosen.to(tensor.device)].cpu() for tensor in splats))
    want, expected = reference(own, pose, camera, tiles, weights)
    error = (pixels - want).abs() / torch.tensor([1, 1, 1, float(want[:, 3].max().clamp_min(1)), 1])
    if not bool(torch.isfinite(error).all()):
        return "a picture that is no numbers"
    worst = error.amax(1)
    others = float((worst > _PIXEL).double().mean())
    if others > _OTHERS or float(error.mean()) > _MEAN:
        return f"{others:.1%} of the pixels of a view are not those of ref, by up to {float(worst.max()):.2g}"
    for name, share in zip(
        Splats._fields, _shares(slopes, chosen, gradients_of_splats(own, pose, camera, expected)), strict=True
    ):
        if not share <= _SLOPE:
            return f"gradients of {name} on a view differ from those of ref by {share:.1%}"
    return ""


def _shares(actual: list[Tensor], chosen: Tensor, expected: Iterable[list[Tensor]]) -> list[float]:
    """Return how far the gradients of each tensor are from those expected of the chosen splats, as a share of these.

    ``expected`` gives them a piece at a time; other splats have none. What was compared becomes zero in ``actual``.
    """
    right, away = torch.zeros(2, len(actual), dtype=torch.double)
    for part, slopes in zip(chosen.split(_PIECE), expected, strict=True):
        for number, (here, slope) in enumerate(zip(actual, slopes, strict=True)):
            right[number] += slope.square().sum()
            away[number] += (here[part].double() - slope).square().sum()
            here[part] = 0
    lost = torch.stack([here.double().norm().square() for here in actual])
    result: list[float] = ((away + lost).sqrt() / right.sqrt().clamp_min(1e-12)).tolist()
    return result


def _drawn(
    draw: Callable[..., Picture], splats: Splats, pose: Tensor, camera: Camera, tiles: list[tuple[int, int]]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return pixels [P, 5] of the tiles, what their weighted sum tells of all splats, and the weights of each tile."""
    taken = [tensor.detach().requires_grad_() for tensor in splats]
    with torch.enable_grad():
        picture = draw(Splats(*taken), pose, camera)
        boxes = [_box(picture, camera, tile) for tile in tiles]
        weights = [_weights(box, number) for number, box in enumerate(boxes)]
        torch.stack([(box * weight.to(box)).sum() for box, weight in zip(boxes, weights, strict=True)]).sum().backward()
    pixels = torch.cat([box.detach().reshape(-1, 5) for box in boxes]).cpu().double()
    return pixels, [torch.zeros_like(t) if t.grad is None else t.grad.cpu() for t in taken], weights


def _uneven(scales: Tensor) -> Tensor:
    """Scales, each between 0.7 and 1.3 times as large."""
    share = torch.rand(scales.shape, generator=torch.Generator().manual_seed(_SEED))
    return scales * (0.7 + 0.6 * share).to(scales)


def random_tiles(camera: Camera) -> list[tuple[int, int]]:
    """Return columns and rows of tiles, by chance."""
    across, down = -(-camera.width // TILE), -(-camera.height // TILE)
    order = torch.randperm(across * down, generator=torch.Generator().manual_seed(_SEED))
    return [divmod(int(number), down) for number in order[:TILES]]


def _box(picture: Picture, camera: Camera, tile: tuple[int, int]) -> Tensor:
    """[h, w, 5] of a tile: color, depth, alpha."""
    left, top = TILE * tile[0], TILE * tile[1]
    rows, columns = slice(top, min(top + TILE, camera.height)), slice(left, min(left + TILE, camera.width))
    return torch.cat(
        [picture.color[rows, columns], picture.depth[rows, columns, None], picture.alpha[rows, columns, None]], dim=-1
    )


def _weights(box: Tensor, number: int) -> Tensor:
    """Return weights for a sum of the tile: of one sign, so that a loss in one pixel is not made up in another."""
    return torch.rand(box.shape, generator=torch.Generator().manual_seed(_SEED + number)) + 0.5


def splats_near(splats: Splats, pose: Tensor, camera: Camera, tiles: list[tuple[int, int]]) -> Tensor:
    """Return the indexes [n] of splats that touch any of the tiles, a piece of all splats at a time."""
    corners = torch.tensor(tiles) * TILE
    found = []
    for first in range(0, len(splats.means), _PIECE):
        part = Splats(*(tensor[first : first + _PIECE].cpu() for tensor in splats))
        flat = project(part, pose, camera)
        touched = torch.zeros(len(part.means), dtype=torch.bool)
        for corner in corners:
            touched |= _on(flat, corner)
        found.append(touched.nonzero()[:, 0] + first)
    return torch.cat(found)


def _on(flat: Flat, corner: Tensor) -> Tensor:
    """Which splats touch a tile, a pixel wider than they do: rounding decides nothing here."""
    radii = flat.radii + (flat.radii > 0)
    return ((flat.means + radii > corner) & (flat.means - radii < corner + TILE) & (radii > 0)).all(-1)


def reference(
    own: Splats, pose: Tensor, camera: Camera, tiles: list[tuple[int, int]], weights: list[Tensor]
) -> tuple[Tensor, Flat]:
    """Pixels [P, 5] of the tiles, and what their weighted sum tells of splats in the plane; in float64, a tile or piece
    at a time."""
    with torch.no_grad():
        pieces = [project(splats, pose.double(), camera) for splats in _pieces(own)]
    flat = Flat(*(torch.cat(values) for values in zip(*pieces, strict=True)))
    order = torch.argsort(flat.depths, stable=True)
    sums = Flat(*(torch.zeros_like(value) for value in flat))
    pixels = []
    for tile_index, weight in zip(tiles, weights, strict=True):
        here = order[_on(flat, torch.tensor(tile_index) * TILE)[order]]
        tile = Flat(*(value[here] for value in flat))
        composited, slopes = _composited(tile, tile_index, weight)
        pixels.append(composited)
        for total, slope in zip(sums, slopes, strict=True):
            total[here] += slope
    return torch.cat(pixels), sums


def _pieces(own: Splats) -> Iterator[Splats]:
    """Some splats at a time, in float64: of all of them there is no such copy."""
    for part in zip(*(tensor.split(_PIECE) for tensor in own), strict=True):
        yield Splats(*(tensor.double() for tensor in part))


def _composited(tile: Flat, tile_index: tuple[int, int], weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Pixels [P, 5] of a tile, and what their weighted sum tells of its splats, which are in order of depth."""
    leaves = Flat(*(value.requires_grad_(value.is_floating_point()) for value in tile))
    down = torch.arange(weight.shape[0], dtype=torch.double) + 0.5 + TILE * tile_index[1]
    across = torch.arange(weight.shape[1], dtype=torch.double) + 0.5 + TILE * tile_index[0]
    centers = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1).reshape(-1, 2)
    every = torch.arange(len(tile.means))
    some = max(1, _PAIRS // max(len(every), 1))
    pixels = []
    for part, share in zip(centers.split(some), weight.reshape(-1, 5).split(some), strict=True):
        with torch.enable_grad():
            picture = composite(leaves, every, part)
            (picture * share).sum().backward()
        pixels.append(picture.detach())
    return torch.cat(pixels), [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


def gradients_of_splats(own: Splats, pose: Tensor, camera: Camera, sums: Flat) -> Iterator[list[Tensor]]:
    """Yield what is told of splats in the plane as gradients of the splats themselves, float64, a piece at a time."""
    parts = zip(*(value.split(_PIECE) for value in sums), strict=True)
    for splats, slopes in zip(_pieces(own), parts, strict=True):
        leaves = [tensor.requires_grad_() for tensor in splats]
        with torch.enable_grad():
            flat = project(Splats(*leaves), pose.double(), camera)
        pairs = [(value, slope) for value, slope in zip(flat, slopes, strict=True) if value.requires_grad]
        torch.autograd.backward([value for value, _ in pairs], [slope for _, slope in pairs])
        yield [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
