"""On a terminal a program under ``rung exec`` looks and feels as it does without."""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import psutil
import pytest

RUNG = [sys.executable, "-m", "rung", "exec"]


class Terminal:
    """A command on a terminal."""

    def __init__(self, *command):
        self.control, end = os.openpty()
        self.rest = b""
        self.resize(33, 77)
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(end)

    def resize(self, rows, columns):
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def until(self, text):
        output, by = self.rest, time.monotonic() + 60
        while text not in output and time.monotonic() < by:
            if select.select([self.control], [], [], 0.2)[0]:
                try:
                    output += os.read(self.control, 4096)
                except OSError:
                    break
        assert text in output, output
        end = output.index(text) + len(text)
        self.rest = output[end:]
        return output[:end]

    def end(self):
        code = self.process.wait(60)
        os.close(self.control)
        return code


def test_on_a_terminal_every_stream_is_one_with_its_size():
    code = (  # the change is told twice: by the kernel, and when the pseudo-terminals have the size too
        "import os, signal, sys\n"
        "sizes = lambda: print(*[tuple(os.get_terminal_size(i)) for i in range(3)], 'x', flush=True)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "sizes(); sys.stderr.write('50%|#\\r100%|##\\n')\n"
        "print('ready', file=sys.stderr)\n"
        "while os.get_terminal_size(2).columns != 99: signal.sigwait([signal.SIGWINCH])\n"
        "sizes(); sys.exit(3)"
    )
    terminal = Terminal(*RUNG, "--", sys.executable, "-c", code)
    output = terminal.until(b"ready")
    assert output.count(b"(77, 33)") == 3
    assert output.endswith(b"x\r\n50%|#\r100%|##\r\nready")
    terminal.resize(44, 99)
    assert terminal.until(b"x\r\n").count(b"(99, 44)") == 3
    assert terminal.end() == 3


@pytest.mark.parametrize(("stream", "explained"), [("stdout", False), ("stderr", True)])
def test_on_a_terminal_stdout_and_stderr_stay_apart(stream, explained):
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    code = (
        "import os, sys; print(len({os.ttyname(i) for i in range(3)}), 'terminals')\n"
        f"sys.{stream}.write('{error}\\n'); sys.exit(3)"
    )
    terminal = Terminal("sh", "-c", f"{shlex.join([*RUNG, '--', sys.executable, '-c', code])}; echo exit $?")
    output = terminal.until(b"exit 3")
    assert b"3 terminals" in output
    assert error.encode() in output
    assert (b"What to do" in output) == explained


def test_a_size_reaches_what_the_program_has_started():
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH]); print('ready', flush=True)\n"
        "for _ in range(2): signal.sigwait([signal.SIGWINCH]); print('x', os.get_terminal_size(1).columns, flush=True)"
    )
    terminal = Terminal(*RUNG, "--", "sh", "-c", f"{shlex.join([sys.executable, '-c', code])}; exit 4")
    terminal.until(b"ready")
    os.kill(terminal.process.pid, signal.SIGSTOP)
    terminal.resize(44, 99)
    time.sleep(0.2)
    os.kill(terminal.process.pid, signal.SIGCONT)
    terminal.until(b"x 99")
    assert terminal.end() == 4


def test_what_is_set_on_a_stream_is_set_on_the_terminal():
    code = (  # as curses does it: settings on stdout, keys from stdin
        "import os, sys, termios\n"
        "was = termios.tcgetattr(1); now = termios.tcgetattr(1); now[3] &= ~(termios.ECHO | termios.ICANON)\n"
        "termios.tcsetattr(1, termios.TCSANOW, now); print('ready', flush=True)\n"
        "print('key', os.read(0, 1), flush=True); termios.tcsetattr(1, termios.TCSANOW, was)"
    )
    terminal = Terminal(*RUNG, "--", sys.executable, "-c", code)
    before = termios.tcgetattr(terminal.control)
    terminal.until(b"ready")
    os.write(terminal.control, b"x")
    assert terminal.until(b"key b'x'").strip() == b"key b'x'"  # no echo, no line end waited for
    assert terminal.process.wait(60) == 0
    assert termios.tcgetattr(terminal.control) == before
    assert terminal.end() == 0


def test_a_kernel_that_does_not_tell_what_is_set():
    code = (
        "import fcntl, os, termios; from rung.exec import terminal\n"
        "real, known = fcntl.ioctl, termios.TIOCPKT\n"
        "def ioctl(number, request, *more):\n"
        "    if request == known: raise OSError\n"
        "    return real(number, request, *more)\n"
        "fcntl.ioctl = ioctl; made = terminal.Terminal(1); os.write(made.end, b'a\\0b'); print(made.read(9), 'end')"
    )
    terminal = Terminal(sys.executable, "-c", code)
    assert b"b'a\\x00b' end" in terminal.until(b"end")
    assert terminal.end() == 0


