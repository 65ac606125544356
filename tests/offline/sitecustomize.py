"""Shuts the network off outside loopback: for the process that imports this, and, by its name and ``PYTHONPATH``, for
every Python process that a test starts. It watches the interpreter's own audit events, so no library gets past it.
"""

import ipaddress
import socket
import sys
from typing import Any

refused: list[str] = []
"""What was refused in this process."""

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_HERE = ("", "localhost", "0.0.0.0", "::")


class NetworkIsOff(RuntimeError):
    """A test tried to leave the machine."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises NetworkIsOff for a connection, a datagram or a question for a name that would leave the machine."""
    if event in _WATCHED:  # next to none is: the interpreter tells of each file and of each look at a frame
        _WATCHED[event](event, arguments)


def _check_address(event: str, arguments: tuple[Any, ...]) -> None:
    endpoint, address = arguments
    if endpoint.family in _INTERNET and isinstance(address, tuple) and not _is_loopback(address[0]):
        _refuse(event, f"{address[0]}:{address[1]}")


def _check_name(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_known(arguments[0]):
        _refuse(event, str(arguments[0]))


def _refuse(event: str, target: str) -> None:
    refused.append(target)
    raise NetworkIsOff(f"{event} of {target}: tests reach nothing outside loopback; use a server of the test's own")


def _is_loopback(host: str | bytes) -> bool:
    address = _address(_text(host))
    return _text(host) in _HERE or (address is not None and address.is_loopback)


def _is_known(host: str | bytes | None) -> bool:
    """No name server is asked for an address, for this machine, or for the address to listen on."""
    return host is None or _text(host) in _HERE or _address(_text(host)) is not None


def _text(host: str | bytes) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_WATCHED = {
    "socket.connect": _check_address,
    "socket.sendto": _check_address,
    "socket.sendmsg": _check_address,
    "socket.getaddrinfo": _check_name,
    "socket.gethostbyname": _check_name,
}
sys.addaudithook(_watch)
