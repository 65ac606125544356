"""The routers of the API, one a noun."""
