"""What a short statement without an error text is about: a card, a release of CUDA, a list of architectures."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.builds import first_cuda

_REPORTS = "wording of reports"
#: Longer lines are errors and not what somebody says of them.
_LONGEST = 160
_CUDA_NAMED = re.compile(
    r"(?i)\b(?:support\w*|compatib\w*|compil\w*|build\w*|install\w*|works?|working|runs?|running|fails?)\b.{0,40}"
    r"\bcuda[- ]?(?:toolkit )?(?:v|version )?1\d(?:\.\d)?\b"
    r"|\bcuda[- ]?(?:toolkit )?(?:v|version )?1\d(?:\.\d)?\b.{0,30}\b(?:support|compatib\w*|not work\w*|fails?)"
)
_CUDA = re.compile(r"(?i)\b(?:cuda|nvcc|cudnn|cublas)\b")
_DIFFER = re.compile(
    r"(?i)\bdiffer\w*|\bmismatch\w*|n[o']?t (?:the same|match)|\bconflict\w*|\bwrong (?:version|one)\b|\bincompatib\w*"
    r"|\b(?:multiple|several|two) (?:versions? of )?cuda\b|\bis installed\b.{0,20}\binstead\b"
)
_AFTER_CUDA = re.compile(
    r"(?i)\b(?:after|since|when)\b.{0,12}\b(?:upgrad|updat|switch|install|mov)\w* (?:to |of |the |my |a )?"
    r"(?:new(?:er)? )?(?:nvidia )?(?:cuda|cudnn)\b|\b(?:after|since) (?:the |a )?(?:cuda|cudnn) (?:toolkit )?(?:up|\d)"
)
_REFUSED = re.compile(
    r"(?i)(?:\bnot|n't|\bcannot) (?:\w+ ){0,2}(?:work|run|start|support|recogni|compil|build|know)\w*|\bunsupported\b"
    r"|\bfails?\b|\bnot compatible\b|\bsupport (?:for|of)\b|\bsupport\??$"
)
_DROPPED = re.compile(
    r"(?i)\bno longer\b|\bany ?more\b|\bdropp|\bremov|\bsince v?\d|\bafter (?:the )?updat|\bfalls? back\b"
    r"|\bsupport (?:for|of)\b|\bsupport\??$|\bnot supported\b|\bunsupported\b|^support\b"
)
_OLD = re.compile(
    r"(?i)\b(?:Kepler|Maxwell|Pascal)\b|\b(?:compute )?capability [3-6]\.\d|\b(?:sm|compute)_?[3-6]\d\b"
    r"|\b(?:K[248]0|M[46]0|P40|P100|GT[XS]? ?(?:[6-9]\d\d|10[5-8]0))\b"
)
_LIST = re.compile(
    r"(?i)\b(?:compil|build|built)\w*\b.{0,20}\bfor (?:multiple|several|another|other|different|all|more|one) "
    r"(?:GPU|CUDA|arch|card|compute|target)|\b(?:compil|build)\w*\b.{0,20}\bfor (?:sm|compute)_?\d\d"
    r"|\b(?:missing|add|lacks?|without|only) (?:sm|compute)_?\d\d|\bgencode\b|\bhard[- ]?coded\b.{0,20}\b(?:sm_|arch)"
    r"|\barch(?:itecture)? (?:flags?|list)\b|\b(?:TORCH_)?CUDA_ARCH(?:S|_LIST|ITECTURES)?\b"
    r"|\bcompiled for (?:sm|compute)_\d"
    r"|\bbuilt\b.{0,30}\bon an? \w{2,20}\b.{0,20}\b(?:crash|fails?|does not|doesn't|not run)"
)
_COMPILER = re.compile(r"(?i)\b(?:triton|torch\.compile|inductor|ptxas|nvcc|nvrtc)\b")
_OF_KERNELS = (
    r"(?i)flash|xformers|sage|awq|gptq|marlin|exllama|tensor cores?|bf16|bfloat|fp8|int8|fp4|fp16|float16|\bhalf\b"
    r"|dtype"
)
_WITH_CUDA = re.compile(r"(?i)\b(?:with|on|using|under) cuda[- ]?(\d{1,2})\.(\d)")
_RAISED = re.compile(
    r"\b\w*(?:Error|Exception|Warning)\b: |[A-Z]_ERROR|ERROR_[A-Z]"
    r"|\.(?:cu|cuh|cpp|hpp|so|dll|props)\b|\berror: |\bfatal\b"
)
_TF_BEFORE_11 = r"(?i)\btensorflow(?:-gpu)?\W{0,3}(?:version\W{1,3})?(?:1\.|2\.[0-3]\b)|\btf\W{0,2}1\.(?:x|\d)"


def _says(scene: Scene, pattern: re.Pattern[str]) -> bool:
    """Whether the log is one statement that no signature knows as an error, and holds a pattern."""
    stated = scene.ending
    return (
        "\n" not in stated
        and len(stated) <= _LONGEST
        and _RAISED.search(stated) is None
        and _general(scene)
        and pattern.search(stated) is not None
    )


def _general(scene: Scene) -> bool:
    return all(hit.signature.general for hit in scene.hits)


def _names(scene: Scene, pattern: str) -> bool:
    return scene.about(pattern) or scene.says_last(pattern)


def _cuda_before(scene: Scene) -> bool:
    named = _WITH_CUDA.search(scene.ending)
    cuda = scene.facts.cuda or ((int(named[1]), int(named[2])) if named else None)
    first = first_cuda(scene.facts.capability) if cuda else None
    return first is not None and cuda is not None and cuda < first


def _compiler_refuses(scene: Scene) -> bool:
    return _says(scene, _COMPILER) and _says(scene, _REFUSED) and (scene.below(70) or scene.from_(86))


RULES: tuple[Rule, ...] = (
    Rule(
        "release-of-cuda-named",
        lambda s: _says(s, _CUDA_NAMED) and not _says(s, _COMPILER),
        {"cuda-toolkit-mismatch": 3},
        "it is about one release of CUDA, with which it does not go",
        _REPORTS,
    ),
    Rule(
        "versions-differ",
        lambda s: _says(s, _CUDA) and _says(s, _DIFFER) and not s.says("(?i)driver|result|output"),
        {"cuda-toolkit-mismatch": 3},
        "it is about two versions of CUDA or its libraries",
        _REPORTS,
    ),
    Rule(
        "since-another-cuda",
        lambda s: _says(s, _AFTER_CUDA),
        {"cuda-toolkit-mismatch": 4.2},
        "it began with another CUDA",
        _REPORTS,
    ),
    Rule(
        "new-card-refused",
        lambda s: s.from_(89) and _says(s, _REFUSED) and not _says(s, _COMPILER) and not s.about(_OF_KERNELS),
        {"build-lacks-new-arch": 2.4},
        "{gpu} has compute capability {cc}: newer than many builds",
        _REPORTS,
    ),
    Rule(
        "old-card-refused",
        lambda s: (
            (s.below(75) or (s.facts.capability is None and _says(s, _OLD)))
            and _says(s, _DROPPED)
            and not _says(s, _COMPILER)
            and not s.about(_OF_KERNELS)
        ),
        {"build-lacks-old-arch": 2.6},
        "it is about a card that newer builds have dropped",
        _REPORTS,
    ),
    Rule(
        "list-of-architectures",
        lambda s: _says(s, _LIST),
        {"build-wrong-arch-flags": 3.4},
        "it is about the list of GPUs that something is compiled for",
        _REPORTS,
    ),
    Rule(
        "compiler-refuses-card",
        _compiler_refuses,
        {"compiler-arch-unsupported": 4, "build-lacks-new-arch": -1},
        "{gpu} has compute capability {cc}: older or newer than this compiler knows",
        _REPORTS,
    ),
    Rule(
        "tensorflow-before-ampere",
        lambda s: s.from_(80) and not s.facts.apple and _general(s) and _names(s, _TF_BEFORE_11),
        {"build-lacks-new-arch": 4.5},
        "{gpu} has compute capability {cc}: TensorFlow before 2.4 was built with a CUDA that does not know it",
        "TensorFlow, tested build configurations",
    ),
    Rule(
        "cuda-before-card",
        lambda s: _general(s) and bool(s.ending) and "\n" not in s.ending and _cuda_before(s),
        {"build-lacks-new-arch": 3},
        "{gpu} has compute capability {cc}, which the CUDA named does not know yet",
        "NVIDIA, CUDA toolkit release notes, first toolkit of an architecture",
    ),
    Rule(
        "triton-of-old-card",
        lambda s: s.has("triton-missing") and s.below(70) and s.says(r"(?i)triton (?:is )?not supported on"),
        {"compiler-arch-unsupported": 4, "platform-binary-missing": -2},
        "{gpu} has compute capability {cc}, and Triton begins with 7.0",
        "Triton, supported hardware",
    ),
)
