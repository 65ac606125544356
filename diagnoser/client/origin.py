"""Where this copy of the client was fetched from, and of which version it is. The service writes both into the copies
that it serves."""

VERSION = ""
ORIGIN = ""
