"""NVIDIA's Xid (GPU) and SXid (NVSwitch) codes as data, `rules/xid.yaml`: what each means, and what follows from it.

The rules recognise the lines and give them a type; whether a node is at fault and what is to be done follows from the
action that NVIDIA's catalogue asks for: by the code, by the registers of NVLink lines, or as Xid 154 states it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from diagnoser.model import Evidence, yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Blame, Role, Rule, RuleSet

_LINE = re.compile(r"\bXid \([^)\n]{0,80}\): (?P<code>\d{1,3})\b")
_NAMED = re.compile(
    r"(?i)\bxid(?:[ _-]?(?:errors?|codes?|events?|numbers?|values?)){0,3}(?: is| was| of)?[ =:#\"]{1,4}"
    r"(?P<code>\d{1,3})\b"
    r"|DCGM_FI_DEV_XID_ERRORS\{[^}\n]{0,400}\} (?P<gauge>\d{1,3})\b"
)
"""How a driver prints a code, and how monitors and device plugins pass it on."""
_UNIT = re.compile(r"^, (?P<unit>[A-Z][A-Za-z_0-9 ]{1,30}?) (?P<severity>Fatal|Non-?fatal)\b")
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:,? 0x[0-9a-fA-F]{1,8}){0,7})\)")
_STATED = re.compile(r"recovery action changed from .{0,40}? to 0x[0-9a-fA-F]+ \((?P<stated>[^)\n]{1,40})\)")
_RESTART_APP, _RESET_GPU, _RECOVERY = "RESTART_APP", "RESET_GPU", "XID_154"
_NVLINK, _NVLINK5 = "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR"
"""Actions of the catalogue that mean something to the code below."""
_REGISTER_BITS = 32

Code = Annotated[int, Field(ge=1)]
_Bits = Annotated[str, StringConstraints(pattern=r"^[01-]{32}$")]
"""A register in binary, the highest bit first; "-" matches both digits."""


class CatalogueAction(StrictModel):
    """What follows from an action of the catalogue. asks: completes "NVIDIA asks for ...".

    cause: whether a code with this action may be the cause of a failure.
    """

    blame: Blame
    cause: bool
    action: Action
    asks: str


class XidCode(StrictModel):
    """One code. immediate: the catalogue's action at once; where it states none, treated_as names one."""

    code: Code
    mnemonic: str
    name: str
    immediate: str | None
    treated_as: str = ""
    investigate: str = ""
    unused: bool = False
    type: FailureType
    rule: str


class XidSubcode(StrictModel):
    """What the first two registers of a line of an NVLink 5 code decode to.

    units: as printed, or before and since driver R575. intr_info: the first register before and since R575. status:
    values of the second; empty for any.
    """

    code: Code
    units: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    intr_info: tuple[_Bits, _Bits]
    status: tuple[int, ...] = ()
    immediate: str
    investigate: str = ""

    def decodes(self, unit: str, intr_info: int, status: int) -> bool:
        """unit: as printed. Lines of both driver generations are known by their unit, else by either layout."""
        if unit not in self.units or (self.status and status not in self.status):
            return False
        digits = f"{intr_info:032b}"
        layouts = self.intr_info if len(self.units) == 1 else (self.intr_info[self.units.index(unit)],)
        return any(all(wanted in ("-", digit) for wanted, digit in zip(bits, digits, strict=True)) for bits in layouts)


class LinkBits(StrictModel):
    """Bits of a register of Xid 74 that alone lead to another action. register_number: 1 is the first printed."""

    register_number: Annotated[int, Field(ge=1, le=7)]
    bits: tuple[Annotated[int, Field(ge=0, lt=_REGISTER_BITS)], ...]
    immediate: str


class SxidCode(StrictModel):
    """One NVSwitch code. action: null where it names no failure."""

    code: Code
    name: str
    severity: Literal["harmless", "nonfatal", "fatal", "always_fatal"]
    type: FailureType | None
    blame: Blame
    action: Action | None
    rule: str = ""


