"""Whatever listens on a machine of a fleet answers nobody without keys: ports are tried from another machine."""

from __future__ import annotations

import re

from tests.support.fleet import run

#: Sends plain HTTP and HTTP over TLS without a certificate to ports; prints those that answer with a success.
_INTRUDER = """
import socket, ssl, sys
address, context = sys.argv[1], ssl._create_unverified_context()
for port in map(int, sys.argv[2].split(",")):
    for path in ("/", "/metrics", "/api/version", "/api/jobs/", "/status"):
        for tls in (False, True):
            try:
                with socket.create_connection((address, port), timeout=5) as plain:
                    plain.settimeout(5)
                    line = context.wrap_socket(plain) if tls else plain
                    line.sendall(b"GET " + path.encode() + b" HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n")
                    answer = line.recv(64)
            except OSError:
                continue
            if answer.startswith(b"HTTP/1.") and answer.split()[1].startswith(b"2"):
                print(port, path, tls)
print("tried")
"""

_CLIENT = """
import ray, sys
try:
    ray.init(sys.argv[1])
    print("in")
except BaseException as error:
    print("refused", type(error).__name__)
"""


def _ports(machine):
    """Ports of a machine that others reach."""
    listed = run("ip", "netns", "exec", machine.namespace, "ss", "-ltnH").stdout.splitlines()
    addresses = [line.split()[3].rpartition(":") for line in listed]
    return sorted({int(port) for host, _, port in addresses if not re.match(r"\[?(::ffff:)?127\.|\[?::1", host)})


def test_no_port_answers_without_keys(fleet, machines):
    for machine in fleet[:2]:
        ports = _ports(machine)
        assert len(ports) > 3
        assert 44227 not in ports  # metrics of Ray's head, which have no token
        said = machines[2].python(
            _INTRUDER.replace("sys.argv[1]", repr(machine.address)).replace(
                "sys.argv[2]", repr(",".join(map(str, ports)))
            )
        )
        assert said.stdout.split("\n") == ["tried", ""], said.stdout + said.stderr


def test_the_port_of_ray_clients_lets_nobody_in(fleet, machines):
    address = f"ray://{fleet[0].address}:10001"
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USE_TLS": "0"}
    for variables in ({}, wrong):
        said = machines[2].python(_CLIENT.replace("sys.argv[1]", repr(address)), **variables)
        assert said.stdout.startswith("refused"), said.stdout
