"""Test which process outlives which: an engine that is killed, a server that is told to stop, a port that is taken."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest

import rung
from rung.server.child.engine_child import Channel
from rung.server.protocol import Cancel, frame
from tests.server.conftest import Server, serving

OTHER = Path(__file__).parents[1] / "fixtures" / "gguf" / "llama-f32.gguf"


@pytest.fixture
def long(endless):
    """A completion that takes a while."""
    return {"model": "demo", "prompt": "the", "max_tokens": 400, "temperature": 1, "seed": 5, "logit_bias": endless}


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_who_computes_waits_until_what_came_is_handled():
    """Else a step may begin for a client that has gone: the thread that reads waits for the interpreter."""
    handled: list[int] = []

    def read() -> None:
        for message in channel.messages():
            time.sleep(0.002)
            handled.append(message.id)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        thread = threading.Thread(target=read)
        thread.start()
        in_time = 0
        for number in range(50):
            theirs.sendall(frame(Cancel(number)))
            channel.settle()
            in_time += handled[-1:] == [number]
        theirs.shutdown(socket.SHUT_WR)
        thread.join()
    assert in_time >= 45  # a busy machine may leave the thread alone for longer than a step waits


def test_http_stays_up_and_requests_go_on_when_their_engine_is_killed(tmp_path, long):
    with serving(tmp_path, "demo") as server, client_of(server) as client:
        alone = [choice.text for choice in client.completions.create(**long, n=8).choices]
        whole: list[list[str]] = []

        def ask() -> None:
            whole.append([choice.text for choice in client.completions.create(**long, n=8).choices])

        thread = threading.Thread(target=ask)
        thread.start()
        until = time.monotonic() + 10
        while server.metric("rung_requests_processing") + server.metric("rung_requests_deferred") < 8:
            assert time.monotonic() < until
        first = server.engine()
        os.kill(first, signal.SIGKILL)
        assert server.call("/v1/models")[0] == 200  # HTTP stayed up
        assert client.completions.create(model="demo", prompt="the", max_tokens=4).usage.completion_tokens == 4
        thread.join()
        assert whole == [alone]
        assert server.engine() != first


def test_sigterm_lets_answers_end(tmp_path, long):
    with serving(tmp_path, "demo") as server, client_of(server) as client:
        stream = client.completions.create(**long, stream=True)
        chunks = [next(iter(stream))]
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert server.process.wait(10) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)


@pytest.mark.parametrize("understood", [True, False])
def test_answers_that_do_not_end_in_time_after_sigterm_hear_so(tmp_path, long, understood):
    """Streams in an event, others as a 503, also where the engine has not understood their requests; then the process
    is gone, and its engine."""
    program = (
        "from rung.server.protocol import Load\nfrom rung.server.serve import Settings, serve\n"
        "settings = Settings({'demo': Load('demo', {'device': 'cpu'})}, port=0, drain=1)\n"
        "serve(settings, lambda text: print(text, flush=True))"
    )
    said = str(tmp_path / "said")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found: dict[tuple[str, bool], str] = {}

    def ask(path: str, streams: bool) -> None:
        prompt = {"prompt": "the"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "the"}]}
        body = {**{name: value for name, value in long.items() if name != "prompt"}, **prompt, "n": 16}
        status, answer, _ = server.call(path, {**body, "stream": streams})
        found[path, streams] = f"{status} {answer if streams else json.dumps(answer)}"

    with (
        open(said, "wb") as file,
        subprocess.Popen([sys.executable, "-P", "-c", program], stdout=file, stderr=file, env=environment) as process,
    ):
        server = Server(process, said)
        engine, requests = (
            server.engine(),
            itertools.product(("/v1/completions", "/v1/chat/completions"), (True, False)),
        )
        if not understood:
            os.kill(engine, signal.SIGSTOP)
        threads = [threading.Thread(target=ask, args=each) for each in requests]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while understood and server.metric("rung_requests_processing") + server.metric("rung_requests_deferred") < 64:
            assert time.monotonic() < until
        if not understood:
            time.sleep(2)  # streams have begun
            assert server.metric("rung_requests_processing") == 0  # the engine does not answer
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert process.wait(25) == 0  # of 30 that it would be given without a limit
        assert time.monotonic() - begun >= 1
        for thread in threads:
            thread.join()
    for (_, streams), answer in found.items():
        assert answer.startswith("200 " if streams else "503 "), answer
        error = answer.rstrip().rpartition("data: ")[2] if streams else answer[4:]
        assert json.loads(error)["error"]["code"] == "server_stopping"
    assert len(found) == 4
    assert "Traceback" not in server.said()
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


def test_sighup_changes_nothing(tmp_path):
    with serving(tmp_path, "demo") as server:
        engine = server.engine()
        server.process.send_signal(signal.SIGHUP)
        assert server.call("/v1/completions", {"prompt": "the", "max_tokens": 4})[0] == 200
        assert (server.process.poll(), server.engine()) == (None, engine)


def test_a_model_file_that_is_deleted_is_served_on_and_said_to_be_gone_after_a_restart(tmp_path, model):
    path = tmp_path / "copy.gguf"
    shutil.copy(model.card.path, path)
    with serving(tmp_path, str(path)) as server:
        path.unlink()
        expected = "".join(model.generate("a plan", raw=True, max_tokens=6))
        answer = server.call("/completion", {"prompt": "a plan", "n_predict": 6})[1]
        assert answer["content"] == expected
        os.kill(server.engine(), signal.SIGKILL)
        server.wait_for("started again")
        status, answer, _ = server.call("/completion", {"prompt": "a plan", "n_predict": 6})
        assert (status, "copy.gguf" in answer["error"]["message"]) == (503, True)
        shutil.copy(model.card.path, path)
        assert server.call("/completion", {"prompt": "a plan", "n_predict": 6})[1]["content"] == expected


def test_a_model_file_that_is_overwritten_is_served_on_and_the_new_one_after_an_unload(tmp_path, model):
    path = tmp_path / "copy.gguf"
    shutil.copy(model.card.path, path)
    with serving(tmp_path, str(path)) as server:
        expected = "".join(model.generate("a plan", raw=True, max_tokens=6))
        data = OTHER.read_bytes()
        with open(path, "r+b") as file:  # the file that was read, and not another one of its name
            file.truncate(len(data))
            file.write(data)
        assert server.call("/completion", {"prompt": "a plan", "n_predict": 6})[1]["content"] == expected
        assert server.call("/api/generate", {"model": str(path), "keep_alive": 0})[0] == 200
        expected = "".join(rung.load(str(OTHER)).generate("the cat", raw=True, max_tokens=6))
        assert server.call("/completion", {"prompt": "the cat", "n_predict": 6})[1]["content"] == expected
        with open(path, "r+b") as file:
            file.truncate(len(data) // 2)
        assert server.call("/api/generate", {"model": str(path), "keep_alive": 0})[0] == 200
        status, answer, _ = server.call("/completion", {"prompt": "the cat", "n_predict": 6})
        assert (status, "copy.gguf" in answer["error"]["message"]) == (503, True)


@pytest.mark.parametrize("overwrites", [False, True])
def test_an_answer_does_not_go_on_with_another_model_in_the_place_of_its_own(tmp_path, long, model, overwrites):
    path = tmp_path / "copy.gguf"
    shutil.copy(model.card.path, path)
    with serving(tmp_path, str(path)) as server, client_of(server) as client:
        stream = client.completions.create(**{**long, "model": str(path)}, stream=True)
        assert next(iter(stream)).choices[0].text
        if not overwrites:
            path.unlink()
        shutil.copyfile(OTHER, path)
        os.kill(server.engine(), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="replaced"):
            list(stream)
        expected = "".join(rung.load(str(OTHER)).generate("the cat", raw=True, max_tokens=6))
        assert server.call("/completion", {"prompt": "the cat", "n_predict": 6})[1]["content"] == expected
        assert "it is another model now" in server.said()


@pytest.mark.usefixtures("_cache")
def test_clocks_that_jump_change_nothing(tmp_path, long, monkeypatch):
    monkeypatch.setenv("PLANTED_CLOCK", "1e8")
    with serving(tmp_path, "demo", "--keep-alive", "1h", "--prefix-cache", str(tmp_path / "kept")) as server:
        with client_of(server) as client:
            alone = client.completions.create(**long).choices[0].text
            assert "".join(each.choices[0].text for each in client.completions.create(**long, stream=True)) == alone
        assert server.call("/api/ps")[1]["models"]
        assert len(server.engines()) == 1
        assert server.call("/health")[0] == 200


@pytest.mark.usefixtures("_cache")
def test_a_full_disk_costs_files_and_no_answer(tmp_path):
    folders = ("--prefix-cache", str(tmp_path / "kept"), "--slot-save-path", str(tmp_path / "slots"))
    with serving(tmp_path, "demo", *folders) as server:
        _, hard = resource.prlimit(server.engine(), resource.RLIMIT_FSIZE)
        body = {"prompt": "the model has a plan for each device and a place for each layer", "n_predict": 6}
        while not (before := list((tmp_path / "kept").glob("*.kv"))):  # that of the first token, which warms it up
            time.sleep(0.01)
        resource.prlimit(server.engine(), resource.RLIMIT_FSIZE, (64, hard))  # nothing longer can be written
        first = server.call("/completion", body)[1]
        status, answer, _ = server.call("/slots/0?action=save", {"filename": "full"})
        assert (status, answer["error"]["code"]) == (503, "disk-full")
        again = server.call("/completion", body)[1]
        assert (again["content"], again["timings"]["cache_n"] > 0) == (first["content"], True)
        server.wait_for("cannot be written")
        assert [*(tmp_path / "kept").iterdir(), *(tmp_path / "slots").iterdir()] == before
        resource.prlimit(server.engine(), resource.RLIMIT_FSIZE, (hard, hard))
        assert server.call("/slots/0?action=save", {"filename": "full"})[1]["n_saved"] > 0


def test_an_engine_ends_with_its_server(tmp_path):
    with serving(tmp_path, "demo") as server:
        engine = server.engine()
        server.process.kill()
        server.process.wait()
        until = time.monotonic() + 10
        while os.path.exists(f"/proc/{engine}") and _state(engine) != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)


def _state(process: int) -> str:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_ctrl_c_ends_it_within_two_seconds_though_answers_go_on(tmp_path, long):
    with serving(tmp_path, "demo") as server:
        body = json.dumps({**long, "n": 16, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head + body)
            client.recv(100)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(10) == 0


def test_a_port_in_use_is_an_error_with_ways_out(rung):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rung("serve", "demo", "--port", str(port))
    assert said.code == 2
    assert f"Port {port} of 127.0.0.1 is in use." in said.err
    assert "rung serve --port" in said.err
    said = rung("serve", "demo", "--host", "203.0.113.7")
    assert said.code == 2
    assert "Nothing can listen on 203.0.113.7" in said.err


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error(rung, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    said = rung("serve", str(tmp_path / "broken.gguf"), "--port", "0")
    assert said.code == 1
    assert "broken.gguf" in said.err
    said = rung("serve", "no-such-model-anywhere", "--port", "0", "--offline")
    assert said.code == 2


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "msgspec", "llguidance"])
def test_a_package_that_serving_needs_and_is_not_here_is_named_with_its_line(rung, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as Python sees one that is not installed
    said = rung("serve", "no-such-model-anywhere", "--offline")
    assert said.code == 1
    assert f"{package} is not installed; serving needs it." in said.err
    assert "pip install 'rung[serve]'" in said.err


def test_http_imports_no_engine():
    code = "import sys, rung.server.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "numba", "torch", "rung.engine.load"} & set(loaded)


@pytest.mark.slow
def test_a_card_that_is_not_here_is_simulated(tmp_path):
    pytest.importorskip("torch", reason="cards are simulated for torch")
    with serving(tmp_path, "demo", "--device", "sim:p2200") as server, client_of(server) as client:
        answer = client.completions.create(model="demo", prompt="the", max_tokens=4)
        assert answer.usage.completion_tokens == 4
        assert "on cuda:0" in server.said()


def test_software_is_of_a_card_that_is_simulated(tmp_path):
    command = [sys.executable, "-m", "rung", "serve", "demo", "--software", "torch 1.10+cu102"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--software is of a simulated card" in done.stderr


def test_a_kl_chooses_the_cache_of_a_model_that_is_served_and_the_choice_is_said(tmp_path):
    with serving(tmp_path, "demo", "--context", "256", "--device", "cpu", "--max-kl", "10") as server:
        server.wait_for("within a KL of 10: keys and values in q4_0")
        status, _, _ = server.call("/v1/completions", {"model": "demo", "prompt": "hello", "max_tokens": 2})
        assert status == 200
