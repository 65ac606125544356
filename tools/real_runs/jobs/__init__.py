"""The sixth and seventh generation: jobs of several ranks or nodes, of which one goes wrong first.

Written by somebody who had not read the rules, for what the older generations have little of: which rank and which
node it was. In the sixth the families say what runs, the carriers how its lines reach one file, the faults what goes
wrong and is then true (``*_sixth.yaml``, ``../trainers/crews.py``): close to what sites that train language models run.
The seventh (``seventh.py``) takes frameworks and launchers as they are. The fourth and fifth are no more: their figures
stand in ``../first_sight.csv``. Needs root (name spaces of hosts and mounts).
"""
