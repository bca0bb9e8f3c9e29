"""``rung quantize`` beside ``llama-quantize``: seconds, MB/s, memory, error, and that llama.cpp opens the result.

    python benchmarks/quantize_files.py MODEL --llama-cpp BUILD/bin [--formats q8_0 q4_0 q4_k_m] [--threads 2]

MODEL is a folder or a GGUF file in f32, f16 or bf16. Both programs get the same GGUF file, as new processes with the
same threads; the file is read once before. The error of both results is measured against it by decoding.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rung.conversion.measure import cost
from rung.models import open_card
from rung.models.reader import Reader

#: A process of its own beside the measured one: a child's peak counts what its parent held when it was started.
_BESIDE = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
)


def run(command: list[str]) -> tuple[float, float]:
    """Seconds, and the resident peak in MB, of a process that must end well."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-S", "-c", _BESIDE, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return time.perf_counter() - began, int(done.stdout) / 1024


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
    from math import log10

    return 10 * log10(signal / noise)


def main() -> None:
    """Prints a line for each format and program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder of llama-quantize and llama-simple")
    parser.add_argument("--formats", nargs="+", default=["q8_0", "q4_0", "q4_k_m"])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    rung, threads = [sys.executable, "-m", "rung"], str(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        source = arguments.model
        if source.is_dir():
            source = Path(scratch) / "source.gguf"
            run([*rung, "convert", str(arguments.model), str(source)])
        size = source.stat().st_size / 2**20
        source.read_bytes()
        print(f"{'format':8} {'program':15} {'s':>6} {'MB/s':>6} {'peak MB':>8} {'error':>8}")
        for name in arguments.formats:
            for program in ("rung", "llama-quantize"):
                result = Path(scratch) / f"{program}-{name}.gguf"
                command = [*rung, "quantize", str(source), str(result), "--format", name, "--threads", threads]
                if program != "rung":
                    command = [str(arguments.llama_cpp / program), str(source), str(result), name.upper(), threads]
                seconds, peak = run(command)
                run([str(arguments.llama_cpp / "llama-simple"), "-m", str(result), "-n", "2", "a"])
                rate = size / seconds
                line = f"{name:8} {program:15} {seconds:6.1f} {rate:6.0f} {peak:8.0f}"
                print(f"{line} {error(source, result):5.1f} dB", flush=True)


if __name__ == "__main__":
    main()
