"""What the runtime knows of a run that stands still: who is behind, who waits for whom. Pure."""
