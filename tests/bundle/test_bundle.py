"""A bundle started where nothing is installed, and what can be wrong with one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rung.bundle import start as program
from rung.bundle.packages import NEEDED, needed
from rung.core.settings import CACHE
from rung.models.lookup import demo_path
from tests.bundle.conftest import PYTHON, SYSTEM, start
from tests.models import handmade
from tests.server.conftest import Server

PROMPT = ("run", "the model", "--raw", "--max-tokens", "8", "--temperature", "0", "--json")


@pytest.fixture(scope="module")
def started(bundle, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The cache of a first start, and what it printed."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, start(bundle, *PROMPT, RUNG_CACHE=str(cache))


def test_it_answers_as_rung_does(started, bundle, rung):
    cache, first = started
    assert first.returncode == 0, first.stderr
    plain = json.loads(rung("run", "demo", *PROMPT[1:], "--context", "256", "--system", SYSTEM).out)
    assert json.loads(first.stdout)["text"] == plain["text"]
    second = start(bundle, *PROMPT, RUNG_CACHE=str(cache))
    assert json.loads(second.stdout)["text"] == json.loads(first.stdout)["text"]
    assert "Unpacking" in first.stderr
    assert "Unpacking" not in second.stderr


def test_bytecode_is_kept_in_its_own_folder_where_python_keeps_none(started, bundle):
    """Bytecode of one start serves the next one, and nothing is written into the Python of the machine."""
    cache, _ = started
    said = start(bundle, *PROMPT, RUNG_CACHE=str(cache), PYTHONDONTWRITEBYTECODE="1")
    assert said.returncode == 0, said.stderr
    (kept,) = (cache / "bundles").glob("*/bytecode")
    compiled = {path.name.partition(".")[0] for path in kept.rglob("*.pyc")}
    assert {"scheduler", "_methods"} <= compiled, "modules of rung and of NumPy"


@pytest.mark.parametrize("reason", ["nobody may write there", "a folder is named", "Python keeps some", None])
def test_bytecode_is_where_it_was_unless_a_folder_of_its_own_helps(reason, tmp_path, monkeypatch):
    """A folder that cannot be written would have each start compile the standard library."""
    named = str(tmp_path / "named") if reason == "a folder is named" else None
    monkeypatch.setattr(sys, "pycache_prefix", named)
    monkeypatch.setattr(sys, "dont_write_bytecode", reason != "Python keeps some")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(os, "access", lambda *arguments: reason != "nobody may write there")
    program.keep_bytecode(str(tmp_path))
    own = str(tmp_path / "bytecode")
    assert (sys.pycache_prefix, os.environ["PYTHONPYCACHEPREFIX"]) == ((named, "") if reason else (own, own))
    assert ("PYTHONDONTWRITEBYTECODE" in os.environ) == bool(reason)
    if reason == "nobody may write there":  # but an earlier start could: what it compiled is read
        (tmp_path / "bytecode").mkdir()
        program.keep_bytecode(str(tmp_path))
        assert sys.pycache_prefix == own


def test_the_model_stays_in_the_bundle(started):
    """Nothing that is unpacked has its bytes."""
    data = demo_path().read_bytes()
    found = [path for path in started[0].rglob("*") if path.is_file() and data[:4096] in path.read_bytes()]
    assert found == []


def test_rung_itself_reads_the_model_in_it(bundle, rung):
    said = json.loads(rung("run", str(bundle), *PROMPT[1:]).out)
    assert said["text"] == json.loads(rung("run", "demo", *PROMPT[1:]).out)["text"]


def test_it_serves_under_its_name(started, bundle):
    """Without a command it serves; the settings that it was made with hold, and options come after them."""
    said = start(bundle, "--port", "70000", RUNG_CACHE=str(started[0]))
    assert said.returncode == 2
    assert "--port" in said.stderr
    settings = json.loads(zipfile.ZipFile(bundle).read("bundle.json"))
    assert settings["options"] == {
        "serve": ["--open", "--alias", "demo", "--context", "256", "--system", SYSTEM],
        "run": ["--context", "256", "--system", SYSTEM],
    }


def test_it_serves_the_model_and_the_page_until_it_is_told_to_stop(started, bundle, tmp_path, rung):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "DISPLAY"))}
    environment = plain | {"RUNG_CACHE": str(started[0])}
    expected = json.loads(rung("run", "demo", *PROMPT[1:], "--context", "256").out)["text"]
    with (
        (tmp_path / "said").open("wb") as file,
        subprocess.Popen(
            [PYTHON, str(bundle), "--port", "0", "--device", "cpu"],
            stdout=file,
            stderr=file,
            env=environment,
            cwd=tmp_path,
        ) as process,
    ):
        try:
            server = Server(process, str(tmp_path / "said"))
            assert server.call("/health")[:2] == (200, {"status": "ok"})
            assert [each["id"] for each in server.call("/v1/models")[1]["data"]] == ["demo"]
            status, page, headers = server.call("/")
            assert (status, headers.get_content_type()) == (200, "text/html")
            for path in re.findall(r'(?:src|href)="(\S+)"', page):
                assert server.call(f"/{path.removeprefix('./').lstrip('/')}")[0] == 200, path
            body = {"model": "demo", "prompt": "the model", "max_tokens": 8, "temperature": 0}
            assert server.call("/v1/completions", body)[1]["choices"][0]["text"] == expected
            engine = server.engine()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


def test_its_kernels_and_its_system_prompt_are_ready(started, bundle):
    """Kernels that were compiled where it was made lie in the cache; what the system prompt computed is found."""
    settings = json.loads(zipfile.ZipFile(bundle).read("bundle.json"))
    (kernels,) = (started[0] / "kernels").iterdir()
    carried = started[0] / "bundles" / settings["ready"]["sha256"][:32] / "kernels" / kernels.name
    names = {path.relative_to(carried) for path in carried.rglob("*.nbc")}
    assert names
    assert all((kernels / name).read_bytes() == (carried / name).read_bytes() for name in names)
    assert settings["ready"]["prefix_bytes"] > 0
    before = {path.name for path in (carried.parents[1] / "prefixes").glob("*.kv")}
    said = start(bundle, "run", "Hello", "--max-tokens", "1", "--quiet", RUNG_CACHE=str(started[0]))
    assert said.returncode == 0, said.stderr
    assert {path.name for path in (carried.parents[1] / "prefixes").glob("*.kv")} == before  # known to its last token


def test_a_system_prompt_needs_a_chat_template(rung, model, tmp_path):
    said = rung("bundle", model, str(tmp_path / "x.pyz"), "--system", "Be brief.")
    assert said.code == 2
    assert "no chat template" in said.err


@pytest.fixture
def few_packages(monkeypatch):
    """Bundles of this test carry two packages: compressing all takes ten seconds."""
    monkeypatch.setattr(
        "rung.bundle.write.needed", lambda: [each for each in needed() if each.name in ("typer", "h11")]
    )


def test_a_model_that_cannot_run_here_is_bundled_without_kernels(rung, tmp_path, few_packages):
    out = tmp_path / "x.pyz"
    said = rung("bundle", "demo", str(out), "--context", "1000000")
    assert said.code == 0
    assert "compiles them where it starts" in said.err
    assert json.loads(zipfile.ZipFile(out).read("bundle.json"))["ready"] is None


def test_the_program_takes_less_than_120_mb(bundle):
    assert bundle.stat().st_size - demo_path().stat().st_size < 120 << 20


def test_it_has_the_license_of_each_package(bundle):
    text = zipfile.ZipFile(bundle).read("LICENSES.txt").decode()
    assert start(bundle, "licenses").stdout.strip() == text.strip()
    for package in needed():
        assert f"{package.name} {package.version}" in text
        assert all(each.strip() in text for each in package.license_texts())
        assert package.license_texts(), f"{package.name} has no text"
    for name in ("LICENSE.htm", "LICENSE.marked", "LICENSE.preact", "The model"):
        assert name in text


def test_its_packages_are_those_of_the_project():
    """Apart from what asks GPUs and the hub."""
    import tomllib

    path = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["lean"]]
    names = {line.split(">=")[0] for line in [*lines, *project["optional-dependencies"]["serve"]]}
    assert set(NEEDED) == names - {"nvidia-ml-py", "huggingface_hub", "rung[webgpu]"}


def test_an_older_python_is_told(bundle, tmp_path):
    """Python 2 and 3.x read the first lines; here the version is another one."""
    source = zipfile.ZipFile(bundle).read("__main__.py").decode()
    (tmp_path / "old.py").write_text(f"import sys\nsys.version_info = (3, 8)\n{source}")
    said = subprocess.run([PYTHON, str(tmp_path / "old.py")], capture_output=True, text=True)
    assert said.returncode == 1
    assert "needs Python 3.11 or later, and this is 3.8" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("name", ["python2", "python2.7", "python3.6", "python3.8"])
def test_an_older_python_that_is_here_is_told(bundle, name):
    if shutil.which(name) is None or subprocess.run([name, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"{name} is not here")
    said = subprocess.run([name, str(bundle)], capture_output=True, text=True)
    assert "needs Python 3.11 or later" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    "environment", [{"RUNG_CACHE": "~/own"}, {"RUNG_CACHE": "/own"}, {"XDG_CACHE_HOME": "/xdg"}, {}], ids=str
)
def test_its_cache_is_that_of_rung(monkeypatch, environment):
    for name in ("RUNG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert program.cache("RUNG_CACHE") == str(CACHE.read())


def test_another_python_needs_packages_of_its_own(monkeypatch, capsys):
    settings = {
        "extensions": [".cpython-399-x86_64-linux-gnu.so"],
        "modules": {"numpy": "numpy", "nothing": "no_such_module"},
        "made_for": "Python 3.99 on linux",
        "interpreter": "python3.99",
    }
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        program.set_path("/folder", settings)
    assert "which lacks nothing." in str(ended.value.code)
    assert "pip install numpy nothing" in str(ended.value.code)
    settings["modules"] = {"numpy": "numpy"}
    program.set_path("/folder", settings)
    assert sys.path[0] == os.path.join("/folder", "program")
    assert "/folder/packages" not in sys.path


def test_a_bundle_cut_off_says_so(bundle, tmp_path):
    path = tmp_path / "cut.pyz"
    path.write_bytes(bundle.read_bytes()[:-100_000])
    said = start(path)
    assert said.returncode == 1
    assert "this-rung-bundle-was-cut-off" in said.stderr


def test_a_damaged_bundle_says_so_and_leaves_nothing(bundle, tmp_path):
    path, settings = tmp_path / "bad.pyz", json.loads(zipfile.ZipFile(bundle).read("bundle.json"))
    shutil.copy(bundle, path)
    with path.open("r+b") as file:
        file.seek(settings["packages"]["begin"] + settings["packages"]["size"] // 2)
        file.write(b"rung" * 100)
    said = start(path, *PROMPT, RUNG_CACHE=str(tmp_path / "cache"))
    assert said.returncode == 1
    assert "the bundle is damaged: fetch it again" in said.stderr
    assert list((tmp_path / "cache" / "bundles").iterdir()) == []


def test_a_cache_without_room_is_named(bundle, tmp_path):
    """A limit on the size of files ends it as a full disk does."""
    command = f"trap '' XFSZ; ulimit -f 1000; exec {PYTHON} {bundle} run hello"
    environment = {"PATH": os.environ["PATH"], "RUNG_CACHE": str(tmp_path / "cache")}
    said = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    assert said.returncode == 1
    assert f"cannot be unpacked into {tmp_path / 'cache' / 'bundles'}: File too large" in said.stderr
    assert "RUNG_CACHE=FOLDER" in said.stderr
    assert list((tmp_path / "cache" / "bundles").iterdir()) == []


def test_what_is_there_is_not_written_over(rung, tmp_path):
    (tmp_path / "x.pyz").write_text("mine")
    said = rung("bundle", "demo", str(tmp_path / "x.pyz"))
    assert said.code == 2
    assert "is there already" in said.err
    assert (tmp_path / "x.pyz").read_text() == "mine"


def test_an_unknown_model_and_a_folder_are_refused(rung, tmp_path):
    said = rung("bundle", "no-such-model-anywhere", str(tmp_path / "x.pyz"))
    assert said.code == 2
    assert "no-such-model-anywhere" in said.err
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(rung, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    said = rung("bundle", "demo", str(tmp_path / "x.pyz"))
    assert said.code == 1
    assert "No room for" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said(rung, tmp_path):
    said = rung("bundle", "demo", str(tmp_path / "no" / "x.pyz"))
    assert said.code == 2
    assert "cannot be written" in said.err


def test_terms_must_be_accepted_and_travel(rung, tmp_path, few_packages):
    terms = {
        "general.license": (handmade.STRING, "llama9"),
        "general.license.link": (handmade.STRING, "https://example.org/llama9"),
    }
    model = handmade.llama(tmp_path / "small.gguf", terms)
    said = rung("bundle", str(model), str(tmp_path / "x.pyz"))
    assert said.code == 2
    assert "--accept-terms" in said.err
    assert not (tmp_path / "x.pyz").exists()
    said = rung("bundle", str(model), str(tmp_path / "x.pyz"), "--accept-terms", "--no-warm-up", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["bytes"] == (tmp_path / "x.pyz").stat().st_size
    text = zipfile.ZipFile(tmp_path / "x.pyz").read("LICENSES.txt").decode()
    assert "small comes under the license llama9" in text
    assert "https://example.org/llama9" in text
    assert os.access(tmp_path / "x.pyz", os.X_OK)
