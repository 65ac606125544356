"""Draws the cases: family x carrier x logger x fault x end. Half of the families, carriers and loggers are held out."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]
DRAW = 32
"""The seed of the halves: changed only when the half that is held out has been looked into."""
_KINDS = ("one", "one", "clean", "one", "one", "end", "one", "all", "one", "clean", "one")
"""What the cases of a family are, in turn: a rank or node goes wrong first, all do, the scheduler ends it, or none."""
STARTS = ("rank", "node", "job")
"""What is started: a process a rank, an agent a node, or one program that starts all."""
_ONE = ("one", "first", "node", "none")


def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text()))


SHARED = _read("families_sixth")
"""Of all families: noise, words and loggers."""
FAMILIES = {name: row for name, row in SHARED.items() if not name.startswith("_")}
CARRIERS, FAULTS = _read("carriers_sixth"), _read("faults_sixth")


@dataclass(frozen=True, slots=True)
class Plan:
    """One case to be. struck: the ranks that meet the fault."""

    id: str
    family: str
    carrier: str
    logger: str
    fault: str
    struck: tuple[int, ...]
    nodes: tuple[str, ...]
    per_node: int
    seed: int
    held_out: bool

    @property
    def world(self) -> int:
        return len(self.nodes) * self.per_node

    @property
    def row(self) -> Row:
        return dict(FAULTS[self.fault])

    @property
    def words(self) -> Mapping[str, str]:
        """What the programs of its family say."""
        return {**SHARED["_words"], **FAMILIES[self.family].get("words", {})}

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.per_node]


def halves(names: Sequence[str], kind: str) -> tuple[list[str], list[str]]:
    """The names in two halves by the seed."""
    drawn = list(names)
    random.Random(f"{DRAW}-{kind}").shuffle(drawn)
    return drawn[::2], drawn[1::2]


def plans(seed: int, count: int) -> Iterator[Plan]:
    """``count`` cases of each family."""
    rows = FAMILIES
    owned = {carrier for row in rows.values() for carrier in row.get("carriers", ())}
    starts = {name: CARRIERS[name].get("starts", "rank") for name in CARRIERS if name not in owned}
    by_start = {start: halves([name for name in starts if starts[name] == start], "carriers") for start in STARTS}
    loggers = halves(SHARED.get("_loggers", ()), "loggers")
    imitated = [name for name, row in rows.items() if row.get("imitation")]
    drawn = Counter[str]()
    for kind in (imitated, [name for name in rows if name not in imitated]):
        for half, families in enumerate(halves(kind, "families")):
            for family in families:
                carriers = by_start[rows[family].get("starts", "rank")][half]
                yield from _family(family, carriers, loggers[half], seed, count, bool(half), drawn)


def _family(
    name: str,
    carriers: Sequence[str],
    loggers: Sequence[str],
    seed: int,
    count: int,
    held_out: bool,
    used: Counter[str],
) -> Iterator[Plan]:
    family, chance = FAMILIES[name], random.Random(f"{seed}-{name}")
    carriers, loggers = family.get("carriers", carriers), family.get("loggers", loggers)
    for number in range(count):
        carrier, logger = chance.choice(carriers), chance.choice(loggers)
        kind = _KINDS[number % len(_KINDS)]
        fitting = [fault for fault in FAULTS if _kind(fault) == kind and _fits(fault, name, CARRIERS[carrier])]
        fitting = fitting or [next(fault for fault in FAULTS if _kind(fault) == "clean")]
        own = [fault for fault in fitting if fault not in used and name in FAULTS[fault].get("needs", ())]
        least = min(used[fault] for fault in fitting)
        fault = chance.choice(own or [fault for fault in fitting if used[fault] == least])
        used[fault] += 1
        hosts, per_node = chance.choice(family["shape"])
        numbers = chance.sample(range(3, 60), 1 if family.get("one_node") else hosts)
        nodes = tuple(family["nodes"].format(number) for number in numbers)
        struck = _struck(FAULTS[fault], hosts * per_node, per_node, chance)
        slug = f"{name}-{carrier}-{fault}-{seed}{number:02d}".replace(" ", "-").replace("_", "-")
        yield Plan(slug, name, carrier, logger, fault, struck, nodes, per_node, 100 * seed + number, held_out)


def _kind(fault: str) -> str:
    row = FAULTS[fault]
    if row["type"] == "completed":
        return "clean"
    if row["type"] in ("time_limit", "preempted", "cancelled"):
        return "end"
    return "one" if row.get("where", "one") in _ONE else "all"


def _fits(fault: str, family: str, carrier: Row) -> bool:
    row, backend = FAULTS[fault], FAMILIES[family]["backend"]
    if "needs" in row and not {family, backend} & set(row["needs"]):
        return False
    if backend in row.get("unless", ()):
        return False
    if "event" in row and row["event"] not in carrier:
        return False
    return not row.get("node_lines") or "node_line" in carrier


def _struck(row: Row, world: int, per_node: int, chance: random.Random) -> tuple[int, ...]:
    where = row.get("where", "one")
    rank = chance.randrange(1 if where == "peers" else 0, world)
    if where == "node":
        first = chance.randrange(per_node, world) // per_node * per_node
        return tuple(range(first, first + per_node))
    return {"all": tuple(range(world)), "first": (0,)}.get(where, (rank,))
