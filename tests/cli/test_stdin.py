"""Standard input beside a prompt: files, pipes that speak or stay silent, nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Prints the joined prompt as JSON. ``windows``: select takes sockets only. The patience is short and waits for nobody.
PROGRAM = """
import json, select, sys
from rung.cli.input import stdin
from rung.core.errors import RungError
if "windows" in sys.argv:
    def refuses(*arguments):
        raise OSError(10038, "not a socket")
    select.select = refuses
stdin.PATIENCE = float(sys.argv[1])
stdin.MOST_BYTES = 10**6
try:
    command = 'rung run m "Summarize."'
    print(json.dumps(stdin.join_prompt(sys.argv[3], command, lambda text: print(text, file=sys.stderr))))
except RungError as error:
    print(error, file=sys.stderr)
"""
SYSTEMS = pytest.mark.parametrize("system", ["posix", "windows"])


def join(
    stdin: object, system: str = "posix", patience: float = 60.0, prompt: str = "Summarize.", **options: object
) -> tuple[object, str]:
    command = [sys.executable, "-c", PROGRAM, str(patience), system, prompt]
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60, **options)
    return json.loads(done.stdout) if done.stdout else None, done.stderr


@SYSTEMS
def test_a_file_stands_below_the_prompt(tmp_path: Path, system: str) -> None:
    (tmp_path / "text").write_bytes("Über Füchse.\n\xff".encode("latin-1") + "狐\n".encode())
    with open(tmp_path / "text", "rb") as file:
        assert join(file, system) == ("Summarize.\n\n\ufffdber F\ufffdchse.\n\ufffd狐\n", "")


@SYSTEMS
def test_a_pipe_that_speaks_is_read_to_its_end(system: str) -> None:
    code = "import time; print('one', flush=True); time.sleep(0.5); print('two')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert join(writer.stdout, system) == ("Summarize.\n\none\ntwo\n", "")


@SYSTEMS
def test_a_pipe_that_stays_silent_is_left_alone(system: str) -> None:
    reading, writing = os.pipe()
    try:
        prompt, err = join(reading, system, patience=0.3)
    finally:
        os.close(reading)
        os.close(writing)
    assert prompt == "Summarize."
    assert "standard input stayed silent" in err
    assert "Fatal" not in err


@SYSTEMS
@pytest.mark.parametrize("text", [b"", b"\n \n"])
def test_nothing_is_nothing(tmp_path: Path, system: str, text: bytes) -> None:
    assert join(subprocess.DEVNULL, system) == ("Summarize.", "")
    (tmp_path / "text").write_bytes(text)
    with open(tmp_path / "text", "rb") as file:
        assert join(file, system) == ("Summarize.", "")


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
def test_a_closed_stdin() -> None:
    assert join(None, preexec_fn=lambda: os.close(0)) == ("Summarize.", "")


def test_a_program_that_never_ends_is_refused() -> None:
    code = "while True: print('y' * 1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as writer:
        prompt, err = join(writer.stdout)
        writer.stdout.close()
    assert prompt is None
    assert "Standard input holds more than 977 kB" in err


@pytest.mark.parametrize(
    ("data", "kind", "way"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG picture", 'rung run m "Summarize." < FILE.txt'),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG picture", 'rung run m "Summarize." < FILE.txt'),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF file", 'pdftotext FILE.pdf - | rung run m "Summarize."'),
        (b"\x1f\x8b\x08\0abc", "a gzip archive", 'zcat FILE.gz | rung run m "Summarize."'),
        (b"numbers\0\x01\x02", "binary data", 'rung run m "Summarize." < FILE.txt'),
        ("Привет, мир".encode("cp1251"), "not UTF-8", 'iconv -f latin1 -t utf-8 FILE.txt | rung run m "Summarize."'),
    ],
)
def test_what_is_no_text_is_refused_by_its_kind(tmp_path: Path, data: bytes, kind: str, way: str) -> None:
    (tmp_path / "data").write_bytes(data)
    with open(tmp_path / "data", "rb") as file:
        prompt, err = join(file)
    assert prompt is None
    assert f"{kind}" in err.splitlines()[0]
    assert f"  1  {way}\n" in err


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_marks_of_windows_are_understood(tmp_path: Path, codec: str) -> None:
    (tmp_path / "text").write_bytes("Füchse 狐".encode(codec))
    with open(tmp_path / "text", "rb") as file:
        assert join(file) == ("Summarize.\n\nFüchse 狐", "")


def test_an_empty_prompt_leaves_the_text_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Why?")
    with open(tmp_path / "text", "rb") as file:
        assert join(file, prompt=" ") == ("Why?", "")
