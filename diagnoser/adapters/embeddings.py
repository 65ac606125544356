"""Vectors of text from any server that speaks ``/v1/embeddings``."""

from collections.abc import Callable, Sequence

import openai

from diagnoser.adapters import openai_transport
from diagnoser.model.errors import ModelFailed, ModelFailure


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
            vectors = [[float(number) for number in item.embedding] for item in reply.data]
        except openai.OpenAIError as error:
            raise openai_transport.failure(error) from None
        except (ValueError, TypeError, AttributeError):  # the client does not validate what a gateway answers
            raise ModelFailed(ModelFailure.MALFORMED, "the server's reply holds no vectors") from None
        if len(vectors) != len(texts) or not all(vectors):
            raise ModelFailed(ModelFailure.MALFORMED, f"{len(vectors)} vectors for {len(texts)} texts")
        return vectors

    async def close(self) -> None:
        await self._client.close()
