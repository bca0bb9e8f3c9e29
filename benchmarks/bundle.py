"""Size and starts of bundles, beside rung as it is installed here and llama-server on the same file, in turns.

    python benchmarks/bundle.py MODEL.gguf [--llama-cpp BUILD/bin] [--turns 5] [--sparse 5]

A start is timed from nothing to ``/health`` 200 and to the first token of a short completion. The first start of a
bundle unpacks it into an empty cache; llama-server's file is in the page cache, as the bundle's. As root the bundles
also start in a folder with ``chroot``: one that has a Python and one that has none. ``--sparse`` makes a model of so
many GiB of zeros, a file of holes, and starts its bundle in the same ways.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bundle import small_system

from rung import formats
from rung.models.files.gguf import head, pair, raw_pairs, read_header

#: Bars of the project: MB over the model, and seconds of a start after the first.
MOST_MB, MOST_SECONDS = 120, 2.0
_ANSWER = ("run", "The capital of Japan is", "--raw", "--max-tokens", "8", "--temperature", "0", "--quiet")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def first_token(port: int) -> None:
    """Wait for the first token of a completion."""
    body = json.dumps({"prompt": "The capital of Japan is", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=600).read()


def start(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Start a server; return the seconds until it is healthy, and until its first token."""
    port, begun = free_port(), time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            assert process.poll() is None, f"{command[0]} ended"
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200:
                    break
            time.sleep(0.005)
        healthy = time.perf_counter() - begun
        first_token(port)
        return healthy, time.perf_counter() - begun
    finally:
        process.terminate()
        process.wait()


def sparse_model(source: Path, gib: float, out: Path) -> None:
    """Write a model with the vocabulary of ``source``, so many GiB of zeros as f16, as a file of holes."""
    header = read_header(source)
    layers, hidden = header.metadata["llama.block_count"], header.metadata["llama.embedding_length"]
    wide = int(gib * 2**30 / (3 * 2 * layers * hidden)) // 256 * 256 + 256
    pairs = {**raw_pairs(source), "llama.feed_forward_length": pair("llama.feed_forward_length", wide)}
    shapes = {"ffn_gate": (wide, hidden), "ffn_up": (wide, hidden), "ffn_down": (hidden, wide)}
    f16, tensors = formats.get("f16"), []
    for each in header.tensors:
        shape = shapes.get(each.name.split(".")[-2], each.shape)
        tensors.append((each.name, shape, formats.get("f32") if len(shape) == 1 else f16))
    data, places = head(pairs.values(), tensors)
    with out.open("wb") as file:
        file.write(data)
        file.truncate(places[-1] + tensors[-1][2].bytes(tensors[-1][1]))


def bundle(model: Path, out: Path, *options: str) -> float:
    """Write a bundle; return its MB over the model."""
    subprocess.run([sys.executable, "-m", "rung", "bundle", str(model), str(out), "--quiet", *options], check=True)
    over = (out.stat().st_size - model.stat().st_size) / 2**20
    print(f"{out.name}: {over:.1f} MB over the model (bar {MOST_MB})")
    return over


def starts(model: Path, plain: Path, llama: Path | None, turns: int, folder: Path) -> None:
    """Print the starts of a bundle, of rung and of llama-server, in turns, each with a context of 512."""
    print(f"{plain.name}:")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "RUNG_CACHE": str(folder / "cache")}
    own = {**os.environ, "RUNG_CACHE": str(folder / "own")}
    python = getattr(sys, "_base_executable", sys.executable)
    commands = {
        "bundle": ([python, str(plain), "--context", "512"], environment),
        "rung": ([sys.executable, "-m", "rung", "serve", str(model), "--device", "cpu", "--context", "512"], own),
    }
    if llama is not None:
        peer = [str(llama / "llama-server"), "-m", str(model), "--no-warmup", "-c", "512"]
        commands["llama-server"] = (peer, dict(os.environ))
    first = start(*commands["bundle"])
    print(f"bundle, first start: healthy after {first[0]:.2f} s, first token after {first[1]:.2f} s")
    start(*commands["rung"])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, command in commands.items():
            found[name].append(start(*command))
    medians = {name: [statistics.median(each[at] for each in times) for at in (0, 1)] for name, times in found.items()}
    for name, (healthy, token) in medians.items():
        ratio = "" if name == "bundle" else f", bundle / {name} {medians['bundle'][1] / token:.2f}"
        print(f"{name:13} healthy after {healthy:.2f} s, first token after {token:.2f} s{ratio}")
    print(f"bundle, second start: {medians['bundle'][1]:.2f} s (bar {MOST_SECONDS})")


@contextlib.contextmanager
def system(folder: Path, python: Path | None) -> Iterator[Path]:
    """A folder to ``chroot`` to, taken away afterwards."""
    folder.mkdir()
    try:
        small_system.make(folder, python)
        yield folder
    finally:
        shutil.rmtree(folder)


def forget(*files: Path) -> None:
    """Have the page cache drop files: a system without ``/proc`` counts what holds files as taken."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_chroot(file: Path, folder: Path, python: Path | None) -> None:
    """Print two starts of a bundle in a system with a Python or without one, to the end of a short answer."""
    with system(folder, python) as there:
        os.link(file, there / file.name) if file.stat().st_dev == there.stat().st_dev else shutil.copy(file, there)
        command = [*([str(python)] if python else []), f"/{file.name}", *_ANSWER]
        for name in ("first", "second"):
            begun = time.perf_counter()
            said = small_system.run_there(there, *command)
            took, words = time.perf_counter() - begun, said.stdout.strip() or said.stderr.strip()[-200:]
            where = "with Python" if python else "without Python"
            print(f"chroot {where}, {name} run: {took:.2f} s, status {said.returncode}: {words[:60]!r}")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sparse", type=float, help="GiB of a model of zeros")
    options = parser.parse_args()
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, whole = folder / "plain.pyz", folder / "whole"
        bundle(options.model, plain)
        bundle(options.model, whole, "--with-python")
        starts(options.model, plain, options.llama_cpp, options.turns, folder)
        if small_system.possible():
            in_chroot(plain, folder / "with", python)
            in_chroot(whole, folder / "without", None)
        if options.sparse:
            sparse_model(options.model, options.sparse, folder / "sparse.gguf")
            sparse = folder / "sparse"
            bundle(folder / "sparse.gguf", sparse, "--with-python", "--no-warm-up", "--context", "512")
            size = sparse.stat()
            print(f"sparse: {size.st_size / 2**30:.2f} GiB, {size.st_blocks * 512 / 2**20:.0f} MB on the disk")
            starts(folder / "sparse.gguf", sparse, options.llama_cpp, options.turns, folder)
            if small_system.possible():
                forget(folder / "sparse.gguf", sparse)
                in_chroot(sparse, folder / "without", None)
                forget(sparse)
                in_chroot(sparse, folder / "with", python)


if __name__ == "__main__":
    main()
