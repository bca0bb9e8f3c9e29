"""Pipelines at their real shapes with random weights, inside a budget: each phase's planned memory beside its peak.

    python benchmarks/real_pipelines.py FOLDER KIND [--frames N] [--size 512x512] [--steps 2] [--memory 8GB]
    python benchmarks/real_pipelines.py FOLDER KIND --phase denoise ...   that phase; the others' results are zeros
    python benchmarks/real_pipelines.py FOLDER latte --errors ...         the denoiser in int8 and nf4 against f32

KIND is one of those of ``pipeline_folders.py``. FOLDER gets the weights, 5 to 15 GB, unless they are there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline_folders import KINDS, write_folder

_PROMPT = "a cat runs over the sea"


def measure(folder: Path, only: str | None, options: dict[str, Any], memory: str, format: str | None) -> None:
    """The planned and the measured peak of each phase, or of one, with its seconds of processor time."""
    from rung.cli.making import device_named
    from rung.engine import planning
    from rung.hub.diffusers.pipelines import Folder
    from rung.pipelines import generate
    from rung.pipelines.execute import Performance
    from rung.pipelines.trace import Rehearsal

    planning.keep_heap_whole()
    opened = Folder(folder)
    others = Rehearsal(opened)
    now, began, last = "", 0.0, generate.PhasesPlan("", 0, ())

    def said() -> None:
        """Print time and memory of the phase that was computed until now."""
        planned = next((one for one in last.phases if one.name == now), None)
        if planned is not None:
            peak, total = planning.peak_memory() / 2**30, planned.memory.total / 2**30
            words = f"planned {total:.2f} GB, measured {peak:.2f} GB ({total / peak - 1:+.1%})"
            networks = ", ".join(f"{name} {way}, {way.at_once} at once" for name, way in planned.held.items())
            print(f"{now}: {words}, {time.process_time() - began:.0f} s of processor time: {networks}", flush=True)

    class Watched(Performance):
        def perform(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal now, began, last
            phase = self.phase(name)
            if only not in (None, phase):
                return others.perform(name, method, args, kwargs)
            if phase != now:
                said()
                self.drop()
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
                now, began = phase, time.process_time()
            result = super().perform(name, method, args, kwargs)
            last = self.plan
            return result

    generate.Performance = Watched  # type: ignore[misc]
    watcher = generate.Watcher(step=print, note=print, steps=lambda done, total: print(f"{done}/{total}", flush=True))
    pipeline = generate.Pipeline(opened, device_named("cpu"), memory=memory, format=format, watcher=watcher)
    (video,) = pipeline.make([generate.Settings(_PROMPT, **options)])
    said()
    print(f"frames {video.frames.shape}, deviation {video.frames.std():.1f}, {video.seconds:.0f} s", flush=True)
    if only is None and not np.ptp(video.frames):
        sys.exit("the frames are of one color")


def _written_apart(folder: Path, kind: str) -> None:
    """The folder, written by a process of its own: what that leaves in its heap is no part of what is measured."""
    writer = multiprocessing.get_context("spawn").Process(target=write_folder, args=(folder, kind))
    writer.start()
    writer.join()
    if writer.exitcode:
        sys.exit(f"{folder} was not written")


def errors(folder: Path, frames: int, size: str, steps: int) -> None:
    """The denoiser against f32, beside plain f32 layers with the same decoded weights; and the frames."""
    from rung.cli.making import device_named, pixels
    from rung.hub.diffusers.pipelines import Folder
    from rung.measure.metrics import psnr
    from rung.nn import QuantLinear
    from rung.nn.quantize import put
    from rung.pipelines.generate import Pipeline, Settings
    from rung.pipelines.weights import fill
    from rung.planning.pipeline import NetworkStorage

    opened, (width, height) = Folder(folder), pixels(size) or (512, 512)
    generator = torch.Generator().manual_seed(0)
    noise, text = (
        torch.randn(shape, generator=generator) for shape in ((1, 4, frames, height // 8, width // 8), (1, 120, 4096))
    )

    def filled(name: str) -> Any:
        storage, there = NetworkStorage(name, "f32", 1), folder / "transformer"
        return fill(opened.network("transformer"), there, storage, torch.device("cpu"), lambda done, total: None)

    def run(network: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = network(noise, torch.tensor([500]), text, return_dict=False)[0]
        return found

    exact = run(filled("f32"))
    for name in ("int8", "nf4"):
        network = filled(name)
        ours = float((run(network) - exact).norm() / exact.norm())
        for key, layer in list(network.named_modules()):
            if isinstance(layer, QuantLinear):
                put(network, key, layer.dequantize())
        plain = float((run(network) - exact).norm() / exact.norm())
        print(f"{name}: error {ours:.5f}, of plain decoded layers {plain:.5f}: {ours / plain:.3f} x", flush=True)
    cpu = device_named("cpu")
    settings = Settings(_PROMPT, frames=frames, size=(width, height), steps=steps)
    (reference,) = Pipeline(opened, cpu).make([settings])
    for name in ("int8", "nf4"):
        (other,) = Pipeline(opened, cpu, format=name).make([settings])
        print(f"{name}: frames {psnr(other.frames, reference.frames):.1f} dB PSNR against the plan's own", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--format")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--phase", choices=("encode", "denoise", "decode"))
    arguments = parser.parse_args()
    if not (arguments.folder / "model_index.json").exists():
        _written_apart(arguments.folder, arguments.kind)
    if arguments.kind == "latte" and arguments.frames:
        config = arguments.folder / "transformer" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"video_length": arguments.frames}))
    if arguments.errors:
        errors(arguments.folder, arguments.frames or 16, arguments.size, arguments.steps)
        return
    from rung.cli.making import pixels

    options = {"frames": arguments.frames, "size": pixels(arguments.size), "steps": arguments.steps}
    measure(arguments.folder, arguments.phase, options, arguments.memory, arguments.format)


if __name__ == "__main__":
    main()
