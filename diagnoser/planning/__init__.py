"""Decides what follows from a verdict: record, plan, messages; and how a plan may change."""
