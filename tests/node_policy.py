"""What the API server would say to changes of nodes, by the expressions of a ValidatingAdmissionPolicy.

A program of the environment ``manifests``: reads ``{"policy": ..., "requests": [{"user": name, "before": node, "after":
node}]}`` and prints, for each request, the messages of the validations that refuse it.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import celpy
from celpy.adapter import json_to_cel


def refusals(policy: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """Nothing for requests that the policy does not look at."""
    spec, environment = policy["spec"], celpy.Environment()

    def value(expression: str, known: Mapping[str, Any]) -> Any:
        return environment.program(environment.compile(expression)).evaluate(dict(known))

    known: dict[str, Any] = {
        "request": json_to_cel({"userInfo": {"username": request["user"]}}),
        "oldObject": json_to_cel(request["before"]),
        "object": json_to_cel(request["after"]),
    }
    if not all(value(condition["expression"], known) for condition in spec["matchConditions"]):
        return []
    variables = {one["name"]: value(one["expression"], known) for one in spec["variables"]}
    known["variables"] = celpy.celtypes.MapType({json_to_cel(name): found for name, found in variables.items()})
    return [one["message"] for one in spec["validations"] if not value(one["expression"], known)]


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump([refusals(given["policy"], request) for request in given["requests"]], sys.stdout)
