"""From weights of evidence to probabilities: what is unsure stays unsure, and what else it may be is told."""

import math

import pytest

from rung.diagnosis.explain import explain
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.match import signatures
from rung.diagnosis.model import BY_HAND, CAUTION, DEFECT, DOUBT, UNKNOWN, probabilities, siblings


@pytest.mark.parametrize("cause", causes())
def test_siblings_are_the_other_causes_a_defect_first_and_then_what_shares_messages(cause):
    found = dict(siblings(cause))
    assert set(found) == set(causes()) - {cause}
    assert math.isclose(sum(found.values()), 1)
    assert found.pop("software-defect", 1.0) >= DEFECT
    named = {label for s in signatures() if s.causes.get(cause, 0) > 0 for label, w in s.causes.items() if w > 0}
    shared = named & set(found)
    assert not shared or min(found[label] for label in shared) > max(found[label] for label in set(found) - shared)


def test_no_message_is_beyond_doubt():
    shares = probabilities({"build-lacks-new-arch": 120.0})
    assert next(iter(shares)) == "build-lacks-new-arch"
    assert shares["build-lacks-new-arch"] == pytest.approx(1 - DOUBT)
    assert sum(shares.values()) == pytest.approx(1)
    assert "build-lacks-old-arch" in list(shares)[1:3]


def test_a_defect_is_among_the_three_however_clear_a_message_reads():
    assert "software-defect" in list(probabilities({"dtype-mix": 80.0, "device-placement": 32.0}))[:3]


def test_weights_by_hand_and_words_are_nats_of_which_the_former_count_in_part():
    shares = probabilities({"dtype-mix": 3.0, "device-placement": 1.0}, {"dtype-mix": -3.0, "device-placement": -1.0})
    scores = [CAUTION * score for score in (3.0 * BY_HAND - 3.0, 1.0 * BY_HAND - 1.0, UNKNOWN)]
    powers = [math.exp(score) for score in scores]
    assert sum(shares.values()) == pytest.approx(1 - powers[-1] / sum(powers))
    other = siblings("device-placement")["dtype-mix"] * DOUBT * sum(shares.values())
    plain = ((shares["dtype-mix"] - other) / (1 - DOUBT), shares["device-placement"] / (1 - DOUBT))
    assert math.log(plain[0] / plain[1]) == pytest.approx(scores[0] - scores[1])


def test_nothing_known_has_no_probability():
    assert probabilities({}) == {}


def test_the_alternatives_of_a_clear_message_share_it():
    found = explain(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device", {"gpu": "5090"}
    )
    assert {item.cause for item in found.alternatives} & {"build-lacks-old-arch", "build-wrong-arch-flags"}
    assert all(item.confidence > 0 for item in found.alternatives)


@pytest.mark.parametrize("log", ["CUBLAS_STATUS_NOT_SUPPORTED", "CUDA error: no kernel image is available", "NaN"])
def test_shares_fall_and_are_at_most_one(log):
    found = explain(log)
    shares = [found.confidence, *(item.confidence for item in found.alternatives)]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1.0001
