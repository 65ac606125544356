"""What the OpenAPI document says beyond the framework: names of operations, examples, and every error."""

import re
from collections.abc import Mapping
from typing import Any

from diagnoser.web.http.problems import Problem, answers

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "register_a_job": {
        "id": "slurm-4711",
        "cluster": "east",
        "name": "llm-7b-pretrain",
        "nodes": ["gpu-017", "gpu-018"],
        "rank_nodes": {"0": "gpu-017", "8": "gpu-018"},
        "labels": {"partition": "h100"},
    },
    "report_an_event_of_a_job": {"kind": "exit", "code": 1, "time": "2026-01-05T10:00:00Z"},
    "approve_a_plan": {"comment": "the node was already suspect last week"},
    "refuse_a_plan": {"comment": "the switch is being worked on"},
    "claim_the_oldest_open_plan": {"executor": "slurm@head-1", "cluster": "east", "wait": 20},
    "report_progress_or_the_end_of_a_plan": {
        "token": "of-the-claim",
        "state": "reached",
        "steps": [{"command": "scontrol update nodename=gpu-017 state=drain", "exit_code": 0, "time": 1790000000}],
        "drained": ["gpu-017"],
        "requeued": "slurm-4711",
    },
    "get_the_next_round_of_the_node_check": {"token": "of-the-claim", "nodes": ["gpu-017", "gpu-018"], "queries": True},
    "send_results_of_a_round_of_the_node_check": {
        "token": "of-the-claim",
        "round": 1,
        "results": [{"nodes": ["gpu-017", "gpu-018"], "ok": False, "seconds": 12.5, "detail": "timeout in all_gather"}],
    },
    "take_a_decision_back": {"comment": "the job is checkpointing: in ten minutes"},
    "trip_a_breaker": {"comment": "new racks today"},
    "write_a_note_about_a_node": {"cluster": "east", "text": "GPU 3 reseated, RMA 4711"},
    "ask_for_a_node_to_be_given_back": {"cluster": "east", "comment": "GPU 3 replaced"},
    "claim_requests_to_give_nodes_back": {"cluster": "east", "wait": 20},
    "report_how_giving_a_node_back_went": {"cluster": "east", "state": "done", "result": "resumed"},
    "receive_alerts_from_alertmanager": {
        "version": "4",
        "status": "firing",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "GpuXid", "node": "gpu-017", "severity": "critical"},
                "annotations": {"summary": "Xid 79: GPU has fallen off the bus"},
                "startsAt": "2026-01-05T10:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "fingerprint": "5ef77f1f8a3ecfa4",
            }
        ],
    },
    "try_a_pattern": {"patterns": ["manifest torn at seam \\d+"], "anchors": ["manifest"]},
    "propose_a_rule": {
        "patterns": ["manifest torn at seam \\d+"],
        "anchors": ["manifest"],
        "title": "The manifest is torn",
        "source": "01KDXQ2V7S8WZ4T0M9YB",
    },
    "save_a_view": {"list": "diagnoses", "name": "ECC this week", "query": "type=ecc_error&within=7d"},
    "report_an_event_of_a_node": {"kind": "cordoned", "by": "person", "cluster": "east", "reason": "DIMM replaced"},
    "reset_a_breaker": {"comment": "it was the file system, which is back"},
    "acknowledge_an_incident": {"comment": "I look at it"},
    "assign_an_incident": {"assignee": "mara"},
    "escalate_an_incident": {"comment": "the second switch within the hour"},
    "mute_an_incident": {"seconds": 3600, "comment": "the vendor is here until three"},
    "resolve_an_incident": {"comment": "the node was replaced"},
    "reopen_an_incident": {"comment": "it failed again"},
    "confirm_or_correct_a_diagnosis": {
        "verdict": "corrected",
        "type": "ecc_error",
        "comment": "see the node's own log",
    },
    "take_back_feedback_on_a_diagnosis": {"feedback": "01K9Z3Q8B7M0000000000000F1"},
    "claim_requests_for_evidence": {"cluster": "east", "limit": 4, "wait": 20},
    "report_where_nodes_stand": {"cluster": "east", "places": {"gpu-017": ["switch:leaf-07", "rack:r07"]}},
    "keep_what_a_node_says_of_itself": {
        "node": "gpu-017",
        "parts": [{"id": "gpu_state", "exit_code": 0, "output": "Attached GPUs : 8"}],
    },
    "report_what_was_collected": {"cluster": "east", "result": "8 stacks, 8 flight recorders"},
    "promote_a_rule_from_shadow": {"comment": "right in all five cases"},
    "retire_a_rule": {"comment": "the framework says it differently now"},
    "restore_a_retired_rule": {"comment": "the old framework is still in use"},
    "ft_launcher_submit_a_log_file": {"log_path": "/logs/cycle_0.log", "job_id": "4711"},
}
"""A body of each operation that takes JSON, by its name."""


def complete(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**schema.pop("$defs"), "Problem": schema}
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["operationId"] = operation_id(operation["summary"])
            operation["responses"].pop("422", None)
            if example := EXAMPLES.get(operation["operationId"]):
                operation["requestBody"]["content"]["application/json"]["example"] = dict(example)
            _add_errors(operation)


def operation_id(summary: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", summary.lower()).strip("_")


def _add_errors(operation: dict[str, Any]) -> None:
    """Those that any operation of its kind answers: where it needs a token, and where it takes a body."""
    common = dict[int | str, dict[str, object]]()
    if operation.get("security"):
        common |= answers(400, 401, 403, 429, 503)
    if "requestBody" in operation:
        common |= answers(413)
    responses = {str(status): answer for status, answer in common.items()} | operation["responses"]
    operation["responses"] = dict(sorted(responses.items()))
