"""The containers of evaluation batches as processes of this machine: the tests' nodes, and the double's, run nothing.

A double for what the real thing cannot show here. Nothing is mounted, isolated or limited: a pod sees the files of this
machine, as this user, whatever its manifest says of them.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from diagnoser.agent.kubernetes.batch_jobs import BATCH

ROOT = Path(__file__).parents[3]
Object = dict[str, Any]


class Containers:
    """request: (method, path, body) -> the answer, of the administrator. ended: called with a pod that has ended, and
    its exit code. Use as a context: nothing outlives it."""

    def __init__(
        self,
        request: Callable[[str, str, Any], Object],
        namespace: str,
        ended: Callable[[Object, int], None] = lambda pod, code: None,
    ) -> None:
        self._request = request
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._ended = ended
        self._running: dict[str, tuple[Object, subprocess.Popen[bytes]]] = {}
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Containers":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        for _pod, process in self._running.values():
            _end(process, signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Its power is cut: nobody writes down that its pods have ended."""
        with self._lock:
            for pod, process in self._running.values():
                if pod["spec"].get("nodeName") == node:
                    _end(process, signal.SIGKILL)
                    pod["cut"] = True

    def _run(self) -> None:
        while not self._over.wait(0.1):
            with suppress(httpx.TransportError), self._lock:  # the API server may be away
                self._look()

    def _look(self) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self._request("GET", self._path, None)["items"]}
        for name, pod in pods.items():
            is_due = pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
            if is_due and BATCH in pod["metadata"]["labels"] and name not in self._seen:
                self._seen.add(name)
                self._running[name] = pod, _started(pod["spec"]["containers"][0])
        for name, (pod, process) in list(self._running.items()):
            found = pods.get(name)
            if process.poll() is None:
                if found is None or found["metadata"].get("deletionTimestamp"):
                    _end(process, signal.SIGTERM)
                continue
            del self._running[name]
            if found is not None and not pod.get("cut"):
                self._report(found, process.returncode)

    def _report(self, pod: Object, code: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        over = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": now, "finishedAt": now}
        shown = {"name": "trial", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        phase = "Failed" if code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{**shown, "state": {"terminated": over}}]}
        self._request("PATCH", f"{self._path}/{pod['metadata']['name']}/status", {"metadata": {}, "status": status})
        self._ended(pod, code)


def _started(container: Object) -> subprocess.Popen[bytes]:
    words = [word.replace("$$(", "$(") for word in container["command"]]
    own = {one["name"]: one["value"] for one in container["env"]}
    known = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return subprocess.Popen(words, env={**known, "PYTHONPATH": str(ROOT), **own}, cwd="/", start_new_session=True)


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """As a container ends: with all of its processes."""
    with suppress(OSError):
        os.killpg(process.pid, number)
    if number == signal.SIGKILL:
        process.wait()
