"""Names that a log holds: the script, the package that raised, the model, its file and the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.fixes.supplies import PURE, package

#: Lines that may hold a name; ``reading`` keeps so many of them, with so many characters of each.
NAMING = re.compile(
    r"File \"|\.(?:py|rs)\b|\.gguf\b|llamafile|\.exe\b|-packages[/\\]|__init__|\bpip3? install|--model|--variant"
    r"|from_pretrained|\bvllm serve|huggingface\.co/|models--|\bdocker run|\bollama (?:run|pull)\b|_model\b"
    r"|\b(?:gemma|llama|mistral|qwen|phi)[-_. ]?\d",
    re.IGNORECASE,
)
KEPT, LONGEST = 200, 1_000


@dataclass(frozen=True)
class Mentions(Value):
    """Hold what a log names; empty where it names none.

    ``command`` is the Python command that was run, else ``python`` and the first script of a traceback; ``module`` the
    package that raised as it is imported, ``library`` the same as pip installs it, where that is known for certain;
    ``model`` is a name of the model hub or of a size, ``file`` that of a model, ``executable`` that of a program;
    ``place`` is the last line of no package in a traceback: ``train.py, line 12``.
    """

    command: str = ""
    module: str = ""
    library: str = ""
    model: str = ""
    file: str = ""
    executable: str = ""
    image: str = ""
    location: str = ""

    @property
    def runs(self) -> str:
        """The model as ``rung run`` takes it: its file, else its name."""
        return self.file or self.model


def mentions_of(lines: Sequence[str]) -> Mentions:
    """The names in the lines of a log that may hold some (``NAMING``), in their order."""
    text = "\n".join(lines)
    module = _module(lines)
    return Mentions(
        command=_command(lines) or _script(text),
        module=module,
        library=package(module) or "" if module else "",
        model=_model(text),
        file=_first(_FILE, text),
        executable=_executable(text),
        image=_first(_IMAGE, text),
        location=_location(text),
    )


#: Characters of a name or path that may stand in a command as it is: what a shell would read ends it.
_PLAIN = r"[\w./\\:~@%+=,-]"
_SCRIPT = re.compile(rf"(?:^|[\s$>#])(?:python[\d.]*|py|torchrun|accelerate launch)(?:\.exe)?\s+({_PLAIN}+\.py)\b")
#: A line that is a command, after what a shell shows before it: a prompt, a name and a folder in brackets.
_COMMAND = re.compile(
    r"^(?:\(\w[\w.-]*\) )?(?:[\w.-]+@[\w.-]+[:~ ]\S*|PS [A-Z]:\\\S*|[A-Z]:\\[^>]*)?[\s$>#%]*"
    r"(?P<program>python[\d.]*|torchrun|accelerate launch)(?:\.exe)? (?P<rest>\S.*)"
)
_SHELL = re.compile(r"[;&|<>`$(){}\n]|\d?>")
_FRAME = re.compile(r'File "([^"\n]+\.py)", line (\d+)')
_OF_OTHERS = re.compile(r"(?:-packages|[/\\]rung)[/\\]|[/\\]lib[/\\]python|[/\\]Lib[/\\]|<|ipykernel|^/usr/lib|frozen ")
#: The folders of a path from the root, or of one that is cut.
_FOLDERS = r"^(?:[A-Za-z]:|\.\.\.)?[/\\].*[/\\]"
_MOST_WORDS = 12


def _command(lines: Iterable[str]) -> str:
    """The Python command of the first line that is one, with its arguments up to what a shell would read."""
    for line in lines:
        found = _COMMAND.match(line.strip())
        if found is None:
            continue
        rest = _SHELL.split(found["rest"], maxsplit=1)[0].strip()
        try:
            words = shlex.split(rest, posix="\\" not in rest)
        except ValueError:  # a quotation mark without its other
            words = rest.split()
        script = next((number for number, word in enumerate(words) if not word.startswith("-")), None)
        if script is None or not (words[script].endswith(".py") or "-m" in words[:script]):
            continue
        program = "python" if found["program"].startswith("python") else found["program"]
        kept = words[:_MOST_WORDS]
        return " ".join([program, *(word if "\\" in word else shlex.quote(word) for word in kept)])
    return ""


def _script(text: str) -> str:
    """``python`` and the script that a log names: one that was started, else the first of a traceback that is no
    package's."""
    if found := _SCRIPT.search(text):
        return f"python {found[1]}"
    frames = [path for path, _ in _FRAME.findall(text) if not _OF_OTHERS.search(path)]
    return f"python {_quoted(frames[0])}" if frames else ""


