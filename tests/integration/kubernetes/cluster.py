"""A real Kubernetes control plane on this machine: etcd, API server, scheduler and controllers, built by
``build.sh``. Its nodes are the tests' own (``kubelet.py``): their pods run nothing. It lives in a network namespace."""

import base64
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.service import until
from tests.integration.kubernetes.kubelet import Kubelet

CACHE = Path(os.environ.get("KUBERNETES_FOLDER", Path.home() / ".cache" / "diagnoser-test-kubernetes"))
PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
NODES = ("gpu-01", "gpu-02", "gpu-03")
API, ETCD, PEERS, SCHEDULER, CONTROLLERS = 16443, 12379, 12380, 16459, 16457
GATES = "--feature-gates=TTLAfterFinished=true"
"""What newer servers do anyway."""
SANS = "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n"
CA = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")


def missing() -> str:
    """Why no control plane can be started here; "" when it can."""
    absent = [name for name in PROGRAMS if not (CACHE / "bin" / name).exists()]
    if absent or not shutil.which("etcd"):
        return f"no {', '.join(absent) or 'etcd'}: `make test-kubernetes` builds and installs what is missing"
    if {name for _, name in socket.if_nameindex()} != {"lo"}:
        return "its ports are fixed: `make test-kubernetes` gives it a network namespace"
    return ""


@dataclass
class Cluster:
    """folder: all its files. token: of the administrator. daemons, kubelets: by name."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kubelets: dict[str, Kubelet] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{API}"

    def client(self, token: str = "") -> httpx.Client:
        """As the administrator, or with another token."""
        headers = {"authorization": f"Bearer {token or self.token}"}
        trusted = ssl.create_default_context(cafile=self.folder / "ca.crt")
        return httpx.Client(base_url=self.url, headers=headers, verify=trusted, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> httpx.Response:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = json.dumps(body) if body is not None else None
        with self.client() as client:
            return client.request(method, path, content=content, params=query, headers={"content-type": kind})

    def get(self, path: str, **query: str) -> Any:
        answer = self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kubeconfig(self, path: Path, token: str = "") -> Path:
        """A file for whoever has the token."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": token or self.token}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "u"}}],
        }
        path.write_text(yaml.safe_dump(found))
        return path

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/v1/nodes/{name}")
        return found

    def start(self) -> None:
        self._keys()
        self._central()
        until(self._answers, "the API server is ready")
        config = str(self.kubeconfig(self.folder / "kubeconfig"))
        private = str(self.folder / "account.key")
        self._daemon("kube-scheduler", f"--kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1",
                     f"--secure-port={SCHEDULER}", "--port=0")  # fmt: skip
        self._daemon("kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
                     "--bind-address=127.0.0.1", f"--secure-port={CONTROLLERS}", "--port=0",
                     f"--service-account-private-key-file={private}", f"--root-ca-file={self.folder / 'ca.crt'}",
                     "--node-monitor-grace-period=20s", "--pod-eviction-timeout=10s", GATES)  # fmt: skip
        for name in NODES:
            self.start_node(name)
        until(self._nodes_ready, "the nodes are ready")

    def start_node(self, name: str) -> None:
        self.kubelets[name] = Kubelet(self, name)
        self.kubelets[name].start()

    def end_node(self, name: str) -> None:
        self.kubelets.pop(name).stop()

    def end(self, name: str) -> None:
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait(timeout=120)

    def stop(self) -> None:
        for name in list(self.kubelets):
            self.end_node(name)
        for name in reversed(list(self.daemons)):
            self.end(name)

    def _keys(self) -> None:
        """A CA and a server certificate, so that clients verify TLS as in production; the key of service accounts."""
        run = self._openssl
        run("genrsa", "-out", "account.key", "2048")
        extensions = [word for one in CA for word in ("-addext", one)]
        new = ("-newkey", "rsa:2048", "-nodes")
        run("req", "-x509", *new, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", *extensions)
        run("req", *new, "-subj", "/CN=api", "-keyout", "api.key", "-out", "api.csr")
        (self.folder / "sans").write_text(SANS)
        run("x509", "-req", "-in", "api.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", "api.crt", "-extfile", "sans")  # fmt: skip
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,1,"system:masters"\n')

    def _openssl(self, *words: str) -> None:
        subprocess.run(("openssl", *words), cwd=self.folder, check=True, capture_output=True)

    def _central(self) -> None:
        etcd = f"http://127.0.0.1:{ETCD}"
        peers = f"http://127.0.0.1:{PEERS}"
        self._daemon("etcd", "--data-dir=etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                     f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                     f"--initial-cluster=default={peers}", "--unsafe-no-fsync")  # fmt: skip
        self.start_server()

    def start_server(self) -> None:
        etcd = f"http://127.0.0.1:{ETCD}"
        self._daemon("kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
                     "--advertise-address=127.0.0.1", f"--secure-port={API}", "--insecure-port=0",
                     "--tls-cert-file=api.crt", "--tls-private-key-file=api.key", "--token-auth-file=tokens.csv",
                     "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24",
                     "--service-account-key-file=account.key", "--service-account-signing-key-file=account.key",
                     "--service-account-issuer=https://localhost",
                     "--disable-admission-plugins=ServiceAccount", GATES)  # fmt: skip

    def _daemon(self, program: str, *options: str) -> None:
        path = shutil.which("etcd") if program == "etcd" else str(CACHE / "bin" / program)
        assert path is not None
        with (self.folder / f"{program}.log").open("ab") as log:
            self.daemons[program] = subprocess.Popen((path, *options), cwd=self.folder, stdout=log, stderr=log)

    def _answers(self) -> bool:
        assert self.daemons["kube-apiserver"].poll() is None, (self.folder / "kube-apiserver.log").read_text()[-3000:]
        try:
            return self.ask("GET", "/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _nodes_ready(self) -> bool:
        items = self.get("/api/v1/nodes")["items"]
        conditions = [one for item in items for one in item["status"].get("conditions", ())]
        ready = [one for one in conditions if one["type"] == "Ready" and one["status"] == "True"]
        return len(ready) == len(NODES)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    found = Cluster(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def left_out(given: Any, kept: Any, where: str = "") -> list[str]:
    """What the server did not take over: it drops fields that it does not know, without a word."""
    if isinstance(given, dict) and isinstance(kept, dict):
        rows = [(value, kept.get(name), f"{where}.{name}") for name, value in given.items() if name != "stringData"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        rows = [(one, other, f"{where}[]") for one, other in zip(given, kept, strict=True)]
    else:
        return [] if given == kept else [where]
    return [fault for row in rows for fault in left_out(*row)]


def path_of(item: dict[str, Any]) -> str:
    """Where objects of its kind are made."""
    group = item["apiVersion"]
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    space, word = item["metadata"].get("namespace"), item["kind"].lower()
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}"
