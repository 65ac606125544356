"""A launch, and a second one that goes back by a plan, on a real framework: `python -m tests.resume_forks NAME FOLDER`.

NAME: as in tests.resume_frameworks. Ranks are forks of this process, which has loaded the framework: to load it in each
of them would take nine tenths of the CPU. They find the environment that torchrun gives. Below FOLDER each number of
ranks has a folder, with what its ranks trained on in ``before``, ``after`` and ``later``.
"""

import os
import shutil
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tests.ports import free_port
from tests.thorough import diagonal

LAST = 16
"""Step at which both launches end."""
GOES_BACK_TO = 6
PLAN = {"DIAGNOSER_CHECKPOINT_STEP": str(GOES_BACK_TO), "DIAGNOSER_SKIP_FROM": "8", "DIAGNOSER_SKIP_TO": "11"}
GOES_ON_AT = {"lightning": 13}
"""Step within the second epoch at which a third launch goes on, with no plan."""
LIBRARIES = {
    "torchdata": ("torchdata.stateful_dataloader",),
    "sampler": ("torch",),
    "megatron": ("megatron.core.datasets.indexed_dataset",),
    "transformers": ("transformers.trainer", "torch._dynamo"),
    "lightning": ("lightning", "torchdata.stateful_dataloader", "torch._dynamo"),
}


RANKS = {name: diagonal((1, 2), place, 2) for place, name in enumerate(LIBRARIES, 1)}
"""How many ranks a launch has: one or two in turn, both in thorough runs."""


def launch(name: str, ranks: int, folder: Path, step: int | None, plan: dict[str, str]) -> None:
    """Raises RuntimeError unless all ranks end well."""
    environment = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "none", **plan}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
            from tests.resume_frameworks import train

            train(name, folder, LAST, step)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")


def main(name: str, folder: Path) -> None:
    for library in LIBRARIES[name]:
        import_module(library)
    for ranks in RANKS[name]:
        place = folder / str(ranks)
        place.mkdir()
        launch(name, ranks, place, None, {})
        _set_aside(place, "before")
        launch(name, ranks, place, GOES_BACK_TO, PLAN)
        _set_aside(place, "after")
        if name in GOES_ON_AT:
            launch(name, ranks, place, GOES_ON_AT[name], {})
            _set_aside(place, "later")


def _set_aside(place: Path, name: str) -> None:
    (place / name).mkdir()
    for path in place.glob("rank-*.txt"):
        shutil.move(path, place / name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
