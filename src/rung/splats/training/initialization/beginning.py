"""The splats that a run begins with: a file's, or one for each point of the scene and of its pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rung.core.errors import UsageError
from rung.core.text import count
from rung.models.card import SceneCard, View
from rung.splats.cloud import Cloud, Floats
from rung.splats.files import read
from rung.splats.photographs import Photographs, Shot
from rung.splats.poses import converge, places
from rung.splats.scenes.points import points_of
from rung.splats.training.initialization import seeding, stereo
from rung.splats.training.initialization.seeding import Bytes
from rung.splats.training.normalization import World
from rung.splats.training.settings import Settings
from rung.splats.training.trainer import Strategy

#: Points that are looked for in the pictures; views that are compared where there are none, and the share of all
#: splats that a run then begins with at the points found.
_LOOKED_AT, _COMPARED, _MATCHED = 2000, 40, 0.8
#: Of cameras that look past each other, how many that stand side by side are compared.
_TOGETHER = 5

Points = tuple[Floats, Bytes]


def first_splats(
    settings: Settings,
    card: SceneCard,
    shots: Photographs,
    train: Sequence[int],
    world: World,
    strategy: Strategy,
    most: int,
    note: Callable[[str], None],
) -> Cloud:
    """At most so many splats of the inner space; ``train`` are the indexes of the pictures that may be looked at.

    Raises ``UsageError`` for a scene without points and without a place that several cameras look at, and for a file
    without splats.
    """
    chance = np.random.default_rng(settings.seed)
    if settings.init is not None:
        cloud = read(settings.init)
        if not len(cloud.means):
            raise UsageError(f"{settings.init} holds no splats to begin with.", [], ["leave --init out"])
        return seeding.inner_start(cloud, world, settings.sh_degree, most, chance)
    views = [shots.views[index] for index in train]
    points, colors = _thinned(points_of(card), most, chance)
    if len(points):
        _check(views, points, note)
    else:
        which = _compared(views, chance)
        pictures = [shots.shot(train[at]) for at in which]
        points, colors = _points_of([views[at] for at in which], pictures, most, chance, note)
    inner = world.inward(points)
    return seeding.cloud_of(inner, colors, settings.sh_degree, strategy.init_opacity, strategy.init_scale)


def _thinned(points: Points, most: int, chance: np.random.Generator) -> Points:
    rows = seeding.thinned(len(points[0]), most, chance)
    return points[0][rows], points[1][rows]


def _compared(views: Sequence[View], chance: np.random.Generator) -> list[int]:
    """Which of the views are compared: some by chance; where those would have nothing in common, some and the views
    that stand nearest to them."""
    if len(views) <= _COMPARED or converge(views):
        return list(seeding.thinned(len(views), _COMPARED, chance).tolist())
    positions, chosen = places(views), dict[int, None]()
    for at in chance.permutation(len(views)):
        nearest = np.argsort(np.linalg.norm(positions - positions[at], axis=1), kind="stable")[:_TOGETHER]
        chosen |= dict.fromkeys(nearest.tolist())
        if len(chosen) >= _COMPARED:
            break
    return sorted(list(chosen)[:_COMPARED])


def _check(views: Sequence[View], points: Floats, note: Callable[[str], None]) -> None:
    some = points[:: -(-len(points) // _LOOKED_AT)]
    unseen = float((seeding.count_views(some, views) == 0).mean())
    if unseen > 0.5:
        note(
            f"{unseen:.0%} of the points are in no picture: do the cameras look at the scene, and are poses and "
            "points of the same world?"
        )


def _points_of(
    views: Sequence[View],
    pictures: Sequence[Shot],
    most: int,
    chance: np.random.Generator,
    note: Callable[[str], None],
) -> Points:
    """Points that pictures agree on; where those are few, random ones too, which are a fog that has to clear."""
    found, tints = _thinned(stereo.matched_points(views, pictures), int(_MATCHED * most), chance)
    rest = max(most // 2 - len(found), 0)
    random, dyes = seeding.random_points(views, [shot.rgb for shot in pictures], rest, chance)
    if not len(found) + len(random):
        raise UsageError(
            "The scene has no points, and no place that several cameras look at.",
            [f"{count(len(views), 'training picture')}"],
            ["check the poses", "give points, or splats to begin with: --init FILE.ply"],
        )
    parts = [f"{len(found):,} found by comparing its pictures"] * bool(len(found))
    parts += [f"{len(random):,} random ones"] * bool(len(random))
    note(f"no points in the scene: begins with {' and '.join(parts)}")
    return np.concatenate([found, random]), np.concatenate([tints, dyes])
