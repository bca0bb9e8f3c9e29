"""Hold what a short statement without an error text is about: a card, a release of CUDA, a list of architectures."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.gpus import gpu_of
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
    r"|\b1\d\.\d.{0,12}(?:instead of|and not|rather than|而不是).{0,12}\b1\d\.\d"
    r"|\bsame (?:version of )?cuda\b|\bwrong cuda\b"
)
_AFTER_CUDA = re.compile(
    r"(?i)\b(?:after|since|when)\b.{0,12}\b(?:upgrad|updat|switch|install|mov)\w* (?:to |of |the |my |a )?"
    r"(?:new(?:er)? )?(?:nvidia )?(?:cuda|cudnn)\b|\b(?:after|since) (?:the |a )?(?:cuda|cudnn) (?:toolkit )?(?:up|\d)"
)
_REFUSED = re.compile(
    r"(?i)(?:\bnot|n't|\bcannot) (?:\w+ ){0,2}(?:work|run|start|support|recogni|compil|build|know)\w*|\bunsupported\b"
    r"|\bfails?\b|\bnot compatible\b|\bsupport (?:for|of)\b|\bsupport(?:ed)?\s?\??$"
)
_DROPPED = re.compile(
    r"(?i)\bno longer\b|\bany ?more\b|\bdropp|\bremov|\bsince v?\d|\bafter (?:the )?updat|\bfalls? back\b"
    r"|\bsupport (?:for|of)\b|\bsupport\??$|\bnot supported\b|\bunsupported\b|^support\b|\bstill (?:support|work|run)"
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
_NEW = re.compile(
    r"(?i)\b(?:RTX ?|GeForce )?[345]0(?:xx|00|[- ]?series|00[- ]series)\b"
    r"|\b(?:Ampere|Ada(?: Lovelace)?|Hopper|Blackwell)\b"
)
#: What programs say of themselves where all is well, and what nobody says then.
_ORDINARY = re.compile(
    r"(?i)^\W*(?:using|found|loaded|running|detected|setting|installing|installed|(?:compil|build)\w* (?:for|with) )"
    r"|^\W*(?:\w+ ){0,3}(?:compiled|built) for|^-- |^build flags|\b(?:succe\w+|enabled|done|found|installed)\W*$"
    r"|\bsucceed|\bworks? (?:fine|well)\b"
)
_TROUBLE = re.compile(
    r"(?i)\bnot\b|n't\b|\bno\b|\bfail|\berror|\bcrash|\bwrong|\bmiss|\black|\bproblem|\bissue|\bdiffer|\bincompat"
    r"|\bunsupport|\bconflict|\bcannot|\bunable|\bbroke|\bslow|\bhang|\bstuck|\?|\bdropp|\bbut\b|\binstead\b"
    r"|\bonly\b|\bmultiple\b|\bother\b|\banother\b"
)
_OF_NVCC = re.compile("(?i)unsupported gpu arch")
_HOST = re.compile(
    r"(?i)\b(?:nvcc|cuda)\b.{0,60}(?:\bgcc\b|\bg\+\+|\bglibc\b|\bvisual studio\b|\bmsvc\b)"
    r"|(?:\bgcc\b|\bg\+\+|\bglibc\b|\bvisual studio\b|\bmsvc\b).{0,60}\b(?:nvcc|cuda)\b"
)
_NVIDIA_CARD = re.compile(
    r"(?i)\b(?:(?:RTX|GTX|GT) ?[A-Z]?\d{3,4}(?: ?Ti)?|[AHVPTK](?:100|200|40|80|4)|\d0[5-9]0(?: ?Ti)?)\b"
)
_ONE_WORKS = re.compile(r"(?i)\b(?:works?|worked|fine|runs?)\b")
_OTHER_NOT = re.compile(r"(?i)\bnot\b|n't\b|\bfails?\b|\bcrash|\berrors?\b|\bhangs?\b")
_WRONG_RESULT = re.compile(
    r"(?i)\bnan\b|\bslow|\bwrong\b|\bblack\b|\bnoise|\bpsnr\b|\bloss\b|\bmemory\b|\bOOM\b|\bdriver\b"
)
_RAISED = re.compile(
    r"\b\w*(?:Error|Exception|Warning)\b: |[A-Z]_ERROR|ERROR_[A-Z]"
    r"|\.(?:cu|cuh|cpp|hpp|so|dll|props)\b|\berror: |\bfatal\b"
)
_TF_BEFORE_11 = r"(?i)\btensorflow(?:-gpu)?\W{0,3}(?:version\W{1,3})?(?:1\.|2\.[0-3]\b)|\btf\W{0,2}1\.(?:x|\d)"


def _says(scene: Scene, pattern: re.Pattern[str]) -> bool:
    """Return whether the log is one statement that no signature knows as an error, and holds a pattern."""
    stated = scene.ending
    return (
        "\n" not in stated
        and len(stated) <= _LONGEST
        and _RAISED.search(stated) is None
        and _general(scene)
        and (_ORDINARY.search(stated) is None or _TROUBLE.search(stated) is not None)
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


def _cards(text: str) -> list[int]:
    """The compute capabilities of the cards that a text names."""
    named = [gpu_of(found[0]) for found in _NVIDIA_CARD.finditer(text)]
    return [gpu.capability for gpu in named if gpu is not None and gpu.capability is not None]


def _works_on_older(scene: Scene) -> bool:
    """Return whether a statement says that a thing runs on one card, and not on a newer one."""
    if not (_says(scene, _ONE_WORKS) and _says(scene, _OTHER_NOT)) or _says(scene, _WRONG_RESULT):
        return False
    clauses = re.split(r"[,;.]\s|\bbut\b|\bwhile\b|\bwhereas\b", scene.ending)
    fails = [card for clause in clauses if _OTHER_NOT.search(clause) for card in _cards(clause)]
    works = [
        card
        for clause in clauses
        if _ONE_WORKS.search(clause) and not _OTHER_NOT.search(clause)
        for card in _cards(clause)
    ]
    if not fails and scene.facts.capability is not None:
        fails = [scene.facts.capability]
    return bool(fails and works) and max(fails) >= 80 and max(works) // 10 < max(fails) // 10


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
        "host-compiler-named",
        lambda s: _says(s, _HOST) and not s.says("(?i)without (?:cuda|nvcc)"),
        {"cuda-toolkit-mismatch": 4.5},
        "it is about the C++ compiler that CUDA's compiler needs: each release of CUDA takes some",
        "NVIDIA, CUDA installation guide, host compilers",
    ),
    Rule(
        "works-on-older-card",
        _works_on_older,
        {"build-lacks-new-arch": 4},
        "it runs on a card of an older generation",
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
        "new-cards-named",
        lambda s: (
            s.facts.capability is None
            and _says(s, _NEW)
            and _says(s, _REFUSED)
            and not _says(s, _COMPILER)
            and not s.about(_OF_KERNELS)
        ),
        {"build-lacks-new-arch": 3},
        "it is about cards that are newer than many builds",
        _REPORTS,
    ),
    Rule(
        "words-of-nvcc",
        lambda s: _says(s, _OF_NVCC),
        {"compiler-arch-unsupported": 4},
        "so nvcc names a GPU that it does not know",
        "nvcc",
    ),
    Rule(
        "old-card-refused",
        lambda s: (
            (s.below(75) or (s.facts.capability is None and _says(s, _OLD)))
            and _says(s, _DROPPED)
            and not _says(s, _COMPILER)
            and not s.about(_OF_KERNELS)
        ),
        {"build-lacks-old-arch": 3.4},
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
