"""Routes and schemas that are declared at the start and built at their first use: to build them all takes half a second
of processor time."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Self

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.routing import Route

from diagnoser.client.service import API

# FastAPI ignores this warning while it builds a validator; ours are built later.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)


class Schema(BaseModel, defer_build=True):
    """The body or the parameters of a request, or an answer."""


class StrictSchema(Schema, extra="forbid"):
    """The body or the parameters of a request, of which an unknown field is a fault."""


class Answer(Schema, from_attributes=True):
    """The body of an answer; fields are the attributes of the object that it shows."""

    @classmethod
    def list_of(cls, sources: Iterable[object]) -> list[Self]:
        return list(map(cls.model_validate, sources))

    @classmethod
    def filled_from(cls, source: object, /, **values: object) -> Self:
        """As ``model_validate``, with values of fields that the source has under another name, or not at all."""
        names = cls.model_fields.keys() - values.keys()
        return cls.model_validate({name: getattr(source, name) for name in names} | values)


class LazyRoute(APIRoute):
    """Has its path and its methods at once. What FastAPI reads from the endpoint is read when it is needed: with the
    first request, or for the OpenAPI document."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = options.get("methods") or ["GET"]
        Route.__init__(self, path, endpoint, methods=methods, name=options.get("name"))
        self.methods = set(methods)  # as the framework has it: without HEAD
        del self.app
        self._options = options

    def __getattr__(self, name: str) -> Any:
        """Called for what is not built yet."""
        options = self.__dict__.pop("_options", None)
        if options is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        super().__init__(self.path, self.endpoint, **options)
        return getattr(self, name)


class Router(APIRouter):
    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=LazyRoute, **options)


class ApiRouter(Router):
    """Routes below the API's prefix. tag: under which the document lists them."""

    def __init__(self, tag: str, **options: Any) -> None:
        super().__init__(prefix=API, tags=[tag], **options)
