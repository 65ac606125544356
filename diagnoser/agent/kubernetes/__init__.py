"""The agent for Kubernetes. What to do and what is new is decided in pure functions; HTTP and files are passed in."""
