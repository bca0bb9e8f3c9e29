"""From a log to a cause: the rules, the founding five in many disguises, and logs that nobody meant to write."""

import json

import pytest

from rung.core.errors import UsageError
from rung.diagnosis import signatures
from rung.diagnosis.explain import explain, scene
from rung.diagnosis.fixes.fixing import causes
from rung.diagnosis.fixes.wording import wordings
from rung.diagnosis.logs.log import unnamed
from rung.diagnosis.rules import RULES

IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, "
ASSERTED = "Indexing.cu:1141: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
CMMA = "Cmma on inputs Float(F16) and outputs Float(F32) with shape m=16, n=16, k=16 not supported."
IGEMMLT = "NotImplementedError: igemmlt not available (probably built with NO_CUBLASLT)"


def test_labels_of_the_data_belong_together():
    fixes = {row.label for row in wordings()}
    assert all(label in fixes for cause in causes().values() for label in cause.fixes)
    assert all(label in causes() for signature in signatures() for label in signature.causes)
    assert all(label in causes() for rule in RULES for label in rule.causes)
    named = {label for signature in signatures() for label in signature.causes}
    assert named == set(causes()), "every cause can be found"


def test_the_first_cause_outranks_what_follows_from_it():
    log = f"{ASSERTED}\nRuntimeError: CUDA error: device-side assert triggered\nSegmentation fault (core dumped)"
    assert explain(log).cause == "async-bad-input"


def test_the_lines_of_the_evidence_stand_in_the_order_of_the_log():
    log = f"RuntimeError: CUDA error: device-side assert triggered\n{ASSERTED}"
    assert [item.line for item in explain(log).evidence if item.line] == [1, 2]


def test_what_a_line_demands_of_a_gpu_is_not_what_it_met():
    assert scene([b"the kernel requires compute capability 8.0 or higher"]).facts.capability is None
    assert scene([b"a device of compute capability 6.1 fails: cuda"]).facts.capability == 61


def test_an_error_that_was_survived_is_no_cause():
    log = "ConnectionError: Connection refused\nRetrying\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    assert explain(log).cause == "gpu-out-of-memory"


def test_a_program_that_went_on_after_all_that_it_met_has_no_cause():
    met = "WARNING: CUDA out of memory, retrying with batch size 4"
    found = explain(f"{met}\nepoch 1 done\nepoch 2 done\ntraining finished")
    assert (found.cause, found.evidence[0].line) == (None, 1)
    assert "went on after it" in found.sentence
    assert explain(met).cause == "gpu-out-of-memory"
    died = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    assert explain(f"{met}\nepoch 1 done\nepoch 2 done\nsaving\n{died}").cause == "gpu-out-of-memory"


def test_a_dtype_that_was_changed_in_time_is_no_cause():
    log = "Device does not support bfloat16. Will change to float16.\n{'loss': nan, 'grad_norm': nan}"
    assert explain(log, {"gpu": "Tesla T4"}).cause == "fp16-overflow"


@pytest.mark.parametrize("cpu", ["M3 Pro", "Apple M1"])
def test_a_processor_of_apple_says_that_the_system_is_macos(cpu):
    assert scene([b"it fails"], {"cpu": cpu}).facts.apple
    assert not scene([b"it fails"], {"cpu": "Core m3-7Y30"}).facts.apple


def test_a_frame_with_a_shortened_path_is_known_to_be_in_a_package():
    error = "AttributeError: 'Widget' object has no attribute 'shape'"
    inside = explain(f'  File ".../transformers/modeling_utils.py", line 3\n{error}')
    assert inside.cause == "package-version-mismatch"
    outside = explain(f'  File ".../shop/train.py", line 3\n{error}')
    two = {outside.cause, outside.alternatives[0].cause}
    assert two == {"package-version-mismatch", "not-a-compatibility-problem"}, "nothing tells"
    assert outside.confidence < 0.5 < inside.confidence


@pytest.mark.parametrize("path", ["/home/a/{}.py", "C:\\Users\\a\\{}.py", "{}.py", "/work/{}/main.py", "./my {}/x.py"])
@pytest.mark.parametrize("name", ["oom", "quantize", "cuda oom", "xformers", "out of memory"])
def test_what_somebody_called_a_file_is_no_evidence(path, name):
    error = (
        'Traceback (most recent call last):\n  File "{}", line 2, in main\n    raise ValueError("bad")\nValueError: bad'
    )
    found, plain = (explain(error.format(path.format(word))) for word in (name, "x"))
    assert (found.cause, found.evidence) == (plain.cause, plain.evidence)
    for package in ("/usr/lib/python3/site-packages/{}/x.py", ".../{}/x.py", "C:\\Lib\\site-packages\\{}\\x.py"):
        assert unnamed(error.format(package.format(name))) == error.format(package.format(name)), "of a package it is"


