"""Asks a language model about failures that the rules cannot decide."""
