"""NVIDIA's Xid (GPU) and SXid (NVSwitch) codes as data, `rules/xid.yaml`: what each means, and what follows from it."""

from typing import Annotated, Literal

from pydantic import Field

from diagnoser.model import yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import Blame, RuleSet


class XidCode(StrictModel):
    """One code. action: at its first occurrence. repeated: when the same GPU shows it again within a day.

    says_nothing_alone: the code only accompanies another event. rule: the diagnosis rule whose pattern knows it.
    """

    code: Annotated[int, Field(ge=1)]
    name: str
    meaning: str = ""
    severity: Literal["harmless", "nonfatal", "fatal", "always_fatal"] | None = None
    type: FailureType | None
    blame: Blame
    action: Action | None
    says_nothing_alone: bool
    rule: str = ""
    repeated: Action | None = None


class XidTable(StrictModel):
    """SXid codes have five digits, Xid codes at most three: one number names one code."""

    version: Literal[1]
    references: tuple[str, ...]
    xid: tuple[XidCode, ...]
    sxid: tuple[XidCode, ...]


def load(path: str, text: str, rules: RuleSet) -> XidTable:
    """Raises RuleFaults with every fault: shape, a code that stands twice, a rule that does not exist."""
    codes, faults = yaml_loader.read(path, text, XidTable)
    if codes is not None:
        faults += _faults(path, text, codes, {rule.id: rule.type for rule in rules.rules})
    if codes is None or faults:
        raise RuleFaults(faults)
    return codes


def _faults(path: str, text: str, codes: XidTable, rules: dict[str, FailureType]) -> list[Fault]:
    faults, seen = [], set[int]()
    for part, rows in (("xid", codes.xid), ("sxid", codes.sxid)):
        for index, row in enumerate(rows):
            for why in _row_faults(row, seen, rules):
                faults.append(Fault(path, yaml_loader.locate(text, part, index), why))
            seen.add(row.code)
    return faults


def _row_faults(row: XidCode, seen: set[int], rules: dict[str, FailureType]) -> list[str]:
    messages = [f"code {row.code} appears twice"] if row.code in seen else []
    if row.rule and row.rule not in rules:
        messages.append(f"code {row.code}: no rule '{row.rule}'")
    elif row.rule and row.type and rules[row.rule] is not row.type:
        messages.append(f"code {row.code}: rule '{row.rule}' is of type {rules[row.rule]}, not {row.type}")
    return messages
