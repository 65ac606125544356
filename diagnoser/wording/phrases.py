"""Pieces of English that several pages put together."""

from collections.abc import Iterable, Iterator, Sequence

from diagnoser.model.job_contract import JobContract
from diagnoser.wording.collapse_ranks import ranges
from diagnoser.wording.words import lasting


def joined(parts: Iterable[str], separator: str = ", ") -> str:
    """The parts that are not empty."""
    return separator.join(filter(None, parts))


def after(prefix: str, text: str) -> str:
    """``": "`` and ``"ECC error"`` -> ``": ECC error"``; "" where there is no text to introduce."""
    if not text:
        return ""
    return prefix + text


def plural(count: int, noun: str) -> str:
    """``1 error``, ``2 errors``, ``2 launches``."""
    if count == 1:
        return f"{count} {noun}"
    if noun.endswith(("ch", "s")):
        return f"{count} {noun}es"
    return f"{count} {noun}s"


def ranks_name(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 3-7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranges(ranks)}"


def contract_terms(contract: JobContract) -> Iterator[str]:
    """List what a contract that counts says, a phrase each."""
    if contract.owner:
        yield f"owned by {contract.owner}"
    if contract.notify:
        yield f"alerts carry the label notify: {contract.notify}"
    if contract.first_step_within is not None:
        yield f"silent for at most {lasting(contract.first_step_within)} before its first steps"
    if contract.cadence is not None:
        yield f"a step at least every {lasting(contract.cadence)}"
    if contract.relaunches is not None:
        yield f"launched again at most {plural(contract.relaunches, 'time')} after the same failure"