class XidTable(StrictModel):
    """SXid codes have five digits, Xid codes at most three: one number names one code."""

    version: Literal[2]
    references: tuple[str, ...]
    actions: dict[str, CatalogueAction]
    investigate: dict[str, str]
    recovery_actions: dict[str, str]
    link_bits: tuple[LinkBits, ...]
    xid: tuple[XidCode, ...]
    subcodes: tuple[XidSubcode, ...]
    sxid: tuple[SxidCode, ...]

    @cached_property
    def by_code(self) -> Mapping[int, XidCode]:
        return {row.code: row for row in self.xid}

    @cached_property
    def _subcodes(self) -> Mapping[int, Sequence[XidSubcode]]:
        return {code: [row for row in self.subcodes if row.code == code] for code in self.by_code}

    def guidance(self, body: str) -> "XidGuidance | None":
        """What the catalogue says of the Xid in a line; None where the line has none that the catalogue lists."""
        line = _LINE.search(body)
        named = line or _NAMED.search(body)
        code = int(named["code"] or named["gauge"]) if named else 0
        row = self.by_code.get(code)
        if row is None:
            return None
        plain = self._guidance(row, row.immediate or row.treated_as, row.investigate)
        return self._decoded(plain, body[line.end() :]) if line else plain

    def stated(self, earlier: "XidGuidance", recovery: "XidGuidance") -> "XidGuidance":
        """What an Xid asks for once Xid 154 has stated a recovery of the same GPU."""
        return self._guidance(earlier.row, recovery.asked, earlier.investigate, recovery.stated)

    def _guidance(self, row: XidCode, asked: str, investigate: str, stated: str = "") -> "XidGuidance":
        return XidGuidance(row, asked, self.actions[asked], investigate, self.investigate.get(investigate, ""), stated)

    def _decoded(self, plain: "XidGuidance", rest: str) -> "XidGuidance":
        """rest: what the driver prints behind the code."""
        row, values = plain.row, _registers(rest)
        if row.immediate == _RECOVERY and (match := _STATED.search(rest)):
            stated = match["stated"].strip()
            return self._guidance(row, self.recovery_actions.get(stated, _RECOVERY), row.investigate, stated)
        if row.immediate == _NVLINK5 and (unit := _UNIT.match(rest)):
            return replace(self._by_unit(plain, unit, values), unit=unit["unit"])
        if row.immediate == _NVLINK and any(values):
            return self._by_link_bits(plain, values)
        return plain

    def _by_unit(self, plain: "XidGuidance", unit: re.Match[str], values: Sequence[int]) -> "XidGuidance":
        """The action of the subcode that unit and registers name, else that of the severity."""
        known = self._subcodes[plain.row.code] if len(values) > 1 else ()
        subcode = next((sub for sub in known if sub.decodes(unit["unit"], values[0], values[1])), None)
        if subcode:
            return self._guidance(plain.row, subcode.immediate, subcode.investigate)
        if unit["severity"] == "Fatal":
            return replace(plain, asked=_RESET_GPU, action=self.actions[_RESET_GPU])
        return plain

    def _by_link_bits(self, plain: "XidGuidance", values: Sequence[int]) -> "XidGuidance":
        """The action of the bits, where no other bit is set in any register and all of them agree."""
        left, asked = list(values), set[str]()
        for known in self.link_bits:
            mask = sum(1 << bit for bit in known.bits)
            index = known.register_number - 1
            if index < len(left) and left[index] & mask:
                left[index] &= ~mask
                asked.add(known.immediate)
        return self._guidance(plain.row, asked.pop(), plain.investigate) if len(asked) == 1 and not any(left) else plain


@dataclass(frozen=True, slots=True)
class XidGuidance:
    """What the catalogue asks for after an Xid. asked: name of the action. advice: how to find out why.

    stated: the recovery that Xid 154 states for the GPU, "" where it states none. unit: of the GPU, as an NVLink line
    names it.
    """

    row: XidCode
    asked: str
    action: CatalogueAction
    investigate: str = ""
    advice: str = ""
    stated: str = ""
    unit: str = ""

    @property
    def is_recovery(self) -> bool:
        return self.row.immediate == _RECOVERY

    @property
    def text(self) -> str:
        """One or two sentences for people: the code, its name and what NVIDIA asks for."""
        label = f"Xid {self.row.code} ({', '.join(filter(None, (self.row.name, self.unit)))}): "
        if self.stated:
            label += f"Xid 154 states '{self.stated}': "
        source = "NVIDIA asks for" if self.stated or self.row.immediate else "the catalogue states no action; taken as"
        asks = f"{label}{source} {self.action.asks} ({self.asked})."
        return f"{asks} To investigate: {self.advice}." if self.advice else asks


