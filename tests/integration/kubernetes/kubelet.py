"""Kubelets for a real control plane: one whose pods run nothing, and one that runs them as processes of this machine.

Kubernetes' own hollow kubelet is not used: it takes a pod whose end a test writes down for one that runs, ends it, and
writes over it that it ended well, now and then before the controllers have looked.
"""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.e2e.service import until

if TYPE_CHECKING:
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


class Kubelet:
    """A node whose pods run nothing: each is running until somebody writes down its end, or deletes it. What others
    have written of a pod that has ended stays."""

    def __init__(self, cluster: "Cluster", name: str, port: int = 0, labels: Mapping[str, str] | None = None) -> None:
        """port: at which it serves the API server, 0 where it does not."""
        self._cluster, self.name, self._port = cluster, name, port
        self._labels = {"kubernetes.io/hostname": name, **(labels or {})}
        self._client = cluster.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Register the node, or take over what is left of it, with its pods."""
        answer = self._ask("POST", "/api/v1/nodes", {"metadata": {"name": self.name, "labels": self._labels}})
        assert answer.status_code in (201, 409), answer.text
        self._thread.start()

    def stop(self) -> None:
        """As a node that dies does: nobody writes down what becomes of its pods."""
        self._over.set()
        self._thread.join()
        self._client.close()

    def begin(self, pod: Object) -> str:
        """Start a pod. Returns when."""
        return stamp()

    def code(self, pod: Object) -> int | None:
        """Get the exit code of a pod, None while it runs."""
        return None

    def end(self, pod: Object) -> None:
        """End what may still run of a pod."""

    def report(self, pod: Object, started: str, code: int | None) -> None:
        """Write down the state of a pod. code: of its end; None while it runs."""
        state: Object = {"running": {"startedAt": started}}
        phase = "Running"
        if code is not None:
            reason = "Error" if code else "Completed"
            over = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": stamp()}
            state, phase = {"terminated": over}, "Failed" if code else "Succeeded"
        name = pod["spec"]["containers"][0]["name"]
        shown = {"name": name, "image": "", "imageID": "", "ready": code is None, "restartCount": 0, "state": state}
        status = {"phase": phase, "startTime": started, "podIP": "127.0.0.1", "containerStatuses": [shown]}
        self._ask("PATCH", f"{_path(pod)}/status", {"status": status})

    def _ask(self, method: str, path: str, body: Any) -> httpx.Response:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._client.request(method, path, json=body, headers={"content-type": kind})

    def _run(self) -> None:
        beat = 0.0
        while not self._over.wait(LOOK_SECONDS):
            with suppress(httpx.TransportError):  # the API server may be away
                if time.monotonic() >= beat + HEARTBEAT_SECONDS:
                    beat = time.monotonic()
                    self._beat()
                self._look()

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
        self._ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status})

    def _look(self) -> None:
        answer = self._client.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={self.name}"})
        if not answer.is_success:
            return  # the API server is not ready yet
        for pod in answer.json()["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                self.end(pod)
                self._ask("DELETE", _path(pod), {"gracePeriodSeconds": 0})
            elif pod["status"]["phase"] == "Pending":
                self.report(pod, self.begin(pod), None)
            elif pod["status"]["phase"] != "Running":
                self.end(pod)
            elif (code := self.code(pod)) is not None:
                self.report(pod, pod["status"]["startTime"], code)


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


class ProcessKubelet(Kubelet):
    """Each pod has a namespace of processes, as in a container; it has no image, and sees the files of this machine.
    Serves logs and ``exec`` to the API server. Needs root. Use as a context: no process outlives it."""

    def __init__(self, cluster: "Cluster", name: str, port: int, path: str) -> None:
        """path: in which the pods find their programs."""
        super().__init__(cluster, name, port, {LABEL: "true"})
        self._path = path
        self._running: dict[str, RunningPod] = {}
        self._server = uvicorn.Server(self._served())
        self._serving = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> "ProcessKubelet":
        self._serving.start()
        until(lambda: self._server.started, "the kubelet listens")
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._server.should_exit = True
        for running in self._running.values():
            running.end()
        self._serving.join(timeout=30)
        self._cluster.ask("DELETE", f"/api/v1/nodes/{self.name}")

    def begin(self, pod: Object) -> str:
        if known := self._running.get(pod["metadata"]["name"]):
            return known.started  # the API server did not hear of it
        container = pod["spec"]["containers"][0]
        if "command" not in container:
            return stamp()  # its program is in its image, such as the service of the manifests
        variables = {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
        process = subprocess.Popen(
            (*APART, *container["command"]),
            env={"PATH": self._path, **variables},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running = self._running[pod["metadata"]["name"]] = RunningPod(process)
        return running.started

    def code(self, pod: Object) -> int | None:
        running = self._running.get(pod["metadata"]["name"])
        return running.process.poll() if running else None

    def end(self, pod: Object) -> None:
        if running := self._running.get(pod["metadata"]["name"]):
            running.end()

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
