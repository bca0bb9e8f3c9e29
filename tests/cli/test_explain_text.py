"""Test the text of ``explain``: how sure it is in words, three fixes, no facts thrice, what works on the card."""

import json
from dataclasses import replace

import pytest

from rung.cli.app import main
from rung.diagnosis import machine
from rung.diagnosis.explain import explain
from rung.hardware import catalog

BF16 = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
CUBLAS = (
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, "
    "&falpha, a, CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F, CUBLAS_GEMM_DEFAULT)`"
)
FRAME = '  File "/v/lib/python3.10/site-packages/bitsandbytes/autograd/_functions.py", line 577, in matmul_4bit\n'
CMMA = "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
IGEMMLT = "NotImplementedError: igemmlt not available (probably built with NO_CUBLASLT)"
MISSING = "CUDA kernel vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch 610. compiled for: 500,600"
FBGEMM = (
    r'OSError: [WinError 126] Error loading "C:\v\Lib\site-packages\torch\lib\fbgemm.dll" or one of its dependencies.'
)


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    """The lines that ``rung explain`` prints of a log on a card."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(log, *options):
        (tmp_path / "log").write_text(log)
        with pytest.raises(SystemExit):
            main(["explain", str(tmp_path / "log"), *options])
        return capsys.readouterr().out.splitlines()

    return call


@pytest.mark.parametrize(
    ("log", "headline"),
    [
        (BF16, "Almost certainly: this GPU cannot multiply bfloat16 matrices."),
        (CUBLAS, "One of two or three: two versions of CUDA or its libraries meet that do not belong together."),
        (
            FRAME + CUBLAS,
            "One of two or three: two versions of CUDA or its libraries meet that do not belong together.",
        ),
        ("it does not work on my card", "Not sure. The likeliest: "),
        ("my gpu is slow", "I do not know this one: "),
        ("RuntimeError", "I do not know this one: "),
    ],
)
def test_the_headline_says_how_sure_it_is(said, log, headline):
    first = said(log, "--device", "2080ti")[0]
    assert first.startswith(headline)
    assert "%" not in first


def test_what_is_not_known_has_no_fixes_but_how_to_ask(said):
    lines = said("everything is broken", "--no-environment")
    assert len(lines) == 3
    assert lines[-1].strip() == "2>&1 | rung explain"


def test_at_most_three_fixes_are_shown_and_all_on_request_with_percent(said):
    short, long = (said(FRAME + CUBLAS, "--device", "2080ti", *more) for more in ((), ("--all",)))
    numbers = [sum(line[:4].strip().isdigit() for line in lines) for lines in (short, long)]
    assert numbers == [3, 4], "of five fixes two have the same command"
    assert long[0].endswith("%")
    assert not any("%" in line for line in short)
    found = json.loads("\n".join(said(FRAME + CUBLAS, "--device", "2080ti", "--json")))
    assert len(found["fixes"]) == 5


@pytest.mark.parametrize("everything", [(), ("--all",)])
def test_a_release_of_nobody_knows_what_is_no_fix(said, everything):
    log = "rocBLAS error: Cannot read ./TensileLibrary.dat: No such file or directory for GPU arch : gfx1031"
    text = "\n".join(said(log, "--device", "6750xt", *everything))
    assert "HSA_OVERRIDE_GFX_VERSION" in text
    assert "that raised it" not in text
    assert "pip list" not in text
    other = '  File "/v/site-packages/diff_gaussian_rasterization/__init__.py", line 142, in f\n'
    illegal = said(f"{other}RuntimeError: CUDA error: an illegal memory access was encountered", *everything)
    at = next(number for number, line in enumerate(illegal) if "release of diff-gaussian-rasterization" in line)
    assert not illegal[at + 1].startswith("       "), "no command for torch below another package"
    named = f'  File "/v/site-packages/torch/cuda/__init__.py", line 1, in f\n{log}'
    assert "install a newer torch for this card" in "\n".join(said(named, "--device", "6750xt", "--all"))


def test_no_more_than_two_facts_that_say_the_same(said):
    log = "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'"
    assert sum(line.startswith("  fact") for line in said(log, "--device", "cpu")) == 2
    assert sum(line.startswith("  fact") for line in said(log, "--device", "cpu", "--all")) > 2


@pytest.mark.parametrize(
    ("log", "options", "expected"),
    [
        (CUBLAS, ("--device", "2080ti"), "bnb_4bit_compute_dtype=torch.float32"),
        (CUBLAS, ("--device", "2080ti"), "rung exec --"),
        (FRAME + CUBLAS, ("--device", "2080ti"), "keep the weights in 4 bits: bnb_4bit_compute_dtype=torch.float32"),
        (
            f'  File "t2v.py", line 1, in <module>\n{FRAME}{CUBLAS}',
            ("--device", "2080ti"),
            "rung exec -- python t2v.py",
        ),
        (CMMA, ("--device", "3060"), "cargo update -p burn"),
        (CMMA, ("--device", "3060"), "GeForce RTX 3060 12GB itself has matrix units"),
        (IGEMMLT, ("--device", "v100"), "pip install -U bitsandbytes peft"),
        (IGEMMLT, ("--device", "v100"), "load the base model in 16 bits before merging"),
        (f"./llamafile-0.8.1 -m a.gguf -ngl 9\n{MISSING}", ("--device", "p2200"), "-arch=native; with -arch=all"),
        (f"./llamafile-0.8.1 -m a.gguf -ngl 9\n{MISSING}", ("--device", "p2200"), "GGML_CUDA_FORCE_MMQ"),
        (
            f"./llamafile-0.8.1 -m a.gguf -ngl 9\n{MISSING}",
            ("--device", "p2200"),
            "./llamafile-0.8.1 -m a.gguf -ngl 99",
        ),
        (f"./llamafile-0.8.1 -m a.gguf -ngl 9\n{MISSING}", ("--device", "p2200"), "rung run a.gguf"),
        (f"./llamafile-0.8.1 -m a.gguf -ngl 9\n{MISSING}", ("--device", "p2200"), "take an older llamafile"),
        (
            f"C:\\x> .\\llamafile-0.8.1.exe -m a.gguf -ngl 9\n{MISSING}",
            ("--device", "p2200"),
            "Visual Studio's x64 prompt",
        ),
        (BF16, ("--device", "p2200", "--model", "gemma-2b"), "Gemma 2B needs 5.3 GB in f16 and 10.1 GB in f32"),
        (BF16, ("--device", "p2200"), "On a Quadro P2200 today: "),
        (FBGEMM, (), "pip install -U torch==2.4.1"),
    ],
)
def test_the_founding_five_and_others_name_their_known_escapes(said, log, options, expected):
    assert any(expected in line for line in said(log, *options))


@pytest.mark.parametrize(
    ("log", "options", "wrong"),
    [
        (CMMA, ("--device", "3060"), "the GPU has no matrix unit"),
        (CMMA, ("--device", "3060"), "dtype=torch"),
        (FBGEMM, (), "ldconfig"),
        (f"C:\\x> .\\llamafile-0.8.1.exe -m a.gguf -ngl 9\n{MISSING}", ("--device", "p2200"), "cmake"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", ("--device", "2080ti"), "quantis"),
        (BF16, ("--device", "p2200", "--model", "gemma-2b"), "  1  load in float16"),
    ],
)
def test_what_is_wrong_for_the_card_or_the_system_is_not_said(said, log, options, wrong):
    assert not any(wrong in line for line in said(log, *options))


def test_what_works_today_ends_the_answer_with_a_command_that_is_printed_once(said):
    lines = said(BF16, "--device", "p2200", "--model", "gemma-2b")
    today = next(number for number, line in enumerate(lines) if line.startswith("On a Quadro P2200 today: Gemma 2B"))
    assert today >= len(lines) - 3
    assert sum("rung run google/gemma" in line for line in lines) == 1
    here = said("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert any(line.startswith("On this machine's ") for line in here)
    assert not any(" today: " in line for line in said(BF16, "--no-environment"))


def test_a_card_that_the_log_names_is_the_one_that_is_planned_for_where_this_machine_has_none(said, monkeypatch):
    log = "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {} GPU has 7.0."
    processor = machine.card_named("cpu") or catalog.device("epyc-9654")
    monkeypatch.setattr(machine, "best_device", lambda: replace(processor, kind="cpu", real=True))
    assert any(line.startswith("On a Tesla V100 ") for line in said(log.format("Tesla V100-SXM2-32GB")))
    assert any(line.startswith("On this machine's ") for line in said(log.format("Foo 9000")))


def test_a_model_is_checked_against_a_card_that_is_known(capsys):
    for options in (["--no-environment"], ["--device", "no such card"]):
        with pytest.raises(SystemExit) as stopped:
            main(["explain", "a b", "--model", "gemma-2b", *options])
        assert stopped.value.code == 2
        assert "--model is checked against a card" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["explain", "a b", "--model", "gemma-22b", "--device", "p2200"])
    assert stopped.value.code != 0
    assert "gemma" in capsys.readouterr().err


def test_python_prints_an_explanation_as_the_command_does(said):
    lines = str(explain(FRAME + CUBLAS)).splitlines()
    assert lines == said(FRAME + CUBLAS, "--no-environment")
    assert "What to do" in lines
    page = explain("RuntimeError: CUDA out of memory & more")._repr_html_()
    assert page.startswith("<p><b>")
    assert "out of memory &amp; more" in page


def test_a_guess_says_what_rung_does_without_changing_code(said):
    lines = said("CUBLAS_STATUS_NOT_SUPPORTED", "--no-environment")
    unsure = lines[0].startswith("Not sure")
    assert any("rung exec --" in line for line in lines)
    assert unsure is ("What to do" not in lines), "the fixes of a guess are not shown"
