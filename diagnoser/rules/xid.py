"""NVIDIA's Xid (GPU) and SXid (NVSwitch) codes as data, `rules/xid.yaml`: what each means, and what follows from it.

The rules recognise the lines and give them a type; whether a node is at fault and what is to be done follows from the
action that NVIDIA's catalogue asks for: by the code, by the registers of NVLink lines, or as Xid 154 states it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from diagnoser.model import Evidence
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Blame, Mistake, Role, Rule, RuleSet, load_table

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

    @property
    def asked(self) -> str:
        """Name of the action that the catalogue asks for, or that counts in its place."""
        return self.immediate or self.treated_as


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
        if unit not in self.units:
            return False
        if self.status and status not in self.status:
            return False
        if len(self.units) > 1:
            return _fits(self.intr_info[self.units.index(unit)], intr_info)
        return any(_fits(bits, intr_info) for bits in self.intr_info)


def _fits(bits: str, value: int) -> bool:
    """Whether a register's value has these bits; "-" matches both digits."""
    mask = int(bits.replace("0", "1").replace("-", "0"), 2)
    return value & mask == int(bits.replace("-", "0"), 2)


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

    def guidance(self, body: str) -> "XidGuidance | None":
        """What the catalogue says of the Xid in a line; None where the line has none that the catalogue lists."""
        line = _LINE.search(body)
        if line:
            plain = self._plain(int(line["code"]))
            return self._decoded(plain, body[line.end() :]) if plain else None
        named = _NAMED.search(body)
        return self._plain(int(next(filter(None, named.groups())))) if named else None

    def _plain(self, code: int) -> "XidGuidance | None":
        """What the catalogue says of a code alone."""
        row = self.by_code.get(code)
        return self._guidance(row, row.asked, row.investigate) if row else None

    def stated(self, earlier: "XidGuidance", recovery: "XidGuidance") -> "XidGuidance":
        """What an Xid asks for once Xid 154 has stated a recovery of the same GPU."""
        return self._guidance(earlier.row, recovery.asked, earlier.investigate, recovery.stated)

    def _guidance(self, row: XidCode, asked: str, investigate: str, stated: str = "") -> "XidGuidance":
        return XidGuidance(row, asked, self.actions[asked], investigate, self.investigate.get(investigate, ""), stated)

    def _decoded(self, plain: "XidGuidance", rest: str) -> "XidGuidance":
        """rest: what the driver prints behind the code."""
        match plain.row.immediate:
            case "XID_154":
                return self._by_recovery(plain, rest)
            case "WORKFLOW_NVLINK5_ERR":
                return self._by_unit(plain, rest)
            case "WORKFLOW_NVLINK_ERR":
                return self._by_link_bits(plain, rest)
        return plain

    def _by_recovery(self, plain: "XidGuidance", rest: str) -> "XidGuidance":
        """The action of the recovery that Xid 154 states."""
        match = _STATED.search(rest)
        if not match:
            return plain
        stated = match["stated"].strip()
        return self._guidance(plain.row, self.recovery_actions.get(stated, _RECOVERY), plain.investigate, stated)

    def _by_unit(self, plain: "XidGuidance", rest: str) -> "XidGuidance":
        """The action of the subcode that unit and registers name, else that of the severity."""
        unit, values = _UNIT.match(rest), _registers(rest)
        if not unit:
            return plain
        plain = replace(plain, unit=unit["unit"])
        subcode = self._subcode(plain, *values[:2]) if len(values) > 1 else None
        if subcode:
            return replace(self._guidance(plain.row, subcode.immediate, subcode.investigate), unit=plain.unit)
        if unit["severity"] == "Fatal":
            return replace(plain, asked=_RESET_GPU, action=self.actions[_RESET_GPU])
        return plain

    def _subcode(self, plain: "XidGuidance", intr_info: int, status: int) -> XidSubcode | None:
        for subcode in self.subcodes:
            if subcode.code != plain.row.code:
                continue
            if subcode.decodes(plain.unit, intr_info, status):
                return subcode
        return None

    def _by_link_bits(self, plain: "XidGuidance", rest: str) -> "XidGuidance":
        """The action of the bits, where no other bit is set in any register and all of them agree."""
        left, asked = dict(enumerate(_registers(rest), 1)), set[str]()
        for known in self.link_bits:
            mask = sum(1 << bit for bit in known.bits)
            value = left.get(known.register_number, 0)
            if value & mask:
                left[known.register_number] = value & ~mask
                asked.add(known.immediate)
        if any(left.values()):
            return plain
        if len(asked) != 1:
            return plain
        return self._guidance(plain.row, asked.pop(), plain.investigate)


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
        name = ", ".join(filter(None, (self.row.name, self.unit)))
        source = "NVIDIA asks for" if self.row.immediate else "the catalogue states no action; taken as"
        if self.stated:
            source = f"Xid 154 states '{self.stated}': NVIDIA asks for"
        asks = f"Xid {self.row.code} ({name}): {source} {self.action.asks} ({self.asked})."
        if self.advice:
            return f"{asks} To investigate: {self.advice}."
        return asks


