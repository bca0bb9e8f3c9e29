"""Rounding with error feedback, beside NumPy and beside what plain encoders lose."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from rung import formats
from rung.core.errors import CannotEncode
from rung.formats import Encoded
from rung.formats.families import iq4, kquants
from rung.formats.grids import grid
from rung.nn import rounding
from rung.nn.rounding import Metric, damped, round_weight
from tests.support.feedback import correlated, lost, rounded_by_numpy

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
#: Those whose scales lie apart from the codes.
APART = ("nf4", "nf4:128:nested", "fp4", "int8", "llm_int8")
#: Those that are written only where a text is looked at, with what encodes them without one.
PACKS = {"q2_k": (kquants.Q2_K, kquants.pack_q2_k), "iq4_xs": (iq4.IQ4_XS, iq4.pack_iq4_xs)}


def weights(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_t(5, (rows, columns)).astype(np.float32) * np.float32(0.02)


def plainly(w, fmt):
    """Return weights [rows, columns] that look at nothing but themselves in a format."""
    if fmt.name not in PACKS:
        return formats.encode(w, fmt)
    codec, pack = PACKS[fmt.name]
    blocks = np.zeros(w.size // 256, codec.layout)
    pack(w.reshape(-1, 256), blocks)
    return Encoded(fmt, w.shape, {"data": blocks.view(np.uint8).reshape(len(w), -1)})


@pytest.mark.parametrize("name", [*FORMATS, *APART])
@pytest.mark.parametrize("threads", [1, 2])
def test_far_less_is_lost_than_by_a_plain_encoder_in_each_row(name, threads):
    w, hessian, fmt = weights(37, 256), correlated(256), formats.get(name)
    metric = Metric(hessian)
    found = round_weight(w, fmt, metric, threads)
    ours = lost(formats.decode(found) - w, metric.hessian)
    plain = lost(formats.decode(plainly(w, fmt)) - w, metric.hessian)
    assert ours.sum() < 0.6 * plain.sum()
    assert (ours < 1.05 * plain).all()
    like = plainly(w, fmt).parts
    assert {name: (part.shape, part.dtype) for name, part in found.parts.items()} == {
        name: (part.shape, part.dtype) for name, part in like.items()
    }


@pytest.mark.parametrize("name", [*FORMATS, *APART])
def test_error_feedback_is_what_numpy_computes(name):
    """With one sweep of feedback in float64, descent must not be worse, and each code must be a best one."""
    w, fmt, metric = weights(5, 256, 1), formats.get(name), Metric(correlated(256, 1))
    found = formats.decode(round_weight(w, fmt, metric, 1)).astype(np.float64)
    rounded = grid(fmt, w, metric.importance)
    reference = rounded_by_numpy(w, rounded, metric.hessian)
    assert (lost(found - w, metric.hessian) <= 1.02 * lost(reference - w, metric.hessian)).all()
    assert lost(found - w, metric.hessian).sum() < 0.99 * lost(reference - w, metric.hessian).sum()


@pytest.mark.parametrize("name", [*FORMATS, *APART])
def test_without_correlation_nothing_is_worse_than_a_plain_encoder(name):
    w, fmt = weights(16, 256, 2), formats.get(name)
    found = formats.decode(round_weight(w, fmt, Metric(np.eye(256, dtype=np.float32)), 1)) - w
    assert np.square(found).sum() <= 1.01 * np.square(formats.decode(plainly(w, fmt)) - w).sum()


@pytest.mark.parametrize("name", [*FORMATS, *APART])
def test_zeros_singular_and_empty_statistics(name):
    fmt = formats.get(name)
    w = weights(9, 512, 3)
    w[2], w[:, 32:64] = 0, 0
    one = np.ones((512, 512), np.float32)  # of one direction: no inverse
    dead = correlated(512)
    dead[:, 5], dead[5] = 0, 0
    for hessian in (one, dead, np.zeros((512, 512), np.float32)):
        found = formats.decode(round_weight(w, fmt, Metric(hessian), 2))
        assert np.isfinite(found).all()
        assert np.abs(found[2]).max() == 0
        part = 0.1 if name == "q2_k" else 0.05  # its floor is 10 dB
        assert lost(found - w, damped(hessian)).sum() < part * lost(w, damped(hessian)).sum() + 1e-12


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_the_same_for_any_threads_and_gguf_decodes_them(name):
    w, fmt, metric = weights(37, 512, 4), formats.get(name), Metric(correlated(512, 4))
    found = [round_weight(w, fmt, metric, threads).parts["data"] for threads in (1, 2, 5)]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    theirs = gguf.dequantize(found[0], gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(theirs, formats.decode(Encoded(fmt, w.shape, {"data": found[0]})))


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "nf4", "nf4:128:nested"])
def test_a_large_weight_is_rounded_in_pieces_as_if_it_were_whole(name, monkeypatch):
    w, fmt, metric = weights(150, 256, 5), formats.get(name), Metric(correlated(256, 5))
    whole = round_weight(w, fmt, metric, 2).parts
    monkeypatch.setattr(rounding, "_SLAB", 64 * 256)
    for part, found in round_weight(w, fmt, metric, 2).parts.items():
        np.testing.assert_array_equal(found, whole[part])


@pytest.mark.parametrize("name", APART)
def test_scales_apart_are_the_same_for_any_threads(name):
    w, fmt, metric = weights(37, 512, 4), formats.get(name), Metric(correlated(512, 4))
    found = [round_weight(w, fmt, metric, threads).parts for threads in (1, 2, 5)]
    for other in found[1:]:
        assert all((part == other[each]).all() for each, part in found[0].items())


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_weights_beyond_float16_keep_their_scales(name):
    w, fmt, metric = weights(5, 128, 7) * np.float32(1e9), formats.get(name), Metric(correlated(128, 7))
    ours, plain = (
        lost(formats.decode(each) - w, metric.hessian) for each in (round_weight(w, fmt, metric, 1), plainly(w, fmt))
    )
    assert ours.sum() < plain.sum()


@pytest.mark.parametrize(("name", "floor"), [("q2_k", 10.0), ("iq4_xs", 21.6)])
def test_plain_encoders_reach_the_floors_of_llama_cpp(name, floor):
    w = np.random.default_rng(6).normal(0, 0.02, (64, 512)).astype(np.float32)
    error = formats.decode(plainly(w, formats.get(name))) - w
    assert 10 * np.log10(np.square(w).sum() / np.square(error).sum()) > floor


def test_weights_that_are_no_numbers_are_refused():
    w = weights(4, 64)
    w[3, 7] = np.nan
    with pytest.raises(CannotEncode, match="Row 3 of w holds NaN"):
        round_weight(w, formats.get("q4_0"), Metric(np.eye(64, dtype=np.float32)), 1, "w")
    w[3, 7] = 1e7
    with pytest.raises(CannotEncode, match="65504"):
        round_weight(w, formats.get("q4_0"), Metric(np.eye(64, dtype=np.float32)), 1, "w")
