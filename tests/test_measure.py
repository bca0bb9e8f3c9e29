"""``benchmarks/measure.py``: an old commit beside the working tree; no figure of this machine decides."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MEASURE = ROOT / "benchmarks" / "measure.py"
#: A package whose ``run --json`` has made-up figures.
PROGRAM = """import json
print(json.dumps({{"prefill_tokens_per_second": {prefill}, "decode_tokens_per_second": {decode}}}))
"""

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def git(folder: Path, *arguments: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True)


def measure(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MEASURE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A repository whose one commit prefills 100 and decodes 50 tokens/s."""
    main = tmp_path / "repository" / "src" / "rung" / "__main__.py"
    main.parent.mkdir(parents=True)
    main.with_name("__init__.py").touch()
    main.write_text(PROGRAM.format(prefill=100, decode=50))
    git(main.parents[2], "init", "-q")
    git(main.parents[2], "add", ".")
    git(main.parents[2], "commit", "-q", "-m", "first")
    return main


def run(program: Path, *arguments: object) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Measure ``rung run demo`` of the repository; what was said, and the verdicts of the two rates."""
    rows = program.parents[3] / "rows.json"
    options = ["--tree", program.parents[2], "--only", "run demo", "--repeat", 1, "--json", rows]
    done = measure("HEAD", *options, *arguments)
    found = {row["name"]: row["verdict"] for row in json.loads(rows.read_text())}
    return done, {name.rsplit(": ")[-1]: verdict for name, verdict in found.items() if "memory" not in name}


def test_measure_reports_a_slower_tree(program: Path) -> None:
    program.write_text(PROGRAM.format(prefill=101, decode=40))
    done, verdicts = run(program)
    assert done.returncode == 1
    assert verdicts == {"prefill": "within 3 %", "decode": "worse"}
    assert "| run demo: decode | tokens/s | 50 | 40 | 0.800 | worse |" in done.stdout


def test_measure_reports_a_faster_tree(program: Path) -> None:
    program.write_text(PROGRAM.format(prefill=98, decode=60))
    assert run(program)[1] == {"prefill": "within 3 %", "decode": "better"}


def test_measure_reports_a_tree_that_fails(program: Path) -> None:
    program.write_text("raise SystemExit('out of order')")
    done, verdicts = run(program)
    assert done.returncode == 1
    assert verdicts == {"run demo": "fails: out of order"}


def test_measure_leaves_out_what_the_old_commit_lacks(program: Path) -> None:
    program.write_text("raise SystemExit('out of order')")
    git(program.parents[2], "commit", "-q", "-a", "-m", "second")
    program.write_text(PROGRAM.format(prefill=98, decode=60))
    done, verdicts = run(program)
    assert done.returncode == 0
    assert verdicts == {"run demo": "the old commit cannot: out of order"}


def test_measure_leaves_no_worktree(program: Path) -> None:
    run(program)
    assert [path.name for path in (program.parents[2] / ".git").glob("worktrees/*")] == []


def test_measure_runs_this_tree() -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a checkout")
    done = measure("HEAD", "--only", "unread")
    assert "| explain, threads not learned from: cause | % |" in done.stdout, done.stderr
    assert "fails" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which commit?"),
        (["no-such-commit", "--only", "unread"], "git cannot check out no-such-commit"),
        (["HEAD", "--only", "nothing"], "no measurement begins with nothing"),
        (["HEAD", "--repeat", "0"], "at least 1"),
    ],
)
def test_measure_refuses(arguments: list[str], said: str) -> None:
    done = measure(*arguments)
    assert done.returncode
    assert said in done.stderr
