"""Masks secrets on every way out of the service; knows what they look like."""
