"""Where a request comes from, and which route it calls."""

from functools import lru_cache

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts


def client_address(request: Request) -> str:
    """As the server tells it: behind a trusted proxy, what that proxy says."""
    return request.client.host if request.client else ""


def action_of(request: Request) -> str:
    """The method and the path of the route, with the names of its parameters in place of their values."""
    path = _paths(request.app).get(request.scope.get("endpoint"), request.url.path)
    return f"{request.method} {path}"


@lru_cache(maxsize=4)
def _paths(app: FastAPI) -> dict[object, str]:
    """Handler -> path of its route."""
    return {route.endpoint: route.path for route in iter_route_contexts(app.routes) if route.path}
