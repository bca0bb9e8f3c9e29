"""Test fixes for a cause, worded for the card at hand: builds of torch are those that ``rung setup`` chooses."""

import pytest

from rung.diagnosis.explain import explain, rules_of, scene
from rung.diagnosis.fixes.fix_order import FIX_ORDER
from rung.diagnosis.fixes.fixing import causes, fixes_for
from rung.diagnosis.fixes.wording import Speaker, wordings
from rung.diagnosis.model import words_of
from rung.software.companions import Host
from rung.software.setup import choose

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\ntorch 2.9"


def fixes(shares, environment, log):
    found = scene([log.encode()], environment)
    return fixes_for(shares, found, words_of(found, rules_of(found)), Speaker(found, next(iter(shares))))


def command(label, cause, environment, log=IMAGE):
    return next(fix.command for fix in fixes({cause: 1.0}, environment, log) if fix.label == label)


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        ({"gpu": "GTX 1080"}, Host("GeForce GTX 1080", "sm_61")),
        ({"compute_capability": "7.0"}, Host("sm_70", "sm_70")),
        ({"gpu": "RTX 4090", "driver": "535.54", "os": "Windows 11"}, Host("RTX 4090", "sm_89", "535.54", "windows")),
        ({"gpu": "Radeon RX 7900 XTX"}, Host("Radeon RX 7900 XTX", "gfx1100")),
    ],
    ids=lambda value: value.get("gpu", "") if isinstance(value, dict) else "",
)
def test_a_build_of_torch_is_the_one_that_setup_chooses(environment, host):
    expected = choose([host]).torch.command
    assert command("install-matching-build", "build-lacks-new-arch", environment) == expected
    assert command("downgrade-library", "build-lacks-old-arch", environment) == expected


@pytest.mark.parametrize("environment", [{}, {"gpu": "NVIDIA Imaginary 9000"}, {"gpu": "none"}])
def test_for_a_card_that_nobody_knows_setup_is_asked(environment):
    assert command("install-matching-build", "build-lacks-new-arch", environment) == "rung setup"


def test_an_amd_card_is_told_whose_code_it_runs():
    found = command("set-environment-override", "rocm-arch-unsupported", {"gpu": "Radeon RX 6700 XT"}, "rocBLAS error")
    assert found == "export HSA_OVERRIDE_GFX_VERSION=10.3.0"


def labels(cause, environment, log):
    return [fix.label for fix in fixes({cause: 1.0}, environment, log)]


@pytest.mark.parametrize(
    ("gpu", "first", "related"),
    [("RX 6700 XT", "set-environment-override", True), ("AMD RX 7900 XTX 24GB", "upgrade-library", True)]
    + [(gpu, "downgrade-library", False) for gpu in ("MI300X", "MI50")],
)
def test_an_amd_card_that_builds_hold_code_for_is_not_told_to_be_another(gpu, first, related):
    found = labels("rocm-arch-unsupported", {"gpu": gpu}, "HIP error: invalid device function")
    assert found[0] == first
    assert ("set-environment-override" in found) == related


def test_a_card_before_vega_is_not_told_to_be_another_but_to_be_let_in():
    environment = {"gpu": "RX 580"}
    assert labels("rocm-arch-unsupported", environment, "HIP error: invalid device function")[0] == "downgrade-library"
    found = command("set-environment-override", "rocm-arch-unsupported", environment, "HIP error")
    assert found == "export ROC_ENABLE_PRE_VEGA=1"


def test_of_an_amd_card_that_nobody_named_no_number_is_guessed():
    log = "RuntimeError: HIP error: invalid device function"
    assert "HSA_OVERRIDE" not in command("set-environment-override", "rocm-arch-unsupported", {}, log)


