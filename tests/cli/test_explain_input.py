"""Test inputs of ``explain``: rows on stdin, environments of all kinds, files without an end, outputs without room."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rung.cli.input import log
from rung.diagnosis.explain import explain, scene
from rung.diagnosis.facts import environment_of

FULL = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
PROGRAM = [sys.executable, "-m", "rung", "explain"]


def answers(out):
    return [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]


def test_rows_come_from_stdin_too(rung, tmp_path):
    rows = "".join(json.dumps({"id": name, "log": FULL, "environment": {}}) + "\r\n" for name in "ab")
    (tmp_path / "rows").write_text(rows)
    piped, file = rung("explain", "--jsonl", "-", stdin=rows), rung("explain", "--jsonl", str(tmp_path / "rows"))
    assert (piped.code, piped.out) == (0, file.out)
    assert [row["id"] for row in answers(piped.out)] == ["a", "b"]


def test_rows_that_windows_wrote(rung, tmp_path):
    (tmp_path / "rows").write_text(json.dumps({"id": 1, "log": FULL}) + "\r\n", encoding="utf-16")
    assert answers(rung("explain", "--jsonl", str(tmp_path / "rows")).out)[0]["cause"] == "gpu-out-of-memory"


def test_a_row_is_answered_before_the_next_one_is_there():
    with subprocess.Popen([*PROGRAM, "--jsonl", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(json.dumps({"id": 1, "log": FULL, "environment": {}}).encode() + b"\n")
        process.stdin.flush()
        late = threading.Timer(30, process.kill)
        late.start()
        assert json.loads(process.stdout.readline())["id"] == 1
        late.cancel()
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("name", [3, 2.5, None, {"a": [1]}, ["x"], "\ud800", "ä\x00", True])
def test_a_row_keeps_its_name_whatever_it_is(rung, name):
    said = rung("explain", "--jsonl", "-", stdin=json.dumps({"id": name, "log": FULL, "environment": {}}))
    assert (said.code, answers(said.out)[0]["id"]) == (0, name)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_has_not_are_unknown(rung, number):
    row = f'{{"id": {number}, "log": "{FULL}", "environment": {{"gpu": {number}}}}}'
    found = answers(rung("explain", "--jsonl", "-", stdin=row).out)[0]
    assert (found["id"], found["cause"]) == (None, "gpu-out-of-memory")


def test_odd_rows_do_not_cost_the_others(rung):
    huge = "9" * 5_000
    rows = [f'{{"id": {huge}, "log": "x"}}', '{"id": 2}', '{"id": 3, "log": null}', '{"id": 4, "id": 5, "log": "x"}']
    said = rung("explain", "--jsonl", "-", stdin="\n".join(rows))
    assert (said.code, [row["id"] for row in answers(said.out)]) == (2, [None, 2, 3, 5])
    assert "3 of the rows in -" in said.err


def test_a_row_without_an_end_is_refused(monkeypatch, rung):
    monkeypatch.setattr(log, "_LONGEST_ROW", 1 << 20)
    rows = json.dumps({"id": 1, "log": FULL}) + "\n" + "x" * (4 << 20)
    said = rung("explain", "--jsonl", "-", stdin=rows)
    assert (said.code, len(answers(said.out))) == (2, 1)
    assert "Row 2 is longer than 1 MB." in said.err


def test_what_is_no_ascii_is_written_out_where_the_output_cannot_hold_it():
    row = json.dumps({"id": "日本", "log": FULL, "environment": {}}).encode()
    for encoding, there in (("utf-8", "日本".encode()), ("cp1252", b"\\u65e5")):
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        out = subprocess.run([*PROGRAM, "--jsonl", "-"], input=row, capture_output=True, env=environment).stdout
        assert there in out
        assert json.loads(out)["id"] == "日本"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"gpu": True, "os": False, "torch": None}, {}),
        ({"gpu": "\x1b[31mTesla T4\x1b[0m\x00"}, {"gpu": "Tesla T4"}),
        ({"gpu": [["T4"], {"a": 1}], "cuda": 12.4}, {"gpu": "['T4'], {'a': 1}", "cuda": "12.4"}),
        ({"library_versions": {"torch": "2.1"}, "driver": 535}, {"library_versions": "torch 2.1", "driver": "535"}),
        ({"gpu": "  ", "GPU": "T4", 3: 4}, {}),
    ],
)
def test_environments_of_odd_types(value, read):
    assert environment_of(value) == read


def test_a_long_list_of_packages_is_read_to_its_end_and_does_not_outvote_the_log():
    listed = "\n".join(f"package-{number}==1.{number}" for number in range(300)) + "\ntorch==2.7.1+cu126"
    assert scene([b"it fails"], {"library_versions": listed}).facts.torch == (2, 7)
    short, long = (explain(FULL, {"library_versions": text}) for text in (listed[-20:], listed))
    assert long.cause == short.cause
    assert abs(long.confidence - short.confidence) < 0.1


def test_keys_that_no_environment_has_are_named(rung, tmp_path):
    file = tmp_path / "environment.json"
    file.write_text('{"GPU": "Tesla T4"}')
    said = rung("explain", FULL, "--environment", str(file))
    assert said.code == 0
    assert "no key of an environment: GPU. Known: gpu, " in said.err
    file.write_text('{"gpu": "Tesla T4"}')
    assert rung("explain", FULL, "--environment", str(file)).err == ""


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such file")
def test_files_without_an_end(rung):
    said = rung("explain", FULL, "--environment", "/dev/zero")
    assert (said.code, "larger than 16 MB" in said.err) == (2, True)
    for arguments in (["/dev/zero", "--no-environment"], ["/dev/zero", "--redact"]):
        with subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True) as process:
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20)[1] == "stopped\n"
            assert process.returncode == 130


def test_a_log_that_a_pipe_with_a_name_holds(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [*PROGRAM, str(tmp_path / "pipe"), "--no-environment", "--json"], stdout=subprocess.PIPE
    ) as process:
        (tmp_path / "pipe").write_text(FULL)
        assert json.loads(process.communicate(timeout=30)[0])["cause"] == "gpu-out-of-memory"


def test_a_ring_of_links_is_a_file_that_cannot_be_read(rung, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    said = rung("explain", str(tmp_path / "a"))
    assert (said.code, "cannot be read" in said.err) == (2, True)


class Grows(io.BytesIO):
    """A file of which less is there than when it was opened, or more."""

    def read(self, size=-1):
        piece = super().read(size)
        if self.tell() < 5_000:
            at = self.tell()
            self.seek(0, io.SEEK_END)
            self.write(f"step\n{FULL}\n".encode())
            self.seek(at)
        return piece


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end():
    from rung.diagnosis.explain import explain_log

    assert explain_log(log.chunks_of(Grows(b"start\n")), {}).cause == "gpu-out-of-memory"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("{} - <&-", 2, "There is no log to explain"),
        ("{} <&-", 2, "There is no log to explain"),
        ("{} --jsonl - <&-", 2, "There is no log to explain"),
        ("{} --list >&-", 0, ""),
        ("{} --list >/dev/full", 1, "The output cannot be written: No space left on device"),
        ("{} 'CUDA out of memory' --json >/dev/full", 1, "The output cannot be written: No space left on device"),
    ],
)
def test_streams_that_are_closed_or_full(line, code, said):
    done = subprocess.run(
        ["bash", "-c", line.format(" ".join(PROGRAM))], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, said in done.stderr) == (code, True)
    assert "bug" not in done.stderr
    assert "Exception ignored" not in done.stderr
