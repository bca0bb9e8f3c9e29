"""``rung inspect``: what it shows, its exit codes, and that a package's environment is walked."""

import json
import zipfile

import pytest

from tests import device_code as fake

OLD = fake.fatbin(fake.entry(fake.CUBIN, 60), fake.entry(fake.CUBIN, 70), fake.entry(fake.PTX, 70))
NEW = fake.fatbin(fake.entry(fake.CUBIN, 80), fake.entry(fake.CUBIN, 90, fake.A))


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libold.so"
    path.write_bytes(fake.elf(OLD * 3))
    return path


def test_a_library_is_shown_in_full(rung, library):
    said = rung("inspect", str(library))
    assert said.code == 0
    assert said.out.splitlines() == [
        "libold.so · ELF library, x86_64 · 37 kB",
        "  cubins    sm_60×3 sm_70×3",
        "  PTX       compute_70×3   compiled by drivers with CUDA 12.8 or newer",
        "  objects   3, all with PTX for later GPUs",
        "  code for  6.0 to 12.1",
        "  CPU       x86_64; no AVX seen",
    ]


def test_a_device_is_answered_first(rung, library):
    said = rung("inspect", str(library), "--device", "p2200")
    assert said.code == 0
    assert said.out.splitlines()[1:3] == [
        "on Quadro P2200, compute capability 6.1",
        "runs; takes the code for sm_60; compiled without dp4a (four int8 products at once)",
    ]


def test_what_has_no_device_code_is_said_once(rung, tmp_path):
    (tmp_path / "lib.so").write_bytes(fake.elf())
    said = rung("inspect", str(tmp_path / "lib.so"), "--device", "p2200")
    assert said.out.splitlines()[2] == "no device code"


def test_an_empty_name_is_not_this_folder(rung):
    assert (rung("inspect", "").code, "is empty" in rung("inspect", "").err) == (2, True)


def test_what_does_not_run_is_exit_code_1_with_a_way_on(rung, tmp_path):
    (tmp_path / "lib.so").write_bytes(fake.elf(NEW))
    said = rung("inspect", str(tmp_path / "lib.so"), "--device", "p2200")
    assert said.code == 1
    assert "does not run: nothing for 6.1: it holds sm_80 sm_90a" in said.out
    assert said.out.splitlines()[-1].endswith("rung setup --device quadro-p2200")


def test_a_folder_is_a_table_with_the_weakest(rung, tmp_path, library):
    (tmp_path / "libnew.so").write_bytes(fake.elf(NEW))
    (tmp_path / "libnone.so").write_bytes(fake.elf())
    said = rung("inspect", str(tmp_path))
    assert said.code == 0
    lines = said.out.splitlines()
    assert "3 libraries, 2 with device code" in lines[0]
    assert "libnone.so" not in said.out
    assert "libnone.so" in rung("inspect", str(tmp_path), "--all").out
    assert lines[-2:] == ["All have code for 8.0 to 9.0.", "The weakest: libnew.so, code for 8.0 to 9.0."]


def test_json(rung, library):
    data = json.loads(rung("inspect", str(library), "--json", "--device", "p2200").out)
    (found,) = data["libraries"]
    assert (data["ok"], data["device"]) == (True, "quadro-p2200")
    assert (found["cubins"], found["ptx"], found["amd"]) == ({"sm_60": 3, "sm_70": 3}, {"compute_70": 3}, {})
    assert found["device"]["images"] == ["sm_60"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello", "neither a library nor GPU code"),
        (b"GGUF" + bytes(60), "weights, not code"),
        (b"PK\x03\x04" + bytes(60), "without its end"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(rung, tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    said = rung("inspect", str(path))
    assert said.code == 2
    assert words in said.err
    assert "What to do" in said.err


def test_unknown_names_and_devices_are_exit_code_2(rung, library):
    for arguments in (["no-such-thing"], ["../nothing.so"], ["a\0b"], [str(library), "--device", "nosuchcard"]):
        said = rung("inspect", *arguments)
        assert said.code == 2, arguments
        assert "What to do" in said.err


def test_a_path_that_is_not_there_is_not_taken_for_a_package(rung):
    assert "Did you mean" in rung("inspect", "numpyy").err
    said = rung("inspect", "./numpyy")
    assert (said.code, "Did you mean" in said.err) == (2, False)


def test_control_characters_of_an_archive_do_not_reach_the_terminal(rung, tmp_path):
    path = tmp_path / "x.whl"
    path.write_bytes(fake.archive({"\x1b[31mred\n.so": fake.elf(NEW)}, zipfile.ZIP_STORED))
    said = rung("inspect", str(path))
    assert "\x1b" not in said.out
    assert r"\x1b[31mred\n.so" in said.out


def test_a_package_is_walked_with_what_it_needs_and_what_needs_it(rung, tmp_path, monkeypatch):
    """A small environment: a framework, a library that it needs, an extension, and something unrelated."""
    for name, needs, content in (
        ("framework", "Some_Library>=1; sys_platform == 'linux'", OLD),
        ("some-library", "", OLD),
        ("extension", "framework", NEW),
        ("unrelated", "", NEW),
    ):
        folder = tmp_path / name.replace("-", "_")
        folder.mkdir()
        (folder / "lib.so").write_bytes(fake.elf(content))
        info = tmp_path / f"{folder.name}-1.0.dist-info"
        info.mkdir()
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
        (info / "RECORD").write_text(f"{folder.name}/lib.so,,\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    said = rung("inspect", "Framework")
    assert said.code == 0
    assert said.out.startswith("framework 1.0 with 2 packages around it · 3 libraries, 3 with device code")
    assert "unrelated" not in said.out
    assert "The weakest: extension/lib.so" in said.out
    assert rung("inspect", "framework", "--device", "p2200").code == 1