_Gpu = tuple[str, str | None]
"""Node and GPU, as a line names them."""


def follow(candidates: Sequence[Candidate], evidence: Evidence, table: XidTable) -> tuple[Candidate, ...]:
    """The candidates with what NVIDIA asks for after their Xids: whom they blame, what is to be done, the advice."""
    guidances = {c.line: guidance for c in candidates if (guidance := _guidance(c, evidence, table))}
    gpus = {c.line: (c.node or evidence.lines[c.line].node, c.gpu) for c in candidates if c.line in guidances}
    restated = _restated(guidances, gpus, table)
    recovered = {gpus[line] for line in restated}
    explained = {line for line, guidance in guidances.items() if guidance.is_recovery and gpus[line] in recovered}
    guidances |= restated
    application = _application(guidances.values())
    return tuple(_followed(c, guidances.get(c.line), application, explained) for c in candidates)


def _followed(
    candidate: Candidate, guidance: XidGuidance | None, application: XidGuidance | None, explained: Collection[int]
) -> Candidate:
    """One candidate. application: the Xid by which the driver blames it. explained: lines that only state how to
    recover from another Xid."""
    if guidance is None:
        return _cleared(candidate, application) if application else candidate
    guided = _guided(candidate, guidance)
    return replace(guided, role=Role.SYMPTOM) if guided.line in explained and guided.role is Role.ROOT else guided


def _restated(
    guidances: Mapping[int, XidGuidance], gpus: Mapping[int, _Gpu], table: XidTable
) -> dict[int, XidGuidance]:
    """The guidances of Xids for whose GPU a later Xid 154 states the recovery, by line.

    gpus: the GPU that each line is about.
    """
    recoveries: dict[_Gpu, tuple[int, XidGuidance]] = {}
    for line, guidance in sorted(guidances.items()):
        if guidance.is_recovery and gpus[line][1]:
            recoveries[gpus[line]] = line, guidance  # the last one counts
    restated = {}
    for line, guidance in guidances.items():
        later, recovery = recoveries.get(gpus[line], (-1, guidance))
        if line < later and guidance.action.cause:
            restated[line] = table.stated(guidance, recovery)
    return restated


def _guidance(candidate: Candidate, evidence: Evidence, table: XidTable) -> XidGuidance | None:
    guidance = table.guidance(evidence.lines[candidate.line].body)
    return guidance if guidance and candidate.by == f"rule:{guidance.row.rule}" else None


def _guided(candidate: Candidate, guidance: XidGuidance) -> Candidate:
    """A code that cannot be the cause explains nothing, and is the verdict only where nothing else is found."""
    action = guidance.action
    return replace(
        candidate,
        why=f"Xid {guidance.row.code}, {guidance.row.name}: {guidance.asked}",
        role=candidate.role if action.cause else Role.TEARDOWN,
        explains=candidate.explains if action.cause else frozenset(),
        blame=action.blame,
        action=action.action,
        mitigation=f"{guidance.text} {candidate.mitigation}",
    )


def _application(guidances: Collection[XidGuidance]) -> XidGuidance | None:
    """The Xid by which the driver blames the application, if no other Xid speaks against the node."""
    if any(guidance.action.blame is Blame.SELF for guidance in guidances):
        return None
    return next((guidance for guidance in guidances if guidance.asked == _RESTART_APP), None)


