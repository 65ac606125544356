"""HOT PATH 2: the evidence of an attempt -> Diagnosis."""
