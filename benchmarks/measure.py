"""Measure an old commit and this tree in turns, and say what is not within 3 %.

    make measure OLD=COMMIT
    python benchmarks/measure.py COMMIT [--only NAME ...] [--repeat 5] [--models FOLDER] [--json FILE] [--list]

The old commit is a git worktree in a temporary folder. Each measurement is a fresh process with the same Python and
packages, once of the old tree and once of the new, in turns; one run of each comes first and does not count. Each
tree has a cache of its own. A figure is the median of its runs; one that is worse by more than 3 % is measured as
often again, up to twice, and counts all its runs, since a busy machine moves single runs by more. Figures that do not
depend on time (divergences, shares of right answers) are computed once, of both trees side by side. Only the command
line and names that docs/ names are used: the rest moves between commits.

Real models are measured where their file is in ``--models``, ``RUNG_TEST_MODELS`` or ``RUNG_MODELS``. ``explain by
repository`` runs the ``benchmarks/explain.py`` of each tree without the corpus, and learns five times. Memory is the
resident peak of the process. All takes 20 minutes on two idle cores. The exit status is 1 if something is worse or
fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEASURED, SYNTHETIC = ROOT / "benchmarks" / "measured.py", ROOT / "benchmarks" / "synthetic.py"
PROSE = ROOT / "tests" / "data" / "prose.txt"
TOLERANCE = 0.03
#: Starts of a command in one run; the figure is the fastest.
STARTS = 5
MB = 1 << 20

Figures = dict[str, float]


class Failed(Exception):
    """A measurement ended with an error; the text is the end of what it said."""


@dataclass(frozen=True)
class Usage:
    """The output of a process, its seconds by the clock, CPU seconds and resident peak in bytes."""

    text: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Tree:
    """A checkout and the folder that its runs may write to."""

    root: Path
    scratch: Path

    def environment(self) -> dict[str, str]:
        """Return the variables of a run: this tree's package, a cache of its own, no settings of the user."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RUNG_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        compiled, cache = self.scratch / "compiled", self.scratch / "cache"
        own = {"PYTHONPATH": str(self.root / "src"), "PYTHONPYCACHEPREFIX": str(compiled), "RUNG_CACHE": str(cache)}
        return kept | own | {"RUNG_OFFLINE": "1"}

    def python(self, *arguments: str) -> Usage:
        """Run Python with these arguments; raises ``Failed`` where it does not end with status 0."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=out, stderr=err, cwd=self.scratch, env=self.environment()
            )
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            said = err.read().decode(errors="replace").strip()
            if process.returncode:
                raise Failed(said.splitlines()[-1] if said else f"exit status {process.returncode}")
            peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            return Usage(out.read().decode(errors="replace"), seconds, used.ru_utime + used.ru_stime, peak)

    def prepare(self) -> None:
        """Make the folder for runs; raises ``SystemExit`` where Python would import another rung than this tree's."""
        self.scratch.mkdir()
        found = self.python("-c", "import rung; print(rung.__path__[0])").text.strip()
        if Path(found).resolve() != (self.root / "src" / "rung").resolve():
            raise SystemExit(f"{self.root} has no package in src/rung: Python imports {found}")

    def rung(self, *arguments: str) -> Usage:
        """Run the command line of this tree."""
        return self.python("-m", "rung", *arguments)


@dataclass(frozen=True)
class Task:
    """A measurement that gives figures of one unit or, where ``units`` says so by the end of a name, several.

    ``exact``: does not depend on time. ``missing`` says why it cannot be run here.
    """

    name: str
    run: Callable[[Tree], Figures]
    unit: str
    units: dict[str, str] = field(default_factory=dict)
    exact: bool = False
    missing: str = ""

    def unit_of(self, figure: str) -> str:
        """Return the unit of a figure."""
        return next((unit for end, unit in self.units.items() if figure.endswith(end)), self.unit)


#: Units of which more is better.
RISING = ("tokens/s", "%")


def start(name: str, *arguments: str) -> Task:
    """Return the measurement of a command that must answer at once."""

    def run(tree: Tree) -> Figures:
        runs = [tree.rung(*arguments) for _ in range(STARTS)]
        label = f"start-up {name}"
        return {
            f"{label}: CPU": 1e3 * min(each.cpu_seconds for each in runs),
            f"{label}: wall": 1e3 * min(each.seconds for each in runs),
        }

    return Task(f"start-up {name}", run, "ms")


def answer(name: str, model: str, letters: int, tokens: int, missing: str = "") -> Task:
    """Return the measurement of ``rung run``: rates and memory, of so many letters of prose and tokens after them."""
    options = ["--raw", "--json", "--temperature", "0", "--threads", "2", "--context", "512"]

    def run(tree: Tree) -> Figures:
        prompt = PROSE.read_text(encoding="utf-8")[:letters]
        used = tree.rung("run", model, prompt, *options, "--max-tokens", str(tokens))
        found = json.loads(used.text)
        rates = {what: found[f"{what}_tokens_per_second"] for what in ("prefill", "decode")}
        return {f"run {name}: {what}": rate for what, rate in rates.items()} | {
            f"run {name}: peak memory": used.peak_bytes / MB
        }

    return Task(f"run {name}", run, "tokens/s", {"memory": "MB"}, missing=missing)


