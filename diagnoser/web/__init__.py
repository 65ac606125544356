"""The HTTP edge: the API that shippers and schedulers call, and the pages that people read."""
