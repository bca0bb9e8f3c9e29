"""Installing into virtual environments: from an index of tiny wheels, with every way to fail, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung.core.errors import SoftwareMissing, UsageError
from rung.hardware.software import installed_in
from rung.run import environment, install
from tests import fake_index

#: A pip that puts back what it was replacing when it is asked to stop, once.
STUBBORN = """
import signal, sys, time, pathlib
note = pathlib.Path(sys.prefix, "note")
def stop(*_):
    with note.open("a") as file:
        file.write("asked ")
    time.sleep(0.3)
    with note.open("a") as file:
        file.write("put-back")
    sys.exit(1)
signal.signal(signal.SIGINT, stop)
note.write_text("")
time.sleep(60)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    fake_index.wheel(folder, "torch", "2.6.0+cu126", requires=("typing-things",))
    fake_index.wheel(folder, "torch", "2.7.1+cu126")
    fake_index.wheel(folder, "typing_things", "1.0")
    return ("--index-url", fake_index.index(folder))


@pytest.fixture
def venv(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return environment.at(str(fake_index.environment(tmp_path / "env")))


def test_what_will_change_is_what_changes(venv, index):
    packages = ("torch==2.6.0+cu126", *index)
    coming = install.changes(venv, packages)
    assert {(c.package, c.before, c.after) for c in coming} == {
        ("torch", "", "2.6.0+cu126"),
        ("typing_things", "", "1.0"),
    }
    assert install.state(venv).endswith("has no torch")
    install.install(venv, packages)
    assert installed_in(Path(venv.folder)) == {"torch": "2.6.0+cu126", "torch_cuda": "12.6"}
    (newer,) = install.changes(venv, ("torch==2.7.1+cu126", *index))
    assert (newer.before, newer.after) == ("2.6.0+cu126", "2.7.1+cu126")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (("--index-url", "http://127.0.0.1:9/simple"), "http://127.0.0.1:9/simple cannot be reached"),
        (None, "has no such build for this Python"),
    ],
)
def test_what_pip_cannot_do_is_said_and_nothing_is_changed(venv, index, where, said):
    with pytest.raises(SoftwareMissing, match=said) as refused:
        install.changes(venv, ("torch==2.14.1+cu126", *(where or index)))
    assert "torch==2.14.1+cu126 was not installed" in refused.value.cause
    assert refused.value.facts[-1] == "nothing was changed"
    assert refused.value.ways_out
    assert install.state(venv).endswith("has no torch")


def test_an_environment_without_pip(tmp_path):
    bare = environment.at(str(fake_index.environment(tmp_path / "bare", with_pip=False)))
    with pytest.raises(SoftwareMissing, match="has no pip") as refused:
        install.changes(bare, ("torch",))
    assert refused.value.ways_out == (f"{bare.python} -m ensurepip --upgrade",)


def test_a_failure_in_the_middle_names_what_is_installed_now(venv):
    (Path(venv.folder) / "pip").unlink()
    (Path(venv.folder) / "pip.py").write_text("import sys; sys.exit('disk is gone')")
    with pytest.raises(SoftwareMissing, match="pip failed") as refused:
        install.install(venv, ("torch==2.7.1",))
    assert "status 1" in refused.value.facts[-1]
    assert refused.value.facts[-1].endswith("has no torch")


def test_ctrl_c_lets_pip_put_back_what_it_was_replacing(venv):
    (Path(venv.folder) / "pip").unlink()
    (Path(venv.folder) / "pip.py").write_text(STUBBORN)
    code = (
        # a shell that starts the tests in the background has them ignore SIGINT, and their children with them
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rung.run import environment, install\n"
        f"try: install.install(environment.at({venv.prefix!r}), ('torch',))\n"
        "except install.Interrupted as stopped: print(stopped)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    note = Path(venv.prefix) / "note"
    while not note.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert note.read_text() == "asked put-back"
    assert said.strip() == f"pip was stopped; {venv.prefix} has no torch"


def test_only_a_virtual_environment_is_changed_unless_told_so(venv, monkeypatch):
    install.may_change(venv, system=False)
    base = environment.at(os.path.realpath(venv.python))
    assert not base.virtual
    with pytest.raises(UsageError, match="is no virtual environment") as refused:
        install.may_change(base, system=False)
    assert any("--venv" in way for way in refused.value.ways_out)
    monkeypatch.setattr(os, "access", lambda *_: True)
    install.may_change(base, system=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written to"):
        install.may_change(venv, system=False)


def test_a_torch_that_does_not_compute_is_found_out(venv, tmp_path):
    broken = fake_index.wheel(tmp_path, "torch", "2.6.0+cu126", "raise OSError('libcudart.so.12: cannot open')")
    fake_index.unpack(broken, Path(venv.prefix))
    found = dict(install.verify(venv, None))
    assert set(found) == set(install.DTYPES)
    assert all("libcudart.so.12" in outcome.error for outcome in found.values())


@pytest.mark.slow
def test_the_torch_of_this_environment_computes():
    found = dict(install.verify(environment.current(), None))
    assert found["f32"].ok
    assert found["f32"].value == ""


def test_a_python_that_is_too_old_for_the_probe_is_not_tried(venv):
    from dataclasses import replace

    assert install.verify(replace(venv, version="3.10"), None) == []