def quantize(source: str) -> Task:
    """Return the measurement of ``rung quantize`` on a file of 30 million weights in bfloat16."""

    def run(tree: Tree) -> Figures:
        target = tree.scratch / "quantized.gguf"
        target.unlink(missing_ok=True)
        used = tree.rung("quantize", source, str(target), "--format", "q4_k_m", "--threads", "2")
        return {
            "quantize q4_k_m: CPU": 1e3 * used.cpu_seconds,
            "quantize q4_k_m: wall": 1e3 * used.seconds,
            "quantize q4_k_m: peak memory": used.peak_bytes / MB,
        }

    return Task("quantize", run, "ms", {"memory": "MB"})


def measured(name: str, unit: str, argument: str = "", *, exact: bool = False, missing: str = "") -> Task:
    """Return a measurement of ``measured.py``."""

    def run(tree: Tree) -> Figures:
        figures: Figures = json.loads(tree.python(str(MEASURED), name, argument).text.splitlines()[-1])
        return figures

    return Task(name, run, unit, exact=exact, missing=missing)


def explain_by_repository(tree: Tree) -> Figures:
    """Run the tree's own benchmark on the examples of its repository alone; its last lines are by repository."""
    script, empty = str(tree.root / "benchmarks" / "explain.py"), tree.scratch / "no-corpus"
    empty.mkdir(exist_ok=True)
    try:
        text = tree.python(script, str(empty)).text
    except Failed as failed:
        if "unrecognized arguments" not in str(failed):
            raise
        text = tree.python(script).text  # a tree that needs no corpus
    found = {}
    for what, words in (
        ("cause", "(?:cause, label high or medium|right cause)"),
        ("fix", "a right fix among the first two"),
    ):
        shares = re.findall(rf"^{words} .*\((\d+\.\d)%\)", text, re.MULTILINE)
        if not shares:
            raise Failed(f"{script} printed no line {words!r}")
        found[f"explain by repository: {what}"] = float(shares[-1])
    return found


def real_model(name: str, folders: Sequence[Path]) -> str:
    """Return the path of a GGUF file whose name begins so, or an empty text."""
    files = (path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*.gguf")))
    return next((str(path.resolve()) for path in files if path.name.lower().startswith(name)), "")


def tasks(models: Path, folders: Sequence[Path]) -> list[Task]:
    """Return all measurements; ``models`` is the folder of files with random weights, ``folders`` hold real models."""
    real = real_model("smollm2", folders)
    missing = "" if real else "no smollm2*.gguf in --models, RUNG_TEST_MODELS or RUNG_MODELS"
    log = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
    return [
        start("--help", "--help"),
        start("check", "check", "llama 3.1 8b", "--device", "4090", "--offline"),
        start("explain", "explain", log, "--device", "p2200"),
        start("devices", "devices"),
        answer("demo", "demo", 700, 200),
        answer("llama-30m", str(models / "llama-30m-q4_k_m.gguf"), 400, 200),
        answer("SmolLM2", real, 1200, 100, missing),
        quantize(str(models / "llama-30m-all_bf16.gguf")),
        measured("bitsandbytes", "ms"),
        measured("adam", "ms"),
        measured("splats", "ms"),
        measured("parity", "nats", exact=True),
        measured("parity-real", "nats", real, exact=True, missing=missing),
        measured("unread", "%", exact=True),
        Task("explain by repository", explain_by_repository, "%", exact=True),
    ]


@dataclass
class Row:
    """A figure with its runs of the old and the new tree; ``note`` says why there is none."""

    name: str
    unit: str
    exact: bool = False
    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    note: str = ""
    failed: bool = False

    @property
    def ratio(self) -> float:
        """New by old, of the medians; where both are 0 it is 1."""
        old, new = statistics.median(self.old), statistics.median(self.new)
        return new / old if old else float("inf") if new else 1.0

    @property
    def verdict(self) -> str:
        """Return within, better, worse, failed, or why there is no figure."""
        if self.note or not self.old or not self.new:
            return self.note or "only in one of the two"
        if abs(self.ratio - 1) <= TOLERANCE:
            return "within 3 %"
        return "better" if (self.ratio > 1) == (self.unit in RISING) else "worse"

    @property
    def bad(self) -> bool:
        """Return whether the row alone makes the exit status 1."""
        return self.failed or self.verdict == "worse"

    def line(self) -> str:
        """Return the row as Markdown."""
        figures = [f"{statistics.median(runs):.4g}" if runs else "" for runs in (self.old, self.new)]
        ratio = f"{self.ratio:.3f}" if self.old and self.new else ""
        return f"| {self.name} | {self.unit} | {' | '.join(figures)} | {ratio} | {self.verdict} |"


HEADER = "| measurement | unit | old | new | new / old | verdict |\n|---|---|---|---|---|---|"


def attempt(task: Task, tree: Tree) -> Figures | str:
    """Return the figures of one run, or the error."""
    try:
        return task.run(tree)
    except (Failed, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}" if not isinstance(error, Failed) else str(error)


def turn(task: Task, trees: tuple[Tree, Tree], rows: dict[str, Row], *, together: bool = False) -> bool:
    """Run a measurement once of each tree and add to the rows; False where one of them failed."""
    if together:
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda tree: attempt(task, tree), trees)
    else:
        old, new = (attempt(task, tree) for tree in trees)
    if isinstance(old, str) or isinstance(new, str):
        what = f"fails: {new}" if isinstance(new, str) else f"the old commit cannot: {old}"
        rows[task.name] = Row(task.name, task.unit, note=what[:120], failed=isinstance(new, str))
        return False
    for name in dict.fromkeys([*old, *new]):
        row = rows.setdefault(name, Row(name, task.unit_of(name), task.exact))
        row.old += [old[name]] if name in old else []
        row.new += [new[name]] if name in new else []
    return True


