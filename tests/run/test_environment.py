"""Environments: what an interpreter says of itself, and what is no environment."""

import sys

import pytest

from rung.core.errors import UsageError
from rung.run import environment
from tests import fake_index


def test_a_virtual_environment_says_what_it_is(tmp_path, monkeypatch):
    folder = fake_index.environment(tmp_path / "env", with_pip=False)
    found = environment.at(str(folder))
    assert found.virtual
    assert found.version == "{}.{}".format(*sys.version_info[:2])
    assert found.folder.startswith(str(folder))
    assert environment.at(found.python) == found
    assert (found.system, found.machine) == (environment.current().system, environment.current().machine)
    # the one that is active, not the one that rung runs in
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    assert environment.current() == found
    monkeypatch.delenv("VIRTUAL_ENV")
    assert environment.current().prefix == sys.prefix


def test_a_conda_environment_is_virtual_and_its_base_is_not(tmp_path):
    facts = ["python", str(tmp_path), str(tmp_path), "3.12", str(tmp_path / "lib"), "Darwin", "arm64"]
    (tmp_path / "conda-meta").mkdir()
    assert environment.environment_from(facts).virtual
    assert (environment.environment_from(facts).system, environment.environment_from(facts).machine) == (
        "macos",
        "aarch64",
    )
    (tmp_path / "condabin").mkdir()
    assert not environment.environment_from(facts).virtual


def test_what_is_no_environment_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no"):
        environment.at(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="has no bin/python") as refused:
        environment.at(str(tmp_path))
    assert refused.value.ways_out == (f"python3 -m venv {tmp_path}",)
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="has no bin/python") as refused:
        environment.at(str(tmp_path))
    assert refused.value.ways_out == ("python3 -m venv ENV",), "not into what somebody keeps there"
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho not json\n", "not a program"):
        broken = tmp_path / "python"
        broken.write_text(text)
        broken.chmod(0o755)
        with pytest.raises(UsageError, match="is no Python that runs"):
            environment.at(str(broken))
