"""The registry of schedulers: the commands of ``diagnoser agent`` go by it."""

from diagnoser.agent.kubernetes import command as kubernetes
from diagnoser.agent.scheduler import Scheduler
from diagnoser.agent.slurm import command as slurm

SCHEDULERS: tuple[Scheduler, ...] = (
    slurm.SCHEDULER,
    kubernetes.SCHEDULER,
)
