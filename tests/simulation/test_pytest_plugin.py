"""The plugin of pytest, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rung.hardware import catalog

TESTS = """
import sys
import unittest
import pytest

@pytest.mark.rung_device("v100", "m1 pro", "2x3060")
def test_marked(rung_device):
    import torch
    kind = "mps" if rung_device.kind == "mps" else "cuda"
    assert torch.ones(1, device=kind).device.type == kind

@pytest.mark.rung_device("p2200")
def test_only_marked():
    import torch
    assert torch.cuda.get_device_name() == "Quadro P2200"

@pytest.mark.rung_device("p2200", memory="4GB", software="torch 1.10+cu102")
def test_build(rung_device):
    import torch
    assert torch.cuda.mem_get_info()[1] == 4 * 2**30
    assert torch.version.cuda == "10.2"

class TestOld(unittest.TestCase):
    @pytest.mark.rung_device("p2200")
    def test_on_one(self):
        import torch
        assert torch.cuda.get_device_name() == "Quadro P2200"

    @pytest.mark.rung_device("p2200", "v100")
    def test_on_two(self):
        raise AssertionError("runs once, so it cannot")

def test_fixture(rung_device):
    assert rung_device.name

def test_plain():
    assert "torch" not in sys.modules or not sys.modules["torch"].cuda.is_available()
"""


def run(folder, *arguments):
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rung.simulation.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--strict-markers", str(folder), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    return done.stdout + done.stderr


def test_marked_tests_run_once_a_card_and_others_as_ever(tmp_path):
    said = run(tmp_path)
    assert "7 passed, 2 skipped" in said, said


def test_all_is_the_whole_catalog_and_imports_no_torch_to_say_so(tmp_path):
    cards = [p for p in catalog.products() if catalog.architectures()[p.arch].kind != "cpu"]
    said = run(tmp_path, "--rung-devices", "all", "--collect-only", "-k", "test_fixture")
    assert f"{len(cards)}/" in said or f"{len(cards)} tests collected" in said, said[-500:]
    said = run(tmp_path, "--rung-devices", "p2200,2080ti", "-k", "test_fixture")
    assert "2 passed" in said, said


@pytest.mark.parametrize("vendor", ["nvidia", "apple"])
def test_a_vendor_is_each_of_its_cards_once(tmp_path, vendor):
    kinds = catalog.architectures()
    cards = [p for p in catalog.products() if kinds[p.arch].vendor == vendor and kinds[p.arch].kind != "cpu"]
    devices = f"{vendor},{cards[0].name}"
    said = run(tmp_path, "--rung-devices", devices, "--collect-only", "-k", "test_fixture")
    assert 0 < len(cards) < len(catalog.products())
    assert f"{len(cards)}/" in said or f"{len(cards)} tests collected" in said, said[-500:]


@pytest.mark.parametrize("name", ["nonsense"])
def test_a_card_that_nobody_knows(tmp_path, name):
    said = run(tmp_path, "--rung-devices", name, "-k", "test_fixture")
    assert "The catalog has no device called" in said
    assert "1 error" in said
