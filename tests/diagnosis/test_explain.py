"""From a log to a cause: the rules, the founding five in many disguises, and logs that nobody meant to write."""

import json

import pytest

from rung.core.errors import UsageError
from rung.diagnosis import signatures
from rung.diagnosis.explain import explain, explain_log, rules_of, scene
from rung.diagnosis.fixing import causes
from rung.diagnosis.log import utf8
from rung.diagnosis.rules import RULES
from rung.diagnosis.wording import wordings

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


FOUNDING = {
    "latte": (
        CUBLAS + "&falpha, a, CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F)`",
        {"gpu": "NVIDIA GeForce RTX 2080 Ti", "cuda": "12.2", "torch": "2.1.0a0+29c30b1"},
        "cuda-toolkit-mismatch",
    ),
    "brush": (
        "Accelerated strategy should be available on your device: Unable to launch matmul because a required feature "
        "is unavailable: " + CMMA,
        {"gpu": "RTX 3060"},
        "graphics-api-feature-missing",
    ),
    "bitsandbytes": (IGEMMLT, {"gpu": "V100 (p3.2xlarge)"}, "int8-matmul-unsupported-gpu"),
    "llamafile": (
        "ggml-cuda.cu:1412: ERROR: CUDA kernel vec_dot_q8_0_q8_1_impl has no device code compatible with CUDA arch 600."
        " "
        "ggml-cuda.cu was compiled for: 500,600,700,750,800,900",
        {"gpu": "NVIDIA P104-100"},
        "build-wrong-arch-flags",
    ),
    "gemma": (
        "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16",
        {"gpu": "Quadro P2200"},
        "bf16-unsupported-gpu",
    ),
}
DISGUISES = {
    "as it is": lambda text: text.encode(),
    "coloured": lambda text: f"\x1b[31;1m{text[:20]}\x1b[0m{text[20:]}\x1b[K\n".encode(),
    "with progress bars": lambda text: f"10%|#   | 1/9\r20%|##  | 2/9\r{text}\r30%|### | 3/9".encode(),
    "of Windows": lambda text: f"start\r\n{text}\r\nend\r\n".encode(),
    "in UTF-16": lambda text: f"\ufeffstart\r\n{text}\r\n".encode("utf-16-le"),
    "in UTF-16 without mark": lambda text: f"start\r\n{text}\r\n".encode("utf-16-be"),
    "of a notebook": lambda text: (
        f"<div><pre><span class='x'>{text.replace('&', '&amp;').replace('`', '&#96;')}</span></pre>"
    ).encode(),
    "of a page in one line": lambda text: f"<pre>start<br/>{text.replace(' ', '&nbsp;')}<br></pre>".encode(),
    "of a table with bold words": lambda text: (
        f"<table><tr><td>3</td><td>{' '.join(f'<strong>{word}</strong>' for word in text.split())}</td></tr></table>"
    ).encode(),
    "of a word processor": lambda text: text.replace(" ", "\u202f").replace("_", "_\u200b").encode(),
    "in a service's log": lambda text: f"worker-1  | 2026-01-01 10:00:00 | ERROR | stderr | {text}".encode(),
    "below a traceback": lambda text: (
        "Traceback (most recent call last):\n" + '  File "a.py", line 3\n' * 30 + text
    ).encode(),
    "with broken bytes": lambda text: b"\xff\xfe\xfa start\n"[3:] + text.encode() + b"\n\x80\x81",
    "among warnings": lambda text: f"UserWarning: something is deprecated\n{text}\nINFO: exit\n".encode(),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("story", FOUNDING)
def test_the_founding_five_are_known_in_any_disguise(story, disguise):
    text, environment, cause = FOUNDING[story]
    data = DISGUISES[disguise](text)
    chunks = [data[start : start + 7] for start in range(0, len(data), 7)]
    whole = explain_log(utf8([data]), environment)
    assert whole.cause == cause
    assert explain_log(utf8([data[:70], *chunks[10:]]), environment) == whole
    assert whole.evidence
    assert whole.fixes


@pytest.mark.parametrize(
    ("text", "environment", "cause"),
    [
        (CUBLAS + "a, CUDA_R_16BF, lda)", {"gpu": "GTX 980"}, "bf16-unsupported-gpu"),
        (CUBLAS + "a, CUDA_R_8I, lda)", {"gpu": "GTX 1080"}, "int8-matmul-unsupported-gpu"),
        (CMMA.replace("F16", "BF16"), {"gpu": "Radeon 780M"}, "graphics-api-feature-missing"),
        ("error: at::cuda::blas::bgemm: not implemented for N3c108BFloat16E", {"gpu": "P40"}, "bf16-unsupported-gpu"),
        (
            "at::cuda::blas::gemm: not implemented for c10::BFloat16",
            {"compute_capability": "7.0"},
            "bf16-unsupported-gpu",
        ),
        ("at::cuda::blas::gemv: not implemented for class c10::BFloat16", {}, "bf16-unsupported-gpu"),
        ("at::cuda::blas::gemm_and_bias: not implemented for c10::BFloat16", {"gpu": "V100"}, "bf16-unsupported-gpu"),
        ("HIP kernel mul_mat has no device code compatible with HIP arch 1030.", {}, "build-wrong-arch-flags"),
        ("Your GPU does not support Int8 Matmul!", {"gpu": "GTX 1070"}, "int8-matmul-unsupported-gpu"),
    ],
)
def test_relatives_of_the_founding_five(text, environment, cause):
    assert explain(text, environment).cause == cause


def test_the_first_cause_outranks_what_follows_from_it():
    log = f"{ASSERTED}\nRuntimeError: CUDA error: device-side assert triggered\nSegmentation fault (core dumped)"
    assert explain(log).cause == "async-bad-input"


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
    log = "ImportError: Using `load_in_8bit=True` requires Accelerate: `pip install accelerate`"
    assert explain(log, {"cpu": cpu}).cause == "platform-binary-missing"
    assert explain(log, {"cpu": "Core m3-7Y30"}).cause == "package-version-mismatch"


def test_a_frame_with_a_shortened_path_is_known_to_be_in_a_package():
    error = "AttributeError: 'Widget' object has no attribute 'shape'"
    inside = explain(f'  File ".../transformers/modeling_utils.py", line 3\n{error}')
    assert inside.cause == "package-version-mismatch"
    outside = explain(f'  File ".../shop/train.py", line 3\n{error}')
    two = {outside.cause, outside.alternatives[0].cause}
    assert two == {"package-version-mismatch", "not-a-compatibility-problem"}, "nothing tells"
    assert outside.confidence < 0.5 < inside.confidence
    for place, there in (("transformers/modeling_utils.py", True), ("shop/train.py", False)):
        found = scene([f'  File ".../{place}", line 3\n{error}'.encode()])
        assert ("raised-in-a-package" in {rule.id for rule in rules_of(found)}) == there


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
def test_cards_that_the_catalogue_has_not_are_known_by_their_series(card, vendor, capability):
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
        assert shares == sorted(shares, reverse=True)
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
        {"colour": "red"},
        {"torch": 2.1},
    ],
)
def test_odd_environments_are_no_error(environment):
    assert explain("CUDA out of memory", environment).cause == "gpu-out-of-memory"


