"""A kubelet that runs pods as processes of this machine, and serves their logs and ``exec`` to the real API server.

For what hollow kubelets cannot show: lines that a pod prints, and programs that are run beside it. Each pod has a
namespace of processes, as in a container; it has no image, and sees the files of this machine. Needs root.
"""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.e2e.service import until
from tests.integration.kubernetes.cluster import Cluster

Object = dict[str, Any]
LABEL = "runs-processes"
HEARTBEAT_SECONDS, LOOK_SECONDS = 5.0, 0.2
STDOUT, STATUS = b"\x01", b"\x03"
EXEC_PROTOCOL = "v4.channel.k8s.io"
CAPACITY = {"nvidia.com/gpu": "8", "cpu": "8", "memory": "8Gi", "pods": "32"}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class RunningPod:
    """lines: what it has printed so far, each with the time at which it did."""

    pod: Object
    process: subprocess.Popen[bytes]
    started: str = field(default_factory=stamp)
    lines: list[bytes] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    @property
    def init(self) -> int:
        """The first process of its namespace."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(datetime.now(UTC).isoformat().replace("+00:00", "Z").encode() + b" " + line)


class ProcessKubelet:
    """A node of a cluster. Use as a context: no process outlives it."""

    def __init__(self, cluster: Cluster, name: str, port: int, namespace: str, path: str) -> None:
        """path: in which the pods find their programs."""
        self._cluster, self._name, self._port = cluster, name, port
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._path = path
        self._running: dict[str, RunningPod] = {}
        self._over = threading.Event()
        self._server = uvicorn.Server(self._served())
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._server.run, self._run)]

    def __enter__(self) -> "ProcessKubelet":
        labels = {"kubernetes.io/hostname": self._name, LABEL: "true"}
        answer = self._cluster.ask("POST", "/api/v1/nodes", {"metadata": {"name": self._name, "labels": labels}})
        assert answer.status_code == 201, answer.text
        for thread in self._threads:
            thread.start()
        until(lambda: self._server.started, "the kubelet listens")
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._server.should_exit = True
        for running in self._running.values():
            running.end()
        for thread in self._threads:
            thread.join(timeout=30)
        self._cluster.ask("DELETE", f"/api/v1/nodes/{self._name}")

    def _run(self) -> None:
        beat = 0.0
        while not self._over.wait(LOOK_SECONDS):
            try:
                if time.monotonic() >= beat + HEARTBEAT_SECONDS:
                    beat = time.monotonic()
                    self._beat()
                self._look()
            except httpx.TransportError:
                continue  # the API server may be away

    def _beat(self) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        times = {"lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "conditions": [{**ready, **times}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        self._cluster.ask("PATCH", f"/api/v1/nodes/{self._name}/status", {"status": status})

    def _look(self) -> None:
        pods = self._cluster.get(self._pods, fieldSelector=f"spec.nodeName={self._name}")["items"]
        for pod in pods:
            name, running = pod["metadata"]["name"], self._running.get(pod["metadata"]["name"])
            if pod["metadata"].get("deletionTimestamp"):
                if running:
                    running.end()
                self._cluster.ask("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
            elif running is None:
                self._start(pod)
            elif running.process.poll() is not None and pod["status"]["phase"] == "Running":
                self._report(running, running.process.returncode)

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        variables = {entry["name"]: entry["value"] for entry in container.get("env", ())}
        process = subprocess.Popen(
            (*APART, *container["command"]),
            env={"PATH": self._path, **variables},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running = self._running[pod["metadata"]["name"]] = RunningPod(pod, process)
        self._report(running, None)

    def _report(self, running: RunningPod, code: int | None) -> None:
        """code: of its end; None while it runs."""
        state: Object = {"running": {"startedAt": running.started}}
        phase = "Running"
        if code is not None:
            reason = "Error" if code else "Completed"
            over = {"exitCode": code, "reason": reason, "startedAt": running.started, "finishedAt": stamp()}
            state, phase = {"terminated": over}, "Failed" if code else "Succeeded"
        name = running.pod["spec"]["containers"][0]["name"]
        shown = {"name": name, "image": "", "imageID": "", "ready": code is None, "restartCount": 0, "state": state}
        status = {"phase": phase, "startTime": running.started, "containerStatuses": [shown]}
        self._cluster.ask("PATCH", f"{self._pods}/{running.pod['metadata']['name']}/status", {"status": status})

    def _served(self) -> uvicorn.Config:
        """What the API server asks of a kubelet, by TLS: it does not ask who answers."""
        routes = [
            Route("/containerLogs/{namespace}/{pod}/{container}", self._logs),
            WebSocketRoute("/exec/{namespace}/{pod}/{container}", self._exec),
        ]
        folder = self._cluster.folder
        return uvicorn.Config(
            Starlette(routes=routes),
            loop="asyncio",  # uvloop lets no other loop of the process start programs at the same time
            host="127.0.0.1",
            port=self._port,
            ssl_certfile=folder / "api.crt",
            ssl_keyfile=str(folder / "api.key"),
            log_level="warning",
            ws="wsproto",  # others refuse the length of a command that holds a whole program
        )

    async def _logs(self, request: Request) -> StreamingResponse:
        running = self._running[request.path_params["pod"]]
        since = request.query_params.get("sinceTime", "").encode()

        async def lines() -> AsyncIterator[bytes]:
            sent = 0
            while True:
                is_over = running.process.poll() is not None
                fresh, sent = running.lines[sent:], len(running.lines)
                for line in fresh:
                    if line[:19] >= since[:19]:
                        yield line
                if is_over or request.query_params.get("follow") != "true":
                    return
                await asyncio.sleep(0.05)

        return StreamingResponse(lines(), media_type="text/plain")

    async def _exec(self, socket: WebSocket) -> None:
        running = self._running[socket.path_params["pod"]]
        command = socket.query_params.getlist("command")
        await socket.accept(subprotocol=EXEC_PROTOCOL)
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(running.init), "--pid", "--mount", "--", *command),
            env={"PATH": self._path},
            cwd="/",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        while chunk := await process.stdout.read(1 << 16):
            await socket.send_bytes(STDOUT + chunk)
        await process.wait()
        await socket.send_bytes(STATUS + b'{"metadata":{},"status":"Success"}')
        await socket.close()
