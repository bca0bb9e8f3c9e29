"""Environments: what an interpreter says of itself, and what is no environment."""

import sys

import pytest

from rung.core.errors import UsageError
from rung.run import environment as environments
from tests import fake_index


def test_a_virtual_environment_says_what_it_is(tmp_path, monkeypatch):
    folder = fake_index.environment(tmp_path / "env", with_pip=False)
    found = environments.at(str(folder))
    assert found.virtual
    assert found.version == "{}.{}".format(*sys.version_info[:2])
    assert found.folder.startswith(str(folder))
    assert environments.at(found.python) == found
    assert (found.system, found.machine) == (environments.current().system, environments.current().machine)
    # the one that is active, not the one that rung runs in
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    assert environments.current() == found
    monkeypatch.delenv("VIRTUAL_ENV")
    assert environments.current().prefix == sys.prefix


def test_a_conda_environment_is_virtual_and_its_base_is_not(tmp_path):
    facts = ["python", str(tmp_path), str(tmp_path), "3.12", str(tmp_path / "lib"), "Darwin", "arm64"]
    (tmp_path / "conda-meta").mkdir()
    assert environments.environment_from(facts).virtual
    assert (environments.environment_from(facts).system, environments.environment_from(facts).machine) == (
        "macos",
        "aarch64",
    )
    (tmp_path / "condabin").mkdir()
    assert not environments.environment_from(facts).virtual


def test_what_is_no_environment_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no"):
        environments.at(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="has no bin/python") as refused:
        environments.at(str(tmp_path))
    assert refused.value.ways_out == (f"python3 -m venv {tmp_path}",)
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="has no bin/python") as refused:
        environments.at(str(tmp_path))
    assert refused.value.ways_out == ("python3 -m venv ENV",), "not into what somebody keeps there"
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho not json\n", "not a program"):
        broken = tmp_path / "python"
        broken.write_text(text)
        broken.chmod(0o755)
        with pytest.raises(UsageError, match="is no Python that runs"):
            environments.at(str(broken))
