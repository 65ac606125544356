"""What the contract of a job says, in words."""

from collections.abc import Iterator

from diagnoser.model.job_contract import JobContract
from diagnoser.wording.phrases import plural
from diagnoser.wording.words import lasting


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
