"""``rung run``: answers, JSON, stdin, and every bad question."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from rung.cli import app
from rung.cli.views.answer import show
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.engine.load import load
from rung.hardware import detect
from rung.models.open import open_card

RUNG = [sys.executable, "-m", "rung"]
KEYS = {
    "text",
    "tokens",
    "prompt_tokens",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "stop_reason",
    "peak_memory_bytes",
    "plan",
    "report",
}


def test_an_answer_comes_on_stdout_and_everything_about_it_on_stderr(rung, model):
    said = rung("run", model, "the quick", "--max-tokens", "5")
    assert said.code == 0
    assert "tokens/s" in said.err
    assert "tokens/s" not in said.out
    assert "as they are stored" in said.err


def test_options_of_sampling(rung):
    def tokens(*options: str) -> list[int]:
        return json.loads(rung("run", "demo", "hello", "--max-tokens", "30", "--json", *options).out)["tokens"]

    model = load("demo")
    for settings in (
        {"logit_bias": {5: 100.0, 6: 99.0}},
        {"presence_penalty": 2.0, "temperature": 2.0, "seed": 1},
        {"frequency_penalty": 2.0, "temperature": 2.0, "seed": 1},
        {"typical_p": 0.2, "temperature": 2.0, "seed": 1},
    ):
        biases = settings.get("logit_bias", {})
        options = [word for token, bias in biases.items() for word in ("--logit-bias", f"{token}={bias}")]
        for name, value in settings.items():
            options += [] if name == "logit_bias" else [f"--{name.replace('_', '-')}", str(value)]
        answer = model.generate("hello", max_tokens=30, **settings)
        list(answer)
        drawn = ("--temperature", "2", "--seed", "1") if "seed" in settings else ()
        assert tokens(*options) == answer.tokens != tokens(*drawn)
    said = json.loads(rung("run", "demo", "hello", "--max-tokens", "2", "--json", "--top-logprobs", "3").out)
    assert [len(each["top_logprobs"]) for each in said["logprobs"]] == [3, 3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--logit-bias", "13"), "--logit-bias 13 makes no sense: it must be ID=BIAS"),
        (("--logit-bias", "a=1"), "--logit-bias a=1 makes no sense"),
        (("--logit-bias", "99999999=1"), "token 99999999"),
        (("--logit-bias", "1=101"), "from -100 to 100"),
        (("--presence-penalty", "3"), "-2.0<=x<=2.0"),
        (("--top-logprobs", "3"), "shows nothing without --json"),
    ],
)
def test_options_of_sampling_that_make_no_sense(rung, options, says):
    said = rung("run", "demo", "hello", *options)
    assert said.code == 2
    assert says in said.err


def test_quiet_says_nothing_but_the_answer(rung, model):
    assert rung("run", model, "the quick", "--max-tokens", "5", "--quiet").err == ""


def test_json_is_one_object_and_nothing_else(rung, model):
    said = rung("run", model, "the quick", "--max-tokens", "5", "--json")
    result = json.loads(said.out)
    assert set(result) >= KEYS
    assert len(result["tokens"]) == 5
    assert result["stop_reason"] == "length"
    assert result["prompt_tokens"] > 0
    assert result["peak_memory_bytes"] > 2**20


def test_the_same_seed_gives_the_same_text(rung, model):
    def ask(seed):
        said = rung("run", model, "the quick", "--max-tokens", "8", "--temperature", "1", "--seed", seed, "--json")
        return json.loads(said.out)["tokens"]

    assert ask("3") == ask("3")
    assert ask("3") != ask("4")


def test_system_text_stands_before_the_prompt_where_there_is_no_template(rung, model):
    def count(*arguments):
        return json.loads(rung("run", model, *arguments, "--json", "--max-tokens", "1").out)["prompt_tokens"]

    assert count("the quick", "--system", "the model") == count("the model\n\nthe quick") > count("the quick")


def test_stdin_is_the_prompt_of_a_named_model(rung, model):
    named = json.loads(rung("run", model, "--json", "--max-tokens", "3", stdin="the quick").out)
    as_argument = json.loads(rung("run", model, "the quick", "--json", "--max-tokens", "3").out)
    assert named["tokens"] == as_argument["tokens"]


def test_a_stop_string_is_not_printed(rung, model):
    whole = json.loads(rung("run", model, "the quick", "--max-tokens", "12", "--json").out)["text"]
    stop = whole[3:5]
    cut = json.loads(rung("run", model, "the quick", "--max-tokens", "12", "--stop", stop, "--json").out)
    assert cut["stop_reason"] == "stop"
    assert cut["text"] == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "Why is the sky blue?"], 2, 'rung run demo "Why is the sky blue?"'),
        (["run", "MODEL"], 2, "There is no prompt"),
        (["run", "MODEL", " "], 2, "The prompt is empty"),
        (["run", "", "x"], 2, "The name of the model is empty"),
        (["pull", ""], 2, "The name of the model is empty"),
        (["show", " "], 2, "The name of the model is empty"),
        (["run", "./nothing.gguf"], 2, "neither a file"),
        (["run", str(Path(__file__).parent)], 1, "config.json"),
        (["run", "no/such/model.gguf", "x"], 1, "no/such/model.gguf"),
        (["run", "MODEL", "x", "--format", "q4k"], 2, "Did you mean q4_k"),
        (["run", "MODEL", "x", "--device", "cuda:3"], 2, "There is no device 'cuda:3' here"),
        (["run", "MODEL", "x", "--memory", "lots"], 2, "is not a size"),
        (["run", "MODEL", "x", "--memory", "1MB"], 1, "does not fit"),
        (["run", "MODEL", "x", "--context", "1000000"], 2, "1,000,000 tokens"),
        (["run", "MODEL", "x " * 400, "--context", "64"], 2, "the context holds 64"),
        (["run", "MODEL", "x", "--temperature", "hot"], 2, "temperature"),
        (["run", "MODEL", "x", "--no-such-option"], 2, "No such option"),
        (["plan", "no/such/model.gguf"], 1, "no/such/model.gguf"),
        (["ladder", "paint"], 2, "There is no op 'paint'"),
        (["ladder", "linear", "q4k"], 2, "Did you mean q4_k"),
        (["fly"], 2, "There is no command"),
    ],
)
def test_a_bad_question_is_answered_in_words(rung, model, arguments, code, words):
    said = rung(*(model if a == "MODEL" else a for a in arguments))
    assert words in said.err
    assert said.code == code
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_card_that_cannot_compute_costs_one_line_and_is_refused_when_asked_for(rung, model, monkeypatch):
    why = "torch 2.13.0+cu130 has no code for sm_61: it is built for sm_75, sm_80"
    card = Device("cuda:0", "cuda", "Quadro P2200", "sm_61", 5 * 2**30)
    card = card.with_capabilities(
        Capability(f"matmul.{dtype}", Level.ABSENT, Proof.PROBE, why) for dtype in ("f32", "f16", "bf16")
    )
    here = planning.proven_devices
    monkeypatch.setattr(planning, "proven_devices", lambda on_probe, named=None: (*here(on_probe), card))
    said = rung("run", model, "the quick", "--max-tokens", "2")
    assert said.code == 0
    assert said.err.count(f"Quadro P2200 is not used: {why}") == 1
    refused = rung("run", model, "the quick", "--device", "cuda:0")
    assert refused.code == 1
    assert f"Quadro P2200 (cuda:0) cannot run a model here.\n  {why}" in refused.err
    assert "--device cpu" in refused.err


def test_without_its_software_a_run_says_how_to_install_it(rung, model, monkeypatch):
    (cpu, *others) = detect.devices()
    software = FrozenDict({name: version for name, version in cpu.software.items() if name != "numba"})
    monkeypatch.setattr(detect, "devices", lambda cached=True: (replace(cpu, software=software), *others))
    said = rung("run", model, "x")
    assert said.code == 1
    assert "numba is not installed" in said.err
    assert "pip install 'rung[lean]'" in said.err


class Spoken:
    """An answer of these pieces."""

    def __init__(self, *pieces):
        self.pieces, self.result = pieces, {}

    def __iter__(self):
        return iter(self.pieces)


#: A window title, a clipboard, a color whose sequence comes in two pieces, a byte that begins one, text turned round.
STEERING = ("\x1b]0;title\x07", "\x1b]52;c;aGk=\x1b\\", "red \x1b", "[31m", "\x9b2J", "\u202edrawkcab", "\tü\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_model_says_does_not_steer_the_terminal_and_is_exact_in_a_pipe(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    show(Spoken(*STEERING), silent=False)
    said = capsys.readouterr().out
    if not terminal:
        assert said == "".join(STEERING)
        return
    assert [sign for sign in said if not sign.isprintable()] == ["\t", "\n"]
    assert said.startswith(r"\x1b]0;title\x07\x1b]52;c;aGk=\x1b\red \x1b[31m\x9b2J\u202edrawkcab")


def test_debug_shows_the_traceback():
    done = subprocess.run([*RUNG, "plan", "nowhere.gguf", "--debug"], capture_output=True, text=True)
    assert "Traceback" in done.stderr


def test_a_closed_pipe_is_no_error(model):
    command = f"{sys.executable} -m rung run {model} 'the quick' --max-tokens 200 --quiet | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "rung itself failed" not in done.stderr


# A shell that starts the tests in the background has them ignore SIGINT, and their children with them.
# A call waits until the signal has come, however late that is; its word is written past Python's buffer, in which it
# got between "stopped" and its line end. Then rung's own handler decides: an exception from what Python does when the
# lock of a module goes is ignored, and the lock is held for good.
WAITS = """
import itertools, os, signal, sys, threading
from rung.cli import app, interrupts
from rung.core.types import resolve
come = threading.Event()
def stop(*given):
    come.set()
    own(*given)
