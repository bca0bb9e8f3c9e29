"""Python packages: which are there, which others ask of them, and where one of them failed."""

from __future__ import annotations

import re

from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.rules.known import PACKAGES


def _module(scene: Scene) -> str:
    """The package that is not there, without the modules in it."""
    return scene.words.get("package", "").partition(".")[0] if scene.has("package-missing") else ""


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
        lambda s: bool(_module(s)) and _module(s) not in PACKAGES,
        {"not-a-compatibility-problem": 1.8, "package-version-mismatch": -0.4, "platform-binary-missing": -0.5},
        "the module that is missing is no package that many programs share",
        "PyPI",
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
        lambda s: s.has("python-plain") and s.raised_in_package,
        {"package-version-mismatch": 2.2, "not-a-compatibility-problem": -0.8},
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
)
