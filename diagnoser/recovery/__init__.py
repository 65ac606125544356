"""Decides what to do about a verdict. Decisions only: the outbox carries them out."""
