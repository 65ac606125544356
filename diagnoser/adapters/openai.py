"""Any OpenAI-compatible server: vLLM, llama.cpp, a gateway, or the API itself."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from diagnoser.adapters import openai_transport
from diagnoser.adapters.openai_transport import describe_error, failure
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest
from diagnoser.redaction.redact import Redact, masked_lines, redact

_REFUSING = frozenset({400, 422, 500, 501})
_BAD_REQUEST = frozenset({400, 422})
"""Statuses that a server gives to a question in a form that it does not know, whatever it says about it."""
# Fragments of error messages about each part of a question, and about a prompt that is too long.
_FORMAT_WORDS = ("response_format", "json_schema", "json_object", "grammar", "guided", "structured output")
_TEMPERATURE_WORDS = ("temperature",)
_LIMIT_WORDS = ("max_tokens", "max_completion_tokens")
_ROLE_WORDS = ("system role", "role system", "'system'", "role 'developer'", "system message", "alternate")
_LENGTH_WORDS = ("context length", "context_length", "context size", "context window", "maximum context", "n_ctx")
_LEAN = frozenset({"maxLength", "minLength", "minimum", "maximum", "maxItems", "minItems", "pattern", "title"})
_DETAIL_CHARS = 4000
_TOO_LARGE = 413
_LIST_SECONDS = 10.0
_CONTEXT_SECONDS = 2.0
"""Seconds to wait for the list of models before a question; the question does not depend on it."""

Format = Callable[[Mapping[str, object]], dict[str, Any] | None]


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
    length of an answer, for models whose hidden reasoning counts as a part of it.
    """

    format: int = 0
    limit: int = 0
    temperature: bool = True
    system: bool = True
    room: int = 1

    def weaker(self, complaint: str) -> "QuestionForm | None":
        """The next form, by what the server complains about; without a clue the next weaker one, None after the last.

        complaint: the error message in lower case.
        """
        steps = dict(self._steps())
        for words, form in steps.items():
            if _mentions(complaint, words):
                return form
        if _FORMAT_WORDS in steps:  # costs least to give up
            return steps[_FORMAT_WORDS]
        return next(iter(steps.values()), None)

    def _steps(self) -> Iterator[tuple[tuple[str, ...], "QuestionForm"]]:
        """The forms that are weaker in one thing, each with the words of a complaint about it."""
        if self.temperature:
            yield _TEMPERATURE_WORDS, replace(self, temperature=False)
        if self.limit + 1 < len(LIMITS):
            yield _LIMIT_WORDS, replace(self, limit=self.limit + 1)
        if self.format + 1 < len(FORMATS):
            yield _FORMAT_WORDS, replace(self, format=self.format + 1)
        if self.system:
            yield _ROLE_WORDS, replace(self, system=False)


_ROOMIER = 4
"""Factor on the length of an answer for a model that spends all of it on reasoning."""