interrupts.listen(False)
own = signal.signal(signal.SIGINT, stop)
owner, _, name = sys.argv[1].rpartition(".")
owner = resolve(owner)
plain, count = getattr(owner, name), itertools.count(1)
def waits(*given):
    if next(count) == int(sys.argv[2]):
        os.write(2, b"now\\n")
        come.wait(60)
    return plain(*given)
setattr(owner, name, waits)
app.main(sys.argv[3:])
"""
LOADING, GENERATING = "rung.run.binding:Binder.linear", "rung.engine.decoder:Decoder.compute"


@pytest.mark.parametrize(
    ("moment", "call", "options", "partial"),
    [(LOADING, 1, [], False), (GENERATING, 5, [], True), (GENERATING, 5, ["--json"], False)],
    ids=["loading", "generating", "json"],
)
def test_ctrl_c_says_stopped_and_leaves_whole_lines(model, moment, call, options, partial):
    command = [sys.executable, "-c", WAITS, moment, str(call), "run", model, "the quick", *options]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while running.stderr.readline() != "now\n":
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert err == "stopped\n"
    assert (len(out) > 1 and out.endswith("\n")) if partial else out == ""


#: Ctrl-C comes while a module is imported.
STARTS = """
import signal, sys
from rung.cli.app import main
class Now:
    def find_spec(name, *_):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Now)
