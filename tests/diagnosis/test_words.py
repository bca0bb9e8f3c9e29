"""Words that were learned: the table, how words are cut, and the messages that they are learned from."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.diagnosis.explain import explain, rules_of, scene
from rung.diagnosis.fixing import causes
from rung.diagnosis.score import weights
from rung.diagnosis.words import Rows, read_table, scores, votes, words_of

DATA = Path(__file__).parents[1] / "data"
ROWS = [json.loads(line) for line in (DATA / "explain.jsonl").read_text().splitlines()]
BREADTH = [json.loads(line) for line in (DATA / "explain_breadth.jsonl").read_text().splitlines()]


def known(text, environment=None):
    found = scene([text.encode()], environment)
    return words_of(found, rules_of(found))


def test_numbers_do_not_matter_and_pairs_and_parts_count():
    found = known("CUDA_ERROR_7 at line 812: noKernelImage")
    assert {"cuda_error_0", "at line", "kernel", "image"} <= found
    assert known("step_120 failed") == known("step_75 failed")


def test_facts_are_words():
    found = known("torch.float16 fails", {"gpu": "GTX 1660 Super", "os": "Windows 11", "driver": "535"})
    assert {"=nvidia", "=75", "=half is broken", "=windows", "=driver", "=f16"} <= found


def test_signatures_and_rules_are_words():
    found = known(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device", {"gpu": "GTX 1080"}
    )
    assert {"#cuda-no-kernel-image", "#old-gpu"} <= found
    assert "#old-gpu" not in known("no kernel image is available", {"gpu": "RTX 5090"})


def test_the_order_of_words_changes_nothing():
    table = (("a",), {"one": "0:0.1", "two": "0:0.2", "three": "0:0.3"})
    assert scores(["one", "two", "three"], table) == scores(["three", "two", "one"], table)


def test_a_plain_error_that_another_led_to_is_no_word_and_counts_little():
    begin = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    root, plain = (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "FileNotFoundError: [Errno 2] No such file: 'x'",
    )
    chain = f"{begin}{root}\n\nDuring handling of the above exception, another exception occurred:\n\n{begin}{plain}\n"
    alone = scene([plain.encode()])
    (found,) = [hit.signature.id for hit in alone.hits]
    assert f"#{found}" in known(plain)
    assert f"#{found}" not in known(chain)
    outside = "not-a-compatibility-problem"
    assert weights(scene([chain.encode()]).hits, ())[outside] == pytest.approx(0.2 * weights(alone.hits, ())[outside])


def test_votes_are_probabilities_of_causes():
    found = votes(known("RuntimeError: CUDA out of memory"))
    assert set(found) == {"", *causes()}
    assert math.isclose(sum(map(math.exp, found.values())), 1)
    assert max(found, key=found.__getitem__) == "gpu-out-of-memory"
    assert votes({"xyzzyplugh"}) == {}


def test_a_few_words_do_not_decide_alone(monkeypatch):
    table = (("", "dtype-mix"), dict.fromkeys("abcd", "1:3"))
    monkeypatch.setattr("rung.diagnosis.words._table", lambda: table)
    for words in ("a", "abcd"):
        found = votes(words)
        assert found["dtype-mix"] - found[""] == pytest.approx(3 * len(words) / math.sqrt(len(words) + 4))


def test_what_no_signature_knows_is_told_by_its_words():
    found = explain("the GPU's memory ran full while allocating the tensor")
    assert found.cause == "gpu-out-of-memory"
    assert not found.automatic, "words alone repair nothing"


@pytest.mark.parametrize("log", [row["log"] for row in ROWS if row["cause"] is None])
def test_ordinary_output_has_no_cause_whatever_the_machine(log):
    for environment in ({}, {"gpu": "RTX 3090", "os": "Ubuntu 22.04", "torch": "2.6.0+cu124", "driver": "550.54"}):
        assert explain(log, environment).cause is None


def test_messages_from_the_sources_are_known():
    rows = [row for row in ROWS if row["cause"] is not None]
    answers = [(row, explain(row["log"], row["environment"])) for row in rows]
    assert {row["cause"] for row in rows} == set(causes())
    assert sum(answer.cause == row["cause"] for row, answer in answers) >= 0.94 * len(rows)
    near = [row["cause"] in [a.cause, *(x.cause for x in a.alternatives[:2])] for row, a in answers]
    assert sum(near) >= 0.98 * len(rows)
    assert [row["log"] for row, a in answers if a.automatic and a.cause != row["cause"]] == []


def test_one_in_ten_of_what_was_written_by_area():
    assert {row["cause"] for row in BREADTH} <= set(causes())
    answers = [(row["cause"], explain(row["log"], row["environment"])) for row in BREADTH[::10]]
    assert sum(answer.cause == cause for cause, answer in answers) >= 0.88 * len(answers)
    near = [cause in [a.cause, *(x.cause for x in a.alternatives[:2])] for cause, a in answers]
    assert sum(near) >= 0.97 * len(answers)


def test_threads_of_which_nothing_was_learned():
    rows = [json.loads(line) for line in (DATA / "unread.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = [(row, explain(row["log"], row["environment"])) for row in rows]
    assert sum(a.cause == row["cause"] for row, a in answers) >= 0.9 * len(rows)
    near = [row["cause"] in [a.cause, *(x.cause for x in a.alternatives[:2])] for row, a in answers]
    assert sum(near) >= 0.97 * len(rows)
    assert sum(any(fix.label in row["fixes"] for fix in a.fixes[:2]) for row, a in answers) >= 0.9 * len(rows)
    assert not any(a.automatic and a.cause != row["cause"] for row, a in answers)


@pytest.fixture
def learner(tmp_path, monkeypatch):
    """``benchmarks/explain_words.py`` on a few messages, with tables of its own."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("explain_words")
    examples = tmp_path / "explain.jsonl"
    examples.write_text("".join(json.dumps(row) + "\n" for row in ROWS[::30]))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[5::40]))
    monkeypatch.setattr(module, "EXAMPLES", [examples])
    monkeypatch.setattr(module, "signatures", lambda: ())
    monkeypatch.setattr(module.rung.diagnosis, "__file__", str(tmp_path / "__init__.py"))
    return module


