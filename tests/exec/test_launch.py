"""A program under ``rung exec`` runs as it runs without: streams, signals, exit codes, terminals, its own start-up."""

from __future__ import annotations

import ast
import functools
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rung.exec import launch, report
from rung.exec.repairs import repairs
from rung.hardware import catalog, detect

RUNG = [sys.executable, "-m", "rung", "exec"]


def run(*arguments, options=(), **more):
    """``rung exec [options] -- python arguments``."""
    return subprocess.run([*RUNG, *options, "--", sys.executable, *arguments], capture_output=True, timeout=60, **more)


def sh(script, **more):
    return subprocess.run([*RUNG, "--", "sh", "-c", script], capture_output=True, timeout=60, **more)


def test_streams_stay_apart_and_unchanged():
    code = "import os; os.write(1, bytes(range(256))); os.write(2, b'\\r\\n\\xff\\0'); assert os.read(0, 1) == b''"
    done = run("-c", code, input=b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(range(256)), b"\r\n\xff\0")


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("true", 0)])
def test_the_exit_code_is_the_programs(script, code):
    done = sh(script)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_a_death_without_a_word_that_rung_knows_is_left_alone():
    done = sh("echo broken >&2; exit 3")
    assert (done.returncode, done.stderr) == (3, b"broken\n")


def test_a_command_that_is_not_there_and_one_that_cannot_run(tmp_path):
    missing = subprocess.run([*RUNG, "--", "no-such-program"], capture_output=True, text=True)
    assert (missing.returncode, missing.stderr) == (127, "rung exec: no-such-program: command not found\n")
    empty = subprocess.run([*RUNG, "--", ""], capture_output=True, text=True)
    assert (empty.returncode, empty.stderr) == (127, "rung exec: '': command not found\n")
    script = tmp_path / "train.py"
    script.write_text("#!/no/such/python")
    script.chmod(0o755)
    other = subprocess.run([*RUNG, "--", str(script)], capture_output=True, text=True)
    assert (other.returncode, "the interpreter that its first line names" in other.stderr) == (127, True)
    script.chmod(0o644)
    plain = subprocess.run([*RUNG, "--", str(script)], capture_output=True, text=True)
    assert plain.returncode == 126
    assert f"rung exec -- python {script}" in plain.stderr


@pytest.mark.parametrize(
    ("content", "why", "fix"),
    [
        (b"echo on\n", "no first line says what runs it (#!...)", "What to do\n  1  rung exec -- sh {name}\n"),
        (b"\x7fELF\2\1\1\0other", "it is a program for another processor or system", ""),
    ],
)
@pytest.mark.parametrize("found", [False, True])
def test_a_file_that_the_system_does_not_know_how_to_run(tmp_path, content, why, fix, found):
    (tmp_path / "start").write_bytes(content)
    (tmp_path / "start").chmod(0o755)
    name = "start" if found else str(tmp_path / "start")
    more = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*RUNG, "--", name], capture_output=True, text=True, env=more)
    assert done.returncode == 126
    assert done.stderr == f"rung exec: {name}: {why}\n{fix.format(name=name)}"


def test_a_program_called_oom_is_no_full_gpu(tmp_path):
    (tmp_path / "oom.py").write_text("raise ValueError('x')")
    done = run(str(tmp_path / "oom.py"))
    assert done.returncode == 1
    assert "rung exec" not in done.stderr.decode()
    assert b"What to do" not in done.stderr


def test_it_dies_and_is_explained_below_its_own_words():
    text = "RuntimeError: at::cuda::blas::gemm: not implemented for struct c10::BFloat16"
    done = sh(f"echo '{text}' >&2; exit 1")
    own, explained = done.stderr.decode().split("\n", 1)
    assert done.returncode == 1
    assert own == text
    assert "What to do" in explained
    assert done.stdout == b""


def test_one_order_where_both_streams_lead_to_one_place(tmp_path):
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"
    with open(tmp_path / "log", "wb") as file:
        subprocess.run([*RUNG, "--", "sh", "-c", script], stdout=file, stderr=file, check=True)
    expected = "".join(f"out {i}\nerr {i}\n" for i in range(1, 10))
    assert (tmp_path / "log").read_text() == expected


