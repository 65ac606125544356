"""The fourth and fifth generation: jobs of several nodes, of which one rank or node goes wrong first.

Written by somebody who had not read the rules, for what the older generations have little of: which rank and which
node it was. ``families.yaml`` has the families, ``carriers.yaml`` how their lines reach one file, ``faults.yaml`` what
goes wrong and what is then true; the processes are real (``../trainers/job.py``), each node has a host name of its own.
In the fifth (``*_fifth.yaml``, ``../trainers/fleet.py``) they meet through drivers, pipes, queues and remote calls.
REAL_RUNS_EXTRA: a folder with loguru and structlog, for the test environment of torch, which has neither. Needs root
(name spaces of hosts and mounts), mpirun, redis-server and etcd.
"""
