"""An API server as an HTTP double: keeps objects, counts versions, serves watches and logs, and runs the pods of Jobs.

Real enough for the agent: lists in pages, watches with bookmarks that may forget, merge patches and deletions with
conditions, evictions, logs that are followed. What it refuses is set by the test.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.receiver import Receiver, running

Object = dict[str, Any]
KINDS = {
    "nodes": "v1",
    "pods": "v1",
    "events": "v1",
    "configmaps": "v1",
    "jobs": "batch/v1",
    "jobsets": "jobset.x-k8s.io/v1alpha2",
    "pytorchjobs": "kubeflow.org/v1",
    "rayjobs": "ray.io/v1",
}


@dataclass(frozen=True)
class Asked:
    """A request, taken apart."""

    method: str
    plural: str
    namespace: str
    name: str
    sub: str
    query: dict[str, str]
    body: Any

    @property
    def key(self) -> tuple[str, str, str]:
        return self.plural, self.namespace, self.name


@dataclass
class State:
    """objects: by (plural, namespace, name). changes: (version, type, plural, object). oldest: version that is known.

    refused: (method, plural) -> code. evictions: versions that are served. logs: lines of a pod, by its name.
    lingering: a node whose pods stay, once deleted, until they are forgotten; their Job stays as long.
    on_pod: what happens to a pod that somebody asked for.
    """

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    changes: list[tuple[int, str, str, Object]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    evictions: tuple[str, ...] = ("policy/v1",)
    served: set[str] = field(default_factory=lambda: set(KINDS))
    logs: dict[str, list[str]] = field(default_factory=dict)
    down: bool = False
    token: str = "t"
    page: int = 1000
    lingering: str = ""
    on_pod: Callable[[Object], None] = lambda pod: None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, plural: str, found: Object) -> Object:
        """Store an object as the cluster would, and tell the watches."""
        with self.changed:
            meta = found["metadata"]
            key = (plural, meta.get("namespace", ""), meta["name"])
            kind = "MODIFIED" if key in self.objects else "ADDED"
            self.version += 1
            meta["resourceVersion"] = str(self.version)
            meta.setdefault("uid", f"uid-{self.version}")
            meta.setdefault("creationTimestamp", stamp())
            self.objects[key] = found
            self._tell(kind, plural, found)
            return found

    def drop(self, plural: str, namespace: str, name: str) -> None:
        with self.changed:
            found = self.objects[plural, namespace, name]
            stays = [pod for pod in self.pods(name) if pod["spec"]["nodeName"] == self.lingering]
            if plural == "jobs" and stays:
                for item, kind in ((found, "jobs"), *((pod, "pods") for pod in stays)):
                    self.put(kind, {**item, "metadata": {**item["metadata"], "deletionTimestamp": stamp()}})
                return
            del self.objects[plural, namespace, name]
            self.version += 1
            found = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
            self._tell("DELETED", plural, found)
            if plural == "jobs":
                for pod in self.pods(name):
                    self.drop("pods", namespace, pod["metadata"]["name"])

    def forget(self) -> None:
        """Old versions are compacted: watches that ask for them must list anew. Open ones end."""
        with self.changed:
            self.oldest = self.version + 1
            self.version += 1
            self.changes.clear()
            self.changed.notify_all()

    def get(self, plural: str, name: str, namespace: str = "train") -> Object | None:
        return self.objects.get((plural, "" if plural == "nodes" else namespace, name))

    def pods(self, job: str) -> list[Object]:
        found = (item for (plural, _, _), item in self.objects.items() if plural == "pods")
        return [pod for pod in found if pod["metadata"].get("labels", {}).get("job-name") == job]

    def add_node(self, name: str, **spec: Any) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        self.put(
            "nodes", {"metadata": {"name": name, "annotations": {}}, "spec": spec, "status": {"conditions": [ready]}}
        )

    def ready(self, name: str, status: str) -> None:
        node = self.objects["nodes", "", name]
        node["status"]["conditions"] = [
            {"type": "Ready", "status": status, "reason": "NodeStatusUnknown", "message": "Kubelet is silent."}
        ]
        self.put("nodes", node)

    def run(self, job: str) -> None:
        """What the Job controller, the scheduler and the kubelets do: a running pod for each index that has none."""
        found = self.objects["jobs", "train", job]
        taken = {pod["metadata"]["annotations"][INDEX] for pod in self.pods(job) if pod["status"]["phase"] == "Running"}
        for index in range(found["spec"].get("parallelism", 1)):
            if str(index) not in taken:
                self._start(found, index)

    def fail(self, pod: str, code: int = 1, why: str = "Error", **status: Any) -> None:
        found = self.objects["pods", "train", pod]
        begun = found["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        over = {"exitCode": code, "reason": why, "startedAt": begun, "finishedAt": stamp()}
        shown = [{"name": "main", "restartCount": 0, "state": {"terminated": over}}]
        phase = "Failed" if code else "Succeeded"
        self.put("pods", {**found, "status": {"phase": phase, "containerStatuses": shown, **status}})

    def end(self, job: str, kind: str = "Failed", reason: str = "BackoffLimitExceeded") -> None:
        found = self.objects["jobs", "train", job]
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": stamp()}
        self.put("jobs", {**found, "status": {"conditions": [condition]}})

    def _start(self, job: Object, index: int) -> None:
        name = job["metadata"]["name"]
        template, node = job["spec"]["template"], self._node_for(job, index)
        status = {"state": {"running": {"startedAt": stamp()}}, "name": "main", "restartCount": 0}
        pod = f"{name}-{index}-{self.version}"
        self.logs.setdefault(pod, [])
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        labels = {**template.get("metadata", {}).get("labels", {}), "job-name": name}
        meta = {"name": pod, "namespace": "train", "ownerReferences": [owner], "labels": labels}
        meta["annotations"] = {INDEX: str(index)}
        spec = {**template["spec"], "nodeName": node}
        self.put(
            "pods", {"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [status]}}
        )

    def _node_for(self, job: Object, index: int) -> str:
        """Nodes in service that its affinity allows, in turn."""
        affinity = job["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
        fields = terms[0].get("matchFields", ())
        out = {value for one in fields if one["operator"] == "NotIn" for value in one["values"]}
        wanted = {value for one in fields if one["operator"] == "In" for value in one["values"]}
        nodes = [item for (plural, _, _), item in sorted(self.objects.items()) if plural == "nodes"]
        free = [str(node["metadata"]["name"]) for node in nodes if not node["spec"].get("unschedulable")]
        return [name for name in free if name not in out and (not wanted or name in wanted)][index]

    def _tell(self, kind: str, plural: str, found: Object) -> None:
        self.changes.append((self.version, kind, plural, json.loads(json.dumps(found))))
        self.changed.notify_all()


INDEX = "batch.kubernetes.io/job-completion-index"


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Server(Receiver):
    """asked: all requests that change something, in order."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.state = State()
        self.asked: list[Asked] = []
        self.listed = 0
        self.closing = False

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def changes(self) -> list[str]:
        """What was asked for, in short."""
        return [f"{one.method} {one.plural}{'/' + one.sub if one.sub else ''} {one.name}".strip() for one in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        if self.server.state.down or self.server.closing:
            self.close_connection = True
            return
        super().handle_one_request()

    def do_GET(self) -> None:
        asked = self._asked(None)
        if urlsplit(self.path).path.rstrip("/") in ("/version", "/readyz"):
            return self._tell(200, {"gitVersion": "v1.31.0"})
        if not self._allowed(asked):
            return None
        if asked.sub == "log":
            return self._log(asked)
        if asked.query.get("watch") == "true":
            return self._watch(asked)
        return self._list(asked) if not asked.name else self._tell_one(self.server.state.objects.get(asked.key))

    def do_POST(self) -> None:
        asked = self._asked(self._body())
        state = self.server.state
        if asked.sub == "eviction":
            self.server.asked.append(asked)
            return self._evict(asked)
        if not self._allowed(asked):
            return None
        self.server.asked.append(asked)
        name = asked.body["metadata"].setdefault("name", f"made-{state.version}")
        if (asked.plural, asked.namespace, name) in state.objects:
            return self._tell(409, {"reason": "AlreadyExists", "message": f"{name} already exists"})
        if asked.query.get("dryRun"):
            return self._tell(201, asked.body)
        made = state.put(
            asked.plural, {**asked.body, "metadata": {**asked.body["metadata"], "namespace": asked.namespace}}
        )
        if asked.plural == "jobs":
            state.run(name)
        if asked.plural == "pods":
            threading.Thread(target=state.on_pod, args=(made,), daemon=True).start()
        return self._tell(201, made)

    def do_PATCH(self) -> None:
        asked = self._asked(self._body())
        if not self._allowed(asked):
            return None
        self.server.asked.append(asked)
        found = self.server.state.objects.get(asked.key)
        if found is None:
            return self._tell_one(None)
        version = asked.body["metadata"].pop("resourceVersion", None)
        if version and version != found["metadata"]["resourceVersion"]:
            return self._tell(409, {"message": "the object has been modified"})
        return self._tell(200, self.server.state.put(asked.plural, _merged(found, asked.body)))

    def do_DELETE(self) -> None:
        asked = self._asked(self._body())
        if not self._allowed(asked):
            return None
        self.server.asked.append(asked)
        found = self.server.state.objects.get(asked.key)
        if found is None:
            return self._tell_one(None)
        uid = ((asked.body or {}).get("preconditions") or {}).get("uid")
        if uid and uid != found["metadata"]["uid"]:
            return self._tell(409, {"message": "the uid differs"})
        self.server.state.drop(*asked.key)
        owner = found["metadata"].get("labels", {}).get("job-name", "")
        waits = self.server.state.get("jobs", owner)
        if asked.plural == "pods" and waits and waits["metadata"].get("deletionTimestamp"):
            self.server.state.drop("jobs", asked.namespace, owner)
        return self._tell(200, {"status": "Success"})

    def _evict(self, asked: Asked) -> None:
        if not self._allowed(asked):
            return None
        if asked.body["apiVersion"] not in self.server.state.evictions:
            return self._tell(404, {"message": "the server could not find the requested resource"})
        job = self.server.state.objects[asked.key]["metadata"]["labels"]["job-name"]
        self.server.state.drop(*asked.key)
        self.server.state.run(job)
        return self._tell(201, {"status": "Success"})

    def _list(self, asked: Asked) -> None:
        state = self.server.state
        self.server.listed += 1
        with state.changed:
            items = [item for key, item in sorted(state.objects.items()) if _in(asked, key)]
            first = int(asked.query.get("continue") or 0)
            size = min(state.page, int(asked.query.get("limit") or 1000))
            more = str(first + size) if first + size < len(items) else ""
            meta = {"resourceVersion": str(state.version), "continue": more}
            self._tell(200, {"metadata": meta, "items": items[first : first + size]})

    def _watch(self, asked: Asked) -> None:
        """Until old versions are forgotten, the time is over, or the server closes."""
        state, since = self.server.state, int(asked.query["resourceVersion"])
        if since < state.oldest:
            self._begin_stream()
            self._chunk(json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}) + "\n")
            return self._chunk("")
        self._begin_stream()
        while not (self.server.closing or state.down):
            with state.changed:
                news = [one for one in state.changes if one[0] > since and one[2] == asked.plural]
                if since < state.oldest:
                    break
                now = state.version
                if not news and since == now:
                    state.changed.wait(0.2)
            for version, kind, plural, item in news:
                since = version
                if not asked.namespace or item["metadata"].get("namespace") == asked.namespace or plural == "nodes":
                    self._chunk(json.dumps({"type": kind, "object": item}) + "\n")
            if not news and asked.query.get("allowWatchBookmarks") == "true" and since < now:
                since = now
                mark = {"kind": "Bookmark", "metadata": {"resourceVersion": str(since)}}
                self._chunk(json.dumps({"type": "BOOKMARK", "object": mark}) + "\n")
        return self._chunk("")

    def _log(self, asked: Asked) -> None:
        """Lines carry their stamps already. A log is followed until its pod has ended."""
        lines, since = self.server.state.logs.get(asked.name), asked.query.get("sinceTime", "")
        if lines is None:
            return self._tell(404, {"message": "no such pod"})
        self._begin_stream()
        sent = 0
        while not self.server.closing:
            fresh, sent = lines[sent:], len(lines)
            text = "".join(f"{line}\n" for line in fresh if line[:19] >= since[:19])
            if text:
                self._chunk(text)
            pod = self.server.state.objects.get(asked.key)
            if asked.query.get("follow") != "true" or pod is None or pod["status"]["phase"] != "Running":
                if sent == len(lines):
                    break
                continue
            time.sleep(0.05)
        return self._chunk("")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _allowed(self, asked: Asked) -> bool:
        state = self.server.state
        if self.headers.get("authorization") != f"Bearer {state.token}":
            self._tell(401, {"message": "Unauthorized"})
            return False
        if asked.plural not in state.served:
            self._tell(404, {"message": "404 page not found"})
            return False
        kind = f"{asked.plural}/{asked.sub}" if asked.sub else asked.plural
        code = state.refused.get((asked.method, kind))
        if code:
            self._tell(code, {"message": f"refused: {asked.method} {kind}"})
        return not code

    def _asked(self, body: Any) -> Asked:
        split = urlsplit(self.path)
        parts = split.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, sub = [*parts, "", "", ""][:3]
        query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        return Asked(self.command, plural, namespace, name, sub, query, body)

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        return json.loads(raw) if raw else None

    def _tell_one(self, found: Object | None) -> None:
        self._tell(200, found) if found else self._tell(404, {"message": "not found"})

    def _tell(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _in(asked: Asked, key: tuple[str, str, str]) -> bool:
    return key[0] == asked.plural and (not asked.namespace or key[1] == asked.namespace)


def _merged(found: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


@contextmanager
def api_server() -> Iterator[Server]:
    found = Server()
    with running(found):
        try:
            yield found
        finally:
            found.closing = True
