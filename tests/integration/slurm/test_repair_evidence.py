"""What a repair would destroy is taken from a real Slurm node before it goes, and given away without secrets.

dmesg, journalctl and nvidia-smi are doubles: no machine is broken here, and none has GPUs. All else is real.
"""

import io
import re
import tarfile
from pathlib import Path

import pytest

from diagnoser.adapters.files import bundled
from tests.integration.slurm.cluster import Cluster, until
from tests.integration.slurm.conftest import Site, site
from tests.integration.slurm.test_loop import MCE, broken_node, own_log, report_node
from tests.integration.slurm.test_node_queries import executable

pytestmark = pytest.mark.xdist_group("slurm")

SECRET = "hf_" + "Qx7" * 12
HANGING = """#!/bin/sh
# The journal of a node whose disk does not answer; a query of some lines is answered.
case "$*" in *SYSLOG_FACILITY*) exit 1 ;; esac
echo "kernel: nvme nvme0: I/O tag 12 timeout, aborting"
exec sleep 3600
"""
NVIDIA_SMI = f"""#!/bin/sh
# Says how the node stands while it is asked, and the environment that some tools print.
[ "$*" = -q ] || exit 2
echo "Slurm shows: $(sinfo -h -N -n $SLURMD_NODENAME -o '%T %E')"
echo "export HF_TOKEN={SECRET}"
echo "    Product Name : NVIDIA H100 80GB HBM3"
"""


def doubles(cluster: Cluster) -> dict[str, str]:
    """Variables of an agent whose nodes answer by the doubles."""
    variables = own_log(cluster)
    tools = cluster.folder / "tools"
    executable(tools / "journalctl", HANGING)
    executable(tools / "nvidia-smi", NVIDIA_SMI)
    dmesg = tools / "dmesg"
    executable(dmesg, f"{dmesg.read_text()}echo 'audit: cmdline=train --token={SECRET}'\n")
    return variables


def impatient_table(folder: Path) -> str:
    """The shipped table, of a site that waits three seconds for the journal."""
    shipped = (bundled("rules") / "node_queries.yaml").read_text()
    table, count = re.subn(r"(id: kernel_journal, .*timeout_seconds: )30", r"\g<1>3", shipped)
    assert count == 1
    (folder / "node_queries.yaml").write_text(table)
    return str(folder / "node_queries.yaml")


def linked_tar(lab: Site, plan: dict[str, object]) -> bytes:
    """The file that the failure's page links to."""
    page = lab.client.get(f"/diagnoses/{plan['diagnosis']}").text
    (link,) = re.findall(r'href="([^"]*evidence\.tar)"', page)
    assert link == f"/api/v1/jobs/{plan['job']}/attempts/1/evidence.tar"
    answer = lab.client.get(link)
    assert answer.status_code == 200, answer.text
    return answer.content


def test_a_drained_node_leaves_its_evidence_behind(cluster: Cluster, tmp_path: Path) -> None:
    """It is gathered while the node is in service; what hangs is cut off and named; the tar holds no secret."""
    table = impatient_table(tmp_path)
    reported = cluster.folder / "jobs" / "reported"
    with site(cluster, tmp_path, "--node-queries", table, variables=doubles(cluster)) as lab:
        job = cluster.submit(broken_node(reported), "--nodes=2", "--ntasks-per-node=1")
        report_node(lab, job, reported)
        plan = lab.ended_plan(job)
        assert plan["state"] == "reached", plan
        (node,) = plan["drained"]
        assert f"evidence of {node} is kept, without kernel_journal" in plan["history"][-1]["why"]
        data = linked_tar(lab, plan)
        until(lambda: cluster.state(job)[0] == "COMPLETED", "the job is complete")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        texts = {Path(name).name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]
    assert MCE in texts["kernel_ring_buffer.txt"]
    assert "NVIDIA H100 80GB HBM3" in texts["gpu_state.txt"]
    shown = re.search(r"Slurm shows: (\w+)", texts["gpu_state.txt"])
    assert shown and "drain" not in shown[1], "it was asked before it was drained"
    assert "nvme0: I/O tag 12 timeout" in texts["kernel_journal.missing.txt"]
    assert "no answer within 3 s" in texts["kernel_journal.missing.txt"]
    assert "dcgmi: No such file or directory" in texts["dcgm_health.missing.txt"]
    assert SECRET not in str(texts)