def _location(text: str) -> str:
    frames = [(path, line) for path, line in _FRAME.findall(text) if not _OF_OTHERS.search(path)]
    own = [(path, line) for path, line in frames if not any(map(package, re.split(r"[/\\]", path)[:-1]))]
    return f"{re.split(_FOLDERS, own[-1][0])[-1]}, line {own[-1][1]}" if own else ""


def _quoted(path: str) -> str:
    return f'"{path}"' if " " in path and "\\" in path else path if "\\" in path else shlex.quote(path)


_PACKAGED = re.compile(r"(?:site|dist)-packages[/\\]+(\w+)(?:[/\\.]|$)")
_OWN_INIT = re.compile(r"(?:^|[\s\"'/\\])(\w+)[/\\]__init__\.py\b")
_CRATE = re.compile(r"[/\\](?:crates|registry[/\\]src[/\\][^/\\\s]+)[/\\]([a-z][\w-]*?)(?:-\d[\d.]*)?[/\\]")
#: Packages below others, in which errors of their callers come out.
_LOW = {"torch", "numpy", "ctypes", "pip", "setuptools", "importlib", "_pytest", "nvidia"}


def _module(lines: Sequence[str]) -> str:
    """The package in which the last traceback ends, without those that all others stand on; else the crate."""
    found = [match[1] for line in lines for match in _PACKAGED.finditer(line)]
    found = found or [match[1] for line in lines for match in _OWN_INIT.finditer(line)]
    high = [name for name in found if name.lower() not in _LOW]
    if found:
        return high[-1] if high else found[-1]
    return next((match[1] for line in reversed(lines) for match in _CRATE.finditer(line)), "")


_FILE = re.compile(r"(?:^|[\s'\"=(])((?:[A-Za-z]:)?[\w./\\~+@-]*[\w-]\.(?:gguf|GGUF))\b")
_EXECUTABLE = re.compile(
    r"(?:^|[\s'\"$>#])((?:[A-Za-z]:\\|\.{0,2}[/\\])?[\w./\\-]*(?:llamafile[\w.-]*?(?:\.exe)?|[\w.-]+\.llamafile))"
    r"(?=\s+-)",
    re.IGNORECASE,
)
_IMAGE = re.compile(r"\bdocker run (?:-{1,2}[\w-]+(?:[= ][\w./:=,-]+)?\s+)*([a-z0-9][\w.-]*(?:/[\w.-]+)+:?[\w.-]*)")
_NAME = r"[A-Za-z0-9][\w-]{1,40}/[A-Za-z0-9][\w.-]{1,90}"
_MODELS = (
    re.compile(rf"(?:vllm serve|ollama (?:run|pull)) +['\"]?({_NAME}|[a-z][\w.-]+(?::[\w.-]+)?)"),
    re.compile(rf"--?model(?:[-_](?:name(?:[-_]or[-_]path)?|path|id|name))?[= ]+['\"]?({_NAME})(?![\w/])"),
    re.compile(rf"(?:from_pretrained\(|model(?:_id|_name|_path)? ?= ?)\s*['\"]({_NAME})['\"]"),
    re.compile(rf"huggingface\.co/(?!docs/|spaces/|datasets/|papers/|blog/|join/|api/)(?:models/)?({_NAME})"),
    re.compile(r"models--([A-Za-z0-9][\w-]*?--[A-Za-z0-9][\w.-]*)"),
)
_SIZED = re.compile(
    r"(?<![\w./])((?:gemma|llama|mistral|mixtral|qwen|phi|smollm|falcon|yi|deepseek|tinyllama|codellama)"
    r"[-_. ]?(?:v?\d(?:\.\d)?[-_. ])?(?:instruct[-_])?\d{1,3}(?:\.\d)?[bm])(?![a-z\d])",
    re.IGNORECASE,
)
_VARIANT = re.compile(r"--variant[= ]['\"]?(\d{1,3}b)\b")


def _model(text: str) -> str:
    """The model's name: of the hub where one is loaded or served, else a family with a size."""
    for pattern in _MODELS:
        if found := pattern.search(text):
            return found[1].replace("--", "/").rstrip(".")
    if found := _SIZED.search(text):
        return found[1].replace("_", "-").replace(" ", "-")
    variant = _VARIANT.search(text)
    return f"gemma-{variant[1]}" if variant and "gemma" in text else ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    return found[1] if (found := pattern.search(text)) else ""


def _executable(text: str) -> str:
    """The llamafile that was started, as it was typed."""
    return _first(_EXECUTABLE, text)


def compiled(module: str) -> bool:
    """Return whether a package may hold compiled code, so that building it again changes something."""
    return bool(module) and module not in PURE
