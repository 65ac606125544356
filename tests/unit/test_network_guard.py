"""No test reaches anything outside loopback."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.offline.sitecustomize import NetworkIsOff

OUTSIDE = "192.0.2.1"  # an address for documentation, which nobody has


@pytest.mark.parametrize(
    ("leave", "target"),
    [
        (lambda: socket.create_connection((OUTSIDE, 9)), f"{OUTSIDE}:9"),
        (lambda: socket.socket().connect_ex((OUTSIDE, 9)), f"{OUTSIDE}:9"),
        (lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 9)), "2001:db8::1:9"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (OUTSIDE, 9)), f"{OUTSIDE}:9"),
        (lambda: socket.getaddrinfo("name.example", 443), "name.example"),
        (lambda: socket.gethostbyname("name.example"), "name.example"),
        (lambda: asyncio.run(asyncio.open_connection(OUTSIDE, 9)), f"{OUTSIDE}:9"),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_what_would_leave_the_machine_is_refused_and_noted(
    leave: Callable[[], object], target: str, refused_connections: list[str]
) -> None:
    """The message names the target, and the note fails the test though the program goes on."""
    with pytest.raises(NetworkIsOff, match="outside loopback"):
        leave()
    assert refused_connections == [target]
    refused_connections.clear()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_loopback_is_open(host: str) -> None:
    """Servers that a test starts itself are reached by address and by name."""
    with socket.create_server(("", 0)) as server, socket.create_connection((host, server.getsockname()[1])):
        pass


def test_local_sockets_are_open(tmp_path: Path) -> None:
    """PostgreSQL and others listen on a file."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))


def test_an_address_is_read_without_a_name_server() -> None:
    """To ask what an address is leaves nothing."""
    assert socket.getaddrinfo(OUTSIDE, 9)


def test_python_programs_that_a_test_starts_are_held_back_too() -> None:
    """They load the same guard at their start."""
    program = f"import socket; socket.create_connection(({OUTSIDE!r}, 9))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"NetworkIsOff: socket.connect of {OUTSIDE}:9" in done.stderr


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_other_programs_go_by_a_proxy_that_does_not_exist(name: str) -> None:
    """curl and browsers read it from the environment."""
    address = os.environ[name].removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])))
