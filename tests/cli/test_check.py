"""``rung check``: tables, JSON, the page, exit codes, bad questions; without torch and quickly."""

from __future__ import annotations

import datetime
import html
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rung as library
from rung.cli import check_scene
from rung.core.errors import UsageError
from rung.hardware import catalog, detect, select

CONFIG = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip


def raising(error):
    def call(*_):
        raise error

    return call


@pytest.fixture
def gemma(tmp_path):
    """A folder with nothing but the configuration of Gemma 2B."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(tmp_path)


def test_a_configuration_alone_on_a_card(rung, gemma):
    said = rung("check", gemma, "--device", "p2200")
    assert said.code == 0
    lines = said.out.splitlines()
    assert re.search(r" on a Quadro P2200: yes, with q8_0 and 4,096 tokens of context, [\d.]+ tokens/s\.$", lines[0])
    assert "2,506,172,416 parameters" in lines[1]
    assert "needs" in next(line for line in lines if line.startswith("f16"))
    assert re.search(r"→ Quadro P2200: \w+ +rung run .* --format \w+ --context 4096 --device cuda:0", said.out)


def test_exit_code_1_and_what_would_help_where_nothing_runs(rung, gemma):
    said = rung("check", gemma, "--device", "gtx 750 ti", "--memory", "1GB")
    assert said.code == 1
    assert "nothing runs" in said.out
    assert "a device or budget of" in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batch", "0"), "--batch 0"),
        (("--device", "p2020"), "Quadro P2200"),
        (("--device", "0x3090"), "number of devices"),
        (("--device", "cuda:7"), "There is no device 'cuda:7' here."),
        (("--device", "xpu"), "devices here: cpu"),
        (("--format", "q4_k_mm"), "q4_k_m"),
        (("--context", "9000"), "9,000 tokens"),
        (("--training", "some"), "lora"),
        (("--training", "lora", "--optimizer", "adamq"), "adamw"),
        (("--software", "torch", "--device", "p2200"), ""),
        (("--software", "torch 2.3+cu121"), "the software that is installed"),
        (("--software", "torch 2.3+cu121", "--device", "cpu"), "the software that is installed"),
        (("--fits", "--device", "p2200"), "--fits"),
        (("--details", "--json"), "leave --details out"),
        (("--memory", "lots"), "is not a size"),
        (("--memory", "cuda:0=4GB", "--device", "p2200"), "quadro-p2200"),
        (("--device", "3090+m1"), "GPUs of one maker"),
        (("--device", "2xm1"), "one GPU of a Mac"),
        (("--device", "cpu+cpu"), "which is here once"),
        (("--device", "2xcpu"), "--device cpu"),
        (("--format", ""), "rung formats"),
        (("--rank", "8"), "without --training"),
        (("--training", "full", "--rank", "8"), "--training lora"),
        (("--training", "lora", "--context", "100"), "--sequence 100"),
        (("--training", "lora", "--prompt-tokens", "7"), "--sequence 7"),
        (("--training", "lora", "--sequence", "9000"), "--sequence 8192"),
    ],
)
def test_bad_questions_end_with_2_and_say_why(rung, gemma, arguments, words):
    said = rung("check", gemma, *arguments)
    assert said.code == 2
    assert words in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("arguments", [("--training", "full"), ("--training", "lora", "--batch", "3", "--rank", "64")])
def test_what_would_help_with_training_is_a_command_that_says_yes(rung, gemma, arguments):
    said = rung("check", gemma, *arguments, "--device", "2xp4000", "--json")
    assert said.code == 1
    for help in json.loads(said.out)["relaxations"]:
        if help["command"]:
            assert rung(*shlex.split(help["command"])[1:]).code == 0, help["command"]
    assert json.loads(said.out)["relaxations"][0]["command"]


def test_a_table_of_training_has_no_columns_of_speed(rung, gemma):
    said = rung("check", gemma, "--training", "lora", "--device", "t4").out
    assert "sequences of 1,024 tokens" in said.splitlines()[1]
    assert "tokens/s" not in said
    assert "tokens/s" in rung("check", gemma, "--device", "t4").out


def test_where_no_card_of_the_catalog_runs_it_the_way_out_is_said(rung, gemma):
    said = rung("check", gemma, "--fits", "--format", "nf4", "--memory", "1GB")
    assert said.code == 1
    assert f"0 of {len(catalog.products())} cards" in said.out
    assert re.search(r"a device or budget of [12]\.\d GB, for nf4", said.out)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_hidden_layers": 0}, {"num_hidden_layers": 10**12}, {"num_attention_heads": -8}, {"hidden_size": "wide"},
        {"model_type": "nobody"}, {"vocab_size": -1}, {"hidden_size": None}, {"num_hidden_layers": None},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_a_bad_question(rung, tmp_path, changed):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed), encoding="utf-8")
    said = rung("check", str(tmp_path), "--device", "p2200")
    assert said.code == 2
    assert said.err
    assert "rung itself failed" not in said.err


def test_a_model_that_is_not_there(rung, tmp_path):
    assert rung("check", str(tmp_path / "no.gguf")).code == 2
    assert "nor a name on the model hub" in rung("check", "a" * 5000).err
    assert "rung run google/gemma-2b" in rung("check", "https://huggingface.co/google/gemma-2b/tree/main").err
    (tmp_path / "config.json").write_text("[]")
    assert f"{tmp_path.name}/config.json holds a list" in rung("check", str(tmp_path)).err


def test_an_error_of_the_system_is_said_once(rung, monkeypatch):
    """It comes past typer in another error, whose cause it is; each was the other's, and looking for Ctrl-C in that
    ring did not end."""
    monkeypatch.setattr(check_scene, "is_scene", raising(OSError("the disk is gone")))
    said = rung("check", "demo")
    assert said.code == 1
    assert "the disk is gone" in said.err


@pytest.mark.parametrize("command", [("check",), ("plan",), ("ladder", "linear")])
def test_a_name_of_several_variants_says_what_was_taken(rung, model, command):
    arguments = command if command[0] == "ladder" else (*command, model)
    assert "8GB" in rung(*arguments, "--device", "sim:3060").err
    assert not rung(*arguments, "--device", "p2200").err


def test_what_is_named_twice_is_shown_once(rung, gemma):
    formats = ("q8_0", "nf4", "NF4:64", "q4_k_m", "Q4_K_M", "q8_0")
    devices = ("p2200", "2x3090", "quadro p2200", "3090+3090")
    arguments = [word for one in formats for word in ("--format", one)] + [w for d in devices for w in ("--device", d)]
    said = rung("check", gemma, *arguments, "--json")
    answer = json.loads(said.out)
    shown = [(choice["device"], choice["format"]) for choice in answer["choices"]]
    both = "geforce-rtx-3090:0+geforce-rtx-3090:1"
    assert shown == [(d, f) for d in ("quadro-p2200", both) for f in ("q8_0", "nf4", "q4_k_m")]
    assert list(answer["best_by_device"]) == ["quadro-p2200", both]
    assert "2xNAME asks about two" in said.err
    assert not rung("check", gemma, "--device", "p2200", "--device", "p2000", "--format", "nf4").err


@pytest.mark.parametrize(("model", "runs"), [("mixtral", False), ("gemma-2b", True)])
def test_a_model_that_rung_does_not_split_is_said_to_have_no_command(rung, model, runs):
    said = rung("check", model, "--device", "2x3090", "--format", "q4_k_m").out
    assert ("no command: " in said, "rung run " in said) == (not runs, runs)
    assert "no command" not in rung("check", model, "--device", "h100", "--format", "q4_k_m").out


def test_two_builds_of_one_card_are_not_one_device():
    cards = [catalog.device("p2200", build) for build in ("torch 1.10+cu102", "torch 2.3+cu121")]
    assert len(select.select_groups([cards[0], catalog.device("p2200", "torch 1.10+cu102")])) == 1
    with pytest.raises(UsageError, match="Two different devices are called quadro-p2200"):
        select.select_groups(cards)


def test_several_models_are_one_object_a_line(rung, gemma, model):
    said = rung("check", gemma, model, "--json", "--device", "p2200")
    first, second = map(json.loads, said.out.splitlines())
    assert len(first["choices"]) > 5
    assert second["choices"][0]["format"] == "stored"


def test_a_bad_model_among_others_is_told_in_its_place_and_the_rest_answered(rung, gemma, model, tmp_path):
    page = tmp_path / "page.html"
    command = ("check", gemma, "no<such>", model, "--device", "p2200", "--html", str(page))
    said = rung(*command)
    alone = [rung("check", one, "--device", "p2200").out for one in (gemma, model)]
    assert said.out == "\n\n".join(alone)
    assert said.err == "no<such>: " + rung("check", "no<such>").err
    assert "<h2>no&lt;such&gt;</h2>" in page.read_text(encoding="utf-8")
    listed = rung(*command, "--json")
    assert said.code == listed.code == 2
    first, second, third = map(json.loads, listed.out.splitlines())
    assert second.keys() == {"model", "error", "code", "facts", "ways_out"}
    assert second["model"] == "no<such>"
    assert second["error"].startswith("'no<such>' is neither")
    assert (first["best"], third["best"]) != (None, None)
    assert not listed.err


def test_of_several_models_a_wrong_option_is_told_once_and_nothing_answered(rung, gemma, model):
    said = rung("check", gemma, model, "--batch", "0", "--json")
    assert (said.code, said.err.count("--batch 0")) == (2, 1)
    assert json.loads(said.out)["code"] == "value-out-of-range"


def test_what_one_of_several_models_cannot_be_asked_does_not_stop_the_rest(rung, gemma, model):
    """The context is beyond what the first model holds, not beyond that of the second."""
    said = rung("check", model, gemma, "--context", "8000", "--device", "p2200", "--json")
    first, second = map(json.loads, said.out.splitlines())
    assert said.code == 2
    assert "longer than the model allows" in first["error"]
    assert second["best"] is not None


def test_one_model_on_this_machine(rung, model):
    answer = json.loads(rung("check", model, "--json").out)
    best = answer["choices"][answer["best"]]
    assert best["command"].startswith(f"rung run {model} ")
    assert rung("plan", *best["command"].split()[2:]).code == 0, "the command is one that works"


def test_the_page_is_one_file_that_asks_nobody(rung, gemma, tmp_path):
    page = tmp_path / "page.html"
    assert rung("check", gemma, "--device", "p2200", "--device", "3090+3060", "--html", str(page)).code == 0
    text = page.read_text(encoding="utf-8")
    assert "Quadro P2200" in text
    assert "GeForce RTX 3090 + GeForce RTX 3060 12GB" in text
    assert not re.search(r"quadro-p2200|geforce-rtx", text), "names, not ids"
    assert not re.search(r"https?://|<script|<link|<img|url\(", re.sub(r"<dd>.*?</dd>", "", text))
    for level in re.findall(r'<span class="(\w+)">(\w+)</span>', text):
        assert level[0] == level[1], "a color never stands alone"
    assert text.count("<details>") == text.count("</details>") == 20


def test_the_page_says_what_made_it(rung, gemma, tmp_path):
    page = tmp_path / "page.html"
    said = rung("check", gemma, "--device", "p2200", "--html", str(page)).out
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert f'<p class="answer">{said.splitlines()[0]}</p>' in text
    assert datetime.date.today().isoformat() in text
    assert f"rung {library.__version__}" in text
    assert f"rung check {gemma} --device p2200 --html {page}" in text
    assert "reads 200 GB/s" in text


def test_the_reason_of_a_no_stands_outside_of_what_is_opened(rung, gemma, tmp_path):
    page = tmp_path / "page.html"
    rung("check", gemma, "--device", "p2200", "--format", "f16", "--format", "q8_0", "--html", str(page))
    visible = re.sub(r"<details>.*?</details>", "", page.read_text(encoding="utf-8"))
    assert "needs up to 5.3 GB, Quadro P2200 has 4.9 GB" in visible


def test_a_page_escapes_what_a_file_is_called(rung, tmp_path):
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    page = tmp_path / "page.html"
    rung("check", str(folder), "--device", "p2200", "--html", str(page))
    assert "<script" not in page.read_text(encoding="utf-8")


def test_names_of_folders_do_not_steer_the_terminal(rung, tmp_path):
    folder = tmp_path / "a\x1b[31mb"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert "\x1b" not in rung("check", str(folder), "--device", "p2200").out


def test_an_answer_is_given_where_not_all_letters_are(gemma):
    command = [sys.executable, "-m", "rung", "check", gemma, "--device", "p2200", "--format", "q8_0"]
    said = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert b"? 2,506,172,416 parameters" in said.stdout


def test_a_page_that_cannot_be_written(rung, gemma, tmp_path):
    said = rung("check", gemma, "--device", "p2200", "--html", str(tmp_path / "no" / "page.html"))
    assert said.code == 2
    assert "cannot be written" in said.err
    assert rung("check", gemma, "--device", "p2200", "--html", str(tmp_path)).code == 2
    assert rung("check", gemma, "--device", "p2200", "--html", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


def test_a_page_is_written_whole_or_not_at_all(rung, gemma, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("an older page", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", raising(OSError(28, "No space left on device")))
    assert rung("check", gemma, "--device", "p2200", "--html", str(page)).code == 2
    assert page.read_text(encoding="utf-8") == "an older page"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "page.html"]


def test_the_whole_catalog(rung, gemma):
    answer = json.loads(rung("check", gemma, "--fits", "--json", "--format", "nf4").out)
    assert len(answer["best_by_device"]) == len(catalog.products())
    said = rung("check", gemma, "--fits", "--format", "nf4").out
    assert f"of {len(catalog.products())} cards of the catalog run it" in said


def test_a_pipeline_is_not_split_over_cards(rung, tmp_path):
    configs = Path(__file__).parents[1] / "models" / "configs"
    parts = {"unet": "sd-1.5-unet", "vae": "sd-1.5-vae"}
    for part, name in parts.items():
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_bytes((configs / f"{name}.json").read_bytes())
    index = {"_class_name": "StableDiffusionPipeline"} | {part: ["diffusers", "X"] for part in parts}
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    assert rung("check", str(tmp_path), "--device", "3090", "--format", "f16").code == 0
    said = rung("check", str(tmp_path), "--device", "2x3090", "--format", "f16")
    assert said.code == 1
    assert "on one device" in said.out


def test_the_processes_in_the_way_are_named(monkeypatch, rung, gemma, tmp_path):
    """It would fit on the idle CPU; something else holds the memory."""
    from dataclasses import replace

    full = replace(detect.devices()[0], memory=64 * 2**30, free=2**20)
    monkeypatch.setattr(detect, "devices", lambda **_: (full,))
    answer = json.loads(rung("check", gemma, "--json", "--format", "q8_0").out)
    processes = answer["choices"][0]["in_the_way"]
    assert processes == sorted(processes, key=lambda process: -process["bytes"])
    assert processes[0].keys() == {"pid", "name", "bytes"}
    assert "in the way now" in rung("check", gemma, "--format", "q8_0").out


def test_it_loads_neither_torch_nor_numba(gemma):
    script = (
        "import sys, json\nfrom rung.cli.app import main\n"
        f"try: main(['check', {gemma!r}, '--device', 'p2200', '--json'])\n"
        "except SystemExit as ended: print(json.dumps([ended.code, 'torch' in sys.modules, 'numba' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, False, False]


def test_the_page_is_written_when_nobody_reads_the_text(gemma, tmp_path):
    """``rung check ... --html page.html | head -1``: the pipe is closed before all is printed."""
    page = tmp_path / "page.html"
    reader, writer = os.pipe()
    os.close(reader)
    command = ["check", gemma, "llama-3.1-8b", "--device", "p2200", "--html", str(page)]
    with os.fdopen(writer, "wb") as stdout:
        subprocess.run([sys.executable, "-m", "rung", *command], stdout=stdout, timeout=60, check=False)
    assert "Llama 3.1 8B on a Quadro P2200" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("devices", "budget", "expected"),
    [
        ("p2200", "4GB", "--device cuda:0 --memory 4.0GB"),
        ("p2200", "quadro-p2200=3GB,9GB", "--device cuda:0 --memory 3.0GB"),
        ("p2200+cpu", "4GB", "--context 4096 --memory 4.0GB"),
        ("p2200+cpu", "quadro-p2200=4GB,cpu=3GB", "--context 4096 --memory cuda:0=4.0GB,cpu=3.0GB"),
        ("p2200", None, "--device cuda:0"),
    ],
)
def test_a_command_keeps_the_budget_that_was_asked_about(rung, gemma, devices, budget, expected):
    options = ("--memory", budget) if budget else ()
    said = rung("check", gemma, "--device", devices, "--format", "q4_k", *options, "--json")
    assert json.loads(said.out)["choices"][0]["command"].endswith(expected)


def test_a_budget_above_the_card_is_said_on_stderr(rung, gemma):
    said = rung("check", gemma, "--device", "p2200", "--memory", "20GB", "--format", "q8_0")
    assert "Quadro P2200 has less than --memory 20.0 GB: 4.9 GB is counted there." in said.err
    assert "Quadro P2200, 4.9 GB free" in said.out
    assert "less than" not in rung("check", gemma, "--device", "p2200", "--memory", "4GB", "--format", "q8_0").err
    assert "less than" not in rung("check", gemma, "--fits", "--memory", "20GB", "--format", "q8_0").err
