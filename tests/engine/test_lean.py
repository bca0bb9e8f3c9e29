"""Test that ``pip install 'rung[lean]'`` is enough for language models: no torch, the same tokens."""

import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from tests import foreign
from tests.tiny import gguf_vocabulary, tiny_checkpoint

ROOT = Path(__file__).parents[2]
GGUF = ROOT / "tests" / "fixtures" / "gguf"
#: GGUF files whose caches are f16 and f32, whose weights are packed, stored as floats, and too short to be packed.
FILES = ("gemma2-q8_0", "llama-q4_0", "gemma2-bf16", "llama-f32")
PROGRAM = """
import json, sys
import rung
SHORT, LONG = [1, 5, 9], [1] + [3 + 7 * n % 90 for n in range(70)]
found = {}
for path in sys.argv[1:]:
    model = rung.load(path, context=128, device="cpu")
    tokens = []
    for prompt in (SHORT, LONG, LONG + [4, 8]):
        answer = model.start(prompt, goes_on=True, max_tokens=6, temperature=0.0)
        list(answer)
        tokens.append(answer.result["tokens"])
    logits = model.logits(LONG)
    found[path] = {
        "tokens": tokens, "logits": [float(value) for value in logits[-1]], "type": type(logits).__module__,
        "shape": list(logits.shape), "rungs": sorted(set(", ".join(model.report.rungs.values()).split(", "))),
        "steps": [step.reason for step in model.report.steps],
    }
print(json.dumps({"found": found, "torch": "torch" in sys.modules}))
"""


def _requirements(extra: str) -> set[str]:
    """The distributions that pip installs for an extra of rung, and what those need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = [*project["dependencies"], *project["optional-dependencies"][extra]], set()
    while waiting:
        requirement = waiting.pop()
        name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
        if name not in found and "extra ==" not in requirement:
            found.add(name)
            try:
                waiting += metadata.requires(name) or ()
            except metadata.PackageNotFoundError:
                continue  # for another system
    return found


@cache
def _site(folder: Path) -> Path:
    """A folder of links to what ``rung[lean]`` installs, and to nothing else."""
    folder.mkdir()
    for name in _requirements("lean"):
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for file in distribution.files or ():
            top = file.parts[0]
            path = Path(distribution.locate_file(top))
            if top not in ("..", "__pycache__", "bin") and not (folder / top).exists() and path.exists():
                (folder / top).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return _site(tmp_path_factory.mktemp("lean") / "site")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """GGUF files, and folders: floats of lengths that no kernel takes, and columns in an order of their own."""
    odd, ordered = (tmp_path_factory.mktemp(name) for name in ("odd", "ordered"))
    tiny_checkpoint(odd, "llama", "float32", hidden_size=40, intermediate_size=72, head_dim=10)
    foreign.write(ordered, foreign.gptq(ordered=True))
    for folder in (odd, ordered):
        gguf_vocabulary(folder, 320)
    return [*(str(GGUF / f"{name}.gguf") for name in FILES), str(odd), str(ordered)]


def _run(program: str, *arguments: str, path: str = "", flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT / "src"))))}
    return subprocess.run(
        [sys.executable, *flags, "-c", program, *arguments], capture_output=True, text=True, env=environment
    )


def _lean(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program that sees the packages of ``site`` only."""
    return _run(program, *arguments, path=str(site), flags=("-S",))


def test_no_torch_is_among_what_is_installed():
    required = _requirements("lean")
    assert not required & {"torch", "triton", "transformers"}
    assert {"numba", "numpy", "tokenizers"} <= required


def test_tokens_without_torch_are_those_with_it(site, models):
    lean, whole = _lean(site, PROGRAM, *models), _run(PROGRAM, *models)
    assert lean.returncode == 0, lean.stderr
    assert whole.returncode == 0, whole.stderr
    alone, whole_result = json.loads(lean.stdout), json.loads(whole.stdout)
    assert not alone["torch"]
    assert whole_result["torch"]
    for path, found in alone["found"].items():
        other = whole_result["found"][path]
        assert not found["steps"], path
        assert found["tokens"] == other["tokens"], path
        assert found["shape"] == other["shape"]
        assert (found["type"], other["type"]) == ("numpy", "torch")
        scale = max(map(abs, other["logits"]))
        off = max(abs(a - b) for a, b in zip(found["logits"], other["logits"], strict=True))
        assert off < 0.02 * scale, (path, off, scale)
        assert not {"torch.decode", "torch.sdpa", "ref"} & set(found["rungs"]), path
    odd, ordered = (set(alone["found"][path]["rungs"]) for path in models[-2:])
    assert {"numpy.step", "numpy.sdpa", "numpy.decode"} <= odd
    assert "numpy.step" in ordered


def test_formats_are_compared_without_torch_and_come_out_as_with_it(site, tmp_path):
    """Divergence, choices, errors by layer, a picture and a page; speeds are whatever they are."""
    program = "import sys; from rung.cli.app import main; sys.argv[0] = 'rung'; main()"
    picture, page = tmp_path / "errors.svg", tmp_path / "page.html"
    command = ["compare", str(GGUF / "gemma2-bf16.gguf"), "--format", "q8_0", "--format", "nf4", "--context", "64"]
    lean = _lean(site, program, *command, "--json", "--picture", str(picture), "--html", str(page))
    whole = _run(program, *command, "--json")
    assert lean.returncode == 0, lean.stderr
    assert whole.returncode == 0, whole.stderr
    rows, others = json.loads(lean.stdout), json.loads(whole.stdout)
    assert [row["format"] for row in rows] == ["stored", "q8_0", "nf4"]
    for row, other in zip(rows, others, strict=True):
        assert row["weights"] == other["weights"]
        assert row["KL"] == pytest.approx(other["KL"], rel=0.05, abs=2e-4)
        assert row["perplexity"] == pytest.approx(other["perplexity"], rel=1e-3)
        assert row["worst layer dB"] == other["worst layer dB"]
    assert 0 < rows[1]["KL"] < rows[2]["KL"]
    assert "nf4" in picture.read_text()
    assert "nf4" in page.read_text()


def test_a_command_that_needs_torch_says_so_with_a_command(site, tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    program = "import sys; from rung.cli.app import main; sys.argv[0] = 'rung'; main()"
    refused = _lean(site, program, "image", str(tmp_path), "a cat")
    assert refused.returncode == 1
    assert "torch" in refused.stderr
    assert "not installed" in refused.stderr
    assert "pip install 'rung[run]'" in refused.stderr
    assert "This is a bug" not in refused.stderr