@pytest.mark.parametrize(
    ("environment", "log", "expected"),
    [
        ({"compute_capability": "6.1"}, IMAGE, "TORCH_CUDA_ARCH_LIST=6.1 pip install "),
        ({}, IMAGE, "TORCH_CUDA_ARCH_LIST=$(nvidia-smi "),
        ({"gpu": "MI300X"}, "HIP error: invalid device function", "PYTORCH_ROCM_ARCH=gfx942 pip install "),
        ({}, "HIP error: invalid device function", "PYTORCH_ROCM_ARCH=$(rocminfo "),
    ],
)
def test_what_is_compiled_is_compiled_for_the_card_at_hand(environment, log, expected):
    raised = '  File "/venv/lib/python3.11/site-packages/nunchaku/models.py", line 3, in forward\n'
    found = command("build-from-source", "build-wrong-arch-flags", environment, raised + log)
    assert found.startswith(expected)
    assert found.endswith("--no-binary nunchaku nunchaku")
    unnamed = command("build-from-source", "build-wrong-arch-flags", environment, log)
    assert unnamed.startswith(expected.removesuffix("pip install "))
    assert unnamed.endswith(" pip install --no-build-isolation --no-cache-dir ."), "no package is named"


def test_an_error_that_only_torch_words_so_is_answered_with_a_build_of_torch():
    log = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    found = explain(log, {"gpu": "GTX 1080", "torch": "2.7.0+cu128"})
    assert found.cause == "build-lacks-old-arch"
    assert found.fixes[0].command == choose([Host("GeForce GTX 1080", "sm_61")]).torch.command


@pytest.mark.parametrize(("driver", "expected"), [("", "rung setup"), ("470.82", "pip install torch==")])
def test_a_driver_that_is_too_old_is_answered_with_a_build_for_it(driver, expected):
    log = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
    assert command("downgrade-library", "driver-too-old", {"gpu": "RTX 3060", "driver": driver}, log).startswith(
        expected
    )


def test_tensorflow_is_told_to_take_memory_as_it_needs_it():
    found = command("set-environment-override", "gpu-out-of-memory", {}, "Could not create cudnn handle")
    assert found == "export TF_FORCE_GPU_ALLOW_GROWTH=true"


def test_xformers_is_taken_from_where_the_installed_torch_is_from():
    log = "xFormers wasn't build with CUDA support"
    found = command("install-matching-build", "cuda-toolkit-mismatch", {"torch": "2.7.1+cu128"}, log)
    assert found == "pip install -U xformers --index-url https://download.pytorch.org/whl/cu128"


@pytest.mark.parametrize(
    ("cause", "environment", "log", "first"),
    [
        (
            "cuda-library-not-found",
            {},
            "nvrtc: error: failed to open libnvrtc-builtins.so.12.4",
            "set-library-path install-cuda-libraries",
        ),
        ("platform-binary-missing", {}, "libc.so.6: version `GLIBC_2.38' not found", "build-from-source"),
        (
            "compiler-arch-unsupported",
            {"gpu": "GTX 1080", "cuda": "13.0"},
            "nvrtc: error: invalid value for --gpu-architecture (-arch)",
            "downgrade-library",
        ),
        (
            "compiler-arch-unsupported",
            {"gpu": "RTX 4090", "cuda": "11.3"},
            "nvrtc: error: invalid value for --gpu-architecture (-arch)",
            "upgrade-library install-matching-build",
        ),
        ("build-wrong-arch-flags", {}, IMAGE, "build-from-source set-environment-override"),
        ("platform-binary-missing", {"os": "Linux aarch64"}, "No matching distribution found", "build-from-source"),
        (
            "xpu-directml-unsupported",
            {},
            "NotImplementedError: Could not run 'aten::roll' with arguments from the 'XPU' backend",
            "upgrade-library use-cpu",
        ),
        (
            "xpu-directml-unsupported",
            {},
            "aclnnCast failed: self not implemented for DT_BFLOAT16, should be in dtype support list",
            "use-fp16 upgrade-library",
        ),
        ("mps-dtype-unsupported", {}, "Cannot convert a MPS Tensor to float64 dtype", "use-fp32"),
        ("mps-dtype-unsupported", {}, "RuntimeError: cumsum not supported on MPS", "upgrade-library use-cpu"),
        (
            "rocm-arch-unsupported",
            {"gpu": "gfx1103", "os": "Windows"},
            r"rocBLAS error: Cannot read C:\Program Files\AMD\ROCm\6.1\bin\/rocblas/library/TensileLibrary.dat",
            "install-matching-build set-environment-override",
        ),
        (
            "rocm-arch-unsupported",
            {},
            'msg="amdgpu is not supported (supported types:[gfx1030 gfx900])" gpu_type=gfx1031',
            "set-environment-override",
        ),
        (
            "graphics-api-feature-missing",
            {},
            "Error: This model requires WebGPU extension shader-f16, which is not enabled in this browser.",
            "use-fp32 upgrade-library",
        ),
        (
            "cpu-instruction-missing",
            {"cpu": "Raspberry Pi 4"},
            "Illegal instruction (core dumped)",
            "downgrade-library",
        ),
        ("gpu-not-visible", {}, "clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR", "upgrade-driver"),
        ("gpu-not-visible", {"os": "docker"}, "clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR", "fix-gpu-visibility"),
    ],
)
def test_what_a_message_points_at_comes_first(cause, environment, log, first):
    expected = first.split()
    assert set(labels(cause, environment, log)[: len(expected)]) == set(expected)


