"""Any OpenAI-compatible server: vLLM, llama.cpp, a gateway, or the API itself."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from diagnoser.adapters import openai_transport
from diagnoser.adapters.openai_transport import describe_error, failure
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest

_REFUSING = frozenset({400, 422, 500, 501})
# Fragments of error messages about the answer's format, and about a prompt that is too long.
_FORMAT_WORDS = ("response_format", "json_schema", "json_object", "grammar", "guided", "structured output")
_LENGTH_WORDS = ("context length", "context_length", "context size", "context window", "maximum context", "n_ctx")
_LEAN = frozenset({"maxLength", "minLength", "minimum", "maximum", "maxItems", "minItems", "pattern", "title"})
_DETAIL_CHARS = 4000
_LIST_SECONDS = 10.0
_CONTEXT_SECONDS = 2.0
"""Seconds to wait for the list of models before a question; the question does not depend on it."""

Format = Callable[[Mapping[str, object]], dict[str, Any] | None]


def _schema(schema: Mapping[str, object]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}


def _lean(schema: Mapping[str, object]) -> dict[str, Any]:
    """Without bounds, which some servers do not accept in a schema."""
    return _schema(_without(schema, _LEAN))


def _object_with_schema(schema: Mapping[str, object]) -> dict[str, Any]:
    """The form that llama.cpp's server accepts."""
    return {"type": "json_object", "schema": dict(schema)}


def _object(schema: Mapping[str, object]) -> dict[str, Any]:
    return {"type": "json_object"}


def _free(schema: Mapping[str, object]) -> None:
    """The prompt asks for JSON as well."""


FORMATS: tuple[Format, ...] = (_schema, _lean, _object_with_schema, _object, _free)
"""Ways to ask for JSON, the strictest first. Once a server refuses one, the next is used."""


class OpenAIModel:
    """A language model behind ``/v1/chat/completions``. ``timeout`` in seconds, for one question."""

    def __init__(self, base_url: str, name: str, api_key: str, timeout: float) -> None:
        self.name = name
        self._client = openai_transport.client(base_url, api_key, timeout)
        self._format = 0
        self._settled = False
        self._settling = asyncio.Lock()
        self._context: int | None = None

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed; ``answer_format_refused`` when the same question can be asked again in another way."""
        async with AsyncExitStack() as stack:
            if not self._settled:  # one request at a time finds the format this server accepts
                await stack.enter_async_context(self._settling)
            index = self._format
            try:
                reply = await self._create(request, FORMATS[index])
            except openai.OpenAIError as error:
                raise self._failure(error, index) from None
            except ValueError:  # the client does not wrap JSON errors
                raise ModelFailed(ModelFailure.MALFORMED, "the server's reply is not JSON") from None
            self._settled = True
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
            raise self._failure(error, len(FORMATS)) from None
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
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    async def close(self) -> None:
        await self._client.close()

    async def _create(self, request: ModelRequest, form: Format) -> ChatCompletion:
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.user},
        ]
        if request.repair:
            answer, complaint = request.repair
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": complaint}]
        response_format = form(request.schema)
        extra: dict[str, Any] = {"response_format": response_format} if response_format else {}
        completion: ChatCompletion = await self._client.chat.completions.create(
            model=self.name,
            messages=messages,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            **extra,
        )
        return completion

    def _failure(self, error: openai.OpenAIError, index: int) -> ModelFailed:
        status, detail = getattr(error, "status_code", None), str(error)[:_DETAIL_CHARS].lower()
        if status in _REFUSING and any(word in detail for word in _LENGTH_WORDS):
            return ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, describe_error(error))
        if status in _REFUSING and index + 1 < len(FORMATS) and any(word in detail for word in _FORMAT_WORDS):
            self._format = max(self._format, index + 1)
            return ModelFailed(ModelFailure.FORMAT_REFUSED, describe_error(error))
        return failure(error)

    def _answer(self, reply: object) -> ModelAnswer:
        """The client does not validate: a gateway may leave out any part, or send something else."""
        choices, usage, model = (getattr(reply, name, None) for name in ("choices", "usage", "model"))
        choice = choices[0] if isinstance(choices, list) and choices else None
        text = getattr(getattr(choice, "message", None), "content", None)
        tokens_in, tokens_out = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        return ModelAnswer(
            text if isinstance(text, str) else "",
            model if isinstance(model, str) and model else self.name,
            tokens_in if isinstance(tokens_in, int) else 0,
            tokens_out if isinstance(tokens_out, int) else 0,
        )


def _length(model: Mapping[str, Any]) -> int:
    """vLLM says ``max_model_len``; llama.cpp and others have their own names for it."""
    meta = model.get("meta")
    fields = {**model, **(meta if isinstance(meta, dict) else {})}
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
