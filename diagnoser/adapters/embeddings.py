"""Vectors of text from any server that speaks ``/v1/embeddings``."""

from collections.abc import Sequence

import openai
from openai import AsyncOpenAI

from diagnoser.errors import ModelFailed, ModelFailure

# What the client raises -> why there are no vectors. The first row that fits decides.
_REASONS: tuple[tuple[type[Exception], ModelFailure], ...] = (
    (openai.APITimeoutError, ModelFailure.TIMEOUT),
    (openai.AuthenticationError, ModelFailure.DENIED),
    (openai.PermissionDeniedError, ModelFailure.DENIED),
    (openai.NotFoundError, ModelFailure.NOT_FOUND),
    (openai.RateLimitError, ModelFailure.RATE_LIMITED),
    (openai.OpenAIError, ModelFailure.UNAVAILABLE),
)


class OpenAIEmbedder:
    """timeout: seconds, for one question; there is another way when it passes, so nothing is tried again."""

    def __init__(self, base_url: str, name: str, api_key: str, timeout: float) -> None:
        self.name = name
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key or "not-needed", timeout=timeout, max_retries=0)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raises ModelFailed."""
        try:
            reply = await self._client.embeddings.create(model=self.name, input=list(texts), encoding_format="float")
            found = [[float(value) for value in one.embedding] for one in reply.data]
        except openai.OpenAIError as error:
            reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
            raise ModelFailed(reason, type(error).__name__) from None
        except (ValueError, TypeError, AttributeError):  # the client does not validate what a gateway answers
            raise ModelFailed(ModelFailure.MALFORMED, "the server's reply holds no vectors") from None
        if len(found) != len(texts) or not all(found):
            raise ModelFailed(ModelFailure.MALFORMED, f"{len(found)} vectors for {len(texts)} texts")
        return found

    async def close(self) -> None:
        await self._client.close()
