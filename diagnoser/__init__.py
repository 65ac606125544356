"""diagnoser: names the root cause of a failed LLM training job from its logs, and closes the loop with the cluster."""
