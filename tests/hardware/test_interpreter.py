"""Interpreters that rung refuses, each in a sentence."""

import subprocess
import sys

import pytest

from rung.core.errors import RungError
from rung.engine import planning
from rung.hardware.interpreter import require_supported, without_wheels


@pytest.mark.parametrize(
    ("byteorder", "largest", "word"),
    [("big", 2**63 - 1, "big-endian"), ("little", 2**31 - 1, "32-bit"), ("big", 2**31 - 1, "big-endian")],
)
def test_another_byte_order_or_word_is_refused_in_a_sentence(byteorder, largest, word):
    with pytest.raises(RungError, match=f"does not run on a {word} Python") as raised:
        require_supported(byteorder, largest)
    assert raised.value.code == "interpreter-unsupported"
    assert raised.value.facts
    assert raised.value.ways_out


def test_the_command_asks_before_anything_else():
    program = "import sys; sys.byteorder = 'big'; from rung.cli.app import main; main(['formats'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("rung does not run on a big-endian Python.")
    assert done.stdout == ""


def test_the_library_asks_before_it_looks_for_a_model():
    program = "import sys, rung; sys.byteorder = 'big'; rung.load('no-such-model.gguf')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "rung does not run on a big-endian Python." in done.stderr


def test_this_interpreter_is_one_of_them():
    require_supported()
    assert without_wheels() == ""


def test_on_musl_the_missing_packages_are_explained(monkeypatch):
    assert "musl" in without_wheels("cpython-312-x86_64-linux-musl")
    monkeypatch.setattr(planning, "missing_software", lambda *arguments: ["numba"])
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "cpython-312-x86_64-linux-musl")
    with pytest.raises(RungError, match="numba is not installed") as raised:
        planning.need_software()
    assert "musl" in raised.value.facts[0]
    assert not [way for way in raised.value.ways_out if "pip" in way]
