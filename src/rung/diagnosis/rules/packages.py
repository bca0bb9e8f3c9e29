"""Python packages: which are there, which others ask of them, and where one of them failed."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import PACKAGES


def _module(scene: Scene) -> str:
    """The package that is not there, without the modules in it."""
    return scene.words.get("package", "").partition(".")[0] if scene.has("package-missing") else ""


#: The package of a path that was shortened: by people who took its beginning away, or by the program itself.
_SHORT = re.compile(r"(?:\.\.\.[/\\])?(\w+)[/\\](?!examples|tests|scripts)")


def in_package(scene: Scene) -> bool:
    """Return whether the last place that a traceback names is in a package of others, where its path was shortened
    too."""
    if scene.raised_in_package:
        return True
    places: list[str] = re.findall(r'File "([^"\n]+)"', scene.said)
    found = _SHORT.match(places[-1]) if places else None
    return found is not None and found[1] in PACKAGES


#: Directories that many programs have: one of another program is found in their place.
_COMMON = re.compile(
    r"(?:utils?|models?|modules|src|lib|libs|scripts|data|datasets?|tools?|common|core|configs?|train\w*|test\w*|app|api"
    r"|nodes?|extensions?|helpers?|main|lora_\w+|networks|options|engine|losses|layers)$"
)


def _named_like(scene: Scene) -> bool:
    """Return whether a module that is only half there lies in a file of its name outside of the packages."""
    found = re.search(r"partially initialized module '(\w+)'", scene.said)
    if found is None:
        return False
    places = re.findall(rf"(?:^|[\s(\"'])([^\s(\"']*?{found[1]}\.py)\b", scene.said)
    return any(re.search(rf"(?:^|[/\\]){found[1]}\.py$", place) and "-packages" not in place for place in places)


def _part(scene: Scene) -> bool:
    """Return whether it is a module inside a package that is there itself."""
    top, dot, _ = scene.words.get("package", "").rstrip(".").partition(".")
    return scene.has("package-missing") and bool(dot) and _COMMON.match(top) is None


#: Modules that a program gives those who extend it, and their packages.
_OF_HOST = re.compile(
    r"(?:comfy|comfy_api|comfy_execution|comfy_extras|node_helpers|modules|modules_forge|invokeai)(?:\.|$)"
)


RULES: tuple[Rule, ...] = (
    Rule(
        "module-of-the-host",
        lambda s: (
            s.has("package-missing")
            and _OF_HOST.match(s.words.get("package", "")) is not None
            and re.search("custom_nodes|extensions", s.said) is not None
        ),
        {"package-version-mismatch": 3.2, "not-a-compatibility-problem": -1},
        "an extension asks its program for a module that came, or went, with another version of it",
        "ComfyUI and Stable Diffusion web UIs, extensions",
    ),
    Rule(
        "module-of-the-program",
        lambda s: bool(_module(s)) and _module(s) not in PACKAGES and not _part(s) and not in_package(s),
        {"not-a-compatibility-problem": 1.8, "package-version-mismatch": -0.4, "platform-binary-missing": -0.5},
        "the module that is missing is no package that many programs share",
        "PyPI",
    ),
    Rule(
        "part-of-a-package",
        _part,
        {"package-version-mismatch": 2, "not-a-compatibility-problem": -0.6},
        "Python found the package and not this part of it: it belongs to another version",
        "Python, importlib: the first name that is missing is named",
    ),
    Rule(
        "module-of-others",
        lambda s: _module(s) in PACKAGES,
        {"package-version-mismatch": 1.2, "not-a-compatibility-problem": -0.6},
        "a package of others is not installed, or another version of it",
        "PyPI",
    ),
    Rule(
        "raised-in-a-package",
        lambda s: s.has("python-plain") and in_package(s),
        {"package-version-mismatch": 2.2, "not-a-compatibility-problem": -0.8},
        "it was raised inside a package, not in the program's own code",
        "Python, tracebacks",
    ),
    Rule(
        "bug-of-a-package",
        lambda s: s.has("python-bug") and in_package(s),
        {"software-defect": 3.6, "package-version-mismatch": 2.2, "not-a-compatibility-problem": -2.5},
        "it was raised inside a package, not in the program's own code",
        "Python, tracebacks",
    ),
    Rule(
        "moved-by-accelerate",
        lambda s: s.has("to-on-quantised") and s.has("dispatched-by-accelerate"),
        {"package-version-mismatch": 1.5},
        "it is accelerate that moves the model: a version of it that does not know quantised ones",
        "accelerate, big_modeling.py",
    ),
    Rule(
        "named-like-the-package",
        _named_like,
        {"not-a-compatibility-problem": 7, "package-version-mismatch": -3},
        "a file of the program has the name of the package and is imported in its place",
        "Python, the path that modules are looked for on",
    ),
)
