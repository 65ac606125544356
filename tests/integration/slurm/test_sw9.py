from tests.integration.slurm.conftest import *  # noqa
from tests.integration.slurm.conftest import cluster, site, NAME
from tests.integration.slurm.cluster import until
def test_suspend(cluster, tmp_path):
    with site(cluster, tmp_path) as lab:
        job = cluster.submit("#!/bin/bash\nfor i in $(seq 400); do echo step $i loss 2.$i; sleep 1; done\n", "-n1")
        kinds = lambda: [e["kind"] for a in lab.get(f"/jobs/slurm-{NAME}-{job}")["attempts"] for e in a["events"]]
        until(lambda: lab.client.get(f"/api/v1/jobs/slurm-{NAME}-{job}").status_code==200, "known")
        import time; time.sleep(3)
        cluster.run("scontrol","suspend",job); until(lambda: "suspended" in kinds(), "told")
        time.sleep(75); print(lab.get("/diagnoses", job=f"slurm-{NAME}-{job}")["items"])
        cluster.run("scontrol","resume",job); until(lambda: "resumed" in kinds(), "told")
        time.sleep(5); assert not lab.get("/diagnoses", job=f"slurm-{NAME}-{job}")["items"]; print(kinds())
