"""Prints the table. ``--quick`` takes less of everything and says so."""

import os
import sys
from statistics import median

from tools.bench import logs, measure


def main() -> None:
    quick = "--quick" in sys.argv
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    healthy = logs.healthy()
    _say(f"{os.cpu_count()} cores, {memory:.0f} GB; one process, one core; {len(healthy)} healthy logs.")
    _say("Drain3 reads each log for one second with the same masks.\n")
    _say("| what | must | aim | measured |\n| --- | --- | --- | --- |")
    _speeds(healthy, quick)
    size = 10_000_000 if quick else 20_000_000
    _row("bytes out / in, steady logs (worst)", "<= 1 %", "<= 0.1 %", _share(max(measure.steady_ratios(size))))
    if crashes := measure.crash_ratios():
        _row("bytes out / in, whole crash logs, median", "<= 20 %", "<= 8 %", _share(median(crashes)))
    _recall(healthy, quick)
    _row("lines kept of a completed log >= 1 MB, median", "<= 2 %", "<= 0.5 %", _share(median(measure.kept_shares())))
    _row("rendered view, tokens, largest (asked for 4,000)", "<= 8k", "4k", f"{measure.widest_view(4000)}")
    whole = b"".join(healthy[name] for name in sorted(healthy)[:: 5 if quick else 1])
    _row("all rules on what is kept, over compressing it", "<= 10 %", "5 %", _share(measure.rule_share(whole)))
    much = 200 if quick else 1000
    _row(f"memory over idle, {much} MB of 64 ranks", "<= 150 MB", "60 MB", f"{measure.memory(much):.0f} MB")
    _row("cost of a line, 1,024 ranks over 8", "<= 1.3 x", "1.1 x", f"{measure.rank_growth(4_000_000):.2f} x")
    _row("cost of a line, 40 MB over 10 MB", "linear", "1.0 x", f"{measure.size_growth(10_000_000):.2f} x")


def _speeds(healthy: dict[str, bytes], quick: bool) -> None:
    names = sorted(healthy)[:: 5 if quick else 1]
    measure.compress(healthy[names[0]])
    speeds = [measure.speed(name, healthy[name]) for name in names]
    known = sorted((one.known / one.plain, one) for one in speeds)
    _row("lines/s against plain Drain3, median", "12 x", "25 x", f"{median(x for x, _ in known):.1f} x")
    _row("the worst log among them", "5 x", "10 x", f"{known[0][0]:.1f} x ({known[0][1].name})")
    _row("the same with no shape seen before, median", "", "", f"{median(s.first / s.plain for s in speeds):.1f} x")
    _row(
        "the same with the digest made of each log, median", "", "", f"{median(s.read / s.plain for s in speeds):.1f} x"
    )
    whole = sorted((one.whole / one.plain, one.name) for one in speeds)
    _row("no shape seen before, with the digest, median", "15 x", "25 x", f"{median(x for x, _ in whole):.1f} x")
    _row("the worst log among them", "6 x", "10 x", f"{whole[0][0]:.1f} x ({whole[0][1]})")
    blocks = median(measure.small_blocks(healthy[name]) for name in names)
    _row("10 lines of each of 1,000 streams, us a block, median", "", "60", f"{blocks:.0f}")
    large = [one for one in speeds if one.lines >= 10_000] or speeds
    _row("logs of 10,000 lines or more, median", "", "", f"{median(s.known / s.plain for s in large):.1f} x")
    _row("lines/s, median", "", "", f"{median(s.known for s in speeds) / 1e6:.2f} M")


def _recall(healthy: dict[str, bytes], quick: bool) -> None:
    hosts = [data for data in healthy.values() if len(data) >= 1_000_000][:: 12 if quick else 4]
    for what, host in (("alone", []), ("spliced into healthy logs", hosts)):
        lost, cases = measure.missed(logs.SETS, host)
        if cases:
            kept = f"{cases - len(lost)} of {cases}" + (f" (not: {', '.join(lost[:5])})" if lost else "")
            _row(f"root-cause line kept verbatim, {what}", "100 %", "100 %", kept)


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _row(*cells: str) -> None:
    _say(f"| {' | '.join(cells)} |")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


main()