_Gpu = tuple[str, str | None]
"""Node and GPU, as a line names them."""


def follow(candidates: Sequence[Candidate], evidence: Evidence, table: XidTable) -> tuple[Candidate, ...]:
    """The candidates with what NVIDIA asks for after their Xids: whom they blame, what is to be done, the advice."""
    xids = _xids(candidates, evidence, table)
    application = _application(xids.values())
    followed = []
    for candidate in candidates:
        xid = xids.get(candidate.line)
        if xid:
            candidate = _guided(candidate, xid)
        elif application:
            candidate = _cleared(candidate, application)
        followed.append(candidate)
    return tuple(followed)


@dataclass(frozen=True, slots=True)
class _Xid:
    """A line that reports an Xid.

    is_explained: it only states how to recover from another Xid.
    """

    gpu: _Gpu
    guidance: XidGuidance
    is_explained: bool = False


def _xids(candidates: Sequence[Candidate], evidence: Evidence, table: XidTable) -> dict[int, _Xid]:
    """The Xids by line, as a later Xid 154 restates them."""
    xids: dict[int, _Xid] = {}
    for candidate in sorted(candidates, key=attrgetter("line")):
        line = evidence.lines[candidate.line]
        guidance = table.guidance(line.body)
        if guidance and candidate.by == f"rule:{guidance.row.rule}":
            xids[candidate.line] = _Xid((candidate.node or line.node, candidate.gpu), guidance)
    recoveries = {xid.gpu: index for index, xid in xids.items() if xid.guidance.is_recovery}  # the last one counts
    return xids | _restated(xids, recoveries, table)


def _restated(xids: Mapping[int, _Xid], recoveries: Mapping[_Gpu, int], table: XidTable) -> dict[int, _Xid]:
    """The Xids for whose GPU a later line states the recovery, and those that only state it.

    recoveries: the last line for each GPU.
    """
    restated, gpus = dict[int, _Xid](), set[_Gpu]()
    for index, xid in xids.items():
        later = recoveries.get(xid.gpu, -1)
        if index >= later:
            continue
        if xid.gpu[1] and xid.guidance.action.cause:
            restated[index] = _Xid(xid.gpu, table.stated(xid.guidance, xids[later].guidance))
            gpus.add(xid.gpu)
    for index, xid in xids.items():
        if xid.guidance.is_recovery and xid.gpu in gpus:
            restated[index] = replace(restated.get(index, xid), is_explained=True)
    return restated


def _guided(candidate: Candidate, xid: _Xid) -> Candidate:
    """A code that cannot be the cause explains nothing, and is the verdict only where nothing else is found."""
    guidance, action = xid.guidance, xid.guidance.action
    role, explains = candidate.role, candidate.explains
    if not action.cause:
        role, explains = Role.TEARDOWN, frozenset()
    elif xid.is_explained and role is Role.ROOT:
        role = Role.SYMPTOM
    return replace(
        candidate,
        why=f"Xid {guidance.row.code}, {guidance.row.name}: {guidance.asked}",
        role=role,
        explains=explains,
        blame=action.blame,
        action=action.action,
        mitigation=f"{guidance.text} {candidate.mitigation}",
    )


def _application(xids: Collection[_Xid]) -> XidGuidance | None:
    """The Xid by which the driver blames the application, if no other Xid speaks against the node."""
    if any(xid.guidance.action.blame is Blame.SELF for xid in xids):
        return None
    return next((xid.guidance for xid in xids if xid.guidance.asked == _RESTART_APP), None)


