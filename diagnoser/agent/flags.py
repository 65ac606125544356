"""Commands whose flags are the fields of a data class."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_args, get_type_hints

from typer.models import ParameterInfo

T = TypeVar("T")


def from_flags(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function that takes one data class.

    kind: a field that is annotated as an option or argument of typer is one of the command; a field that is a data
    class stands for the flags of that one; any other field keeps its default.
    """

    def decorate(act: Callable[[T], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            act(_filled(kind, given))

        command.__name__, command.__doc__ = act.__name__, act.__doc__
        command.__signature__ = Signature(list(_parameters(kind)))  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(kind: Any) -> Iterator[Parameter]:
    annotations = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        annotation = annotations[field.name]
        if is_dataclass(annotation):
            yield from _parameters(annotation)
        elif any(isinstance(extra, ParameterInfo) for extra in get_args(annotation)):
            default = Parameter.empty if field.default is MISSING else field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _filled(kind: Any, given: dict[str, Any]) -> Any:
    annotations, values = get_type_hints(kind), dict[str, Any]()
    for field in fields(kind):
        if is_dataclass(annotations[field.name]):
            values[field.name] = _filled(annotations[field.name], given)
        elif field.name in given:
            values[field.name] = given[field.name]
    return kind(**values)
