"""Where this copy of the client was fetched from. The service writes its own address here in the copies it serves."""

ORIGIN = ""
