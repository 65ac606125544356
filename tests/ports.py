"""Ports for servers that a test starts, and starts again, at an address that others know beforehand."""

import random
import socket
from contextlib import ExitStack, suppress

PORTS = range(20_000, 32_000)
"""Below the ports that the system gives to outgoing connections: such a connection would take a port between its
choice and the start of its server, or while the server is being started again."""


def free_ports(count: int) -> list[int]:
    """Choose ``count`` different ports of 127.0.0.1 that no server listens at.

    By the system's randomness: tests seed that of ``random``, and would all begin with the same port.
    """
    ports: list[int] = []
    with ExitStack() as open_until_all_are_chosen:
        for port in random.SystemRandom().sample(PORTS, 1000):
            probe = open_until_all_are_chosen.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"no {count} free ports of {PORTS} on 127.0.0.1")


def free_port() -> int:
    """Choose a port of 127.0.0.1 that no server listens at."""
    return free_ports(1)[0]
