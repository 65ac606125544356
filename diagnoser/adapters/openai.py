"""Any OpenAI-compatible server: vLLM, llama.cpp, a gateway, or the API itself."""

import openai
from openai import AsyncOpenAI

from diagnoser.errors import ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest

# What the client raises -> why there is no answer. The first row that fits decides.
_REASONS: tuple[tuple[type[Exception], ModelFailure], ...] = (
    (openai.APITimeoutError, ModelFailure.TIMEOUT),
    (openai.APIConnectionError, ModelFailure.UNAVAILABLE),
    (openai.APIResponseValidationError, ModelFailure.MALFORMED),
    (openai.OpenAIError, ModelFailure.UNAVAILABLE),
)


class OpenAIModel:
    """A language model behind ``/v1/chat/completions``. ``timeout`` in seconds, for one question."""

    def __init__(self, base_url: str, name: str, api_key: str, timeout: float) -> None:
        self.name = name
        # A server that needs no key still wants the header. No retries here: the caller has a deadline.
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key or "not-needed", timeout=timeout, max_retries=0)

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        """Raises ModelFailed."""
        try:
            reply = await self._client.chat.completions.create(
                model=self.name,
                messages=[
                    {"role": "system", "content": request.system},
                    {"role": "user", "content": request.user},
                ],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": dict(request.schema)},
                },
                max_tokens=request.max_tokens,
                temperature=request.temperature,
            )
        except openai.OpenAIError as error:
            reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
            raise ModelFailed(reason, _tell(error)) from None
        except ValueError:  # the client lets a body that is no JSON through as it fails
            raise ModelFailed(ModelFailure.MALFORMED, "the server's reply is not JSON") from None
        # The client does not validate either: a gateway may leave out any part.
        message = getattr(reply.choices[0], "message", None) if reply.choices else None
        text = getattr(message, "content", None)
        if not text:
            raise ModelFailed(ModelFailure.MALFORMED, "the answer is empty")
        usage = reply.usage
        return ModelAnswer(
            text, reply.model or self.name, usage.prompt_tokens if usage else 0, usage.completion_tokens if usage else 0
        )

    async def close(self) -> None:
        await self._client.close()


def _tell(error: openai.OpenAIError) -> str:
    """The error without its body: a server may echo the prompt, and with it the log."""
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__}" + (f", HTTP {status}" if status else "")
