"""``rung devices``: what is cached, else what is known, marked as such; never a yes without a proof."""

import json
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import detect, remember
from rung.hardware.families import cuda
from rung.hardware.remember import Findings
from rung.run import probe
from tests.hardware.fake_nvml import P2200, UNKNOWN_ARCH, Nvml

FOUND = Findings(
    (
        Capability("matmul.f32", Level.NATIVE, Proof.PROBE, "computed and compared with float64"),
        Capability("matmul.f16", Level.EMULATED, Proof.PROBE, "right, but 9.7 times slower than f32 here"),
        Capability("matmul.bf16", Level.ABSENT, Proof.PROBE, "wrong numbers, row 3 is off by 0.4"),
    ),
    FrozenDict(f32=1.86e11, f16=2.3e10),
    73.5e9,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """Puts NVIDIA cards into this machine."""

    def put(*gpus):
        found = cuda.identify(tmp_path, nvml=Nvml(*gpus), environment={})
        monkeypatch.setattr(detect, "accelerators", lambda: tuple(found))
        return found

    put()
    return put


def row(text, name):
    """The cells of the row that begins with ``name``."""
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return re.split(r"\s{2,}", line.strip())[1:]


def test_nothing_cached_is_unknown_and_never_yes(rung, cards):
    said = rung("devices")
    assert said.code == 0
    assert "not measured yet: rung devices --probe" in said.out
    assert row(said.out, "matmul") == ["?"] * 6
    assert "yes" not in said.out


def test_what_is_cached_is_shown(rung, cards):
    remember.write(detect.devices()[0], FOUND)
    said = rung("devices")
    assert "reads 73.5 GB/s · measured here" in said.out
    assert row(said.out, "matmul") == ["yes", "emulated", "no", "?", "?", "?"]
    assert row(said.out, "Gop/s")[:2] == ["186", "23"]


def test_a_card_is_shown_as_the_catalogue_knows_it_and_marked(rung, cards):
    cards(P2200)
    said = rung("devices").out.split("\n\n")[1]
    assert said.startswith("cuda:0  Quadro P2200 · sm_61 · 4.4 GB free of 4.9 GB · driver 580.95.05")
    assert "from the catalogue (checked), not measured here: rung devices --probe" in said
    assert row(said, "matmul") == ["(yes)", "(emulated)", "(emulated)", "(yes)", "?", "(no)"]


def test_an_unknown_card_is_unknown(rung, cards):
    cards(UNKNOWN_ARCH)
    said = rung("devices").out.split("\n\n")[1]
    assert row(said, "matmul") == ["?"] * 6


def test_one_device_with_all_reasons(rung, cards):
    remember.write(detect.devices()[0], FOUND)
    said = rung("devices", "cpu")
    assert row(said.out, "matmul.bf16") == ["no", "measured here", "wrong numbers, row 3 is off by 0.4"]
    assert row(said.out, "matmul.f16")[0] == "emulated"
    assert row(said.out, "matmul.f64") == ["?"]


def test_a_card_that_is_not_here(rung, cards):
    said = rung("devices", "2080ti")
    assert said.out.startswith("geforce-rtx-2080-ti  GeForce RTX 2080 Ti · sm_75 · 10.8 GB free of 11.0 GB\n")
    assert "not in this machine; from the catalogue (checked)" in said.out
    assert row(said.out, "matmul.bf16")[:2] == ["emulated", "catalogue"]


def test_a_name_that_is_no_device(rung, cards):
    said = rung("devices", "2080 tj")
    assert said.code == 2
    assert said.out == ""
    assert "Did you mean GeForce RTX 2080 Ti" in said.err


@pytest.mark.parametrize("name", [(), ("cpu",), ("p2200",)])
def test_json_is_a_list_of_devices_and_nothing_else(rung, cards, name):
    said = rung("devices", *name, "--json")
    (device,) = json.loads(said.out)
    again = Device.from_json(device)
    assert again.to_json() == device
    assert again.real is (name != ("p2200",))


def test_probing_measures_again_and_keeps_it(rung, cards, monkeypatch):
    monkeypatch.setattr(probe, "measure", lambda device, progress: FOUND)
    assert row(rung("devices", "--probe").out, "matmul")[0] == "yes"
    monkeypatch.setattr(probe, "measure", lambda device, progress: pytest.fail("not asked for"))
    assert row(rung("devices").out, "matmul")[0] == "yes"


def test_probing_a_card_that_is_not_here_changes_nothing(rung, cards, monkeypatch):
    monkeypatch.setattr(probe, "measure", lambda device, progress: pytest.fail("it is not here"))
    assert row(rung("devices", "p2200", "--probe").out, "matmul.bf16")[1] == "2,063 Gop/s"


def test_a_cache_that_cannot_be_written_is_said(rung, cards, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(probe, "measure", lambda device, progress: FOUND)
    said = rung("devices", "--probe")
    assert said.code == 0
    assert "cannot be written" in said.out


def test_what_is_piped_has_no_colours(rung, cards):
    assert "\x1b" not in rung("devices").out


def test_ctrl_c_stops_at_once_and_leaves_no_child_behind():
    # a shell that starts the tests in the background has them ignore SIGINT, and their children with them
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from rung.cli.app import main; main(['devices', '--probe'])"
    command = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    running = psutil.Process(command.pid)
    deadline = time.monotonic() + 60
    while not (children := running.children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 130
    assert b"Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
