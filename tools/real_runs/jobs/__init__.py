"""The fifth and sixth generation: jobs of several nodes, of which one rank or node goes wrong first.

Written by somebody who had not read the rules, for what the older generations have little of: which rank and which
node it was. The families say what runs, the carriers how its lines reach one file, the faults what goes wrong and what
is then true; the processes are real (``../trainers/job.py``), each node has a host name of its own. In the fifth
(``*_fifth.yaml``, ``../trainers/fleet.py``) they meet through drivers, pipes, queues and remote calls; the sixth
(``*_sixth.yaml``, ``../trainers/crews.py``) is close to what sites that train language models run.
The fourth is no more: its figures stand in ``../first_sight.csv``. Needs root (name spaces of hosts and mounts); the
fifth also redis-server and etcd.
"""
