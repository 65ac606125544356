"""Routes and forms that are declared at the start and made at their first use: to make them all costs half a second of
processor time, which an operator would wait for at every start of the service."""

import warnings
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.routing import Route

# The framework silences this one while it makes a form, which for these is too early.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)


class Schema(BaseModel, defer_build=True):
    """The form of a request, or of an answer."""


class LazyRoute(APIRoute):
    """Knows its path and its methods. What the framework reads from the function behind it is read when it is needed:
    with the first request, or for the description of the API."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = options.get("methods") or ["GET"]
        Route.__init__(self, path, endpoint, methods=methods, name=options.get("name"))
        self.methods = set(methods)  # as the framework has it: without HEAD
        del self.app
        self._options = options

    def __getattr__(self, name: str) -> Any:
        """Of what is not there yet."""
        options = self.__dict__.pop("_options", None)
        if options is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        super().__init__(self.path, self.endpoint, **options)
        return getattr(self, name)


class Router(APIRouter):
    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=LazyRoute, **options)