def _cleared(candidate: Candidate, application: XidGuidance) -> Candidate:
    """A CUDA error that the job prints is the same fault as the driver's Xid: neither speaks against the node."""
    if candidate.type is not FailureType.CUDA_ERROR or candidate.role is not Role.ROOT or candidate.action is not None:
        return candidate
    action, mitigation = application.action, f"{application.text} {candidate.mitigation}".strip()
    return replace(candidate, blame=action.blame, action=action.action, mitigation=mitigation)


def load(path: str, text: str, rules: RuleSet) -> XidTable:
    """Raises RuleFaults with every fault: shape, a code that stands twice, a name or a rule that does not exist."""
    table, faults = yaml_loader.read(path, text, XidTable)
    if table is not None:
        faults += _faults(path, text, table, {rule.id: rule for rule in rules.rules})
    if table is None or faults:
        raise RuleFaults(faults)
    return table


def _faults(path: str, text: str, table: XidTable, rules: Mapping[str, Rule]) -> list[Fault]:
    mistakes = (*_code_mistakes(table, rules), *_reference_mistakes(table))
    faults = [Fault(path, yaml_loader.locate(text, *where), message) for where, message in mistakes]
    needed = {_RECOVERY, _RESET_GPU, _RESTART_APP} - table.actions.keys()
    return faults + [Fault(path, yaml_loader.locate(text, "actions"), f"no action {name}") for name in sorted(needed)]


def _code_mistakes(table: XidTable, rules: Mapping[str, Rule]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where in the file a code is wrong, and how."""
    seen = set[int]()
    messages = [(("xid", index), row.code, _xid_faults(table, row, rules)) for index, row in enumerate(table.xid)]
    messages += [(("sxid", index), row.code, _sxid_faults(row, rules)) for index, row in enumerate(table.sxid)]
    for where, code, wrong in messages:
        if code in seen:
            yield where, f"code {code} appears twice"
        yield from ((where, message) for message in wrong)
        seen.add(code)


def _reference_mistakes(table: XidTable) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where a row other than a code's names an action, or something to investigate, that does not exist."""
    for index, subcode in enumerate(table.subcodes):
        for message in _name_faults(table, subcode.immediate, subcode.investigate):
            yield ("subcodes", index), f"subcode of {subcode.code}: {message}"
    asked = [("recovery_actions", name, action) for name, action in table.recovery_actions.items()]
    asked += [("link_bits", str(bits.register_number), bits.immediate) for bits in table.link_bits]
    for part, name, action in asked:
        yield from (((part,), f"{name}: {message}") for message in _name_faults(table, action, ""))


def _name_faults(table: XidTable, action: str, investigate: str) -> list[str]:
    messages = [] if action in table.actions else [f"no action '{action}'"]
    known = not investigate or investigate in table.investigate
    return messages + ([] if known else [f"nothing to investigate is called '{investigate}'"])


def _xid_faults(table: XidTable, row: XidCode, rules: Mapping[str, Rule]) -> list[str]:
    asked, rule = row.immediate or row.treated_as, rules.get(row.rule)
    messages = [f"code {row.code}: {message}" for message in _name_faults(table, asked, row.investigate)]
    if rule is None:
        return [*messages, f"code {row.code}: no rule '{row.rule}'"]
    if rule.type is not row.type:
        messages.append(f"code {row.code}: rule '{row.rule}' is of type {rule.type}, not {row.type}")
    action = table.actions.get(asked)
    if action and (rule.blame is not action.blame or (rule.role is not Role.TEARDOWN) is not action.cause):
        messages.append(f"code {row.code}: {asked} does not agree with blame and role of rule '{row.rule}'")
    return messages


def _sxid_faults(row: SxidCode, rules: Mapping[str, Rule]) -> list[str]:
    if row.rule and row.rule not in rules:
        return [f"code {row.code}: no rule '{row.rule}'"]
    if row.rule and row.type and rules[row.rule].type is not row.type:
        return [f"code {row.code}: rule '{row.rule}' is of type {rules[row.rule].type}, not {row.type}"]
    return []


def _registers(text: str) -> list[int]:
    """The registers that an NVLink line prints, in its order; empty where it prints none."""
    match = _REGISTERS.search(text)
    return [int(value, 16) for value in re.findall(r"0x[0-9a-fA-F]+", match[1])] if match else []
