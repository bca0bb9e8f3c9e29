"""``rung.check``: takes device and format as ``load`` and ``plan`` do; wrong arguments are named."""

from __future__ import annotations

import pytest

import rung
from rung.core.errors import UsageError
from rung.hardware import catalog


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"device": "p2200"}, ["quadro-p2200"]),
        ({"devices": "p2200"}, ["quadro-p2200"]),
        ({"device": ["p2200", "v100"]}, ["quadro-p2200", "tesla-v100-sxm2"]),
        ({"devices": ["p2200"], "device": "v100"}, ["quadro-p2200", "tesla-v100-sxm2"]),
        ({"device": catalog.device("t4")}, ["tesla-t4"]),
        ({"device": None, "format": None}, ["cpu"]),
    ],
)
def test_device_is_one_or_several_names_or_devices(options, devices):
    assert list(rung.check("demo", **options).best_by_device)[: len(devices)] == devices


def test_format_is_one_or_several():
    named = [rung.check("demo", device="p2200", **options) for options in ({"format": "q8_0"}, {"formats": ["q8_0"]})]
    assert [[choice.format for choice in answer.choices] for answer in named] == [["q8_0"]] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contexts": 5}, "no argument 'contexts'. Did you mean context"),
        ({"devise": "p2200"}, "no argument 'devise'. Did you mean device"),
        ({"context": "4096"}, "--context 4096"),
        ({"context": 4.5}, "--context 4.5"),
        ({"batch": None}, "--batch None"),
        ({"device": 5}, "device is a name"),
        ({"format": 5}, "formats is a tuple of names"),
        ({"device": "p2200", "fits": True}, "fits asks the whole catalog"),
    ],
)
def test_a_wrong_argument_is_named(options, words):
    with pytest.raises(UsageError, match=words):
        rung.check("demo", **options)
