"""The forms in which a server is asked: what each OpenAI-compatible server takes differs, and is found by trying.

A request becomes messages here: with the protocol's tools, or, where a server refuses those, with tools in words.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diagnoser.llm import answer
from diagnoser.ports import ModelRequest, ToolCall, ToolSpec
from diagnoser.redaction.redact import Redact, masked_lines

# Fragments of error messages about each part of a question.
SAMPLES_WORDS = ("'n'", '"n"', "n must be", "n > 1", "completion choice", "multiple choices")
TOOLS_WORDS = ("tool", "function call", "functions")
FORMAT_WORDS = ("response_format", "json_schema", "json_object", "grammar", "guided", "structured output")
TEMPERATURE_WORDS = ("temperature",)
LIMIT_WORDS = ("max_tokens", "max_completion_tokens")
ROLE_WORDS = ("system role", "role system", "'system'", "role 'developer'", "system message", "alternate")
ALL_WORDS = (*SAMPLES_WORDS, *TOOLS_WORDS, *FORMAT_WORDS, *TEMPERATURE_WORDS, *LIMIT_WORDS, *ROLE_WORDS)
_LEAN = frozenset({"maxLength", "minLength", "minimum", "maximum", "maxItems", "minItems", "pattern", "title"})
_CALLS_MAX = 16
"""Most calls of one answer that are read."""
_NAME_CHARS, _ARGUMENTS_CHARS = 100, 4000
_IN_WORDS = """

You have tools. To use one, write nothing but one JSON object for each call, such as
{"tool": "name of the tool", "arguments": {}}
and read the results before you answer. The tools:
"""

Format = Callable[[Mapping[str, object]], dict[str, Any] | None]
Message = dict[str, Any]


def _schema(schema: Mapping[str, object]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}


def _lean(schema: Mapping[str, object]) -> dict[str, Any]:
    """Leave out bounds, which some servers do not accept in a schema."""
    return _schema(_without(schema, _LEAN))


def _object_with_schema(schema: Mapping[str, object]) -> dict[str, Any]:
    """The form that llama.cpp's server accepts."""
    return {"type": "json_object", "schema": dict(schema)}


def _object(schema: Mapping[str, object]) -> dict[str, Any]:
    return {"type": "json_object"}


def _free(schema: Mapping[str, object]) -> None:
    """The prompt asks for JSON as well."""


FORMATS: tuple[Format, ...] = (_schema, _lean, _object_with_schema, _object, _free)
"""Ways to ask for JSON, the strictest first."""


LIMITS: tuple[str, ...] = ("max_tokens", "max_completion_tokens", "")
"""Names of the limit on an answer's length: reasoning models know the second only. "": none is sent."""


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """How a server is asked. format, limit: indices into ``FORMATS`` and ``LIMITS``.

    temperature: whether it is sent. system: whether the instructions have a message of their own. room: factor on the
    length of an answer, for models whose hidden reasoning counts as a part of it. samples: whether several answers are
    asked for at once. tools: whether they go by the protocol, or in words.
    """

    format: int = 0
    limit: int = 0
    temperature: bool = True
    system: bool = True
    room: int = 1
    samples: bool = True
    tools: bool = True

    def weaker(self, complaint: str, request: ModelRequest) -> "QuestionForm | None":
        """The next form, by what the server complains about; without a clue the next weaker one, None after the last.

        complaint: the error message in lower case.
        """
        steps = list(self._steps(request))
        for words, form in steps:
            if mentions(complaint, words):
                return form
        return next((form for _, form in steps), None)

    def _steps(self, request: ModelRequest) -> Iterator[tuple[tuple[str, ...], "QuestionForm"]]:
        """The forms that are weaker in one thing that the request uses, each with the words of a complaint about it;
        what costs least to give up comes first."""
        if self.samples and request.samples > 1:
            yield SAMPLES_WORDS, replace(self, samples=False)
        if self.tools and request.tools:
            yield TOOLS_WORDS, replace(self, tools=False)
        if self.format + 1 < len(FORMATS) and not request.may_call:
            yield FORMAT_WORDS, replace(self, format=self.format + 1)
        if self.temperature:
            yield TEMPERATURE_WORDS, replace(self, temperature=False)
        if self.limit + 1 < len(LIMITS):
            yield LIMIT_WORDS, replace(self, limit=self.limit + 1)
        if self.system:
            yield ROLE_WORDS, replace(self, system=False)

    def options(self, request: ModelRequest) -> dict[str, Any]:
        """What is sent beside the messages. While a model may call tools, its answer has no grammar: that of an answer
        would leave no way to call one."""
        options: dict[str, Any] = {}
        if self.temperature:
            options["temperature"] = request.temperature
        if limit := LIMITS[self.limit]:
            options[limit] = request.max_tokens * self.room
        if self.samples and request.samples > 1:
            options["n"] = request.samples
        if self.tools and request.tools:
            options["tools"] = list(map(_offered, request.tools))
            options["tool_choice"] = "auto" if request.may_call else "none"
        if request.may_call:
            return options
        if response_format := FORMATS[self.format](request.schema):
            options["response_format"] = response_format
        return options

    def messages(self, request: ModelRequest, redact: Redact) -> list[Message]:
        """The conversation so far: what stays the same comes first, so that a server's prefix cache serves it.

        redact: masks each line, whoever has written it.
        """
        mask = partial(masked_lines, redact=redact)
        instructions = request.system
        if request.tools and not self.tools:
            instructions += _IN_WORDS + "\n".join(map(_in_words, request.tools))
        messages = [_message("system" if self.system else "user", instructions), _message("user", mask(request.user))]
        for number, tool_round in enumerate(request.rounds):
            calls = [(call.name, _written(call, mask)) for call in tool_round.calls]
            results = list(map(mask, tool_round.results))
            messages += _looked(number, calls, results) if self.tools else _looked_in_words(calls, results)
        if request.follow_up:
            messages.append(_message("user", mask(request.follow_up)))
        if request.repair:
            text, complaint = map(mask, request.repair)
            messages += [_message("assistant", text), _message("user", complaint)]
        return _joined(messages)


