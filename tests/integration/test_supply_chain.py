"""The lists of what the service is made of are whole, and an audit that asked nobody is no audit."""

import json
from pathlib import Path

import pytest

from tests import supply_chain
from tests.environments import SBOM

pytestmark = pytest.mark.skipif(bool(SBOM.missing), reason=SBOM.missing)
FORBIDDEN = ("AGPL", "GNU Affero", "GPLv3", "SSPL", "Business Source")
"""Licences that would bind those who run the service."""


def test_the_lists_name_every_pin(tmp_path: Path) -> None:
    """Each component with its version, address and hashes; each licence known and none that binds who runs it."""
    supply_chain.sbom(tmp_path)
    found = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "diagnoser")
    assert {one["name"] for one in found["components"]} == set(supply_chain.names())
    for one in found["components"]:
        assert one["purl"].startswith(f"pkg:pypi/{one['name']}@{one['version']}")
        assert one["externalReferences"][0]["hashes"]
    rows = [line.split("|")[1:4] for line in (tmp_path / "licences.md").read_text().splitlines()[2:]]
    assert len(rows) > len(supply_chain.names()) * 0.9  # some are for other systems
    for name, _, licence in rows:
        assert licence.strip() not in ("", "UNKNOWN"), name
        assert [word for word in FORBIDDEN if word in licence] == [], name


def test_an_audit_without_a_database_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Tests reach no network: it says so for each database, with a code of its own."""
    assert supply_chain.audit() == supply_chain.UNREACHABLE
    assert capsys.readouterr().err.count("can not be asked") == len(supply_chain.SERVICES)
