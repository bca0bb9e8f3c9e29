"""A fleet of two machines end to end: answers, a node that is killed, intruders, leaving and the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time

import pytest

from rung.engine.load import load

#: What a driver of Ray without the fleet's keys may try; it says whether it got in.
_DRIVER = """
import os, ray, sys
try:
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else os.environ["HEAD"], log_to_driver=False)
    print("in", len(ray.nodes()))
except BaseException as error:
    print("refused", type(error).__name__)
"""


def _chat(number: int, tokens: int = 48) -> dict[str, object]:
    messages = [{"role": "user", "content": f"number {number}"}]
    return {"messages": messages, "max_tokens": tokens, "seed": number, "temperature": 1}


def _text(answer: tuple[int, str]) -> str:
    assert answer[0] == 200, answer
    return json.loads(answer[1])["choices"][0]["message"]["content"]


def _together(head, numbers: range) -> list[str]:
    answers = head.ask_all([_chat(number) for number in numbers])
    return [_text((each["status"], each["content"])) for each in answers]


def test_answers_are_those_of_one_machine_and_come_of_several(fleet):
    head, *_ = fleet
    model = load("demo", device="cpu", context=512)
    for number, answer in enumerate(_together(head, range(24))):
        body = _chat(number)
        options = {name: body[name] for name in ("max_tokens", "seed", "temperature")}
        assert answer == "".join(model.chat(body["messages"], **options))


def test_a_replica_that_is_killed_loses_nothing(fleet):
    head, node, _ = fleet
    whole = _together(head, range(12))
    for victim in (node, head):
        replicas = victim.replicas()
        assert len(replicas) == 1
        threading.Timer(0.4, os.kill, (replicas[0], signal.SIGKILL)).start()
        assert _together(head, range(12)) == whole
        until = time.monotonic() + 60
        while "2 of 2 nodes up" not in (said := head.rung("fleet", "status").stdout) or said.count(": ready") < 2:
            assert time.monotonic() < until, said


def test_status_names_nodes_models_and_rates(fleet):
    head, node, _ = fleet
    found = json.loads(node.rung("fleet", "status", "--json").stdout)
    assert [each["report"]["name"] for each in found["nodes"]] == ["one", "two"]
    assert all(each["models"][0]["rates"]["decode_sum"] > 0 for each in found["nodes"])
    assert "2 of 2 nodes up" in head.rung("fleet", "status").stdout


def test_the_page_is_served_and_says_what_was_killed(fleet):
    head, node, _ = fleet
    until = time.monotonic() + 60
    for victim in (node, head):
        while not (replicas := victim.replicas()):
            assert time.monotonic() < until
            time.sleep(0.1)
        os.kill(replicas[0], signal.SIGKILL)
    code = (
        "import urllib.request\n"
        "for path in ('/fleet', '/fleet/fleet.js', '/fleet/status'):\n"
        "    print(urllib.request.urlopen('http://127.0.0.1:8080' + path, timeout=10).read().decode())\n"
    )
    until = time.monotonic() + 60
    while True:
        said = head.python(code).stdout
        found = json.loads(said.splitlines()[-1])
        failures = [each for each in found["failures"] if each["cause"] == "The process with demo ended."]
        explained = {each["node"] for each in failures if each["log"]["answer"]}
        rates = [each["models"][0]["rates"] for each in found["nodes"] if each["models"]]
        if explained == {"one", "two"} and len(rates) == 2 and all(rates):
            break
        assert time.monotonic() < until, said
        time.sleep(0.2)
    assert "<title>rung fleet</title>" in said
    assert all(each["predicted"] > 0 for each in rates)


def test_an_unknown_field_and_an_unknown_model_are_refused_as_by_serve(fleet):
    head, *_ = fleet
    assert head.ask("/v1/chat/completions", {**_chat(1), "nonsense": 1})[0] == 400
    assert head.ask("/v1/chat/completions", {**_chat(1), "model": "other"})[0] == 404
    status, text = head.ask("/v1/completions", {"prompt": "a " * 5000})
    assert status == 400
    assert "512" in text


def test_a_used_token_and_a_guessed_one_let_nobody_in(fleet, machines):
    head, _, used = fleet
    other = machines[2]
    for token in (used, "guess." + used.partition(".")[2]):
        said = other.rung("fleet", "join", head.address, "--token", token)
        assert said.returncode != 0
        assert "wrong, was used, or is too old" in said.stderr
    said = other.rung("fleet", "join", head.address, "--token", used.partition(".")[0] + ".another")
    assert "not the head that the token is of" in said.stderr  # nothing was sent to it
    assert "no join token" in other.rung("fleet", "join", head.address, "--token", "x").stderr


def test_who_has_no_keys_gets_into_no_service_of_ray(fleet, machines):
    head, _, _ = fleet
    folder = head.folder / head.namespace
    member = json.loads((folder / "member.json").read_text())
    other = machines[2]
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USE_TLS": "0", "HEAD": member["ray"]}
    quick = {"RAY_gcs_server_request_timeout_seconds": "3", "RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
    assert "in " not in other.python(_DRIVER, **wrong, **quick).stdout
    key, certificate = folder / "node.key", folder / "node.pem"
    with_tls = {"RAY_USE_TLS": "1", "RAY_TLS_CA_CERT": str(folder / "authority.pem"), "RAY_TLS_SERVER_KEY": str(key)}
    stolen = {**wrong, **with_tls, "RAY_TLS_SERVER_CERT": str(certificate)}
    assert "in " not in other.python(_DRIVER, **stolen, **quick).stdout  # certificates, and a wrong token


@pytest.mark.parametrize("path", ["/status", "/token", "/down", "/leave"])
def test_control_answers_nobody_without_the_token(fleet, machines, path):
    head, *_ = fleet
    code = (
        "import ssl, sys, urllib.request, urllib.error\n"
        "context = ssl._create_unverified_context()\n"
        "try:\n"
        f"    urllib.request.urlopen('https://{head.address}:8470{path}', context=context, timeout=10)\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code)\n"
    )
    assert machines[2].python(code).stdout.strip() == "403"


def test_one_fleet_a_machine(fleet):
    head, node, _ = fleet
    assert "is the head of a fleet already" in head.rung("fleet", "up", "demo").stderr
    assert "is a node of a fleet already" in node.rung("fleet", "join", head.address, "--token", "a.b").stderr
    assert "without it there is no fleet" in head.rung("fleet", "leave").stderr


def _processes(namespace):
    """Return the numbers of the processes in a namespace."""
    command = ["ip", "netns", "pids", namespace]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_node_leaves_and_comes_back_and_the_end_leaves_nothing(fleet):
    head, node, _ = fleet
    assert node.rung("fleet", "leave").returncode == 0
    assert node.process.wait(60) == 0
    assert _text(head.ask("/v1/chat/completions", _chat(1)))
    token = head.rung("fleet", "token").stdout.strip()
    node.start("join", head.address, "--token", token, "--name", "two")
    until = time.monotonic() + 120
    while head.said().count("demo is ready on two") < 2 + head.said().count("two is lost for demo") - 1:
        assert time.monotonic() < until, head.said()
        time.sleep(0.1)
    assert head.rung("fleet", "down").returncode == 0
    assert head.process.wait(60) == 0
    assert node.process.wait(60) == 0
    for machine in (head, node):
        assert not (machine.folder / machine.namespace).exists()
        until = time.monotonic() + 10  # a process that was ended may take a moment
        while pids := _processes(machine.namespace):
            assert time.monotonic() < until, pids
            time.sleep(0.1)
