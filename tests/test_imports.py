"""The house: imports point down only, and heavy packages stay where DESIGN allows them."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rung
from tests.support.rows import each_row

ROOT = Path(rung.__file__).parent
STEPS = [
    {"core"},
    {"formats", "hardware"},
    {"kernels", "models"},
    {"ops"},
    {"planning"},
    {"software", "binaries"},
    {"diagnosis"},
    {"run"},
    {"simulation"},
    {"exec", "nn"},
    {"hub"},
    {"engine", "measure"},
    {"quantization"},
    {"training", "pipelines", "splats", "conversion", "server"},
    {"bundle", "fleet"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(STEPS) for name in names}
TORCH = {
    "ops",
    "run",
    "simulation",
    "exec",
    "nn",
    "hub",
    "engine",
    "measure",
    "quantization",
    "training",
    "pipelines",
    "splats",
    "kernels/gpu",
}
NUMBA = {"kernels/isa", "kernels/cpu", "diagnosis/learning"}
MODULES = sorted(ROOT.rglob("*.py"))


def _imports(path: Path, top_level: bool) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level else ast.walk(tree)
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
    return names


def _package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@each_row("path", MODULES, lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    here = _package(path)
    if here not in LEVEL:  # rung/__init__.py and the like: public names, loaded lazily
        return
    for name in _imports(path, top_level=False):
        parts = name.split(".")
        if parts[0] != "rung" or len(parts) < 2:
            continue
        there = parts[1]
        assert there == here or LEVEL[there] < LEVEL[here], f"{path.relative_to(ROOT)} imports {name}"


def _imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of rung that a file imports, lazily and for types included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in names}
    return found & modules


def test_modules_import_each_other_in_no_circle():
    paths = {
        ".".join(("rung", *p.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): p for p in MODULES
    }
    left = {name: _imported_modules(path, set(paths)) - {name} for name, path in paths.items()}
    while lowest := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in lowest:
            del left[name]
    circle = list(left)[
        :1
    ]  # each module that is left imports another one that is left: following them ends in a circle
    while left and (following := min(left[circle[-1]] & left.keys())) not in circle:
        circle.append(following)
    assert not left, "a circle: " + " -> ".join([*circle[circle.index(following) :], following])


def test_ops_do_not_import_each_other():
    ops = {folder.name for folder in (ROOT / "ops").iterdir() if folder.is_dir()}
    for path in (ROOT / "ops").rglob("*.py"):
        here = path.relative_to(ROOT / "ops").parts[0]
        if here not in ops:
            continue
        for name in _imports(path, top_level=False):
            parts = name.split(".")
            if parts[:2] == ["rung", "ops"] and len(parts) > 2 and parts[2] in ops:
                assert parts[2] == here, f"{path} imports {name}"


@pytest.mark.parametrize(
    ("package", "allowed"), [("torch", TORCH), ("numba", NUMBA), ("llvmlite", NUMBA), ("triton", {"kernels/gpu"})]
)
def test_heavy_packages_stay_where_they_are_allowed(package, allowed):
    for path in MODULES:
        relative = path.relative_to(ROOT)
        if relative.parts[0] in allowed or "/".join(relative.parts[:2]) in allowed:
            continue
        assert not [n for n in _imports(path, top_level=True) if n.split(".")[0] == package], (
            f"{relative} imports {package}"
        )


def test_other_peoples_libraries_stay_in_the_hub():
    """And in training and pipelines, which are programs on top of them: TRL's trainer, pipelines of diffusers."""
    for path in MODULES:
        if _package(path) not in ("hub", "training", "pipelines"):
            assert not [n for n in _imports(path, top_level=False) if n.split(".")[0] == "transformers"], path


def _loaded(code: str) -> set[str]:
    """The modules loaded after running ``code`` in a fresh interpreter."""
    script = (
        "import sys, json, contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    {code}\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import rung",
        "from rung.cli.app import main; main(['--help'])",
        "from rung.cli.app import main; main(['devices'])",
        "from rung.cli.app import main; main(['run', '--help'])",
        "from rung.cli.app import main; main(['formats'])",
        "from rung.cli.app import main; main(['explain', 'CUDA out of memory', '--device', 'p2200'])",
        "from rung.cli.app import main; main(['setup'])",
        "from rung.cli.app import main; main(['setup', '--device', 'p2200', '--check'])",
        "from rung.cli.app import main; main(['inspect', '/bin/true', '--device', 'p2200'])",
        "import rung.ops",
    ],
)
def test_start_up_loads_nothing_heavy(code):
    heavy = {"torch", "numba", "llvmlite", "transformers", "triton", "scipy", "pandas", "huggingface_hub"}
    assert not heavy & _loaded(code)


@pytest.mark.parametrize(
    "code",
    [
        "import rung.ops",
        "import rung.engine.checking",
        "from rung.cli.app import main; main(['check', 'demo'])",
        "from rung.cli.app import main; main(['check', 'demo', '--device', 'p2200', '--json'])",
    ],
)
def test_what_only_reasons_loads_no_numpy(code):
    assert "numpy" not in _loaded(code)


@pytest.mark.parametrize("module", ["rung.kernels.cpu.encode.encoding", "rung.kernels.cpu.pack.decoding"])
def test_encoders_and_decoders_work_without_numba(module):
    """Numba may be missing; and where a compiled kernel lies on disk it costs 60 MB for nothing."""
    assert "numba" not in _loaded(f"import {module}")


@pytest.mark.parametrize("command", [["devices"], ["check", "gemma-2b", "--device", "p2200"]])
def test_quick_commands_load_no_archives(command):
    loaded = _loaded(f"from rung.cli.app import main; main({command!r})")
    assert not {"zipfile", "pkgutil"} & loaded


def test_import_rung_loads_next_to_nothing():
    loaded = _loaded("import rung")
    assert not {"numpy", "typer", "rich"} & loaded


@pytest.mark.parametrize("module", ["splats.training.run", "pipelines.batch", "training.tune", "engine.load"])
def test_threads_are_told_how_to_wait_before_torch_is_imported(module):
    code = (
        "import os, sys\n"
        "def end():\n"
        "    os._exit(0 if os.environ.get('OMP_WAIT_POLICY') == 'passive' else 1)\n"
        "class Watching:\n"
        "    def find_spec(self, name, *given):\n"
        "        if name == 'torch':\n"
        "            end()\n"
        "sys.meta_path.insert(0, Watching())\n"
        f"import rung.{module}\n"
        "end()\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    assert subprocess.run([sys.executable, "-c", code], env=plain, check=False).returncode == 0
