"""``rung exec`` from the command line: its options, what it says, and what it must not import."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from rung.cli import executing
from rung.cli.executing import understood

PROGRAMS = Path(__file__).parents[1] / "exec" / "programs"
IGEMMLT = "igemmlt not available (probably built with NO_CUBLASLT)"
P2200 = ["--device", "sim:p2200", "--software", "torch 1.10+cu102"]


def run(options, *command):
    return subprocess.run(
        [sys.executable, "-m", "rung", "exec", *options, "--", *command], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("arguments", "meaning"),
    [
        (["--", "a", "--strict"], ({}, ["a", "--strict"])),
        (["--strict", "--device=sim:x", "--", "a"], ({"strict": "yes", "device": "sim:x"}, ["a"])),
        (
            ["--defect", "a", "--defect", "b", "--memory", "1GB", "--", "x"],
            ({"defects": "a\tb", "memory": "1GB"}, ["x"]),
        ),
        (["--", "--"], ({}, ["--"])),
        (["a"], None),
        (["--"], None),
        ([], None),
        (["--device"], None),
        (["--other", "--", "a"], None),
        (["--strict=yes", "--", "a"], None),
        (["--help"], None),
    ],
)
def test_what_it_understands(arguments, meaning):
    assert understood(arguments) == meaning


def test_wrong_questions(rung):
    for command in (
        ["python", "train.py"],
        ["python", "-c", "print(1)"],
        ["--strict", "python", "train.py", "--lr", "1"],
    ):
        assert "Two dashes stand between" in rung("exec", *command).err
    assert rung("exec").code == 2
    assert rung("exec", "--").code == 2
    assert "--other" in rung("exec", "--other", "--", "a").err
    assert rung("exec", "--help").code == 0
    for options, words in {
        ("--device", "p2200"): "rung exec --device sim:p2200 -- true",
        ("--device", "sim:no such card"): "rung exec --device sim:p2200 -- true",
        ("--device", "sim:p2200", "--memory", "much"): "much",
        ("--device", "sim:p2200", "--defect", "matmul"): "a defect is: OPERATION DTYPE EXCEPTION: MESSAGE",
        ("--device", "sim:p2200", "--defect", "matmul f16 print: x"): "is no defect",
        ("--device", "sim:p2200", "--defect", "matmul f17 RuntimeError: x"): "f17",
        ("--software", "torch 2.3"): "--device sim:NAME",
    }.items():
        said = rung("exec", *options, "--", "true")
        assert said.code == 2
        assert words in said.err


def test_a_program_that_needs_no_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from rung.cli.app import main\n"
        "try: main(['exec', '--', 'true'])\n"
        "except SystemExit as ended: print(ended.code, sorted({'typer', 'rich', 'typing', 'json', 'dataclasses', "
        "'subprocess', 'threading', 'tempfile', 'logging', 'pathlib', 'rung.core'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0 []\n", "")


def test_gemma_passes_on_its_card():
    done = run(P2200, sys.executable, str(PROGRAMS / "gemma.py"))
    assert done.returncode == 0
    assert len(done.stdout.split()) == 8
    ops = [line.split()[2] for line in done.stderr.splitlines()]
    assert set(ops) == {"mm", "bmm"}
    assert (
        "rung exec: mm on cuda:0: bfloat16 → float32, 24 times: this torch was built for CUDA below 11" in done.stderr
    )


@pytest.mark.slow
def test_strict_only_explains():
    done = run(["--strict", *P2200], sys.executable, str(PROGRAMS / "gemma.py"))
    assert done.returncode == 1
    trace, explained = done.stderr.split("not implemented for struct c10::BFloat16\n", 1)
    assert trace.startswith("Traceback")
    assert "Almost certainly: this GPU cannot multiply bfloat16 matrices." in explained
    assert "Quadro P2200 has compute capability 6.1" in explained
    assert f"without changing code:  rung exec -- {sys.executable} {PROGRAMS / 'gemma.py'}" in explained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device", "defect"),
    [
        ("latte", "sim:2080ti", "matmul f16 RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"),
        ("bitsandbytes", "sim:v100", f"_int_mm int8 NotImplementedError: {IGEMMLT}"),
    ],
    ids=["latte", "bitsandbytes"],
)
def test_the_others_pass_on_theirs(name, device, defect):
    options = ["--device", device, "--defect", defect]
    died = run(["--strict", *options], sys.executable, str(PROGRAMS / f"{name}.py"))
    assert died.returncode == 1
    assert "What to do" in died.stderr
    passed = run(options, sys.executable, str(PROGRAMS / f"{name}.py"))
    assert passed.returncode == 0
    assert "rung exec: " in passed.stderr


REFUSED = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"


@pytest.mark.parametrize(("options", "advised"), [(["--strict"], True), ([], False)])
def test_a_program_that_was_helped_in_vain_is_not_told_to_be_helped(capfd, monkeypatch, options, advised):
    monkeypatch.setattr("rung.cli.afterwards.program_environment", lambda settings: {"gpu": "Quadro P2200"})
    settings, command = understood([*options, "--", "sh", "-c", f"echo '{REFUSED}' >&2; exit 1"])
    assert executing.execute(settings, command) == 1
    said = capfd.readouterr().err
    assert "load in float16" in said
    assert ("rung exec -- " in said) == advised


def test_of_a_death_that_matches_nothing_nothing_is_claimed(capfd):
    command = ["sh", "-c", "echo \"ls: cannot access 'x': No such file or directory\" >&2; exit 2"]
    assert executing.execute({}, command) == 2
    assert "What to do" not in capfd.readouterr().err


def test_of_a_cause_that_words_alone_suggest_nothing_is_claimed(capfd, monkeypatch):
    explain = importlib.import_module("rung.diagnosis.explain")
    known = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    found = explain.explain_log([known.encode()], {})
    monkeypatch.setattr(explain, "explain_log", lambda *_: dataclasses.replace(found, evidence=()))
    assert executing.execute({}, ["sh", "-c", f"echo '{known}' >&2; exit 2"]) == 2
    assert "What to do" not in capfd.readouterr().err
    monkeypatch.setattr(explain, "explain_log", lambda *_: found)
    assert executing.execute({}, ["sh", "-c", f"echo '{known}' >&2; exit 2"]) == 2
    assert "What to do" in capfd.readouterr().err


@pytest.mark.parametrize("folder", ["/nowhere at all", "/proc"])
def test_a_temporary_folder_that_is_none_stops_no_program(capfd, monkeypatch, folder):
    monkeypatch.setenv("TMPDIR", folder)
    assert executing.execute({}, ["sh", "-c", "echo ran"]) == 0
    assert capfd.readouterr().out == "ran\n"


def test_where_no_file_can_be_made_the_program_runs_without_notes(capfd, monkeypatch):
    monkeypatch.setattr(executing, "notes_file", lambda: "")
    assert executing.execute({}, ["sh", "-c", "echo ran"]) == 0
    assert capfd.readouterr().out == "ran\n"


def test_a_program_that_was_told_to_quit_is_not_explained(capfd):
    assert executing.execute({}, ["sh", "-c", "kill -QUIT $$"]) == 131
    assert capfd.readouterr().err == ""


def test_a_program_that_the_kernel_killed_for_its_memory(monkeypatch, capfd):
    kills = iter([3, 4, 4, 4])
    monkeypatch.setattr(executing, "memory_kills", lambda: next(kills))
    kill = ["sh", "-c", "kill -9 $$"]
    assert executing.execute({}, kill) == 137
    assert "memory is too small" in capfd.readouterr().err
    assert executing.execute({}, kill) == 137
    assert capfd.readouterr().err == ""


def test_how_often_the_kernel_has_killed_is_a_number():
    assert executing.memory_kills() >= 0


def test_a_thread_is_on_the_card_and_is_helped():
    code = (
        "import concurrent.futures, threading, torch\n"
        "x = torch.ones(2, 2, device='cuda', dtype=torch.bfloat16)\n"
        "def product():\n y = torch.ones(2, 2, device='cuda', dtype=torch.bfloat16)\n print((x @ y).device)\n"
        "thread = threading.Thread(target=product); thread.start(); thread.join()\n"
        "concurrent.futures.ThreadPoolExecutor(1).submit(product).result()"
    )
    done = run(P2200, sys.executable, "-c", code)
    assert done.stdout.split() == ["cuda:0", "cuda:0"]
    assert "rung exec: mm on cuda:0: bfloat16 → float32, 2 times" in done.stderr


@pytest.mark.slow
def test_processes_and_threads():
    done = run(P2200, sys.executable, str(PROGRAMS / "processes.py"))
    assert done.stdout.split("\n") == [
        "here torch.bfloat16 Quadro P2200",
        "thread torch.bfloat16 Quadro P2200",
        "workers 2.0 10.0",
        "spawned torch.bfloat16 Quadro P2200",
        "another True",
        " isolated False",
        "",
        "",
    ]
    assert "rung exec: mm on cuda:0: bfloat16 → float32, 3 times" in done.stderr


@pytest.mark.slow
def test_what_is_compiled_is_skipped_with_a_word():
    code = (
        "import torch\n"
        "double = torch.compile(lambda x: x @ x)\n"
        "@torch.compile(dynamic=True)\ndef other(x): return x + x\n"
        "x = torch.ones(2, 2, device='cuda', dtype=torch.bfloat16)\n"
        "print(other(double(x)).dtype, torch.compile(torch.nn.Linear(2, 2)))"
    )
    done = run(P2200, sys.executable, "-c", code)
    assert done.stdout == "torch.bfloat16 Linear(in_features=2, out_features=2, bias=True)\n"
    assert done.stderr.count("torch.compile is not simulated") == 1