class OpenAIModel:
    """A language model behind ``/v1/chat/completions``. ``timeout`` in seconds, for one request.

    A server that refuses a question for its form is asked again in a weaker one, which is remembered once it answers.
    """

    def __init__(self, base_url: str, name: str, api_key: str, timeout: float, redact: Redact = redact) -> None:
        """redact: masks each line of a question, whoever has written it."""
        self.name = name
        self._redact = redact
        self.form = QuestionForm()
        self._client = openai_transport.client(base_url, api_key, timeout)
        self._settled = False
        self._settling = asyncio.Lock()
        self._context: int | None = None

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed; ``answer_format_refused`` when the server refuses every form of the question."""
        async with AsyncExitStack() as stack:
            if not self._settled:  # one request at a time finds the form that this server accepts
                await stack.enter_async_context(self._settling)
            form = self.form
            while True:
                try:
                    reply = await self._create(request, form)
                except openai.OpenAIError as error:
                    weaker = form.weaker(_complaint(error)) if _is_refusal(error) else None
                    if weaker is None:
                        raise self._failure(error) from None
                    form = weaker
                except ValueError:  # the client does not wrap JSON errors
                    raise ModelFailed(ModelFailure.MALFORMED, "the server's reply is not JSON") from None
                else:
                    if form.room == 1 and _spent_on_reasoning(reply):
                        form = replace(form, room=_ROOMIER)
                        continue
                    self.form, self._settled = form, True
                    return self._answer(reply)

    async def context(self) -> int | None:
        """The context length from ``/v1/models``; asked again until the server answers."""
        if self._context is None:
            try:
                models = await self._models(_CONTEXT_SECONDS)
            except (openai.OpenAIError, ValueError):
                return None
            self._context = next((_length(model) for model in models if model.get("id") == self.name), 0)
        return self._context or None

    async def ping(self) -> str:
        """A short description of what the server offers. Raises ModelFailed."""
        try:
            models = await self._models()
        except openai.NotFoundError:
            return "the server answers, and lists no models"
        except openai.OpenAIError as error:
            raise failure(error) from None
        except ValueError:
            raise ModelFailed(ModelFailure.UNAVAILABLE, "the server's reply is not JSON") from None
        if models and self.name not in {model.get("id") for model in models}:
            raise ModelFailed(ModelFailure.NOT_FOUND, f"the server offers no model called {self.name}")
        return f"{self.name} answers"

    async def _models(self, seconds: float = _LIST_SECONDS) -> list[dict[str, Any]]:
        """Raises openai.OpenAIError, ValueError. Parsed by hand: the client accepts any body as a list of models."""
        reply = await self._client.get("/models", cast_to=httpx2.Response, options={"timeout": seconds})
        body = reply.json()
        listed = body.get("data") if isinstance(body, dict) else None
        if not isinstance(listed, list):
            return []
        return [entry for entry in listed if isinstance(entry, dict)]

    async def close(self) -> None:
        await self._client.close()

    async def _create(self, request: ModelRequest, form: QuestionForm) -> ChatCompletion:
        user = masked_lines(request.user, self._redact)
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": request.system},
            {"role": "user", "content": user},
        ]
        if not form.system:
            messages = [{"role": "user", "content": f"{request.system}\n\n{user}"}]
        if request.repair:
            answer, complaint = (masked_lines(text, self._redact) for text in request.repair)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": complaint}]
        extra: dict[str, Any] = {"temperature": request.temperature} if form.temperature else {}
        if limit := LIMITS[form.limit]:
            extra[limit] = request.max_tokens * form.room
        if response_format := FORMATS[form.format](request.schema):
            extra["response_format"] = response_format
        completion: ChatCompletion = await self._client.chat.completions.create(
            model=self.name, messages=messages, **extra
        )
        return completion

    def _failure(self, error: openai.OpenAIError) -> ModelFailed:
        if _is_too_long(error):
            return ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, describe_error(error))
        if getattr(error, "status_code", None) in _BAD_REQUEST:
            return ModelFailed(ModelFailure.FORMAT_REFUSED, describe_error(error))
        return failure(error)

    def _answer(self, reply: object) -> ModelAnswer:
        """The client does not validate: a gateway may leave out any part, or send something else."""
        usage, model = getattr(reply, "usage", None), getattr(reply, "model", None)
        if not isinstance(model, str) or not model:
            model = self.name
        text = _content(_choice(reply))
        return ModelAnswer(text, model, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))


def _complaint(error: openai.OpenAIError) -> str:
    return str(error)[:_DETAIL_CHARS].lower()


def _is_too_long(error: openai.OpenAIError) -> bool:
    status = getattr(error, "status_code", None)
    if status == _TOO_LARGE:
        return True
    return status in _REFUSING and _is_about_length(error)


def _is_about_length(error: openai.OpenAIError) -> bool:
    return _mentions(_complaint(error), _LENGTH_WORDS)


def _mentions(complaint: str, words: Iterable[str]) -> bool:
    return any(word in complaint for word in words)


def _is_refusal(error: openai.OpenAIError) -> bool:
    """Whether the server refuses the form of the question, and not its length: one that answers 500 says so."""
    status = getattr(error, "status_code", None)
    if status not in _REFUSING or _is_about_length(error):
        return False
    if status in _BAD_REQUEST:
        return True
    return _mentions(_complaint(error), (*_FORMAT_WORDS, *_TEMPERATURE_WORDS, *_LIMIT_WORDS, *_ROLE_WORDS))


def _choice(reply: object) -> object:
    """The first; None without one."""
    choices = getattr(reply, "choices", None)
    if isinstance(choices, list) and choices:
        return choices[0]
    return None


def _count(usage: object, name: str) -> int:
    """Tokens; 0 where the server does not say."""
    tokens = getattr(usage, name, None)
    return tokens if isinstance(tokens, int) else 0


def _content(choice: object) -> str:
    """The text of an answer; some gateways send it in parts."""
    content = getattr(getattr(choice, "message", None), "content", None)
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content)
        content = "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _spent_on_reasoning(reply: object) -> bool:
    """Whether the answer's whole length went into reasoning that is not shown."""
    choice = _choice(reply)
    return getattr(choice, "finish_reason", None) == "length" and not _content(choice).strip()


def _length(model: Mapping[str, Any]) -> int:
    """vLLM says ``max_model_len``; llama.cpp and others have their own names for it."""
    fields, meta = dict(model), model.get("meta")
    if isinstance(meta, dict):
        fields |= meta
    for name in ("max_model_len", "context_length", "context_window", "n_ctx"):
        if isinstance(length := fields.get(name), int) and length > 0:
            return length
    return 0


def _without(value: Any, names: frozenset[str]) -> Any:
    """A schema without some of its keywords; properties of the same name stay."""
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if not isinstance(value, Mapping):
        return value
    trimmed = {key: item for key, item in value.items() if key not in names or isinstance(item, Mapping)}
    return {key: _without(item, names) for key, item in trimmed.items()}
