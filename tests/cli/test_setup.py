"""``rung setup``: what it prints, its JSON, what it installs from an index of tiny wheels, and what it refuses."""

import json
import os
from pathlib import Path

import pytest

from tests import fake_index

P2200 = ("--device", "p2200", "--python", "3.12", "--os", "linux")


@pytest.fixture
def venv(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return str(fake_index.environment(tmp_path / "env"))


def test_the_answer_has_the_build_the_reason_and_the_command(rung):
    said = rung("setup", *P2200)
    assert said.code == 0
    assert said.out.splitlines()[0] == "Quadro P2200 (6.1) · Linux on x86_64 · Python 3.12 · driver not known"
    assert "    pip install torch==2.14.1+cu126 --index-url https://download.pytorch.org/whl/cu126\n" in said.out
    assert "its code for 6.0 runs on 6.1" in said.out
    assert "is the last that has" in said.out
    for package in ("triton", "bitsandbytes", "flash-attn", "xformers"):
        assert f"\n{package} " in said.out
    assert max(len(line) for line in said.out.splitlines() if "pip install" not in line) <= 120


def test_json_has_everything(rung):
    (found,) = json.loads(rung("setup", *P2200, "--json").out)["setups"]
    assert found["torch"]["version"] == "2.14.1+cu126"
    keys = {"hosts", "torch", "needs", "python", "otherwise", "packages", "notes", "environment", "refused"}
    assert set(found) == keys


def test_this_machine_is_the_default(rung):
    said = rung("setup")
    assert said.code == 0
    assert "pip install torch" in said.out


def test_one_build_for_a_fleet_or_one_for_each(rung):
    one = rung("setup", "--device", "v100", "--device", "rtx 4090")
    assert one.out.count("pip install torch==") == 1
    several = rung("setup", "--device", "p2200", "--device", "rtx 5090")
    assert several.out.startswith("No build of torch carries code for all of these")
    assert several.out.count("pip install torch==") == 2


def test_what_must_change_first_is_shown(rung):
    said = rung("setup", "--device", "rx 5700 xt", "--python", "3.12").out
    assert "needs first: Python 3.7 to 3.10 instead of 3.12" in said
    assert "python3.10 -m venv ENV" in said
    assert "as it is, on the processor:  pip install torch==2.15.0+cpu" in said
    said = rung("setup", "--device", "rtx 4090", "--driver", "535.54", "--os", "linux").out
    assert "Not torch 2.15+cu132: it asks for NVIDIA driver 580 or newer instead of 535.54." in said
    assert "export HSA_OVERRIDE_GFX_VERSION=10.3.0" in rung("setup", "--device", "rx 6700 xt").out


def test_check_judges_what_is_installed(rung, venv, tmp_path):
    said = rung("setup", "--check", "--venv", venv, "--device", "p2200")
    assert said.code == 1
    assert "torch is not installed." in said.out
    fake_index.unpack(fake_index.wheel(tmp_path, "torch", "2.9.0+cu130"), Path(venv))
    said = rung("setup", "--check", "--venv", venv, "--device", "p2200")
    assert said.code == 1
    assert "no   torch 2.9.0+cu130 has no code for 6.1; 2.14.1+cu126 is the last that has." in said.out
    assert "What to do\n  1  pip install torch==2.14.1+cu126" in said.out
    assert said.out.endswith("  2  rung setup --device p2200\n")
    said = rung("setup", "--check", "--venv", venv, "--device", "t4", "--json")
    assert said.code == 0
    assert json.loads(said.out)["findings"][0]["fits"] is True


@pytest.mark.parametrize("written", [None, b"", b"\x00\xff", b"cuda = '13.0'"])
def test_check_tells_a_torch_of_which_nothing_but_the_name_is_there(rung, venv, tmp_path, written):
    fake_index.unpack(fake_index.wheel(tmp_path, "torch", "2.13.0+cpu"), Path(venv))
    (file,) = Path(venv).glob("lib/python*/site-packages/torch/version.py")
    file.unlink() if written is None else file.write_bytes(written)
    for device in ("cpu", "p2200"):
        said = rung("setup", "--check", "--venv", venv, "--device", device)
        assert said.code == 1
        assert "torch 2.13.0+cpu is damaged: torch/version.py is missing or says no version" in said.out
        assert "1  pip install torch==" in said.out


def test_check_finds_a_torch_that_conda_installed(rung, venv, tmp_path):
    fake_index.unpack(fake_index.wheel(tmp_path, "torch", "2.9.0+cu130"), Path(venv))
    (info,) = Path(venv).glob("lib/python*/site-packages/torch-*.dist-info")
    info.rename(info.with_name("torch-2.9.0-py3.12.egg-info"))
    said = rung("setup", "--check", "--venv", venv, "--device", "p2200")
    assert (said.code, "torch 2.9.0+cu130 has no code for 6.1" in said.out) == (1, True)


def test_check_judges_releases_of_a_machine_elsewhere(rung):
    """As what is installed: nothing of this machine counts."""
    there = ("setup", "--check", "--python", "3.12", "--device", "p2200", "--software")
    said = rung(*there, "torch 2.9+cu130, bitsandbytes 0.50.2")
    assert said.code == 1
    assert said.out.splitlines()[:2] == [
        "Quadro P2200 with the releases named",
        "  no   torch 2.9.0+cu130 has no code for 6.1; 2.14.1+cu126 is the last that has.",
    ]
    assert "  yes  bitsandbytes 0.50.2: nf4 and fp4" in said.out
    assert rung(*there, "torch 2.7+cu126").code == 0
    both = rung(*there, "torch 2.7+cu126", "--device", "t4").out
    assert both.startswith("Quadro P2200 and Tesla T4 with the releases named\n")


def test_apply_shows_installs_and_verifies(rung, venv, tmp_path):
    fake_index.wheel(tmp_path, "torch", "2.7.1+cu126", "raise OSError('libcudart.so.12: cannot open')")
    fake_index.wheel(tmp_path, "bitsandbytes", "0.50.2", requires=("torch>=2.4",))
    ask = ("setup", "--apply", "--venv", venv, "--device", "p2200", "--torch", "2.7.1+cu126")
    index = ("--index-url", fake_index.index(tmp_path))
    said = rung(*ask, *index, "--with", "bitsandbytes")
    assert f"Changes in {venv}" in said.err
    assert "  torch  new: 2.7.1+cu126" in said.err
    assert "  bitsandbytes  new: 0.50.2" in said.err
    # the wheel is broken, and verifying finds it
    assert said.code == 1
    assert "f32 does not" in said.out
    assert "libcudart.so.12" in said.out
    assert "Quadro P2200 is not here" in said.out


def test_apply_does_not_take_one_build_for_another(rung, venv, tmp_path):
    torch = fake_index.wheel(tmp_path, "torch", "2.15.0+cpu")
    index = ("--index-url", fake_index.index(tmp_path))
    ask = ("setup", "--apply", "--venv", venv, "--device", "rtx 4090", *index)
    said = rung(*ask)
    assert said.code == 1
    assert "The index gives torch 2.15.0+cpu, not 2.15.0+cu132" in said.err
    fake_index.unpack(torch, Path(venv))
    said = rung(*ask)
    assert "pip takes the installed torch 2.15.0+cpu for 2.15.0+cu132" in said.err
    assert "pip uninstall torch" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--apply", "--check"), 2, "exclude each other"),
        (("--apply", "--os", "windows"), 2, "describe a machine elsewhere"),
        (("--with", "bitsandbytes"), 2, "--with: only with --apply"),
        (("--system", "--yes"), 2, "--yes and --system: only with --apply"),
        (("--device", "4090", "--driver", "newest"), 2, "'newest' is no version of a driver"),
        (("--software", "torch 2.9+cu130"), 2, "--software goes with --check and --device"),
        (("--check", "--software", "torch 2.9+cu130"), 2, "--software goes with --check and --device"),
        (("--device", "no such card"), 2, "no device called"),
        (("--device", "p2200", "--torch", "9.9"), 2, "knows no torch 9.9"),
        (("--device", "p2200", "--torch", "2.15"), 2, "No build of torch 2.15 carries code for Quadro P2200"),
        (("--python", "three"), 2, "no version of Python"),
        (("--python", "2.7"), 2, "no torch for Python 2.7"),
        (("--os", "amiga", "--device", "p2200"), 2, "none of linux, windows, macos"),
        (("--venv", "/nowhere"), 2, "There is no /nowhere"),
    ],
)
def test_a_wrong_question_says_why(rung, arguments, code, said):
    answer = rung("setup", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


def test_apply_refuses_what_would_not_work(rung, venv):
    answer = rung("setup", "--apply", "--venv", venv, "--device", "rx 5700 xt")
    assert answer.code == 1
    assert "needs Python 3.7 to 3.10" in answer.err
    assert "nothing was changed" in answer.err
    answer = rung("setup", "--apply", "--venv", venv, "--device", "p2200", "--with", "flash-attn")
    assert answer.code == 2
    assert "flash-attn cannot be installed with it" in answer.err
    answer = rung("setup", "--apply", "--venv", venv, "--python", "3.6")
    assert answer.code == 2
    assert "needs macOS on aarch64" in rung("setup", "--apply", "--venv", venv, "--device", "m1").err
    both = ("--device", "p2200", "--device", "rtx 5090")
    assert rung("setup", "--apply", "--venv", venv, *both).code == 2
    base = os.path.realpath(f"{venv}/bin/python")
    assert "is no virtual environment" in rung("setup", "--apply", "--venv", base).err
    assert Path(venv, "lib").exists()