def test_no_placeholder_is_left():
    for environment in ({}, {"gpu": "GTX 1080", "torch": "2.9.0+cu130", "os": "Windows"}, {"gpu": "gfx1031"}):
        for fix in explain(IMAGE, environment).fixes:
            assert "{" not in f"{fix.text}{fix.command}"


def test_where_two_causes_are_likely_the_first_fixes_serve_both():
    one = [fix.label for fix in fixes({"build-wrong-arch-flags": 0.9, "build-lacks-new-arch": 0.05}, {}, IMAGE)]
    two = [fix.label for fix in fixes({"build-wrong-arch-flags": 0.4, "build-lacks-new-arch": 0.35}, {}, IMAGE)]
    other = fixes({"build-lacks-new-arch": 1.0}, {}, IMAGE)[0].label
    assert one[0] == two[0] == "build-from-source"
    assert one[1] != other
    assert two[1] == other


def test_a_file_of_a_picture_model_is_for_another_program():
    log = "error loading model: error loading model architecture: unknown model architecture: '{}'"
    for name in ("flux", "sd3", "wan", "qwen_image"):
        assert labels("format-or-arch-unknown", {}, log.format(name))[0] == "use-other-backend"
    assert labels("format-or-arch-unknown", {}, log.format("gemma9"))[0] == "upgrade-library"


def test_where_a_name_was_taken_away_an_older_release_comes_first():
    log = "AttributeError: 'MiniCPMV' object has no attribute 'all_tied_weights_keys'"
    assert explain(log).fixes[0].label == "downgrade-library"
    log = "ModuleNotFoundError: No module named 'torchdata.datapipes'"
    assert "downgrade-library" in [fix.label for fix in explain(log).fixes[:2]]


def test_orders_of_fixes_name_what_is_there():
    labels = {row.label for row in wordings()}
    assert all(cause in causes() and set(order) <= labels for cause, _, order in FIX_ORDER)


@pytest.mark.parametrize(
    ("cause", "log", "tried"),
    [
        (
            "fp16-broken-on-gpu",
            "Launching Web UI with arguments: --no-half --precision full\nNansException",
            "use-fp32",
        ),
        (
            "rocm-arch-unsupported",
            "$ HSA_OVERRIDE_GFX_VERSION=10.3.0 python main.py\nHIP error: invalid device function",
            "set-environment-override",
        ),
    ],
)
def test_what_was_tried_already_is_not_the_first_to_try(cause, log, tried):
    assert labels(cause, {}, log)[0] != tried
    assert labels(cause, {}, log.splitlines()[-1])[0] == tried


def test_what_only_looks_tried_is_not():
    log = "NansException: use the --no-half commandline argument to fix this."
    assert labels("fp16-broken-on-gpu", {}, log)[0] == "use-fp32"
