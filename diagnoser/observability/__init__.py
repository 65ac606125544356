"""Metrics, logging and health."""
