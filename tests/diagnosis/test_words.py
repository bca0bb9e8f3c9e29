"""Words that were learned: the table, how words are cut, and the messages that they are learned from."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import each_row

from rung.diagnosis.explain import explain, rules_of, scene
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.model import Rows, read_table, scores, votes, weights, words_of

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
    monkeypatch.setattr("rung.diagnosis.model.word_table", lambda: table)
    for words in ("a", "abcd"):
        found = votes(words)
        assert found["dtype-mix"] - found[""] == pytest.approx(3 * len(words) / math.sqrt(len(words) + 4))


def test_what_no_signature_knows_is_told_by_its_words():
    found = explain("the GPU's memory ran full while allocating the tensor")
    assert found.cause == "gpu-out-of-memory"
    assert not found.automatic, "words alone repair nothing"


@each_row("log", [row["log"] for row in ROWS if row["cause"] is None])
def test_ordinary_output_has_no_cause_whatever_the_machine(log):
    for environment in ({}, {"gpu": "RTX 3090", "os": "Ubuntu 22.04", "torch": "2.6.0+cu124", "driver": "550.54"}):
        assert explain(log, environment).cause is None


def test_every_cause_is_among_the_messages_and_no_other():
    assert {row["cause"] for row in ROWS if row["cause"]} == set(causes())
    assert {row["cause"] for row in BREADTH} <= set(causes())


@given(st.sets(st.text("ab_# é过", min_size=1, max_size=3)), st.text("ab_# é过", max_size=3))
def test_rows_are_the_dictionary_of_their_lines(words, query):
    rows = Rows(sorted(f"{word}\t{len(word)}:1" for word in words))
    assert dict(rows) == {word: f"{len(word)}:1" for word in words}
    assert (query in rows, len(rows)) == (query in words, len(words))


@pytest.mark.parametrize("name", ["words.table", "fixes.table"])
def test_every_row_of_a_table_is_found(name):
    _, rows = read_table(name)
    assert all(rows.get(word) == row for word, row in dict(rows).items())