def _cleared(candidate: Candidate, application: XidGuidance) -> Candidate:
    """A CUDA error that the job prints is the same fault as the driver's Xid: neither speaks against the node."""
    if candidate.type is not FailureType.CUDA_ERROR:
        return candidate
    if candidate.role is not Role.ROOT:
        return candidate
    if candidate.action is not None:
        return candidate
    action, mitigation = application.action, f"{application.text} {candidate.mitigation}".strip()
    return replace(candidate, blame=action.blame, action=action.action, mitigation=mitigation)


def load(path: str, text: str, rules: RuleSet) -> XidTable:
    """Raises RuleFaults with every fault: shape, a code that stands twice, a name or a rule that does not exist."""
    by_id = {rule.id: rule for rule in rules.rules}
    return load_table(path, text, XidTable, lambda table: _mistakes(table, by_id))


def _mistakes(table: XidTable, rules: Mapping[str, Rule]) -> Iterator[Mistake]:
    yield from _code_mistakes(table, rules)
    yield from _reference_mistakes(table)
    for name in sorted({_RECOVERY, _RESET_GPU, _RESTART_APP} - table.actions.keys()):
        yield ("actions",), f"no action {name}"


def _code_mistakes(table: XidTable, rules: Mapping[str, Rule]) -> Iterator[Mistake]:
    """Where in the file a code is wrong, and how."""
    seen = set[int]()
    mistakes = [(("xid", index), row.code, _xid_faults(table, row, rules)) for index, row in enumerate(table.xid)]
    mistakes += ((("sxid", index), row.code, _sxid_faults(row, rules)) for index, row in enumerate(table.sxid))
    for where, code, wrong in mistakes:
        if code in seen:
            yield where, f"code {code} appears twice"
        seen.add(code)
        for message in wrong:
            yield where, f"code {code}: {message}"


def _reference_mistakes(table: XidTable) -> Iterator[Mistake]:
    """Where a row other than a code's names an action, or something to investigate, that does not exist."""
    for index, subcode in enumerate(table.subcodes):
        for message in _name_faults(table, subcode.immediate, subcode.investigate):
            yield ("subcodes", index), f"subcode of {subcode.code}: {message}"
    for name, action in table.recovery_actions.items():
        for message in _name_faults(table, action):
            yield ("recovery_actions",), f"{name}: {message}"
    for bits in table.link_bits:
        for message in _name_faults(table, bits.immediate):
            yield ("link_bits",), f"{bits.register_number}: {message}"


def _name_faults(table: XidTable, action: str, investigate: str = "") -> Iterator[str]:
    if action not in table.actions:
        yield f"no action '{action}'"
    if investigate not in ("", *table.investigate):
        yield f"nothing to investigate is called '{investigate}'"


def _xid_faults(table: XidTable, row: XidCode, rules: Mapping[str, Rule]) -> Iterator[str]:
    yield from _name_faults(table, row.asked, row.investigate)
    rule = rules.get(row.rule)
    if rule is None:
        yield f"no rule '{row.rule}'"
        return
    if rule.type is not row.type:
        yield f"rule '{row.rule}' is of type {rule.type}, not {row.type}"
    action = table.actions.get(row.asked)
    if action is None:
        return
    may_be_cause = rule.role is not Role.TEARDOWN
    if (rule.blame, may_be_cause) != (action.blame, action.cause):
        yield f"{row.asked} does not agree with blame and role of rule '{row.rule}'"


def _sxid_faults(row: SxidCode, rules: Mapping[str, Rule]) -> Iterator[str]:
    rule = rules.get(row.rule)
    if rule is None:
        if row.rule:
            yield f"no rule '{row.rule}'"
    elif row.type not in (None, rule.type):
        yield f"rule '{row.rule}' is of type {rule.type}, not {row.type}"


def _registers(text: str) -> list[int]:
    """The registers that an NVLink line prints, in its order; empty where it prints none."""
    match = _REGISTERS.search(text)
    if match:
        return [int(value, 16) for value in re.findall(r"0x[0-9a-fA-F]+", match[1])]
    return []
