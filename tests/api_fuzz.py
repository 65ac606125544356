"""The whole API against its own description: ``python -m tests.api_fuzz [EXAMPLES [SEED]]``, with and without a token.

Schemathesis, in an environment of its own, sends what the OpenAPI document allows and what it does not, and checks each
answer with all of its checks. The service is stopping from the start, so that streams and long polls end at once;
otherwise it is whole.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import uvicorn

from diagnoser.app import running
from diagnoser.config import settings
from diagnoser.web.http import authenticator
from tests.environments import SCHEMATHESIS

HERE = Path(__file__).parent
TOKEN = "dgn_for-this-test-alone"
EXAMPLES = 5
PHASES = "examples,coverage,fuzzing,stateful"
SEED = 20_261_122
PATIENCE = 120  # seconds for an answer and between two on one connection: a busy machine is no fault of the service


@asynccontextmanager
async def serving(folder: Path, tokens: str) -> AsyncIterator[str]:
    """The address of a service with these tokens, with an archive."""
    environment = {
        "DIAGNOSER_DATABASE_URL": f"sqlite:///{folder}/test.db",
        "DIAGNOSER_ARCHIVE": f"file://{folder}/archive",
        "DIAGNOSER_TOKENS": tokens,
        "DIAGNOSER_FT_LAUNCHER_LOG_ROOT": str(folder),
    }
    stopping = asyncio.Event()
    stopping.set()
    throttled_later = mock.patch.object(authenticator, "FAILURES", 1_000_000)  # all wrong tokens are of one address
    with throttled_later:
        async with running(settings.load(environment), stopping) as app:
            server = uvicorn.Server(
                uvicorn.Config(
                    app, port=0, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=PATIENCE
                )
            )
            task = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.05)
            app.openapi()  # made at its first use; schemathesis waits 10 s for it
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            server.should_exit = True
            await task


async def fuzz(
    folder: Path, examples: int, seed: int, *, with_token: bool, phases: str = PHASES, options: Sequence[str] = ()
) -> tuple[int, str]:
    """Exit status of schemathesis (0: nothing failed) and what it printed. options: more of its own."""
    async with serving(folder, f"admin:{TOKEN}" if with_token else "") as address:
        command = [str(SCHEMATHESIS.python.with_name("schemathesis")), "--config-file", str(HERE / "api_fuzz.toml")]
        command += ["run", f"{address}/openapi.json"]
        command += ["--checks", "all", "--max-examples", str(examples), "--seed", str(seed), "--no-color"]
        command += ["--request-timeout", str(PATIENCE), "--max-response-time", str(PATIENCE)]
        command += [
            "--phases",
            phases,
            "--generation-database",
            "none",
            "--continue-on-failure",
            "--warnings",
            "off",
            *options,
        ]
        command += ["--header", f"Authorization: Bearer {TOKEN}"] if with_token else []
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "api_fuzz_hooks", "PYTHONPATH": str(HERE)}
        pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=pipe, stderr=both)
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


def main() -> None:
    examples, seed = [*map(int, sys.argv[1:3]), *(EXAMPLES, SEED)[len(sys.argv) - 1 :]]
    failed = 0
    for with_token in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            status, output = asyncio.run(fuzz(Path(folder), examples, seed, with_token=with_token))
        sys.stdout.write(f"{'with' if with_token else 'without'} a token\n\n{output}\n")
        failed |= status
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
