"""Programs for CUDA under ``rung exec --device cpu`` answer what they answer with ``cpu`` written for ``cuda``."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rung.hardware import detect

PROGRAMS = Path(__file__).parent / "programs" / "cuda"
ROOT = Path(__file__).parents[2]
RUNG = [sys.executable, "-m", "rung", "exec"]
LINE = r"rung exec: cuda is this processor: .+, \d+ threads, [\d.]+ GB\n"
#: They need nothing but torch.
QUICK = ("train_amp", "gemma_way", "latte_way")  # the last one asks for no gradients any more
#: rung's kernels take the place of these libraries' own wherever the program runs.
ON_RUNG = ("bnb4", "bnb8", "splats")
OTHERS = ("generate", "diffusers_pipeline", "sft", "lora", *ON_RUNG)
#: What is no answer of the program: how long it took.
TIMES = re.compile(r".*train_runtime.*\n")
ALL = """
import runpy, sys
for name in sys.argv[1:]:
    print(name)
    runpy.run_path(name, run_name="__main__")
"""


def run(command, **more):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, **more)


def on_cpu(*arguments, options=()):
    return run([*RUNG, "--device", "cpu", *options, "--", sys.executable, *map(str, arguments)])


def written_for_cpu(name, folder):
    """The program with ``cpu`` for ``cuda``, less the lines that only a GPU can run."""
    text = re.sub(r".*# GPU only\n", "", (PROGRAMS / f"{name}.py").read_text())
    (folder / f"{name}.py").write_text(text.replace("cuda", "cpu"))
    return folder / f"{name}.py"


def answers(done):
    """Return the output of the program, with the names of devices as they are on a processor."""
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace(", device='cuda:0'", "").replace("cuda:0", "cpu").replace("True", "_")
    return TIMES.sub("", text.replace("False", "_").replace(str(PROGRAMS), ""))


def test_programs_of_torch_answer_as_on_a_processor(tmp_path):
    mine = on_cpu("-c", ALL, *(PROGRAMS / f"{name}.py" for name in QUICK))
    plain = run([sys.executable, "-c", ALL, *(str(written_for_cpu(name, tmp_path)) for name in QUICK)])
    assert answers(mine) == answers(plain).replace(str(tmp_path), "")
    assert re.fullmatch(LINE, mine.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_programs_of_libraries_answer_as_on_a_processor(name, tmp_path):
    mine = on_cpu(PROGRAMS / f"{name}.py")
    command = [sys.executable, str(written_for_cpu(name, tmp_path))]
    plain = run([*RUNG, "--", *command] if name in ON_RUNG else command)
    assert len(answers(mine).split()) > 4
    assert answers(mine) == answers(plain)
    assert re.search(LINE, mine.stderr)
    assert "library load error" not in mine.stderr
    assert "kernels-community" not in mine.stderr or name not in ON_RUNG


@pytest.mark.slow
def test_where_everything_lies():
    done = on_cpu(PROGRAMS / "places.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.slow
def test_what_is_for_gpus_alone_is_said():
    done = on_cpu(PROGRAMS / "alone.py", "cuda:1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "OSError")
    assert "invalid device ordinal" in done.stderr  # the program's own words stay
    own, said = done.stderr.split("CUDA_LAUNCH_BLOCKING=1.\n", 1)
    assert re.match(LINE, own)
    for words in ("torch.compile was left out", "talk through gloo", "CUDA code of its own (warp)", "asked for cuda:1"):
        assert said.count(words) == 1
    assert "not about the device" not in said


REFUSED = (
    "import sys, torch; print(torch.ones(1).cuda().device); torch.linalg.inv(torch.eye(2).half().cuda()); sys.exit(7)"
)


@pytest.mark.slow
def test_a_full_memory_is_the_error_that_programs_handle():
    done = on_cpu(PROGRAMS / "full_memory.py")
    assert done.returncode == 0, done.stderr
    said = ["a tensor True", "the forward pass True", "a batch True", "far too much True"]
    assert done.stdout.splitlines() == said


@pytest.mark.slow
def test_the_load_of_the_processor_is_an_answer():
    done = on_cpu("-c", "import torch; print(0 <= torch.cuda.utilization() <= 100 > torch.cuda.memory_usage() >= 0)")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_exit_codes_stay_and_what_is_refused_is_repeated():
    done = on_cpu("-c", REFUSED)
    assert (done.returncode, done.stdout) == (7, "cuda:0\n")
    assert "rung exec: linalg_inv_ex on cuda:0: float16 → float32, once" in done.stderr


@pytest.mark.slow
def test_strict_repeats_nothing():
    done = on_cpu("-c", REFUSED, options=["--strict"])
    assert (done.returncode, done.stdout) == (1, "cuda:0\n")
    assert "Low precision dtypes not supported" in done.stderr


def test_a_program_without_torch_hears_that_nothing_was_changed():
    done = on_cpu("-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr == "rung exec: no Python of 3.11 or newer imported torch, so nothing was changed\n"


def test_ctrl_c_reaches_the_program():
    code = (
        "import torch, time\ntry:\n    print(torch.ones(1).cuda(), flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('bye')"
    )
    command = [*RUNG, "--device", "cpu", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "tensor([1.], device='cuda:0')\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "bye\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "3GB"], "are of a simulated card; --device cpu is this processor as it is"),
        (["--software", "torch 2.3+cu121"], "are of a simulated card; --device cpu is this processor as it is"),
        (["--defect", "mm f16 RuntimeError: x"], "are of a simulated card; --device cpu is this processor as it is"),
    ],
)
def test_a_processor_has_no_options_of_cards(options, words):
    done = on_cpu("-c", "1", options=options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert f"rung exec --device cpu -- {shlex.join([sys.executable, '-c', '1'])}" in done.stderr


def test_a_bare_card_is_told_both_ways():
    done = run([*RUNG, "--device", "p2200", "--", sys.executable, "-c", "1"])
    assert done.returncode == 2
    assert f"rung exec --device cpu -- {shlex.join([sys.executable, '-c', '1'])}" in done.stderr
    assert f"rung exec --device sim:p2200 -- {shlex.join([sys.executable, '-c', '1'])}" in done.stderr


@pytest.mark.skipif(bool(detect.accelerators()), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print(torch.ones(2).cuda().sum().item(), sys.argv[1:])", ""),
        pytest.param(
            "assert torch.cuda.is_available(), 'CUDA is required'; print(2.0, sys.argv[1:])",
            "CUDA is required",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_program_that_dies_for_want_of_a_gpu_is_shown_the_way_out_and_it_works(tmp_path, line, words):
    (tmp_path / "two words.py").write_text(f"import sys, torch\n{line}\n")
    done = run([*RUNG, "--", sys.executable, str(tmp_path / "two words.py"), "--epochs", "3", "a b"])
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr[done.stderr.index("The program asked for a GPU, and this machine has none.") :]
    assert words in said
    first = said.split("What to do\n  1  run it on this processor, without changing code\n")[1].splitlines()[0].strip()
    assert first.startswith("rung exec --device cpu -- ")
    again = run([sys.executable, "-m", *shlex.split(first)])
    assert (again.returncode, again.stdout) == (0, "2.0 ['--epochs', '3', 'a b']\n"), again.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(detect.accelerators()), reason="there is a GPU here")
def test_a_death_of_another_kind_is_offered_no_processor():
    for code in ("import torch; raise RuntimeError('no such file')", "raise RuntimeError('CUDA is required')"):
        done = run([*RUNG, "--", sys.executable, "-c", code])
        assert done.returncode == 1
        assert "--device cpu" not in done.stderr
