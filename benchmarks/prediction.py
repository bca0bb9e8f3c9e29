"""What a plan predicts beside what ``rung run`` measures: the resident peak and the speed of decoding.

    python benchmarks/synthetic.py --out FOLDER --model llama-30m llama-0.1b llama-0.3b gemma-2b-32k gemma-2b
    rung calibrate
    python benchmarks/prediction.py --models FOLDER

Each case is a file and a context, filled to the last token by a prompt and what is decoded after it. Memory is within
its bar when it is at most 5 % off, and when the peak stays below prediction + bound, which is what a plan holds
against a budget. Speed counts above 100 MB of weights, at most 20 % off, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import synthetic

MB = 1 << 20
MEMORY_BAR, SPEED_BAR = 0.05, 0.20
#: Below this the weights of a model are not what decoding waits for.
SPEED_FROM = 100 * MB
#: File without its folder and ending, and contexts; a third field recodes the file while it is read.
CASES: tuple[tuple[str, tuple[int, ...], str | None], ...] = (
    ("llama-30m-q8_0", (512, 4096), None),
    ("llama-30m-q4_0", (2048,), None),
    ("llama-0.1b-q8_0", (512, 4096), None),
    ("llama-0.1b-q4_k_m", (1024, 8192), None),
    ("llama-0.3b-q4_0", (512, 2048, 8192), None),
    ("llama-0.3b-q4_k_m", (1024, 4096), None),
    ("llama-0.3b-q8_0", (512, 4096), None),
    ("llama-0.3b-q8_0", (1024,), "q5_k"),
    ("llama-0.3b-q8_0", (1024,), "nf4"),
    ("llama-0.3b-q8_0", (1024,), "bf16"),
    ("gemma-2b-32k-q4_0", (512, 4096), None),
    ("gemma-2b-32k-q4_k_m", (1024,), None),
    ("gemma-2b-32k-q8_0", (2048,), None),
    ("gemma-2b-q4_0", (512,), None),
    ("gemma-2b-q4_k_m", (2048,), None),
    ("gemma-2b-q8_0", (1024,), None),
)


@dataclass(frozen=True)
class Row:
    """One case: bytes of weights, peak and bound, tokens a second, each predicted and measured."""

    file: str
    format: str
    context: int
    weights: int
    predicted: int
    bound: int
    peak: int
    predicted_rate: float
    rate: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured of the resident peak."""
        return self.predicted / self.peak - 1

    @property
    def rate_error(self) -> float:
        """The same of the speed of decoding."""
        return self.predicted_rate / self.rate - 1

    @property
    def good(self) -> bool:
        """Whether the memory of this case is within its bars."""
        return abs(self.error) <= MEMORY_BAR and self.peak <= self.predicted + self.bound


def _cases() -> Iterator[tuple[str, int, str | None]]:
    for file, contexts, format in CASES:
        for context in contexts:
            yield file, context, format


def measure(rung: list[str], path: Path, context: int, format: str | None, decode: int, threads: int) -> Row:
    """One run to the end of the context."""
    text = synthetic.prompt(context - decode)
    command = [*rung, "run", str(path), text, "--raw", "--json", "--temperature", "0", "--max-tokens", str(decode)]
    command += ["--context", str(context), "--threads", str(threads), *(["--format", format] if format else [])]
    warm = [*command[: len(rung) + 2], synthetic.prompt(64), *command[len(rung) + 3 :]]
    subprocess.run(warm, capture_output=True)  # kernels that are compiled now and kept count once, in the bound
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    memory = result["plan"]["placements"][0]["memory"]
    predicted = result["report"]["predicted"]
    return Row(
        file=path.stem,
        format=format or "stored",
        context=context,
        weights=memory["weights"],
        predicted=round(predicted["memory_bytes"]),
        bound=memory.get("bound", 0),
        peak=result["peak_memory_bytes"],
        predicted_rate=predicted["decode_tokens_per_second"],
        rate=result["decode_tokens_per_second"],
    )


HEADER = (
    "| file | format | context | weights MB | planned MB | measured MB | error | bound MB | planned t/s | t/s | error |"
    "\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """The row as Markdown."""
    speed = f"{row.rate_error:+.0%}" if row.weights >= SPEED_FROM else f"({row.rate_error:+.0%})"
    return (
        f"| {row.file} | {row.format} | {row.context} | {row.weights / MB:.0f} | {row.predicted / MB:.0f} "
        f"| {row.peak / MB:.0f} | {row.error:+.1%} | {row.bound / MB:.0f} | {row.predicted_rate:.1f} | {row.rate:.1f} "
        f"| {speed} |"
    )


def main() -> None:
    """Measure all cases whose files are there and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder of benchmarks/synthetic.py")
    parser.add_argument("--rung", default=f"{sys.executable} -m rung", help="how rung is called")
    parser.add_argument("--decode", type=int, default=33, help="tokens decoded at the end of the context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    rows = []
    print(HEADER, flush=True)
    for file, context, format in _cases():
        path = arguments.models / f"{file}.gguf"
        if not path.is_file():
            raise SystemExit(f"{path} is missing: python benchmarks/synthetic.py --out {arguments.models}")
        rows.append(measure(arguments.rung.split(), path, context, format, arguments.decode, arguments.threads))
        print(line(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    fast = [row for row in rows if row.weights >= SPEED_FROM]
    good = sum(row.good for row in rows)
    quick = sum(abs(row.rate_error) <= SPEED_BAR for row in fast)
    print(f"\nmemory within {MEMORY_BAR:.0%} and below its bound: {good} of {len(rows)} cases")
    print(f"decoding within {SPEED_BAR:.0%}, above {SPEED_FROM // MB} MB: {quick} of {len(fast)} cases")


if __name__ == "__main__":
    main()