def test_output_comes_when_it_is_written():
    command = [*RUNG, "--", "sh", "-c", "printf a >&2; read go; printf b >&2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr.read(1) == b"a"
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b"b"


def test_much_output_and_a_reader_that_goes():
    done = sh("head -c 5000000 /dev/zero >&2")
    assert len(done.stderr) == 5_000_000
    command = [*RUNG, "--", "sh", "-c", "yes >&2; echo $? > /dev/null"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        process.stderr.read(10)
        process.stderr.close()
        assert process.wait(60) == 0  # yes was ended by its reader's going, the shell went on


def test_what_it_leaves_running_keeps_its_stderr(tmp_path):
    os.mkfifo(tmp_path / "go")
    command = [*RUNG, "--", "sh", "-c", f"(read go < {tmp_path}/go; echo late >&2) & exit 4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 4
        (tmp_path / "go").write_text("go\n")
        assert process.stderr.read() == b"late\n"


def test_what_it_leaves_running_holds_no_other_stream(tmp_path):
    os.mkfifo(tmp_path / "go")
    command = [*RUNG, "--", "sh", "-c", f"(read go < {tmp_path}/go; echo late >&2) > {tmp_path}/log & echo out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert select.select([process.stdout], [], [], 60)[0]
        assert os.read(process.stdout.fileno(), 9) == b"out\n"
        assert select.select([process.stdout], [], [], 60)[0]
        assert os.read(process.stdout.fileno(), 9) == b""  # its end, as `out=$(...)` waits for it
        (tmp_path / "go").write_text("go\n")
        assert process.stderr.read() == b"late\n"


def test_what_passes_on_for_those_left_running_outlives_the_terminals_signals(tmp_path):
    os.mkfifo(tmp_path / "go")
    command = [*RUNG, "--", "sh", "-c", f"trap '' INT; (read go < {tmp_path}/go; echo late >&2) & exit 4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.wait(60) == 4
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "go").write_text("go\n")
        assert process.stderr.read() == b"late\n"


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_stream_that_is_closed(closed):
    assert sh(f"exec {closed}>&-; exit 5").returncode == 5
    script = f"{' '.join(RUNG)} -- sh -c 'exit 6' {closed}>&-"
    assert subprocess.run(["sh", "-c", script]).returncode == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM])
def test_signals_are_handed_on(number):
    code = (  # not pause(): one that comes just before it would be waited for without end
        f"import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [{number:d}]); print(flush=True)\n"
        f"sys.exit(9 if signal.sigwait([{number:d}]) else 1)"
    )
    command = [*RUNG, "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.send_signal(number)
        assert process.wait(60) == 9


def test_signals_have_their_usual_meaning_in_the_program():
    code = "import signal; print(signal.getsignal(2) is signal.default_int_handler, signal.pthread_sigmask(0, []))"
    # A shell that starts the tests in the background has them ignore SIGINT, and their children with them.
    usual = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    assert run("-c", code, preexec_fn=usual).stdout == b"True set()\n"
    assert sh("yes | head -c 1; exit 0").stderr == b""  # SIGPIPE is not ignored


def found_first(folder):
    """The environment with that folder first on PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def test_the_programs_own_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('own;')")
    code = "import sys, sitecustomize; print(sitecustomize.__file__, any('exec/start' in entry for entry in sys.path))"
    done = run("-c", code, env=found_first(tmp_path))
    # once in the launcher, once in the program
    assert done.stdout.decode() == f"own;own;{tmp_path}/sitecustomize.py False\n"


def test_one_that_fails_fails_as_without(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import no_such_module")
    done = run("-c", "print('on')", env=found_first(tmp_path))
    assert done.stdout == b"on\n"
    assert b"No module named 'no_such_module'" in done.stderr


def test_the_import_path_is_the_programs():
    code = "import sys; print(sys.path, [type(finder).__name__ for finder in sys.meta_path][1:])"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, env=found_first("/x"))
    helped = run("-c", code, env=found_first("/x"))
    assert helped.stdout.split(b"]")[0] == bare.stdout.split(b"]")[0]


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_takes_no_hook_runs_as_it_is(flag):
    assert (
        run(flag, "-c", "import sys; print([f for f in sys.meta_path if type(f).__name__ == 'Watch'])").stdout
        == b"[]\n"
    )


def test_an_environment_without_rung_and_a_torch_that_is_none(tmp_path):
    (tmp_path / "torch.py").write_text("")
    code = (
        "import os, sys\n"
        "sys.path[:] = [entry for entry in sys.path if not os.path.exists(os.path.join(entry, 'rung'))]\n"
        "import torch; print(torch.__loader__.exec_module.__qualname__, 'rung' in sys.modules)\n"
        "try: import no_such_rung\n"
        "except ImportError: print([type(finder).__name__ for finder in sys.meta_path if 'Home' in repr(finder)])"
    )
    done = run("-c", code, env=found_first(tmp_path))
    assert done.stdout == b"_LoaderBasics.exec_module True\n[]\n"
    assert done.stderr.startswith(b"rung exec cannot help here: ImportError: cannot import name 'Tensor' from")


def test_every_python_can_read_the_hook():
    text = (Path(launch.START) / "sitecustomize.py").read_text()
    assert ast.parse(text, feature_version=(3, 4)).body
    assert text.isascii()


def test_a_program_may_clear_its_temporary_folder(tmp_path):
    done = sh(f"rm -r {tmp_path}; exit 3", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (3, b"")


def test_notes_of_several_processes_add_up_and_a_full_folder_harms_nothing(tmp_path):
    path = tmp_path / "notes"
    path.touch()
    notes = report.Notes(str(path))
    for _ in range(3):
        notes.step("mm", "cpu", "bfloat16", "float32", "why")
    process = os.fork()
    if not process:
        notes.step("mm", "cpu", "bfloat16", "float32", "why")
        os._exit(0)
    os.waitpid(process, 0)
    notes.finish()
    assert report.read(str(path)) == {("mm", "cpu", "bfloat16", "float32", "why"): 4}
    path.unlink()
    notes.step("mm", "cpu", "bfloat16", "float16", "another")


def test_repairs_leave_what_is_set(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert repairs({})["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"
    assert repairs({"PYTORCH_ENABLE_MPS_FALLBACK": "0"}) == {}


def test_an_amd_card_that_runs_its_relatives_code(monkeypatch):
    card = catalog.device("rx 6700 xt")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/kfd")
    monkeypatch.setattr(detect, "devices", lambda: [card])
    assert repairs({}) == {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    assert repairs({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}) == {}
    monkeypatch.setattr(detect, "devices", lambda: [catalog.device("mi210")])
    assert repairs({}) == {}
