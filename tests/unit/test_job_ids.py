"""Ids of jobs: those that agents make, those that tenants have to themselves, and how tenants read theirs."""

import pytest

from diagnoser.agent.kubernetes import names
from diagnoser.agent.slurm import reconcile
from diagnoser.model import is_made_by_agent, own_job_id, spoken_job_id
from diagnoser.web.http.spoken_job_ids import spoken


@pytest.mark.parametrize("cluster", ["main", "my-cluster", "a.b"])
def test_ids_of_both_agents_have_the_form(cluster: str) -> None:
    """So that a job of a cluster is known before its agent has registered it; not those of a cluster named alike."""
    for job in (reconcile.job_id(cluster, 7), names.job_id(cluster, "job", "team", "train")):
        assert is_made_by_agent(job, cluster)
        assert not is_made_by_agent(job, cluster[:-1]) and not is_made_by_agent(job, cluster + "x")


@pytest.mark.parametrize("id", ["main-7", "slurm-main", "slurm:main-7", "main", "-main-7"])
def test_ids_of_people_have_not(id: str) -> None:
    """A name that only holds the cluster's is free."""
    assert not is_made_by_agent(id, "main")


def test_a_name_of_its_own_is_read_as_it_was_said() -> None:
    """Logs of nodes have no tenant."""
    assert spoken_job_id(own_job_id("train-1", "vision")) == spoken_job_id("train-1") == "train-1"
    assert spoken_job_id("~node/main/n1") == "~node/main/n1"


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (
            '{"job":"train-1~of~vision","plan":{"job":"train-1~of~vision"}}',
            '{"job":"train-1","plan":{"job":"train-1"}}',
        ),
        (
            '<a href="/jobs/train-1~of~vision/attempts/1">train-1~of~vision</a>',
            '<a href="/jobs/train-1/attempts/1">train-1</a>',
        ),
        ("train-1~of~vision,1,failed\n", "train-1,1,failed\n"),
        ('{"job":"train-1~of~vision2"}', '{"job":"train-1~of~vision2"}'),
        ("cp x~vision ~/data", "cp x~vision ~/data"),
    ],
)
def test_a_tenants_answers_hold_no_mark(answer: str, read: str) -> None:
    """In JSON, pages and tables; another word behind the same sign stays."""
    assert spoken(answer.encode(), "vision").decode() == read


def test_a_tenant_may_be_called_anything() -> None:
    """Its name is written differently in text, JSON, HTML and addresses."""
    for written in ('a"b', 'a\\"b', "a&quot;b", "a%22b"):
        assert spoken(f"j~of~{written} ".encode(), 'a"b') == b"j "