def compare(task: Task, trees: tuple[Tree, Tree], repeat: int) -> list[Row]:
    """Measure both trees and return a row for each figure."""
    rows: dict[str, Row] = {}
    if task.missing:
        return [Row(task.name, task.unit, note=f"left out: {task.missing}")]
    if task.exact:
        turn(task, trees, rows, together=True)
        return list(rows.values())
    if not turn(task, trees, {}):  # compiles, reads files, makes proofs
        turn(task, trees, rows)
        return list(rows.values())
    for _ in range(3):
        if not all(turn(task, trees, rows) for _ in range(repeat)):
            return [row for row in rows.values() if row.note]
        if not any(row.bad for row in rows.values()):
            break
    return list(rows.values())


@contextlib.contextmanager
def checkout(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Have a worktree of a commit in a folder; raises ``SystemExit`` where git does not know it."""
    git = ["git", "-C", str(repository), "worktree"]
    done = subprocess.run([*git, "add", "--detach", str(folder), commit], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git cannot check out {commit}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], capture_output=True)


def make_models(tree: Tree, folder: Path) -> None:
    """Write the files with random weights that both trees read."""
    for name in ("q4_k_m", "all_bf16"):
        tree.python(str(SYNTHETIC), "--out", str(folder), "--model", "llama-30m", "--format", name)


def measure(repository: Path, commit: str, chosen: list[Task], models: Path, repeat: int) -> list[Row]:
    """Measure the chosen tasks of a commit of a repository and of its working tree; print each row once it is there."""
    with tempfile.TemporaryDirectory() as temporary, checkout(repository, commit, Path(temporary) / "tree") as old:
        trees = (Tree(old, Path(temporary) / "old"), Tree(repository, Path(temporary) / "new"))
        for tree in trees:
            tree.prepare()
        if any(task.name in ("run llama-30m", "quantize") for task in chosen):
            make_models(Tree(ROOT, trees[1].scratch), models)
        print(HEADER)
        rows = []
        for task in chosen:
            for row in compare(task, trees, repeat):
                print(row.line(), flush=True)
                rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the old commit")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measurements whose name begins so (--list)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each tree (default 5)")
    parser.add_argument("--models", type=Path, help="folder with GGUF files of real models")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--list", action="store_true", help="print the names of the measurements")
    parser.add_argument("--tree", type=Path, default=ROOT, help="repository to measure (default: this one)")
    options = parser.parse_args(arguments)
    named = [options.models, *(os.environ.get(name) for name in ("RUNG_TEST_MODELS", "RUNG_MODELS"))]
    with tempfile.TemporaryDirectory() as temporary:
        every = tasks(Path(temporary), [Path(folder) for folder in named if folder])
        chosen = [
            task for task in every if not options.only or any(task.name.startswith(name) for name in options.only)
        ]
        if options.list:
            print("\n".join(task.name for task in chosen))
            return 0
        if not options.commit:
            parser.error("which commit? make measure OLD=COMMIT")
        if not chosen:
            parser.error(f"no measurement begins with {' or '.join(options.only)}; --list names them")
        if options.repeat < 1:
            parser.error("--repeat is a number of runs, at least 1")
        load, busy = os.getloadavg()[0], "; BUSY: figures by the clock mean little"
        print(
            f"load average {load:.1f} at the start{busy if load > 0.5 else ''}; {options.repeat} runs of each, in turns"
        )
        rows = measure(options.tree.resolve(), options.commit, chosen, Path(temporary), options.repeat)
    if options.json:
        found = [asdict(row) | {"verdict": row.verdict} for row in rows]
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    bad = [row.name for row in rows if row.bad]
    print(
        f"\nworse than {options.commit} or failing: {', '.join(bad)}"
        if bad
        else f"\nnothing is worse than {options.commit}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
