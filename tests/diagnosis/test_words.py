"""Words that were learned: the table, how words are cut, and the messages that they are learned from."""

import json
import math
from pathlib import Path

import pytest

from rung.diagnosis.explain import explain, scene
from rung.diagnosis.fixing import causes
from rung.diagnosis.words import votes, words_of

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "explain.jsonl").read_text().splitlines()]


def known(text, environment=None):
    return words_of(scene([text.encode()], environment))


def test_numbers_do_not_matter_and_pairs_and_parts_count():
    found = known("CUDA_ERROR_7 at line 812: noKernelImage")
    assert {"cuda_error_0", "at line", "kernel", "image"} <= found
    assert known("sm_120 failed") == known("sm_75 failed")


def test_facts_are_words():
    found = known("torch.float16 fails", {"gpu": "GTX 1660 Super", "os": "Windows 11", "driver": "535"})
    assert {"=nvidia", "=75", "=half is broken", "=windows", "=driver", "=f16"} <= found


def test_votes_are_probabilities_of_causes():
    found = votes(known("RuntimeError: CUDA out of memory"))
    assert set(found) == {"", *causes()}
    assert math.isclose(sum(map(math.exp, found.values())), 1)
    assert max(found, key=found.__getitem__) == "gpu-out-of-memory"
    assert votes({"xyzzyplugh"}) == {}


def test_what_no_signature_knows_is_told_by_its_words():
    found = explain("the card's memory ran full while allocating the tensor")
    assert found.cause == "gpu-out-of-memory"
    assert not found.automatic, "words alone repair nothing"


@pytest.mark.parametrize("log", [row["log"] for row in ROWS if row["cause"] is None])
def test_ordinary_output_has_no_cause(log):
    assert explain(log).cause is None


def test_messages_from_the_sources_are_known():
    rows = [row for row in ROWS if row["cause"] is not None]
    answers = [(row, explain(row["log"], row["environment"])) for row in rows]
    assert {row["cause"] for row in rows} == set(causes())
    assert sum(answer.cause == row["cause"] for row, answer in answers) >= 0.94 * len(rows)
    near = [row["cause"] in [a.cause, *(x.cause for x in a.alternatives[:2])] for row, a in answers]
    assert sum(near) >= 0.98 * len(rows)
    assert [row["log"] for row, a in answers if a.automatic and a.cause != row["cause"]] == []
