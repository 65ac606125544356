"""What metrics of the nodes showed around a failure: noted, and a support of what a kernel line proves. Pure.

A metric proves nothing: whoever may export one chooses its labels.
"""

from dataclasses import replace

from diagnoser.model import Diagnosis, Facts, NodeAlert, ProofKind
from diagnoser.model.taxonomy import FAILURES
from diagnoser.rules.node_metrics import NodeMetricTable

NOTED = 8
"""Metrics that are noted, the first ones."""
SURER = 0.5
"""Share of the doubt that stays where a metric agrees with a node's own kernel line."""
NO_PROOF = "a metric: it proves nothing by itself"


def apply_metrics(verdict: Diagnosis, facts: Facts, table: NodeMetricTable) -> Diagnosis:
    """The verdict with notes on what the metrics showed, surer where they agree with a proof."""
    if verdict.outcome not in FAILURES or not facts.metrics:
        return verdict
    notes = [f"{alert.node}: {alert.summary} ({NO_PROOF})" for alert in facts.metrics[:NOTED]]
    confidence = verdict.confidence
    if any(_agrees(alert, verdict, table) for alert in facts.metrics):
        confidence = 1 - (1 - confidence) * SURER
    return replace(verdict, confidence=confidence, notes=(*verdict.notes, *notes))


def _agrees(alert: NodeAlert, verdict: Diagnosis, table: NodeMetricTable) -> bool:
    """Whether a node's own kernel line proves the fault, and the metric goes with a failure of that type."""
    proven = {proof.node for proof in verdict.proofs if proof.kind is ProofKind.NODE_LOG}
    return alert.node in proven and table.supports(alert.name, verdict.type)
