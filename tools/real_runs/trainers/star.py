"""An average over the ranks through the first one, over plain sockets: a trainer's own synchronous training."""

import os
import socket
import struct
import time

_NUMBER = struct.Struct("!d")


def join(rank, world):
    """The star of this run; None for a single process. COORDINATOR: host:port of the first rank."""
    if world == 1:
        return None
    host, port = os.environ["COORDINATOR"].split(":")
    return Hub(int(port), world) if rank == 0 else Spoke(host, int(port), rank)


def receive(peer, rank):
    """One number of ``rank``."""
    data = peer.recv(_NUMBER.size)
    if len(data) < _NUMBER.size:
        raise ConnectionError(f"rank {rank} closed the connection")
    return _NUMBER.unpack(data)[0]


class Hub:
    def __init__(self, port, world):
        self.server = socket.create_server(("127.0.0.1", port))
        self.server.settimeout(120)
        self.peers = {}
        while len(self.peers) < world - 1:
            peer, _ = self.server.accept()
            peer.settimeout(60)
            self.peers[int(receive(peer, "?"))] = peer

    def average(self, value):
        values = [value, *(receive(peer, rank) for rank, peer in sorted(self.peers.items()))]
        mean = sum(values) / len(values)
        for peer in self.peers.values():
            peer.sendall(_NUMBER.pack(mean))
        return mean


class Spoke:
    def __init__(self, host, port, rank):
        deadline = time.monotonic() + 120
        while True:
            try:
                self.peer = socket.create_connection((host, port), timeout=60)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self.peer.sendall(_NUMBER.pack(rank))

    def average(self, value):
        self.peer.sendall(_NUMBER.pack(value))
        return receive(self.peer, 0)
