"""``rung quantize`` beside ``llama-quantize``: seconds, memory, error, and that llama.cpp opens the result.

    python benchmarks/quantize_files.py MODEL --llama-cpp BUILD/bin [--formats q8_0 q4_0 q4_k_m] [--turns 3]

MODEL is a folder or a GGUF file in f32, f16 or bf16. Both programs get the same GGUF file, in turns, as new processes
with the same threads; the file is read once before. Seconds, by the clock and of the CPU, are medians; a ratio is the
median of llama-quantize / rung in a turn. rung measures the error of each tensor and makes its file safe on the disk,
llama-quantize does neither. The error of both results is measured against the source by decoding.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import log10
from pathlib import Path
from statistics import median

from rung.conversion.tensor_pieces import cost
from rung.models import open_card
from rung.models.reader import Reader

#: A process of its own beside the measured one: a child's peak counts what its parent held when it was started.
_MEASURE = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(done.returncode)"
)


def run(command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds, and the resident peak in MB, of a process that must end well."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-S", "-c", _MEASURE, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    seconds = time.perf_counter() - began
    used, peak = map(float, done.stdout.split())
    return seconds, used, peak / 1024


def error(source: Path, result: Path) -> float:
    """SQNR in dB of all matrices together."""
    before, after = open_card(source), open_card(result)
    signal = noise = 0.0
    with Reader(before) as one, Reader(after) as two:
        for tensor in before.tensors:
            if len(tensor.shape) > 1:
                found = cost(one.read(tensor), two.read(after.tensor(tensor.role)))
                signal, noise = signal + found.signal, noise + found.noise
                one.done(tensor)
    return 10 * log10(signal / noise)


def main() -> None:
    """Prints a line for each format and program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder of llama-quantize and llama-simple")
    parser.add_argument("--formats", nargs="+", default=["q8_0", "q4_0", "q4_k_m"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    rung, threads = [sys.executable, "-m", "rung"], str(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.model
        if source.is_dir():
            source = Path(scratch) / "source.gguf"
            run([*rung, "convert", str(arguments.model), str(source)])
        print(f"{source.stat().st_size / 2**20:.0f} MB, {arguments.threads} threads, {arguments.turns} turns")
        source.read_bytes()
        print(f"{'format':8} {'program':15} {'s':>6} {'CPU s':>6} {'peak MB':>8} {'error':>8}")
        for name in arguments.formats:
            results = {program: Path(scratch) / f"{program}-{name}.gguf" for program in ("rung", "llama-quantize")}
            commands = {
                "rung": [*rung, "quantize", str(source), str(results["rung"]), "--format", name, "--threads", threads],
                "llama-quantize": [
                    *(str(arguments.llama_cpp / "llama-quantize"), str(source), str(results["llama-quantize"])),
                    *(name.upper(), threads),
                ],
            }
            taken = dict[str, list[tuple[float, float, float]]]()
            for _ in range(arguments.turns):
                for program, command in commands.items():
                    results[program].unlink(missing_ok=True)
                    taken.setdefault(program, []).append(run(command))
            for program, result in results.items():
                run([str(arguments.llama_cpp / "llama-simple"), "-m", str(result), "-n", "2", "a"])
                seconds, used, peak = (median(turn[each] for turn in taken[program]) for each in range(3))
                line = f"{name:8} {program:15} {seconds:6.1f} {used:6.1f} {peak:8.0f}"
                print(f"{line} {error(source, result):5.1f} dB", flush=True)
            ratios = [
                median(theirs[each] / ours[each] for ours, theirs in zip(*taken.values(), strict=True))
                for each in range(2)
            ]
            print(f"{name:8} rung is {ratios[0]:.2f} times as fast, {ratios[1]:.2f} times by CPU seconds", flush=True)


if __name__ == "__main__":
    main()
