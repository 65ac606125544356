"""What people paste: a diagnosis as Markdown, and the bundle of a bug report."""

import json
from pathlib import Path

from tests.command_line import invoke

SECRET = "hunter2hunter2hunter2"
LOG = f"""\
step 1 loss 2.0
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH
```` <b>@everyone</b>
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. ``` password={SECRET}
"""


def test_markdown_names_the_cause_and_holds_no_secret(tmp_path: Path) -> None:
    """And nothing of the log stands outside of code, whatever backticks it prints."""
    log = tmp_path / "job.log"
    log.write_text(LOG)
    shown = invoke("explain", log, "--markdown").stdout
    assert shown.startswith("### out of memory error (framework, failed")
    assert "- **rank** ` 3 `" in shown and "```text" in shown
    assert SECRET not in shown and "hf_abcdefgh" not in shown
    fence = next(line for line in shown.splitlines() if line.endswith("text")).removesuffix("text")
    assert len(fence) > 3 and shown.count(f"\n{fence}\n") == 1


def test_a_bundle_has_what_a_report_needs_and_no_secret(tmp_path: Path) -> None:
    """Secrets of settings, passwords of addresses, and tokens in the service's own log."""
    log, bundle = tmp_path / "service.log", tmp_path / "bundle.json"
    log.write_text(f"2026 [info] serving\n2026 [error] webhook_failed url=https://u:{SECRET}@h.example/x\n")
    settings = {
        "TOKENS": f"admin:{SECRET}",
        "DATABASE_URL": f"postgresql://u:{SECRET}@h/x",
        "LLM_URL": f"http://u:{SECRET}@h/v1",
        "PORT": "8400",
    }
    done = invoke("bundle", bundle, "--log", log, "--offline", **settings)
    assert done.exit_code == 0, done.output
    text = bundle.read_text()
    assert SECRET not in text
    content = json.loads(text)
    assert content["settings"]["port"] == 8400 and content["settings"]["tokens"] == "(set)"
    assert [line.split("[")[1][:5] for line in content["errors"]] == ["error"]
    assert {part["part"] for part in content["health"]} > {"settings", "tokens", "rules and policy"}
