"""Evaluation of checkpoints without idle GPUs: what runs where, in which order, and what is left after a crash.

After section 6.2 of "Characterization of Large Language Model Development in the Datacenter" (NSDI '24): model loading
is decoupled from inference, metrics from GPUs, and the order follows what earlier runs took.
"""
