"""Attacks in batches against one service, and the controls that it must still act on."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.attacks import agent, judge, records
from tests.attacks.judge import Success
from tests.attacks.lies import CUDA, WATCHDOG, XID, Lie, Surface, lies
from tests.attacks.site import API, Lab, Setting, Site
from tests.attacks.ways import STEPS, Attempted, Way, ways

AT_ONCE = 6
BATCH = 60
"""Attacks whose verdicts are waited for together."""
CONTROL_SECONDS = 120.0
"""A true fault must be acted on by then, on whatever machine."""
AWAY = "ConnectionError: HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded"


@dataclass(frozen=True, slots=True)
class Attack:
    """A lie told one way. seed: decides whom it blames."""

    way: Way
    lie: Lie
    seed: int

    def command(self, setting: Setting) -> str:
        """Runs it alone."""
        chosen = f"--way {self.way.name} --lie {self.lie.name!r} --seed {self.seed}"
        return f"python -m tests.attacks --setting {setting} {chosen}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an attack: its successes, none if the wall stands, and all that was done."""

    attack: Attack
    successes: Sequence[Success]
    done: Sequence[str]


def attacks(setting: Setting, count: int, seed: int) -> list[Attack]:
    """A sample in which everything that a job controls has its turn, and of it every way with ever other lies."""
    rng = random.Random(seed)
    every = list(lies())
    turns = list[Iterator[Attack]]()
    for surface in Surface:
        told = [lie for lie in every if lie.surface is surface]
        usable = [
            way for way in ways().values() if way.surface is surface and (setting == "tokens" or not way.by_token)
        ]
        rng.shuffle(usable)
        by_way = [[Attack(way, lie, seed) for lie in rng.sample(told, len(told))] for way in usable]
        turns.append(_in_turn([*map(iter, by_way)]))
    return list(itertools.islice(_in_turn(turns), count))


def _in_turn(sources: Sequence[Iterator[Attack]]) -> Iterator[Attack]:
    """One of each, again and again, until all are empty."""
    while sources:
        left = list[Iterator[Attack]]()
        for source in sources:
            if attack := next(source, None):
                left.append(source)
                yield attack
        sources = left


async def carry_out(site: Site, chosen: Sequence[Attack], on_done: Callable[[int], None]) -> list[Result]:
    """on_done: called with how many are judged."""
    results = list[Result]()
    numbers = itertools.count(1)
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        seats = asyncio.Semaphore(AT_ONCE)
        under_way = await asyncio.gather(*(_tell(site, attack, next(numbers), seats) for attack in batch))
        stuck = await site.settled()
        for attempted in under_way:
            await agent.work(site, attempted.lab, attempted.answers)
        stuck += await site.settled()
        by_lab = judge.of_labs(await site.plans())
        for attack, attempted in zip(batch, under_way, strict=True):
            plans = by_lab.get(attempted.lab.cluster, [])
            results.append(Result(attack, judge.judge(attempted, plans, stuck), attempted.lab.done))
        on_done(len(results))
    return results


async def _tell(site: Site, attack: Attack, number: int, seats: asyncio.Semaphore) -> Attempted:
    lab = Lab(number)
    rng = random.Random(f"{attack.seed} {attack.way.name} {attack.lie.name}")
    attempted = Attempted(site, lab, attack.lie, rng.choice((lab.foreign, lab.shared)))
    async with seats:
        await attack.way.tell(attempted)
    return attempted


@dataclass(frozen=True, slots=True)
class Control:
    """What must act. ok: whether it did. seconds: from the failure to the plan."""

    name: str
    ok: bool
    seconds: float
    why: str


async def controls(site: Site) -> list[Control]:
    """True faults in every form that proves them, and an ordinary failure."""
    found = [await _control(site, 9_000 + place, f"kernel:{form}", form) for place, form in enumerate(records.PROVES)]
    found += [await _control(site, 9_100, "scheduler"), await _control(site, 9_200, "node-check")]
    found += [await _control(site, 9_300, "query"), await _control(site, 9_400, "ordinary")]
    return found


async def _control(site: Site, number: int, name: str, form: str = "") -> Control:
    """A job of four nodes, one of which is at fault."""
    lab = Lab(number)
    lab.own = (*lab.own, f"x{number}", f"y{number}")
    await site.call(lab, "agent", f"{API}/plans/claim", sound=True, json={"executor": "double", "cluster": lab.cluster})
    await site.register(lab, lab.liar, "red", lab.own)
    await site.prints(lab, "red", lab.liar, *STEPS)
    if form:
        await site.send(lab, "agent", records.KERNEL[form](site.place(lab, lab.shared), XID), sound=True)
    failures = {"ordinary": AWAY, "scheduler": WATCHDOG}
    await site.prints(lab, "red", lab.liar, failures.get(name, f"[rank1]: {CUDA}"))
    if name == "scheduler":  # beside the event, the agent sends how the scheduler shows the node
        shown = f"NodeName={lab.shared} State=DOWN* Reason=Not responding\n".encode()
        query = {"job": lab.liar, "attempt": "1", "source": "scontrol"}
        await site.send(lab, "agent", records.Post(records.LOGS, shown, records.TEXT, query), sound=True)
    began = time.monotonic()
    await site.ends(lab, lab.liar, **({"reason": "NODE_FAIL", "node": lab.shared} if name == "scheduler" else {}))
    answers = {"kernel_journal": f"%ISO% {lab.shared} kernel: {XID}"} if name == "query" else {}
    expected = () if name == "ordinary" else (lab.shared,)
    while (seconds := time.monotonic() - began) < CONTROL_SECONDS:
        await site.settled()
        await agent.work(site, lab, answers, lab.shared if name == "node-check" else "")
        if lab.executed:
            break
        await asyncio.sleep(0.1)
    plan = lab.executed[-1] if lab.executed else None
    ok = plan is not None and plan.nodes == expected and plan.state in judge.ACTED
    return Control(name, ok, seconds, f"{plan.action} {plan.state} {plan.nodes}" if plan else "no plan")


async def judged_control(site: Site) -> Sequence[Success]:
    """What the judge says of a true fault, told the way of a lie: it must see it."""
    way, lab = ways()["kernel:kmsg"], Lab(1)
    attempted = Attempted(site, lab, Lie("true", Surface.NAME, XID), lab.shared)
    await way.tell(attempted)
    stuck = await site.settled()
    return judge.judge(attempted, judge.of_labs(await site.plans())[lab.cluster], stuck)
