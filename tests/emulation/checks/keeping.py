"""Write what x86 and torch compute, which the checks compare with; needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulation.checks import models, splats

_COUNT, _SEED = 90, 11


def keep() -> None:
    """Write the greedy tokens of every model, and the pictures and steps of splats."""
    models.keep_choices()
    found: dict[str, Any] = {}
    for name, camera in splats.CAMERAS.items():
        found |= {f"{name}.{key}": value for key, value in _picture(camera).items()}
    for dtype, degree in splats.DTYPES.items():
        found |= {f"harmonics in {dtype}.{key}": value for key, value in _harmonics(dtype, degree).items()}
    np.savez_compressed(splats.KEPT, **found)


def _picture(camera: Any) -> dict[str, Any]:
    """A scene with some splats that are opaque, large or behind the camera; outputs and gradients of a seeded sum."""
    import torch

    from rung.ops.rasterize import Splats, ref
    from rung.ops.rasterize.self_check import outputs
    from rung.ops.rasterize.self_check import splats as seeded

    scene = seeded(_COUNT, camera.degree, _SEED)
    scene.scales[:4] = 0.3
    scene.opacities[:2] = 0.9995
    scene.means[4:6, 2] = -1.0
    if camera.degree is None:
        scene = scene._replace(colors=scene.colors[:, 0].contiguous())
    taken = [tensor.double().requires_grad_() for tensor in scene]
    pose = torch.eye(4, dtype=torch.float64, requires_grad=True)
    screen = torch.zeros(_COUNT, 4, dtype=torch.float64, requires_grad=True)
    drawn = ref.RUNG.apply(Splats(*taken), pose, camera, screen)
    generator, found = torch.Generator().manual_seed(_SEED), dict[str, Any]()
    loss = torch.zeros((), dtype=torch.float64)
    for name in ("color", "alpha", "depth"):
        output = getattr(drawn, name)
        upstream = torch.randn(output.shape, generator=generator)
        found[f"given.{name}"], loss = upstream.numpy(), loss + (output * upstream.double()).sum()
    loss.backward()
    found |= {name: tensor.numpy() for name, tensor in scene._asdict().items()}
    found |= {f"right.{name}": array.astype(np.float32) for name, array in outputs(drawn).items()}
    for name, leaf in zip((*Splats._fields, "pose", "screen"), (*taken, pose, screen), strict=True):
        assert leaf.grad is not None
        found[f"right.{name}"] = leaf.grad.numpy().astype(np.float32)
    return found


def _harmonics(dtype: str, degree: int) -> dict[str, Any]:
    """Colors of harmonics, the gradients of colors and centers, and a step of Adam, in plain torch."""
    import torch

    from rung.splats.training import adam_8bit

    count, generator = 60, np.random.default_rng(_SEED)
    kind = np.float32 if dtype == "f32" else np.float16
    found: dict[str, Any] = {
        "harmonics": (generator.standard_normal((count, 16, 3)) * 0.4).astype(kind),
        "means": generator.standard_normal((count, 3)).astype(np.float32),
        "position": np.array([0.3, -0.2, -4.0]),
        "given": generator.standard_normal((count, 3)).astype(np.float32) * np.float32(1e-3),
        "first": generator.integers(0, 256, (count, 16, 3)).astype(np.uint8),
        "first_sizes": generator.random(count).astype(np.float32) * np.float32(1e-3),
        "second": generator.integers(0, 256, (count, 16, 3)).astype(np.uint8),
        "second_sizes": generator.random(count).astype(np.float32) * np.float32(1e-6),
        "rates": np.resize(np.array([2.5e-3] * 3 + [1.25e-4] * 45, np.float32), 48),
    }
    found["given"][::3] = 0  # what no picture shows
    for name in ("first", "second"):  # sizes are those of the largest value
        found[name][:, 0, 0] = 255
    found["first_sizes"][1::6] = 0
    books = adam_8bit.Books.of(torch.device("cpu"))
    found["books"] = np.stack([book.numpy() for book in books])
    tensors = {name: torch.from_numpy(array.copy()) for name, array in found.items()}
    gradients = adam_8bit.ColorGradients(tensors["position"].float(), degree)
    colors = adam_8bit._plain(tensors["harmonics"], tensors["means"], gradients)
    gradients.of_colors = tensors["given"] * (colors > 0)
    slopes = adam_8bit._slopes(tensors["harmonics"], tensors["means"], gradients.of_colors, gradients)
    found |= {"right.colors": colors.numpy(), "right.g_means": slopes.numpy()}
    found["right.given"] = gradients.of_colors.numpy()
    state = adam_8bit.Means8(*(tensors[name] for name in ("first", "first_sizes", "second", "second_sizes")))
    _plain_step(tensors, gradients, state)
    found["right.harmonics"] = tensors["harmonics"].numpy()
    return found | {f"right.{name}": tensor.numpy() for name, tensor in state._asdict().items()}


def _plain_step(tensors: Any, gradients: Any, state: Any) -> None:
    from rung.splats.training import adam_8bit

    compiled, adam_8bit.compiled_for = adam_8bit.compiled_for, lambda values: None
    try:
        rates = tuple(tensors["rates"].tolist())
        adam_8bit.learn(
            *(tensors["harmonics"], tensors["means"], gradients, state),
            *(rates, splats.TAKEN, splats.BETAS, splats.EPSILON),
        )
    finally:
        adam_8bit.compiled_for = compiled
