"""Test the words of fixes: those of the program, the maker and the system at hand."""

import json
import re
from pathlib import Path

import pytest

from rung.diagnosis.explain import explain, scene
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.fixes.wording import Speaker, wordings
from rung.diagnosis.logs.programs import PROGRAMS, TORCH, program_of

DATA = Path(__file__).parents[1] / "data"
IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\ntorch 2.9"
RAISED = 'File "/venv/lib/python3.11/site-packages/nunchaku/models.py", line 3, in forward\n'


@pytest.mark.parametrize(
    ("label", "cause", "environment", "log", "expected"),
    [
        ("install-matching-build", "cpu-only-build", {"gpu": "RTX 3060"}, "tensorflow: no GPU", "tensorflow[and-cuda]"),
        (
            "install-matching-build",
            "cpu-only-build",
            {"gpu": "RX 6600", "os": "Windows 11"},
            "onnxruntime: CUDAExecutionProvider is not in available provider names",
            "onnxruntime-directml",
        ),
        ("build-from-source", "cpu-only-build", {"gpu": "RX 7600"}, "ggml: no GPU found", "-DGGML_HIP=ON"),
        ("build-from-source", "cpu-instruction-missing", {}, "llama.cpp: Illegal instruction", "-DGGML_NATIVE=ON"),
        (
            "fix-gpu-visibility",
            "gpu-not-visible",
            {"gpu": "RX 7600", "os": "Docker"},
            "docker run --rm rocm/pytorch:latest\nno GPU",
            "--security-opt seccomp=unconfined rocm/pytorch:latest",
        ),
        ("fix-gpu-visibility", "gpu-not-visible", {"gpu": "RX 7600", "os": "Docker"}, "no GPU", "rung devices"),
        (
            "install-cuda-libraries",
            "cuda-library-not-found",
            {},
            "Could not load library libcudnn_ops_infer.so.8",
            'pip install "nvidia-cudnn-cu12==8.*"',
        ),
        (
            "install-cuda-libraries",
            "cuda-library-not-found",
            {},
            "ImportError: libcublas.so.13: cannot open shared object file",
            "pip install nvidia-cublas",
        ),
        (
            "install-cuda-libraries",
            "cuda-library-not-found",
            {},
            "ImportError: libcudart.so.10.1: cannot open shared object file",
            "cudatoolkit=10.1",
        ),
        (
            "install-cuda-libraries",
            "cuda-library-not-found",
            {},
            "ImportError: libcudart.so.11.0: cannot open shared object file",
            "pip install nvidia-cuda-runtime-cu11",
        ),
        ("install-matching-build", "package-version-mismatch", {}, "operator torchvision::nms does not exist", "setup"),
        (
            "use-fp32",
            "cpu-half-op-missing",
            {},
            'File ".../torch/nn/modules/linear.py", line 114, in forward',
            "grep -rnE 'dtype",
        ),
        (
            "downgrade-library",
            "software-defect",
            {"gpu": "RTX 4090", "torch": "2.9"},
            "torch: wrong",
            "pip index versions torch",
        ),
        (
            "use-fallback-kernel",
            "compiler-arch-unsupported",
            {"gpu": "GTX 1080", "os": "Windows"},
            "torch._inductor.exc: triton",
            '$env:TORCHDYNAMO_DISABLE = "1"',
        ),
        (
            "build-from-source",
            "build-wrong-arch-flags",
            {"gpu": "GTX 1080", "os": "Windows"},
            RAISED + IMAGE,
            '$env:TORCH_CUDA_ARCH_LIST = "6.1"; pip install',
        ),
        (
            "align-package-versions",
            "package-version-mismatch",
            {},
            "ModuleNotFoundError: No module named 'cv2'",
            "pip install opencv-python",
        ),
        ("align-package-versions", "package-version-mismatch", {}, "No module named 'my_own_thing'", "pip check"),
    ],
)
def test_a_command_is_that_of_the_program_the_maker_and_the_system(label, cause, environment, log, expected):
    found = Speaker(scene([log.encode()], environment), cause).fix(label).command
    assert found is None if expected is None else expected in found


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("2024-01-01 cuda_dnn.cc:378] Loaded cuDNN\nRuntimeError: CUDA error: no kernel image is available", "torch"),
        ("ggml_cuda_compute_forward: MUL_MAT failed", "llama.cpp"),
        ("RuntimeError: CUDA error: out of memory\n  File 'ComfyUI/execution.py'", "comfyui"),
        ("failed to open the file", ""),
    ],
)
def test_a_program_is_known_by_its_words(log, name):
    assert program_of(scene([log.encode()])).name == name


