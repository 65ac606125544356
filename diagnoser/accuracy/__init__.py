"""Scores verdicts against labels, and what the model adds."""
