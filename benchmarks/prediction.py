"""What a plan predicts beside what ``rung run`` measures: the resident peak and the speed of decoding.

    python benchmarks/prediction.py --models FOLDER

Writes the models that are not there yet (11 GB with all), calibrates, and runs each case: a file and a context, filled
to the last token by a prompt and what is decoded after it. Memory is within its bar when it is at most 5 % off, and
when the peak stays below prediction + bound, which is what a plan holds against a budget. Speed counts above 100 MB of
weights, at most 20 % off, on a machine that does nothing else. The constants of memory were fitted to the cases that
are said to be fitted; of the held-out ones neither shape nor format was looked at.
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
#: Model and format of its file, contexts, and the format into which the file is recoded while it is read.
Case = tuple[str, str, tuple[int, ...], str | None]
FITTED: tuple[Case, ...] = (
    ("llama-30m", "q8_0", (512, 4096), None),
    ("llama-30m", "q4_0", (2048,), None),
    ("llama-0.1b", "q8_0", (512, 4096), None),
    ("llama-0.1b", "q4_k_m", (1024, 8192), None),
    ("llama-0.1b", "q8_0", (1024,), "f16"),
    ("llama-0.3b", "q4_0", (512, 8192), None),
    ("llama-0.3b", "q8_0", (1024,), "bf16"),
    ("gemma-2b-32k", "q4_0", (512,), None),
    ("gemma-2b-32k", "q8_0", (2048,), None),
)
HELD_OUT: tuple[Case, ...] = (
    ("llama-0.1b-128k", "q4_0", (512, 4096), None),
    ("llama-0.1b-128k", "q8_0", (2048,), None),
    ("llama-0.1b-128k", "q8_0", (1024,), "f16"),
    ("llama-0.3b", "q4_k_m", (2048,), None),
    ("llama-0.3b", "q8_0", (1024,), "q5_k"),
    ("llama-0.3b", "q8_0", (1024,), "nf4"),
    ("llama-0.8b", "q4_0", (512, 4096), None),
    ("llama-0.8b", "q4_k_m", (1024,), None),
    ("llama-0.8b", "q8_0", (2048,), None),
    ("llama-0.8b", "q8_0", (512,), "bf16"),
    ("gemma-2b", "q4_0", (512,), None),
    ("gemma-2b", "q4_k_m", (1024,), None),
    ("gemma-2b", "q8_0", (512,), None),
)


@dataclass(frozen=True)
class Row:
    """One case: bytes of weights, peak and bound, tokens a second, each predicted and measured."""

    file: str
    format: str
    context: int
    fitted: bool
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

    @property
    def quick(self) -> bool | None:
        """Whether its speed is; None where that does not count."""
        return abs(self.rate_error) <= SPEED_BAR if self.weights >= SPEED_FROM else None


def _cases() -> Iterator[tuple[str, str, int, str | None, bool]]:
    for fitted, cases in ((True, FITTED), (False, HELD_OUT)):
        for model, file, contexts, format in cases:
            for context in contexts:
                yield model, file, context, format, fitted


def run(rung: list[str], path: Path, prompt: int, context: int, format: str | None, threads: int) -> dict[str, Any]:
    """What ``rung run --json`` says of a prompt of that many tokens, decoded to the end of the context."""
    command = [*rung, "run", str(path), synthetic.prompt(prompt), "--raw", "--json", "--temperature", "0"]
    command += ["--max-tokens", str(context - prompt), "--context", str(context), "--threads", str(threads)]
    done = subprocess.run([*command, *(["--format", format] if format else [])], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row_of(path: Path, context: int, fitted: bool, result: dict[str, Any]) -> Row:
    """The row of one run to the end of its context."""
    memory = result["plan"]["placements"][0]["memory"]
    predicted = result["report"]["predicted"]
    return Row(
        file=path.stem,
        format=result["plan"]["format"],
        context=context,
        fitted=fitted,
        weights=memory["weights"],
        predicted=round(predicted["memory_bytes"]),
        bound=memory.get("bound", 0),
        peak=result["peak_memory_bytes"],
        predicted_rate=predicted["decode_tokens_per_second"],
        rate=result["decode_tokens_per_second"],
    )


HEADER = (
    "| file | format | context | | weights MB | planned MB | measured MB | error | bound MB | memory "
    "| planned t/s | t/s | error | speed |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
_WORDS = {True: "pass", False: "MISS", None: "-"}


def line(row: Row) -> str:
    """The row as Markdown."""
    return (
        f"| {row.file} | {row.format} | {row.context} | {'fitted' if row.fitted else 'held out'} "
        f"| {row.weights / MB:.0f} | {row.predicted / MB:.0f} | {row.peak / MB:.0f} | {row.error:+.1%} "
        f"| {row.bound / MB:.0f} | {_WORDS[row.good]} | {row.predicted_rate:.1f} | {row.rate:.1f} "
        f"| {row.rate_error:+.0%} | {_WORDS[row.quick]} |"
    )


def summary(rows: list[Row]) -> str:
    """How many cases are within the bars, fitted and held-out ones apart."""
    found = []
    for name, some in (("fitted", [r for r in rows if r.fitted]), ("held out", [r for r in rows if not r.fitted])):
        fast = [row for row in some if row.quick is not None]
        found.append(
            f"{name}: memory within {MEMORY_BAR:.0%} and its bound in {sum(r.good for r in some)} of {len(some)}, "
            f"decoding within {SPEED_BAR:.0%} in {sum(bool(r.quick) for r in fast)} of {len(fast)}"
        )
    return "\n".join(found)


def main() -> None:
    """Calibrate, measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder of benchmarks/synthetic.py")
    parser.add_argument("--rung", default=f"{sys.executable} -m rung", help="how rung is called")
    parser.add_argument("--decode", type=int, default=33, help="tokens decoded at the end of the context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases of models whose names begin so")
    parser.add_argument("--as-calibrated", action="store_true", help="use the rates that were measured before")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    rung = arguments.rung.split()
    chosen = [case for case in _cases() if case[0].startswith(arguments.only)]
    for model, name, *_ in chosen:
        if not (path := arguments.models / f"{model}-{name}.gguf").is_file():
            arguments.models.mkdir(parents=True, exist_ok=True)
            synthetic.write(path, synthetic.SHAPES[model], name)
    if not arguments.as_calibrated:
        subprocess.run([*rung, "calibrate", "--threads", str(arguments.threads)], check=True, stdout=sys.stderr)
    rows, warm = [], set()
    print(HEADER, flush=True)
    for model, name, context, format, fitted in chosen:
        path = arguments.models / f"{model}-{name}.gguf"
        if (path, format) not in warm:  # kernels that are compiled now and kept count in the bound, once
            run(rung, path, 64, 80, format, arguments.threads)
            warm.add((path, format))
        result = run(rung, path, context - arguments.decode, context, format, arguments.threads)
        rows.append(row_of(path, context, fitted, result))
        print(line(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