def test_what_only_torch_can_do_is_not_promised_to_other_programs():
    full = "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert explain(f"RuntimeError: {full}").automatic
    assert not explain(f"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {full}").automatic


def test_what_tells_causes_apart_is_said_for_the_system():
    found = scene([b"Illegal instruction"], {"os": "Windows 10"})
    assert "/proc/cpuinfo" not in Speaker(found, "software-defect").tell("cpu-instruction-missing")


def test_every_name_in_a_wording_is_one_that_there_is():
    programs = {program.name for program in (*PROGRAMS, TORCH)}
    for row in (*wordings(), *wordings("tell")):
        assert programs.issuperset(row.program.split()), row
        assert causes().keys() >= set(row.cause.split()), row
        assert {"nvidia", "amd", "intel", "apple", "none"}.issuperset(row.maker.split()), row
        assert {"linux", "windows", "macos"}.issuperset(row.system.split()), row
        re.compile(row.when)
    assert {row.label for row in wordings()} == {row.label for row in wordings() if row.plain}


@pytest.mark.parametrize(
    ("log", "label", "cause", "expected"),
    [
        (
            "NCCL error: peer access",
            "set-environment-override",
            "gpu-not-visible",
            '$env:NCCL_P2P_DISABLE = "1"; $env:NCCL_IB_DISABLE = "1"',
        ),
        (
            "Keras 3",
            "downgrade-library",
            "package-version-mismatch",
            'pip install tf_keras; $env:TF_USE_LEGACY_KERAS = "1"',
        ),
        (
            RAISED + IMAGE,
            "build-from-source",
            "build-wrong-arch-flags",
            "$env:TORCH_CUDA_ARCH_LIST = $(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader); pip install",
        ),
    ],
)
def test_windows_is_given_its_own_shell(log, label, cause, expected):
    found = Speaker(scene([log.encode()], {"os": "Windows 11"}), cause).fix(label)
    assert found.command.startswith(expected)


def test_a_change_of_code_names_the_line_or_what_finds_it():
    error = "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'"
    frame = '  File "/x/site-packages/torch/nn/linear.py", line 5, in forward\n'
    found = Speaker(scene([f'File "a/train.py", line 7, in main\n{frame}{error}'.encode()], {}), "x").fix("use-fp32")
    assert (found.command, found.text.endswith("(a/train.py, line 7)")) == (None, True)
    found = Speaker(scene([error.encode()], {"os": "Windows 11"}), "x").fix("use-fp32")
    assert found.command.startswith("Get-ChildItem -Recurse -Filter *.py | Select-String")


def test_nearly_every_fix_that_is_shown_has_a_command_or_a_place():
    """The known messages without one have no repair, or name nothing."""
    rows = [json.loads(line) for line in (DATA / "unread.jsonl").read_text(encoding="utf-8").splitlines()]
    shown = [fix for row in rows for fix in explain(row["log"], row["environment"]).ways[0][:3]]
    bare = [fix for fix in shown if not (fix.command or re.search(r"https?://|, line \d+\)$", fix.text))]
    assert len(bare) <= len(shown) // 12, {fix.label for fix in bare}
