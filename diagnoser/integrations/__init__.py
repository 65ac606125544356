"""Endpoints that other tools ask."""
