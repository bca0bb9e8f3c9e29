"""``rung devices``: what is cached, else what is known, marked as such; never a yes without a proof."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rung.cli import fetching
from rung.cli.commands.before import devices as devices_command
from rung.cli.views.devices import speed, state
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import catalog, detect, occupants, probe_cache
from rung.hardware.families import cuda, webgpu
from rung.hardware.probe_cache import Findings
from rung.hardware.select import select_device
from rung.planning.answers.recommend import SIZES, largest
from rung.run import probe
from tests.hardware.fake_nvml import P2200, UNKNOWN_ARCH, Nvml
from tests.support.devices import fresh_cache

FOUND = Findings(
    (
        Capability("matmul.f32", Level.NATIVE, Proof.PROBE, "computed and compared with float64"),
        Capability("matmul.f16", Level.EMULATED, Proof.PROBE, "right, but 9.7 times slower than f32 here"),
        Capability("matmul.bf16", Level.ABSENT, Proof.PROBE, "wrong numbers, row 3 is off by 0.4"),
    ),
    FrozenDict(f32=1.86e11, f16=2.3e10),
    73.5e9,
)


cache = fresh_cache()


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """Puts NVIDIA cards into this machine."""

    def put(*gpus):
        found = cuda.identify(tmp_path, nvml=Nvml(*gpus), environment={})
        monkeypatch.setattr(detect, "accelerators", lambda: tuple(found))
        monkeypatch.setattr(webgpu, "software_adapters", lambda others: [])
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


def test_thousands_of_gigabytes_are_written_out():
    device = catalog.device("h100")
    assert device.bandwidth >= 1e12
    assert f"reads {device.bandwidth / 1e9:,.0f} GB/s" in speed(device)
    assert "e+" not in speed(device)


def test_what_is_cached_is_shown(rung, cards):
    probe_cache.write(detect.devices()[0], FOUND)
    said = rung("devices")
    assert "reads 73.5 GB/s · measured here" in said.out
    assert row(said.out, "matmul") == ["yes", "emulated", "no", "?", "?", "?"]
    assert row(said.out, "Gop/s")[:2] == ["186", "23"]


def test_a_card_is_shown_as_the_catalog_knows_it_and_marked(rung, cards):
    cards(P2200)
    said = rung("devices").out.split("\n\n")[1]
    assert said.startswith("cuda:0  Quadro P2200 · sm_61 · 4.4 GB free of 4.9 GB · driver 580.95.05")
    assert "from the catalog (checked), not measured here: rung devices --probe" in said
    assert row(said, "matmul") == ["(yes)", "(emulated)", "(emulated)", "(yes)", "?", "(no)"]


def test_an_unknown_card_is_unknown(rung, cards):
    cards(UNKNOWN_ARCH)
    said = rung("devices").out.split("\n\n")[1]
    assert row(said, "matmul") == ["?"] * 6


def test_one_device_with_all_reasons(rung, cards):
    probe_cache.write(detect.devices()[0], FOUND)
    said = rung("devices", "cpu", "--all")
    assert row(said.out, "matmul.bf16") == ["no", "measured here", "wrong numbers, row 3 is off by 0.4"]
    assert row(said.out, "matmul.f16")[0] == "emulated"
    assert row(said.out, "matmul.f64") == ["?"]


def test_a_card_that_is_not_here(rung, cards):
    said = rung("devices", "2080ti", "--all")
    assert said.out.startswith("geforce-rtx-2080-ti  GeForce RTX 2080 Ti · sm_75 · 10.8 GB free of 11.0 GB\n")
    assert "not in this machine; from the catalog (checked)" in said.out
    assert row(said.out, "matmul.bf16")[:2] == ["emulated", "catalog"]


def test_a_card_is_judged_in_a_few_lines_and_the_rest_is_behind_all(rung, cards):
    short, whole = rung("devices", "p2200").out.splitlines(), rung("devices", "p2200", "--all").out.splitlines()
    assert len(short) <= 6
    assert short[1] == "f32 native, f16/bf16 emulated, int8 not known, fp8 absent, no tensor cores"
    assert short[-1].endswith("rung devices p2200 --all")
    assert whole[:4] == short[:4]
    assert any(line.startswith("units.fp4") for line in whole)
    assert "tensor cores for f16" in rung("devices", "v100").out


@pytest.mark.parametrize("name", ["p2200", "3060", "m1", "cpu"])
def test_the_size_that_fits_is_the_one_that_check_says_fits(rung, cards, name):
    most = largest(select_device(name))
    after = SIZES[SIZES.index(most) + 1]
    for size, fits in ((most, True), (after, False)):
        said = json.loads(rung("check", size, "--device", name, "--format", "q4_k", "--context", "2048", "--json").out)
        assert said["choices"][0]["fits"] is fits, (size, said["answer"])


def test_memory_is_a_bar_with_who_holds_it(monkeypatch):
    processes = [{"pid": 7, "name": "python", "bytes": 3 << 30}, {"pid": 8, "name": "sh", "bytes": 1 << 20}]
    monkeypatch.setattr(occupants, "of", lambda device: tuple(processes))
    card = dataclasses.replace(catalog.device("3060"), memory=12 << 30, free=3 << 30)
    memory, holders, fits = state(card)
    assert memory == f"memory   [{'#' * 18}{'.' * 6}] 9.0 GB used, 3.0 GB free"
    assert holders == "held by  python 3.0 GB (pid 7)"
    assert fits.startswith("fits     dense models up to")


@pytest.mark.parametrize(("terminal", "yes", "measured"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_a_new_machine_offers_to_measure_on_a_terminal_only(rung, cards, monkeypatch, terminal, yes, measured):
    questions, done = [], []
    monkeypatch.setattr(fetching, "on_terminal", lambda: terminal)
    monkeypatch.setattr(fetching, "ask", lambda question: questions.append(question) or yes)
    monkeypatch.setattr(devices_command, "on_screen", lambda: terminal)
    monkeypatch.setattr(probe, "measure", lambda device, progress: done.append(device.id) or FOUND)
    assert rung("devices").code == 0
    assert (len(questions), len(done)) == (int(terminal), measured)
    assert rung("devices").code == 0
    assert len(questions) == terminal + (terminal and not measured)  # what is measured is not asked about again


def test_watch_draws_again_until_ctrl_c(rung, cards, monkeypatch):
    drawn = []

    def stopped_at_the_second(seconds):
        drawn.append(seconds)
        if len(drawn) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(devices_command, "on_screen", lambda: True)
    monkeypatch.setattr(devices_command.time, "sleep", stopped_at_the_second)
    said = rung("devices", "--watch")
    assert said.code == 130
    assert said.out.count("memory   [") == 2


def test_a_name_that_is_no_device(rung, cards):
    said = rung("devices", "2080 tj")
    assert said.code == 2
    assert said.out == ""
    assert "Did you mean GeForce RTX 2080 Ti" in said.err


@pytest.mark.parametrize("words", [(), ("--catalog", "rtx 3060 12gb")])
def test_json_is_a_list_of_devices_and_nothing_else(rung, cards, words):
    said = rung("devices", *words, "--json")
    (device,) = json.loads(said.out)
    again = Device.from_json(device)
    assert again.to_json() == device
    assert again.real is (words == ())


@pytest.mark.parametrize("name", ["cpu", "p2200", "m1", "7900xtx", "zen4", "sim:t4"])
def test_json_of_one_device_is_that_device_in_full(rung, cards, name):
    device = json.loads(rung("devices", name, "--json").out)
    assert all(set(found) == {"level", "proof", "source"} for found in device["capabilities"].values())
    assert device["real"] or device["capabilities"]["matmul.f32"]["level"] == "native"
    for row in device["software"]:
        assert set(row) == {"package", "version", "feature", "runs", "min_arch", "reason", "source"}
        assert row["runs"] in ("yes", "no", "slow", "unknown")
        assert row["runs"] == "yes" or row["reason"]
        assert row["source"] or row["package"] == "torch"
    packages = {row["package"] for row in device["software"]}
    assert packages >= {"torch", "bitsandbytes", "flash-attn", "triton", "llama.cpp", "vLLM"}
    assert device["details"]["free_from"] if name != "cpu" else device["real"]


def test_software_beside_a_card(rung, cards):
    new = json.loads(rung("devices", "p2200", "--json").out)
    old = json.loads(rung("devices", "p2200", "--json", "--software", "torch 1.10+cu102").out)
    assert new["capabilities"]["matmul.bf16"]["level"] == "emulated"
    assert old["capabilities"]["matmul.bf16"]["level"] == "absent"
    assert old["build"] == "torch 1.10+cu102"
    assert old["packages"]["cuda"] == "10.2"
    assert new["doubts"] == old["doubts"] == []
    assert rung("ladder", "linear", "q4_0", "--device", "v100", "--software", "torch 2.11+cu128").code == 0
    said = rung("devices", "cpu", "--software", "torch 2.3")
    assert (said.code, said.out) == (2, "")
    assert "is here and has the software that is installed" in said.err
    assert rung("devices", "--software", "torch 2.3").code == 2


def test_a_release_that_the_catalog_does_not_know_is_never_passed_over(rung, cards):
    command = ("devices", "v100", "--software", "llama.cpp b1000")
    line = "llama.cpp b1000: the catalog does not know that release; it knows b1400 to b9000."
    assert line in rung(*command).out.splitlines()
    assert json.loads(rung(*command, "--json").out)["doubts"] == [line]
    said = rung("devices", "v100", "--software", "llama.cpp b3000").out
    assert [text for text in said.splitlines() if text.startswith("llama.cpp b3000  ")]
    assert "catalog does not know" not in said


def test_the_catalog_is_listed_and_narrowed(rung, cards):
    said = rung("devices", "--catalog")
    assert said.code == 0
    assert len(said.out.splitlines()) > 240
    for query, name in (("3060", "GeForce RTX 3060 12GB"), ("sm_61", "Quadro P2200"), ("amd", "Instinct MI50")):
        found = [product["name"] for product in json.loads(rung("devices", "--catalog", query, "--json").out)]
        assert name in found
        assert len(found) < 120
    assert rung("devices", "--catalog", "zzzz").code == 2


def test_an_architecture_is_no_device_but_lists_its_products(rung, cards):
    said = rung("devices", "sm_61")
    assert said.code == 2
    assert "rung devices --catalog sm_61" in said.err
    assert rung("devices", "--catalog", "sm_61").code == 0


def test_capabilities_are_listed_with_what_they_mean(rung, cards):
    meanings = json.loads(rung("devices", "--capabilities", "--json").out)
    for name in ("p2200", "zen4", "m1"):
        device = json.loads(rung("devices", name, "--json").out)
        assert set(device["capabilities"]) <= set(meanings)
    assert "matmul.bf16" in rung("devices", "--capabilities").out


def test_what_a_name_left_open_is_said_in_one_line(rung, cards):
    assert "GeForce RTX 3060 12GB with 12 GB taken" in rung("devices", "3060").out


def test_a_plan_for_a_card_that_is_not_here(rung, cards):
    plan = json.loads(rung("plan", "demo", "--device", "p2200", "--json").out)
    assert plan["placements"][0]["device"] == "quadro-p2200"
    said = rung("plan", "demo", "--device", "rx 5700 xt", "--software", "torch 2.9+rocm6.4")
    assert (said.code, said.out) == (1, "")
    assert "none of it runs on gfx1010" in said.err


def test_a_device_file(rung, cards, tmp_path):
    file = tmp_path / "my-card.toml"
    file.write_text(
        'name = "My card"\narch = "sm_86"\nmemory = 24\nbandwidth = 600\npeaks = { f32 = 20 }\nfree = 23.5\n'
    )
    device = json.loads(rung("devices", str(file), "--json").out)
    assert (device["name"], device["memory"], device["free"]) == ("My card", 24 << 30, round(23.5 * 2**30))
    assert device["capabilities"]["matmul.bf16"]["level"] == "native"


def test_probing_measures_again_and_keeps_it(rung, cards, monkeypatch):
    monkeypatch.setattr(probe, "measure", lambda device, progress: FOUND)
    assert row(rung("devices", "--probe").out, "matmul")[0] == "yes"
    monkeypatch.setattr(probe, "measure", lambda device, progress: pytest.fail("not asked for"))
    assert row(rung("devices").out, "matmul")[0] == "yes"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("p2200", "--probe"), "Quadro P2200 is not in this machine"),
        (("--catalog", "--probe"), "--probe measures"),
        (("--capabilities", "--probe"), "--probe measures"),
        (("--sources",), "--catalog --sources"),
        (("--all",), "--all is about one device"),
        (("--catalog", "--all"), "--all is about one device"),
        (("p2200", "--watch"), "goes with nothing else"),
        (("--watch", "--json"), "goes with nothing else"),
        (("--watch",), "the output is no terminal"),
        (("--catalog", "--software", "torch 1.10+cu102"), "rung devices NAME --software"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(rung, cards, monkeypatch, arguments, words):
    monkeypatch.setattr(probe, "measure", lambda device, progress: pytest.fail("it is not here"))
    said = rung("devices", *arguments)
    assert said.code == 2
    assert words in said.err
    if "--json" in arguments:
        assert json.loads(said.out)["code"] == "option-without-effect"
    else:
        assert said.out == ""


def test_a_cache_that_cannot_be_written_is_said(rung, cards, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(probe, "measure", lambda device, progress: FOUND)
    said = rung("devices", "--probe")
    assert said.code == 0
    assert "cannot be written" in said.out


def test_what_is_piped_has_no_colors(rung, cards):
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
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert b"Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_device_file_with_a_wrong_key_is_a_bad_question_and_not_a_model_that_does_not_fit(rung, tmp_path):
    file = tmp_path / "card.toml"
    file.write_text('name = "x"\narch = "sm_86"\nmemory = 12\nbandwidth = 360\nzork = 1\npeaks = { f32 = 12 }\n')
    for command in (["check", "demo", "--device", str(file)], ["devices", str(file)]):
        said = rung(*command)
        assert (said.code, "zork" in said.err) == (2, True)
