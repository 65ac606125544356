"""A chart as Helm's own engine renders it.

A program of the environment ``manifests``: reads ``{"chart": folder, "values": [{...}]}``, prints for each of the
values ``{"documents": YAML, "notes": text, "lint": [messages]}``, or ``{"refused": why}`` where they are not those of
the chart's schema.
"""

import json
import sys
from typing import Any

from helm_python import Chart, HelmError
from helm_python.chart import lint

NAME = "diagnoser"


def rendered(folder: str, values: dict[str, Any]) -> dict[str, Any]:
    with Chart.load(folder) as chart:
        try:
            chart.validate_schema(chart.merge_values(values))
            files = chart.render(values, name=NAME, namespace=NAME)
        except HelmError as error:
            return {"refused": str(error)}
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    documents = [text for path, text in files.items() if path.endswith(".yaml")]
    report = lint(folder, values, strict=True, namespace=NAME)
    # Severity 1 is a hint, such as that a chart may have an icon.
    faults = [message["error"] for message in report["messages"] if message["severity"] > 1] + report["errors"]
    return {"documents": "\n---\n".join(documents), "notes": notes, "lint": faults}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump([rendered(given["chart"], values) for values in given["values"]], sys.stdout)
