"""The executor for Slurm. What to do is decided in pure functions; commands, HTTP and files are passed in."""