@pytest.mark.parametrize("name", ["words", "fixes"])
def test_the_same_rows_give_the_same_table(learner, name, tmp_path, monkeypatch, capsys):
    module = importlib.import_module(f"explain_{name}")
    monkeypatch.setattr(module, "EXAMPLES", learner.EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["explain_words.py", str(tmp_path / "corpus.jsonl")])
    learner.write(f"{name}.table", module.table_of, "")
    assert (tmp_path / f"{name}.table").stat().st_size > 1000
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--check"])
    with pytest.raises(SystemExit) as ended:
        learner.write(f"{name}.table", module.table_of, "")
    assert ended.value.code == 0
    examples = learner.EXAMPLES[0]
    examples.write_text(examples.read_text() + json.dumps(ROWS[1]) + "\n")
    with pytest.raises(SystemExit) as ended:
        learner.write(f"{name}.table", module.table_of, "")
    assert ended.value.code == 1
    assert "another than" in capsys.readouterr().out


def test_repositories_that_are_held_back_are_not_learned(learner, tmp_path):
    row = {"log": "RuntimeError: x", "environment": {}, "cause": "dtype-mix"}
    names = [f"someone/repository-{number}" for number in range(30)]
    back = [name for name in names if learner.held({"repository": name})]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row | {"repository": name}) + "\n" for name in names))
    assert 0 < len(back) < len(names)
    assert len(learner.rows_of([tmp_path / "corpus.jsonl"])) == len(names) - len(back)


def test_a_folder_of_rows_is_read_like_its_file(learner, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (tmp_path / "corpus.jsonl").rename(folder / "train.jsonl")
    (folder / "README.md").write_text("# not rows")
    assert learner.lines(folder) == learner.lines(folder / "train.jsonl") != []


@given(st.sets(st.text("ab_# é过", min_size=1, max_size=3)), st.text("ab_# é过", max_size=3))
def test_rows_are_the_dictionary_of_their_lines(words, asked):
    rows = Rows(sorted(f"{word}\t{len(word)}:1" for word in words))
    assert dict(rows) == {word: f"{len(word)}:1" for word in words}
    assert (asked in rows, len(rows)) == (asked in words, len(words))


@pytest.mark.parametrize("name", ["words.table", "fixes.table"])
def test_every_row_of_a_table_is_found(name):
    _, rows = read_table(name)
    assert all(rows.get(word) == row for word, row in dict(rows).items())