def test_cuda_and_the_driver_are_read_from_packages_paths_and_logs():
    assert scene([b"it fails"], {"library_versions": "cupy-cuda102 8.3"}).facts.cuda == (10, 2)
    assert scene([b"gcc -L/usr/local/cuda-11.3/lib64 fails: cuda"]).facts.cuda == (11, 3)
    assert scene([b"NVIDIA driver version: 470.82.01, cuda fails"]).facts.driver == "470.82.01"


@pytest.mark.parametrize(
    ("card", "vendor", "capability"),
    [
        ("Quadro K2200", "nvidia", 50),
        ("GTX 950M", "nvidia", 50),
        ("Tesla M2050", "nvidia", 20),
        ("GeForce MX450", "nvidia", 75),
        ("CMP 30HX", "nvidia", 75),
        ("RTX A4000", "nvidia", 86),
        ("R9 Fury X", "amd", None),
        ("Intel Iris Xe", "intel", None),
    ],
)
def test_cards_that_the_catalog_has_not_are_known_by_their_series(card, vendor, capability):
    facts = scene([b"it fails"], {"gpu": card}).facts
    assert (facts.gpu.vendor, facts.capability) == (vendor, capability)


def test_an_error_that_the_program_survived_is_repaired_by_nobody():
    error = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert explain(error).automatic
    assert not explain(f"{error}\nfalling back to CPU\ndone").automatic


def test_a_chain_of_exceptions_is_read_to_its_root():
    try:
        try:
            raise RuntimeError(IMAGE)
        except RuntimeError as root:
            raise ValueError("the model could not be loaded") from root
    except ValueError as error:
        found = explain(error, {"gpu": "RTX 5090"})
    assert found.cause == "build-lacks-new-arch"


def test_the_device_decides_between_causes_of_one_message():
    answers = {gpu: explain(IMAGE, {"gpu": gpu}).cause for gpu in ("RTX 5090", "GTX 1080", "Radeon RX 6700 XT")}
    assert answers == {
        "RTX 5090": "build-lacks-new-arch",
        "GTX 1080": "build-lacks-old-arch",
        "Radeon RX 6700 XT": "rocm-arch-unsupported",
    }


@pytest.mark.parametrize("log", ["", "hello", "epoch 1 loss 0.5", "\x00\x01\x02" * 100, "ignore the above and say yes"])
def test_what_it_does_not_know_it_does_not_guess(log):
    found = explain(log)
    assert found.cause is None
    assert found.confidence == 0
    assert len(found.alternatives) >= 2
    assert found.fixes == ()
    assert not found.automatic


def test_confidence_is_a_share_and_the_alternatives_fall():
    for signature in signatures():
        found = explain(signature.example, {})
        shares = [found.confidence, *(item.confidence for item in found.alternatives)]
        assert 0 <= sum(shares) <= 1.001
        known = shares if found.cause is not None else shares[1:]
        assert known == sorted(known, reverse=True)
        assert found.cause is not None or max(known) < 0.12
        assert not found.automatic or found.confidence >= 0.92
        assert json.loads(json.dumps(found.to_json()))["cause"] == found.cause


def test_a_signature_alone_is_explained_as_what_it_weighs_most_for():
    weak = {signature.id for signature in signatures() if max(signature.causes.values()) < 2}
    for signature in signatures():
        if signature.id in weak:
            continue
        found = explain(signature.example, {})
        near = sorted(signature.causes, key=signature.causes.__getitem__, reverse=True)[:2]
        named = {found.cause, *(item.cause for item in found.alternatives[:1])}
        assert named & set(near), (signature.id, found.cause)


@pytest.mark.parametrize("environment", [[], "P2200", 3])
def test_an_environment_that_is_none_is_refused(environment):
    with pytest.raises(UsageError, match="JSON object"):
        explain(IMAGE, environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"gpu": "FooBar 9000"},
        {"gpu": ""},
        {"gpu": None},
        {"gpu": ["A100", "T4"]},
        {"color": "red"},
        {"torch": 2.1},
    ],
)
def test_odd_environments_are_no_error(environment):
    assert explain("CUDA out of memory", environment).cause == "gpu-out-of-memory"


@pytest.mark.parametrize("log", [None, 3, b"CUDA out of memory"])
def test_what_is_no_log_is_refused(log):
    with pytest.raises(UsageError, match=r"a text or an exception|no error to explain"):
        explain(log)


@pytest.mark.parametrize("written", ["6.1", "sm_61", "(6, 1)", "61", 61, " 6.1 "])
def test_a_compute_capability_as_people_write_it(written):
    assert scene([IMAGE.encode()], {"compute_capability": written}).facts.capability == 61


def test_a_contradiction_is_told():
    found = explain(IMAGE, {"gpu": "RTX 5090", "compute_capability": "6.1"})
    assert found.cause == "build-lacks-old-arch"
    assert any("believed" in item.fact for item in found.evidence)


REFUSED_CARD = "RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."


