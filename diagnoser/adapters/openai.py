"""Any OpenAI-compatible server: vLLM, llama.cpp, a gateway, or the API itself."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

import httpx2
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from diagnoser.adapters import openai_transport
from diagnoser.adapters.openai_forms import ALL_WORDS, QuestionForm, calls_of, mentions
from diagnoser.adapters.openai_transport import describe_error, failure
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest, ModelSample
from diagnoser.redaction.redact import Redact, redact

_REFUSING = frozenset({400, 422, 500, 501})
_BAD_REQUEST = frozenset({400, 422})
"""Statuses that a server gives to a question in a form that it does not know, whatever it says about it."""
_LENGTH_WORDS = ("context length", "context_length", "context size", "context window", "maximum context", "n_ctx")
"""Fragments of error messages about a prompt that is too long."""
_DETAIL_CHARS = 4000
_TOO_LARGE = 413
_LIST_SECONDS = 10.0
_CONTEXT_SECONDS = 2.0
"""Seconds to wait for the list of models before a question; the question does not depend on it."""
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
                    weaker = form.weaker(_complaint(error), request) if _is_refusal(error) else None
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
                    return self._answer(reply, request)

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
        completion: ChatCompletion = await self._client.chat.completions.create(
            model=self.name,
            messages=cast(list[ChatCompletionMessageParam], form.messages(request, self._redact)),
            **form.options(request),
        )
        return completion

    def _failure(self, error: openai.OpenAIError) -> ModelFailed:
        if _is_too_long(error):
            return ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, describe_error(error))
        if getattr(error, "status_code", None) in _BAD_REQUEST:
            return ModelFailed(ModelFailure.FORMAT_REFUSED, describe_error(error))
        return failure(error)

    def _answer(self, reply: object, request: ModelRequest) -> ModelAnswer:
        """The client does not validate: a gateway may leave out any part, or send something else."""
        usage, model = getattr(reply, "usage", None), getattr(reply, "model", None)
        if not isinstance(model, str) or not model:
            model = self.name
        samples = [_sample(choice, request) for choice in _choices(reply)[: request.samples]]
        tokens_in, tokens_out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        return ModelAnswer(tuple(samples) or (ModelSample(""),), model, tokens_in, tokens_out)


def _complaint(error: openai.OpenAIError) -> str:
    return str(error)[:_DETAIL_CHARS].lower()


def _is_too_long(error: openai.OpenAIError) -> bool:
    status = getattr(error, "status_code", None)
    if status == _TOO_LARGE:
        return True
    return status in _REFUSING and _is_about_length(error)


def _is_about_length(error: openai.OpenAIError) -> bool:
    return mentions(_complaint(error), _LENGTH_WORDS)


def _is_refusal(error: openai.OpenAIError) -> bool:
    """Whether the server refuses the form of the question, and not its length: one that answers 500 says so."""
    status = getattr(error, "status_code", None)
    if status not in _REFUSING:
        return False
    if _is_about_length(error):
        return False
    if status in _BAD_REQUEST:
        return True
    return mentions(_complaint(error), ALL_WORDS)


def _choices(reply: object) -> list[object]:
    choices = getattr(reply, "choices", None)
    return choices if isinstance(choices, list) else []


def _sample(choice: object, request: ModelRequest) -> ModelSample:
    text = _content(choice)
    return ModelSample(text, calls_of(getattr(choice, "message", None), text, request))


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
    choice = next(iter(_choices(reply)), None)
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


class OpenAIEmbedder:
    """timeout: seconds for one request. There are no retries: the caller has a fallback.

    redact: removes from each text what must not leave the site.
    """

    def __init__(self, base_url: str, name: str, api_key: str, timeout: float, redact: Callable[[str], str]) -> None:
        self.name = name
        self._redact = redact
        self._client = openai_transport.client(base_url, api_key, timeout)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raises ModelFailed."""
        try:
            masked = list(map(self._redact, texts))
            reply = await self._client.embeddings.create(model=self.name, input=masked, encoding_format="float")
            vectors = [list(map(float, item.embedding)) for item in reply.data]
        except openai.OpenAIError as error:
            raise openai_transport.failure(error) from None
        except (ValueError, TypeError, AttributeError):  # the client does not validate what a gateway answers
            raise ModelFailed(ModelFailure.MALFORMED, "the server's reply holds no vectors") from None
        if len(vectors) != len(texts) or not all(vectors):
            raise ModelFailed(ModelFailure.MALFORMED, f"{len(vectors)} vectors for {len(texts)} texts")
        return vectors

    async def close(self) -> None:
        await self._client.close()