@pytest.mark.parametrize("below", [[], ["sh", "-c", '"$@"; exit', "sh"], [*RUNG, "--"]])
def test_a_pager_reads_keys_from_the_terminal_of_its_stderr(below):
    code = (  # as less does it
        "import os, sys, termios\n"
        "keys = os.open(os.ttyname(2), os.O_RDONLY)\n"
        "was = termios.tcgetattr(keys); now = termios.tcgetattr(keys); now[3] &= ~(termios.ECHO | termios.ICANON)\n"
        "termios.tcsetattr(keys, termios.TCSANOW, now); print('ready', flush=True)\n"
        "print('key', os.read(keys, 1), flush=True); termios.tcsetattr(keys, termios.TCSANOW, was)\n"
        "os.close(keys); print('got', input())"
    )
    terminal = Terminal(*RUNG, "--", *below, sys.executable, "-c", code)
    terminal.until(b"ready")
    time.sleep(0.2)
    os.write(terminal.control, b"x")
    terminal.until(b"key b'x'")
    time.sleep(0.2)
    os.write(terminal.control, b"line\n")
    terminal.until(b"got line")
    assert terminal.end() == 0


BAR, WIPED, NEXT = b"\r 10%|#", b"\r       \r", b"\r 20%|##"


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        ([(2, BAR), None, (2, WIPED), (1, b"line\n"), (2, NEXT)], BAR + WIPED + b"line\r\n" + NEXT),
        (
            [(2, BAR), (2, WIPED), (1, b"a\n"), (2, NEXT + WIPED), (1, b"b\n")],
            BAR + WIPED + NEXT + WIPED + b"a\r\nb\r\n",
        ),
        ([(2, BAR + WIPED[:-1]), None, (2, b"\r"), (1, b"a\n"), (2, NEXT)], BAR + WIPED + b"a\r\n" + NEXT),
        ([(2, BAR + b"\n\r\r   \r\x1b[A"), (1, b"line\n")], BAR + b"\r\n\r\r   \r\x1b[Aline\r\n"),
        ([(2, BAR), None, (2, NEXT + b"\n"), (1, b"done\n")], BAR + NEXT + b"\r\ndone\r\n"),
        ([(2, BAR), None, (1, b"print\n"), None, (1, b"a\n"), (2, b"b\n")], BAR + b"print\r\na\r\nb\r\n"),
        ([(2, b"Traceback:\nError\n"), (1, b"last words\n")], b"last words\r\nTraceback:\r\nError\r\n"),
        ([(1, b"(77, "), None, (1, b"33)\n"), (2, b"50%|#\n")], b"(77, 33)\r\n50%|#\r\n"),
        ([(1, b"\n"), (2, b"Traceback:\nError\n"), (1, b">>> ")], b"\r\nTraceback:\r\nError\r\n>>> "),
        ([(2, b"asked: "), None, (1, b"a"), (2, b"b")], b"asked: ab"),
    ],
)
def test_where_stdout_goes_that_came_with_stderr(writes, shown):
    code = (
        "import os; from rung.exec.relay import Relay\n"
        "relay = Relay(); ends = {number: end for end, number in relay.ends}\n"
        f"for write in {writes}: os.write(ends[write[0]], write[1]) if write else relay.pump()\n"
        "relay.pump(); relay.started(); relay.pump(); os.write(2, b'end')\n"
        f"assert relay.kept == b''.join(write[1] for write in {writes} if write and write[0] == 2)"
    )
    terminal = Terminal(sys.executable, "-c", code)
    assert terminal.until(b"end") == shown + b"end"
    assert terminal.end() == 0


def test_a_terminal_that_goes_is_told_to_the_program():
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP]); print('ready', flush=True)\n"
        "sys.exit(9 if signal.sigwait([signal.SIGHUP]) else 1)"
    )
    terminal = Terminal(*RUNG, "--", sys.executable, "-c", code)
    terminal.until(b"ready")
    os.close(terminal.control)
    try:
        assert terminal.process.wait(20) == 9
    finally:
        terminal.process.kill()


def test_ctrl_c_reaches_the_program_once():
    code = (
        "import signal, time\ncounted = []\nsignal.signal(signal.SIGINT, lambda *_: counted.append(1))\n"
        "print('ready', flush=True)\nend = time.monotonic() + 60\n"
        "while not counted and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(0.3); print('count', len(counted), 'end')"
    )
    terminal = Terminal(*RUNG, "--", sys.executable, "-c", code)
    terminal.until(b"ready")
    os.write(terminal.control, b"\x03")
    assert b"count 1 end" in terminal.until(b" end")
    assert terminal.end() == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="a shell that stops and resumes programs")
def test_ctrl_z_stops_the_program_and_the_shell_resumes_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nfor word in ('one', 'two'):\n    print('asks', word, os.getpid(), file=sys.stderr)\n"
        "    print('got', input().upper(), flush=True)\nsys.exit(5)"
    )
    shell = Terminal("bash", "--norc", "--noprofile", "-i")
    command = shlex.join([*RUNG, "--", sys.executable, str(program)])
    os.write(shell.control, f"PS1='shell'$'> '; {command}\n".encode())
    for word in (b"one", b"two"):
        shell.until(b"asks " + word)
        number = int(shell.until(b"\n"))
        os.write(shell.control, b"\x1a")
        shell.until(b"shell> ")
        by = time.monotonic() + 60  # the shell waits for rung only, and one that still reads takes what is typed
        while psutil.Process(number).status() != psutil.STATUS_STOPPED and time.monotonic() < by:
            time.sleep(0.01)
        os.write(shell.control, b"fg\n")
        shell.until(b"program.py\r\n")
        os.write(shell.control, word + b"\n")
        shell.until(b"got " + word.upper())
    shell.until(b"shell> ")
    os.write(shell.control, b"exit $?\n")
    assert shell.end() == 5