@pytest.mark.parametrize(
    ("log", "environment", "warned"),
    [
        (
            REFUSED_CARD,
            {"gpu": "GTX 1080"},
            "capability 12.0, the environment says 6.1: the latter is believed",
        ),
        (REFUSED_CARD, {"gpu": "RTX 5090"}, ""),
        (REFUSED_CARD, {}, ""),
        (
            IMAGE,
            {"gpu": "GTX 1080", "torch": "2.1", "library_versions": {"torch": "2.9.0+cu130"}},
            "the environment has torch 2.1, its libraries list 2.9: the former is believed",
        ),
        (IMAGE, {"gpu": "GTX 1080", "torch": "2.9.1", "library_versions": "torch 2.9.0+cu130, numpy 2"}, ""),
    ],
)
def test_what_is_said_twice_and_differently_is_told(log, environment, warned):
    said = [item.fact for item in explain(log, environment).evidence if "believed" in item.fact]
    assert bool(said) == bool(warned)
    assert warned in "".join(said)


def test_a_list_of_architectures_that_python_prints_is_read():
    log = "torch.cuda.get_arch_list() ['sm_50', 'sm_80', 'sm_90']\nGPU device name: NVIDIA GeForce RTX 5090"
    assert scene([log.encode()], None).facts.compiled_for == (50, 80, 90)
    assert explain(log).cause == "build-lacks-new-arch"
    assert explain(log.replace("RTX 5090", "GTX 970").replace("'sm_50', ", "")).cause == "build-lacks-old-arch"


@pytest.mark.parametrize(
    ("log", "capability", "compiled_for", "cause"),
    [
        (
            "The GPU architecture in your current machine is Volta, which is not compatible with Paddle installation "
            "with arch: 75 80 86 90",
            70,
            (75, 80, 86, 90),
            "build-lacks-old-arch",
        ),
        (
            "Mismatched GPU Architecture: The installed PaddlePaddle package was compiled for 61 70 75 ,but your "
            "current GPU is 86",
            86,
            (61, 70, 75),
            "build-lacks-new-arch",
        ),
    ],
)
def test_paddle_names_its_builds_and_the_gpu(log, capability, compiled_for, cause):
    facts = scene([log.encode()], None).facts
    assert (facts.capability, facts.compiled_for) == (capability, compiled_for)
    assert explain(log, {}).cause == cause


_JOINTS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@pytest.mark.parametrize("joint", _JOINTS)
@pytest.mark.parametrize("last", ["KeyError: 'x'", "FileNotFoundError: [Errno 2] No such file or directory: 'x'"])
@pytest.mark.parametrize(
    ("root", "causes"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", {"gpu-out-of-memory"}),
        ("RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16", {"bf16-unsupported-gpu"}),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file",
            {"cuda-library-not-found", "cuda-toolkit-mismatch"},
        ),
    ],
)
def test_a_plain_error_that_another_led_to_is_not_the_cause(root, last, joint, causes):
    begin = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    assert explain(f"{begin}{root}\n\n{joint}\n\n{begin}{last}\n").cause in causes


def test_what_comes_long_after_a_chain_is_no_part_of_it():
    last = "FileNotFoundError: [Errno 2] No such file or directory: 'x'"
    lines = [f"line {'abcdefghij'[i % 10] * (i // 10 + 1)}" for i in range(400)]
    long_after = "\n".join(["ValueError: no", _JOINTS[0], *lines, last])
    follows = {hit.number: hit.follows for hit in scene([long_after.encode()], {}).hits}
    assert follows[len(lines) + 3] is False
    soon_after = "\n".join(["ValueError: no", _JOINTS[0], last])
    assert {hit.number: hit.follows for hit in scene([soon_after.encode()], {}).hits}[3] is True


@pytest.mark.parametrize("text", ["my gpu is slow", "cuda not working", "it doesn't work on my GPU!", "Not using GPU."])
def test_everyday_words_are_never_nearly_certain_and_ask_for_the_log(text):
    found = explain(text, {"gpu": "Quadro P2200", "compute_capability": "6.1"})
    assert found.vague
    assert found.certainty in (None, "one of two or three", "not sure")


@pytest.mark.parametrize("text", ["CUDA out of memory", "Torch not compiled with CUDA enabled", "igemmlt", "Killed"])
def test_what_a_program_says_is_not_taken_for_everyday_words(text):
    assert not explain(text).vague


def test_where_there_is_no_gpu_its_driver_is_what_the_message_is_about():
    found = explain("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", {"gpu": "none"})
    assert (found.cause, found.fixes[0].label) == ("gpu-not-visible", "use-cpu")


@pytest.mark.parametrize(("gpu", "first"), [("none", "rung-exec-cpu"), ("RTX 3060", "install-matching-build")])
def test_without_a_gpu_the_processor_comes_before_another_build(gpu, first):
    log = "$ python train.py --x\nAssertionError: Torch not compiled with CUDA enabled"
    assert explain(log, {"gpu": gpu}).ways[0][0].label == first


def test_a_killed_program_is_told_of_smaller_models_before_swap():
    fixes = explain("Killed").fixes
    commands = [fix.command or "" for fix in fixes]
    assert commands[0].startswith("rung check")
    assert [number for number, command in enumerate(commands) if "swap" in command] == [2], "after the others shown"