main(sys.argv[2:])
"""


@pytest.mark.parametrize("module", ["rung.core.settings", "typer", "numpy", "rung.engine.load", "numba"])
def test_ctrl_c_while_starting_says_stopped(model, module):
    command = [sys.executable, "-c", STARTS, module, "run", model, "the quick", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_ctrl_c_that_a_library_made_another_error_of_is_ctrl_c(monkeypatch, capsys):
    def run(arguments):
        try:
            raise KeyboardInterrupt
        except BaseException as error:
            raise ImportError("half imported") from error

    monkeypatch.setattr(app, "run", run)
    with pytest.raises(SystemExit) as ended:
        app.main(["devices"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_version_and_plain_tables_when_piped():
    done = subprocess.run([*RUNG, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rung 0.")
    formats = subprocess.run([*RUNG, "formats"], capture_output=True, text=True, check=True, env={**os.environ})
    assert "q4_k" in formats.stdout
    assert "\x1b[" not in formats.stdout


def test_an_adapter_is_added_while_the_model_runs(rung, model, tmp_path):
    path = tmp_path / "adapter.gguf"
    card = open_card(model)
    rows, columns = card.tensor("layers.0.v").shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    writer.add_tensor("blk.0.attn_v.weight.lora_a", np.ones((2, columns), np.float32))
    writer.add_tensor("blk.0.attn_v.weight.lora_b", np.ones((rows, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    command = ("run", model, "the quick", "--max-tokens", "8", "--json")
    plain, changed, none = (
        json.loads(rung(*command, *more).out)
        for more in ((), ("--adapter", str(path)), ("--adapter", f"{path}:0.5", "--adapter", f"{path}:-0.5"))
    )
    assert changed["tokens"] != plain["tokens"] == none["tokens"]
    assert "1 adapter beside 1 linear, unmerged" in " ".join(changed["report"]["notes"])
    said = rung("run", model, "the quick", "--adapter", str(tmp_path / "nowhere"))
    assert said.code == 2
    assert "There is no adapter" in said.err


def test_stdin_stands_below_a_prompt(rung, model):
    def count(*arguments, **stdin):
        return json.loads(rung("run", model, *arguments, "--json", "--max-tokens", "1", **stdin).out)["prompt_tokens"]

    assert count("the quick", stdin="brown fox\n") == count("the quick\n\nbrown fox\n") > count("the quick")
    assert count("the quick", stdin="\n") == count("the quick")
