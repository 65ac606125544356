"""Diagnosis rules: data that recognises a failure, and the engine that finds the root among the matches."""
