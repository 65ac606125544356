"""Requests before anybody knows what they are about: who sends them, their bodies, sessions, errors, headers."""
