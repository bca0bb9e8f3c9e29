"""Compare plans with measurements: the resident peak, the speed of decoding and that of reading a prompt.

    python benchmarks/prediction.py memory --models FOLDER --results FILE
    rung calibrate
    python benchmarks/prediction.py speed [--beside] --models FOLDER --results FILE
    python benchmarks/prediction.py table --results FILE

Every case is a file and a context. ``memory`` runs ``rung run`` to the last token of the context, a prompt and what is
decoded after it; other programs may run beside it. ``speed`` wants a machine that does nothing else: it loads a file
once for all its contexts, and times the last tokens of each in turns, over a cache that says that it is full (what it
holds does not change how long reading it takes), then a prompt of a chunk. Of the turns those count from which the
machine below took least time, where it is a virtual one that says so; all cases are gone through three times, minutes
apart, and the middle one counts, as in ``rung calibrate``. Both go on where they stopped, end after ``--seconds``, and
keep what they found in FILE; models that are not there yet are written (11 GB with all).

Where the memory of a machine is shared with others it is 60 % faster in one minute than in another, and so is a model
that was calibrated in the first and measured in the second. ``--beside`` times each case twice in each of the three
rounds and calibrates between what the case needs: then the error is that of the prediction. Predicted and measured are
of one round, that whose error is the middle one.

Memory is within its bar when it is at most 5 % off, and when the peak stays below prediction + bound, which is what a
plan holds against a budget. Speed counts above 100 MB of weights, at most 20 % off. The constants were fitted to the
cases that are said to be fitted; of the held-out ones neither shape nor format was looked at.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import rung
import synthetic
from rung import formats
from rung.core.types import Device
from rung.engine import planning
from rung.engine.calibration.importance import FORMATS, calibrate
from rung.engine.decoder import Decoder
from rung.engine.model import Model
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.planning.solve import speed as plan_speed

MB = 1 << 20
MEMORY_BAR, SPEED_BAR = 0.05, 0.20
#: Below this the weights of a model are not what decoding waits for.
SPEED_FROM = 100 * MB
#: Tokens decoded at the end of the context, and turns at the most in which they are timed.
LAST, TURNS = 33, 8
#: Model and format of its file, contexts, and the format into which the file is recoded while it is read.
Case = tuple[str, str, tuple[int, ...], str | None]
FITTED: tuple[Case, ...] = (
    ("llama-30m", "q8_0", (512, 4096), None),
    ("llama-30m", "q4_0", (2048,), None),
    ("llama-0.1b", "q8_0", (512, 4096), None),
    ("llama-0.1b", "q4_k_m", (1024, 8192), None),
    ("llama-0.1b", "q8_0", (1024,), "f16"),
    ("llama-0.1b-128k", "q8_0", (1024,), "f16"),
    ("llama-0.3b", "q4_0", (512, 8192), None),
    ("llama-0.3b", "q8_0", (1024,), "bf16"),
    ("gemma-2b-32k", "q4_0", (512,), None),
    ("gemma-2b-32k", "q8_0", (2048,), None),
)
UNFITTED: tuple[Case, ...] = (
    ("llama-0.1b-128k", "q4_0", (512, 4096), None),
    ("llama-0.1b-128k", "q8_0", (2048,), None),
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


Row = dict[str, Any]


def cases() -> Iterator[Row]:
    """File, format, context and whether the constants were fitted to it, of every case."""
    for fitted, some in ((True, FITTED), (False, UNFITTED)):
        for model, file, contexts, format in some:
            for context in contexts:
                yield {"model": model, "file": file, "format": format, "context": context, "fitted": fitted}


def key(row: Row) -> str:
    """Return the name of a case in the results."""
    return f"{row['model']}-{row['file']} {row['format'] or 'stored'} {row['context']}"


class Results:
    """Results so far, by case."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, Row] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self.rounds: defaultdict[str, list[Row]] = defaultdict(list)

    def add(self, case: Row, **found: Any) -> None:
        """Keeps what was found of a case, the round whose prediction is off in the middle, and prints it."""
        rounds = self.rounds[key(case)]
        rounds.append(found)
        predicted, measured = ("predicted", "peak") if "peak" in found else ("planned_decode", "decode")
        ordered = sorted(rounds, key=lambda each: each[predicted] / each[measured])
        self.found.setdefault(key(case), dict(case)).update(ordered[(len(ordered) - 1) // 2])
        self.file.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        print(key(case), json.dumps(found), flush=True)


def path_of(models: Path, case: Row) -> Path:
    """The file of a case, written where it is not there."""
    path = models / f"{case['model']}-{case['file']}.gguf"
    if not path.is_file():
        models.mkdir(parents=True, exist_ok=True)
        synthetic.write(path, synthetic.SHAPES[case["model"]], case["file"])
    return path


def run(path: Path, prompt: int, context: int, format: str | None, threads: int) -> Row:
    """Return the answer of ``rung run --json`` to a prompt of that many tokens, decoded to the end of the context."""
    command = [sys.executable, "-m", "rung", "run", str(path), synthetic.prompt(prompt), "--raw", "--json"]
    command += ["--temperature", "0", "--max-tokens", str(context - prompt), "--context", str(context)]
    command += ["--threads", str(threads), *(["--format", format] if format else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    found: Row = json.loads(done.stdout)
    return found


def memory(case: Row, models: Path, threads: int, results: Results) -> None:
    """The peak of a run to the end of the context, bytes."""
    path, context = path_of(models, case), case["context"]
    run(path, 64, 80, case["format"], threads)  # kernels that are compiled now and kept count in the bound, once
    result = run(path, context - LAST, context, case["format"], threads)
    use = result["plan"]["placements"][0]["memory"]
    total = round(result["report"]["predicted"]["memory_bytes"])
    found = {"weights": use["weights"], "predicted": total, "bound": use["bound"], "peak": result["peak_memory_bytes"]}
    results.add(case, **found)


def seconds(reader: SequenceReader[Decoder], depth: int) -> tuple[float, float]:
    """Return the mean seconds of a token after ``depth`` others, up to LAST more, and the share of stolen time.

    The median of the turns from which least was taken, as ``rung calibrate`` takes the middle one of its rounds.
    """
    turns: list[tuple[float, float]] = []
    for turn in range(TURNS):
        if turn >= 5 and min(turns)[0] == 0:
            break
        reader.cache.truncate(0)
        reader.cache.advance([1] * depth)
        before, started = planning.stolen(), time.perf_counter()
        for _ in range(LAST):
            reader.step(1)
        took = time.perf_counter() - started
        turns.append((round((planning.stolen() - before) / took, 3), took / LAST))
    least = min(turns)[0]
    return statistics.median(took for share, took in turns if share == least), least


def prefill(reader: SequenceReader[Decoder], count: int) -> float:
    """Tokens a second of a prompt of so many."""
    took = []
    for _ in range(2):
        reader.cache.truncate(0)
        started = time.perf_counter()
        reader.prefill([1] * count)
        took.append(time.perf_counter() - started)
    return count / min(took)


def measured_devices(model: Model, threads: int) -> tuple[Device, ...]:
    """The devices of a model, with the rates that calibrating finds now for its formats."""
    stored = {model.plan.format, *(part.format for part in model.plan.parts)}
    names = [name for name in FORMATS if formats.get(name).name in stored]
    return tuple(
        replace(one, rates=calibrate(one, threads, names=names, rounds=1, borrowed=False)) for one in model.devices
    )


def speed(case: Row, models: Path, threads: int, results: Results, anew: bool) -> None:
    """Rates of every context of the file of a case."""
    alike = [c for c in cases() if all(c[name] == case[name] for name in ("model", "file", "format"))]
    path = path_of(models, case)
    model = rung.load(str(path), format=case["format"], context=max(c["context"] for c in alike), threads=threads)
    reader = SequenceReader(model.backend)
    reader.step(1)
    depths = [one["context"] - LAST for one in alike]
    chunk = min(512, min(c["context"] for c in alike))
    turns = [[seconds(reader, depth) for depth in depths]]
    devices = measured_devices(model, threads) if anew else model.devices
    read = prefill(reader, chunk)
    if anew:
        turns.append([seconds(reader, depth) for depth in depths])

    for one, depth, *timed in zip(alike, depths, *turns, strict=True):
        took, share = (statistics.fmean(each) for each in zip(*timed, strict=True))
        after, reading = (plan_speed(model._plans, model.plan, devices, n) for n in (depth + LAST // 2, chunk))
        found = {"planned_decode": after.decode, "planned_prefill": reading.prefill, "stolen": share}
        results.add(one, decode=1 / took, prefill=read, **found)
    del model
    gc.collect()


HEADER = (
    "| file | format | context | | weights MB | planned MB | measured MB | error | bound MB | memory "
    "| planned t/s | t/s | error | speed | reading planned t/s | t/s | error |\n" + "|---" * 17 + "|"
)
WORDS = {True: "pass", False: "MISS", None: "-"}


def off(predicted: float | None, measured: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return predicted / measured - 1 if predicted and measured else None


def verdicts(row: Row) -> tuple[bool | None, bool | None]:
    """Return whether memory and speed of a case are within their bars; None where not measured or without a bar."""
    error, rate = off(row.get("predicted"), row.get("peak")), off(row.get("planned_decode"), row.get("decode"))
    good = None if error is None else abs(error) <= MEMORY_BAR and row["peak"] <= row["predicted"] + row["bound"]
    counts = rate is not None and row.get("weights", 0) >= SPEED_FROM
    return good, abs(rate) <= SPEED_BAR if counts and rate is not None else None


def line(row: Row) -> str:
    """The row as Markdown."""
    good, quick = verdicts(row)
    size = [f"{row[name] / MB:.0f}" if name in row else "" for name in ("weights", "predicted", "peak", "bound")]
    cells = [f"{row['model']}-{row['file']}", row["format"] or "stored", row["context"]]
    cells += ["fitted" if row["fitted"] else "held out", *size[:3], share(off(row.get("predicted"), row.get("peak")))]
    cells += [size[3], WORDS[good]]
    for name, more in (("decode", [WORDS[quick]]), ("prefill", [])):
        pair = row.get(f"planned_{name}"), row.get(name)
        cells += [*("" if rate is None else f"{rate:.1f}" for rate in pair), share(off(*pair)), *more]
    return f"| {' | '.join(map(str, cells))} |"


def share(error: float | None) -> str:
    """An error in per cent."""
    return "" if error is None else f"{error:+.1%}"


def summary(rows: list[Row]) -> str:
    """How many cases are within the bars, fitted and held-out ones apart."""
    found = []
    for name, some in (
        ("fitted", [r for r in rows if r["fitted"]]),
        ("held out", [r for r in rows if not r["fitted"]]),
    ):
        judged = [verdicts(row) for row in some]
        good, quick = ([one[n] for one in judged if one[n] is not None] for n in (0, 1))
        found.append(
            f"{name}: memory within {MEMORY_BAR:.0%} and its bound in {sum(good)} of {len(good)}, "
            f"decoding within {SPEED_BAR:.0%} in {sum(quick)} of {len(quick)}"
        )
    return "\n".join(found)


def main() -> None:
    """Measure one part of some cases, or print the table of what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("memory", "speed", "table"))
    parser.add_argument("--results", type=Path, required=True, help="JSON file that what is found is kept in")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of benchmarks/synthetic.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases that begin so")
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    parser.add_argument("--seconds", type=float, default=200, help="start no case after so long")
    parser.add_argument("--beside", action="store_true", help="calibrate anew beside each case whose speed is measured")
    arguments = parser.parse_args()
    results, started = Results(arguments.results), time.monotonic()
    parts = {"memory": (memory, "peak"), "speed": (partial(speed, anew=arguments.beside), "decode")}
    rounds = {"memory": 1, "speed": 3, "table": 0}[arguments.part]
    for turn, case in itertools.product(range(rounds), cases()):
        name, (measure, sign) = key(case), parts[arguments.part]
        known = not arguments.again and not results.rounds[name] and sign in results.found.get(name, {})
        if len(results.rounds[name]) > turn or known or not name.startswith(arguments.only):
            continue
        if time.monotonic() - started > arguments.seconds:
            break
        measure(case, arguments.models, arguments.threads, results)
    rows = [results.found[key(case)] for case in cases() if key(case) in results.found]
    print("\n".join([HEADER, *map(line, rows), "", summary(rows)]))


if __name__ == "__main__":
    main()
