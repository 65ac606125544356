"""Requests to a running service."""

from typing import Any

from diagnoser.model.errors import BadInput


def fetch_json(address: str, token: str, sent: object = None) -> dict[str, Any]:
    """The JSON object at an address of the API; where there is something to send, its answer to that.

    Raises BadInput with the error of the service.
    """
    import httpx  # the other commands start without it

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        method = "GET" if sent is None else "POST"
        response = httpx.request(method, address, headers=headers, json=sent, timeout=10.0)
        body: dict[str, Any] = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(f"{address}: no answer from a diagnoser service ({type(error).__name__})") from None
    if response.status_code != httpx.codes.OK:
        raise BadInput(f"{address}: {body.get('detail') or response.reason_phrase}")
    return body
