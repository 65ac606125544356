"""The client as one file that Python runs, made in memory: `GET /client.pyz`.

It holds no secrets and needs no token: who may read it can read the source as well.
"""

import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from fastapi import Request
from fastapi.responses import Response

from diagnoser import client
from diagnoser.web.http.dependencies import UnscopedCore
from diagnoser.web.http.routing import Router

router = Router(tags=["client"])

START = b"#!/usr/bin/env python3\n"
MAIN = "import sys\n\nfrom diagnoser.client.cli import main\n\nsys.exit(main(sys.argv[1:]))\n"
ORIGIN = "diagnoser/client/origin.py"
ADDRESS = re.compile(
    r"https?://[A-Za-z0-9.-]{1,253}(:\d{1,5})?(/[A-Za-z0-9._/-]{0,200})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?"
)
EPOCH = (1980, 1, 1, 0, 0, 0)
ORIGINS_KNOWN = 16


@dataclass(frozen=True, slots=True)
class ClientArchive:
    data: bytes
    etag: str


@router.head("/client.pyz", include_in_schema=False)
@router.get("/client.pyz", response_class=Response, summary="The client, a file that Python runs")
async def download(request: Request, core: UnscopedCore) -> Response:
    """The copy knows the address that it was fetched from, so that nobody has to name it again."""
    origin = core.config.url_for(request)
    archive = built(origin if ADDRESS.fullmatch(origin) else "")
    headers = {"ETag": archive.etag, "Cache-Control": "no-cache", "Vary": "Host"}
    if archive.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = 'attachment; filename="client.pyz"'
    return Response(archive.data, media_type="application/zip", headers=headers)


@lru_cache(maxsize=ORIGINS_KNOWN)
def built(origin: str) -> ClientArchive:
    """The same bytes for the same source and origin. origin: address that the client uses unless told otherwise."""
    packed = io.BytesIO(START)
    packed.seek(len(START))
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in sorted(_files(origin).items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            archive.writestr(entry, text, compresslevel=9)
    data = packed.getvalue()
    return ClientArchive(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _files(origin: str) -> dict[str, str]:
    assert client.__file__ is not None
    root = Path(client.__file__).parent
    files = {
        f"diagnoser/client/{path.relative_to(root).as_posix()}": path.read_text("utf-8") for path in root.rglob("*.py")
    }
    about = files[ORIGIN].partition("\nVERSION = ")[0]
    stated = f"{about}\nVERSION = {version('diagnoser')!r}\nORIGIN = {origin!r}\n"
    return {**files, ORIGIN: stated, "diagnoser/__init__.py": "", "__main__.py": MAIN}
