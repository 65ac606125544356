"""Logs of trainings, healthy and diverged, written from seeds: what the live watch of metrics is measured with."""
