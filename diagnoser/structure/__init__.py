"""What lines of any log are made of: tracebacks, stacks, steps of progress, times. Pure."""
