"""The Failure Agent of the paper: asks a language model where the rules do not decide, and believes what it proves.

The model names a type and cites lines. Citations are checked against the log, the node against the job; the action
comes from the policy table, as for any other verdict. Whatever goes wrong leaves the rules' verdict, with the reason.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from diagnoser.errors import ModelFailed, ModelFailure
from diagnoser.llm import answer, evidence
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.redact import redact
from diagnoser.model import Cited, Diagnosis, Evidence, Facts, Line, ModelUse, RootCause, Suspect
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest
from diagnoser.recovery.policy import Case, Policy
from diagnoser.taxonomy import Category, FailureType, Outcome, category_of

# A model's word never counts for more than this: below the bar that the policy sets for taking a node away.
CONFIDENCE_MAX = 0.75


@dataclass(frozen=True, slots=True)
class View:
    """What the model sees: the text, and the lines that each number in it stands for (one a stream)."""

    text: str
    lines: Mapping[int, Sequence[Line]]


def undecided(diagnosis: Diagnosis) -> bool:
    """Whether the rules left a failure without a cause: only then is the model asked."""
    failed = diagnosis.outcome in (Outcome.FAILED, Outcome.HUNG, Outcome.UNKNOWN)
    return failed and diagnosis.category is Category.UNKNOWN


class FailureAgent:
    """deadline: seconds for one consultation. clock: monotonic seconds."""

    def __init__(
        self, model: LanguageModel, prompt: Prompt, policy: Policy, *, deadline: float, clock: Callable[[], float]
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._policy = policy
        self._deadline = deadline
        self._clock = clock

    async def consult(self, diagnosis: Diagnosis, log: Evidence, view: View, facts: Facts) -> Diagnosis:
        """The diagnosis with the model's part in it; with its failure noted when it had no usable answer."""
        started = self._clock()
        use = ModelUse(self._model.name, self._prompt.label, self._prompt.hash)
        try:
            async with asyncio.timeout(self._deadline):
                reply = await self._model.ask(self._request(diagnosis, view, facts))
            use = replace(use, model=reply.model, calls=1, tokens_in=reply.tokens_in, tokens_out=reply.tokens_out)
            checked = evidence.check(answer.parse(reply.text), view.lines, _nodes(log, facts))
        except TimeoutError:
            return _failed(diagnosis, use, ModelFailure.TIMEOUT, self._clock() - started)
        except ModelFailed as failure:
            return _failed(diagnosis, use, failure.reason, self._clock() - started)
        use = replace(use, seconds=self._clock() - started)
        return self._verdict(diagnosis, checked, use, reply)

    def _request(self, diagnosis: Diagnosis, view: View, facts: Facts) -> ModelRequest:
        text = redact(view.text)
        # Unforgeable by the log without being random: it depends on all of the text it delimits.
        marker = "LOG-" + hashlib.sha256(text.encode()).hexdigest()[:16]
        system, user = self._prompt.render(
            {
                "types": list(FailureType),
                "marker": marker,
                "facts": f"framework {facts.job.framework or 'unknown'}, {len(facts.job.nodes) or 'unknown'} nodes",
                "view": text,
                "candidates": diagnosis.rejected[:5],
            }
        )
        meta = self._prompt.meta
        return ModelRequest(system, user, answer.schema(), meta.max_tokens, meta.temperature)

    def _verdict(self, diagnosis: Diagnosis, checked: evidence.Checked, use: ModelUse, reply: ModelAnswer) -> Diagnosis:
        said = checked.answer
        category = category_of(said.type)
        if category in (Category.UNKNOWN, Category.NONE):
            return replace(diagnosis, model=use, notes=(*diagnosis.notes, "the model sees no cause either"))
        confidence = round(min(said.confidence, CONFIDENCE_MAX) * checked.share, 3)
        root = checked.lines[0]
        node = said.node or root.node or None
        case = Case(said.type, category, confidence, node_named=node is not None, stable=False)
        return replace(
            diagnosis,
            category=category,
            type=said.type,
            confidence=confidence,
            decided_by=f"llm:{reply.model}",
            root_cause=_root(root, said.rank, node),
            evidence=tuple(
                Cited(x.number, x.text, "cited by the model", _rank(x), x.stream.source) for x in checked.lines
            ),
            nodes=(Suspect(node, confidence, "named by the model"),) if node else (),
            recovery=self._policy.advise(case),
            mitigation=said.mitigation,
            notes=(*diagnosis.notes, *checked.notes),
            model=use,
        )


def _failed(diagnosis: Diagnosis, use: ModelUse, reason: ModelFailure, seconds: float) -> Diagnosis:
    return replace(diagnosis, model=replace(use, calls=1, seconds=seconds, failure=reason))


def _nodes(log: Evidence, facts: Facts) -> set[str]:
    """Every node that the job is known to have."""
    seen = {line.node for line in log.lines if line.node}
    return {*facts.job.nodes, *facts.job.rank_nodes.values(), *log.rank_nodes.values(), *seen}


def _root(line: Line, rank: int | None, node: str | None) -> RootCause:
    known = _rank(line)
    return RootCause(line.number, line.text, known if known is not None else rank, node, None, line.stream.source)


def _rank(line: Line) -> int | None:
    return line.rank if line.rank >= 0 else None