@pytest.mark.parametrize("log", [None, 3, b"CUDA out of memory"])
def test_what_is_no_log_is_refused(log):
    with pytest.raises(UsageError, match="a text or an exception"):
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
    ("log", "environment", "told"),
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
def test_what_is_said_twice_and_differently_is_told(log, environment, told):
    said = [item.fact for item in explain(log, environment).evidence if "believed" in item.fact]
    assert bool(said) == bool(told)
    assert told in "".join(said)


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
    ("root", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-out-of-memory"),
        ("RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16", "bf16-unsupported-gpu"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "cuda-library-not-found"),
    ],
)
def test_a_plain_error_that_another_led_to_is_not_the_cause(root, last, joint, cause):
    begin = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    assert explain(f"{begin}{root}\n\n{joint}\n\n{begin}{last}\n").cause == cause


def test_what_comes_long_after_a_chain_is_no_part_of_it():
    last = "FileNotFoundError: [Errno 2] No such file or directory: 'x'"
    lines = [f"line {'abcdefghij'[i % 10] * (i // 10 + 1)}" for i in range(400)]
    long_after = "\n".join(["ValueError: no", _JOINTS[0], *lines, last])
    follows = {hit.number: hit.follows for hit in scene([long_after.encode()], {}).hits}
    assert follows[len(lines) + 3] is False
    soon_after = "\n".join(["ValueError: no", _JOINTS[0], last])
    assert {hit.number: hit.follows for hit in scene([soon_after.encode()], {}).hits}[3] is True