def mentions(complaint: str, words: Iterable[str]) -> bool:
    return any(word in complaint for word in words)


def calls_of(message: object, text: str, request: ModelRequest) -> tuple[ToolCall, ...]:
    """The tools that a model calls, by the protocol or in words; () once it has to answer.

    Models write calls as text even where a server has the protocol, if it does not know their format.
    """
    if not request.may_call:
        return ()
    listed = getattr(message, "tool_calls", None)
    calls = []
    for call in listed[:_CALLS_MAX] if isinstance(listed, list) else ():
        function = getattr(call, "function", None)
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        if isinstance(name, str):
            calls.append(ToolCall(name[:_NAME_CHARS], _read(arguments)))
    return tuple(calls) or tuple(_calls_in_words(text, {tool.name for tool in request.tools}))


def _read(arguments: object) -> Mapping[str, object] | None:
    """The arguments of a call, which a model wrote as JSON in a text."""
    try:
        given = json.loads(arguments[:_ARGUMENTS_CHARS]) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _calls_in_words(text: str, names: set[str]) -> Iterator[ToolCall]:
    for given in answer.objects(text[: answer.ANSWER_CHARS])[:_CALLS_MAX]:
        name = given.get("tool", given.get("name"))
        if isinstance(name, str) and name in names:
            yield ToolCall(name, _read(given.get("arguments", {})))


def _offered(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.purpose, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _in_words(tool: ToolSpec) -> str:
    return f"- {tool.name}: {tool.purpose} Arguments: {json.dumps(tool.parameters.get('properties', {}))}"


def _written(call: ToolCall, mask: Redact) -> str:
    """The arguments as JSON, each text masked before its line ends and quotes are escaped."""
    arguments = dict(call.arguments or {})
    for name, value in arguments.items():
        if not isinstance(value, bool | int | float | None):
            arguments[name] = mask(str(value))
    return json.dumps(arguments)


def _looked(number: int, calls: list[tuple[str, str]], results: list[str]) -> Iterator[Message]:
    """A round by the protocol. The ids are ours: those of a model need not be unique."""
    names = [f"call_{number}_{index}" for index in range(len(calls))]
    listed = []
    for call_id, (name, arguments) in zip(names, calls, strict=True):
        listed.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    yield {"role": "assistant", "content": None, "tool_calls": listed}
    for call_id, result in zip(names, results, strict=True):
        yield {"role": "tool", "tool_call_id": call_id, "content": result}


def _looked_in_words(calls: list[tuple[str, str]], results: list[str]) -> Iterator[Message]:
    """A round as an exchange of texts, in the form that ``_IN_WORDS`` asks for."""
    written = [f'{{"tool": {json.dumps(name)}, "arguments": {arguments}}}' for name, arguments in calls]
    yield _message("assistant", "\n".join(written))
    yield _message("user", "\n\n".join(results))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _joined(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message: templates of some models take turns only."""
    joined: list[Message] = []
    for message in messages:
        if joined and message["role"] == "user" and joined[-1]["role"] == "user":
            joined[-1] = _message("user", f"{joined[-1]['content']}\n\n{message['content']}")
        else:
            joined.append(message)
    return joined


def _without(value: Any, names: frozenset[str]) -> Any:
    """A schema without some of its keywords; properties of the same name stay."""
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _without(item, names) for key, item in value.items() if key not in names or isinstance(item, Mapping)}
