"""Tables of words: the least of a loss, the same bytes everywhere, and what the command says of them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rung.diagnosis.explain import explain
from rung.diagnosis.learning import __main__ as command
from rung.diagnosis.learning import learn as data
from rung.diagnosis.learning.learn import learn_causes, learn_fixes
from rung.diagnosis.learning.logistic import Problem, fit, places_of, sparse

ROWS = [row for row in data.read_rows() if row["cause"]][::60]


def dense(matrix):
    found = np.zeros(matrix.shape)
    for row in range(matrix.shape[0]):
        at = slice(matrix.starts[row], matrix.starts[row + 1])
        found[row, matrix.columns[at]] = matrix.values[at]
    return found


def drawn(together):
    random = np.random.default_rng(3)
    rows = [
        [(int(c), float(random.normal())) for c in sorted(random.choice(12, size=5, replace=False))] for _ in range(80)
    ]
    targets = np.eye(4)[random.integers(0, 4, 80)] if together else random.integers(0, 2, (80, 4)).astype(float)
    return Problem(sparse(rows, 12), targets, random.uniform(0.5, 3, 80), random.uniform(0.05, 0.6, 12), together)


@pytest.mark.parametrize("together", [True, False])
def test_the_gradient_of_the_loss_vanishes_where_it_ends(together):
    problem = drawn(together)
    weights = fit(problem, 200)
    there = dense(problem.there)
    scores = there @ weights
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) if together else 1 / (1 + np.exp(-scores))
    gradient = there.T @ (problem.counts[:, None] * (chances - problem.targets)) + problem.penalties[:, None] * weights
    assert abs(weights).max() > 0.1
    assert abs(gradient).max() < 1e-8


def test_both_halves_of_a_sparse_matrix_hold_the_same():
    matrix = sparse([[(0, 1.0), (2, 2.0)], [], [(1, 3.0), (2, 4.0)]], 4)
    assert matrix.shape == (3, 4)
    columns = np.zeros((3, 4))
    for column in range(4):
        at = slice(matrix.heads[column], matrix.heads[column + 1])
        columns[matrix.rows[at], column] = matrix.transposed[at]
    np.testing.assert_array_equal(columns, dense(matrix))
    np.testing.assert_array_equal(columns, [[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 4, 0]])


def test_words_of_few_rows_are_not_learned():
    assert places_of([{"one", "two"}, {"two", "three"}, {"two", "three"}], 2) == {"three": 0, "two": 1}


def test_a_label_is_learned_from_the_words_that_stand_with_it():
    rows = [
        {"cause": cause, "fixes": [fix]} for cause, fix in (("dtype-mix", "use-fp32"), ("driver-too-old", "use-cpu"))
    ]
    words = [{"cast"}, {"driver"}]
    found = learn_causes(rows * 20, words * 20)
    assert found.labels[0] == ""
    at = found.labels.index("dtype-mix")
    assert found.weights["cast"][at] > 1 > -1 > found.weights["driver"][at]
    fixes = learn_fixes(rows * 20, words * 20)
    assert fixes.weights["@dtype-mix"][fixes.labels.index("use-fp32")] > 1


def test_ordinary_output_is_repeated_on_other_machines():
    rows = [{"log": "done", "environment": {}, "cause": None}, {"log": "x", "environment": {"gpu": "T4"}, "cause": "a"}]
    found = [row for row in data.with_examples(rows) if row["log"] == "done"]
    assert len(found) == 8
    assert {"gpu": "T4"} in [row["environment"] for row in found]


def test_the_command_writes_tables_and_says_when_they_are_stale(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "signatures", lambda: ())
    folder, out = tmp_path / "data", ["--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    folder.mkdir()
    file = folder / "explain.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    assert command.main(out) == 0
    assert command.main([*out, "--check"]) == 0
    assert "as it was" in capsys.readouterr().out
    words = (tmp_path / "words.table").read_text(encoding="utf-8")
    (tmp_path / "words.table").write_text(words.replace(":", ":-", 1), encoding="utf-8")
    assert command.main([*out, "--check"]) == 1
    assert "words.table: other than the data give. Run: make generate" in capsys.readouterr().err


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"holds no explain\*\.jsonl"):
        command.main(["--data", str(tmp_path), "--out", str(tmp_path)])


LEARN = """
import sys
from rung.diagnosis.learning.learn import learn_causes, learn_fixes
from rung.diagnosis.learning.learn import read_rows, words_of_row
rows = [row for row in read_rows() if row["cause"]][::60]
words = [words_of_row(row) for row in rows]
sys.stdout.write(learn_causes(rows, words).text() + learn_fixes(rows, words).text())
"""


@pytest.mark.slow
def test_threads_processors_and_hash_seeds_change_no_byte():
    def learned(**variables):
        done = subprocess.run(
            [sys.executable, "-c", LEARN], env={**os.environ, **variables}, capture_output=True, text=True, check=True
        )
        return done.stdout

    one = learned(NUMBA_NUM_THREADS="1", PYTHONHASHSEED="1")
    assert len(one) > 10_000
    assert one == learned(NUMBA_NUM_THREADS="2", PYTHONHASHSEED="2")
    assert one == learned(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")


def test_explaining_needs_no_numba():
    assert explain("RuntimeError: CUDA out of memory").cause == "gpu-out-of-memory"
    code = "import sys; from rung.diagnosis.explain import explain; explain('x'); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
