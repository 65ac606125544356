"""Requests to a running service."""

from typing import Any

from diagnoser.model.errors import BadInput


def fetch_json(address: str, token: str, sent: object = None) -> dict[str, Any]:
    """Fetch the JSON object at an address of the API.

    sent: what is posted there; None: it is only read. Raises BadInput with the error of the service.
    """
    import httpx  # the other commands start without it

    headers, method = {}, "GET"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if sent is not None:
        method = "POST"
    try:
        response = httpx.request(method, address, headers=headers, json=sent, timeout=10.0)
        body: dict[str, Any] = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadInput(f"{address}: no answer from a diagnoser service ({type(error).__name__})") from None
    if response.status_code != httpx.codes.OK:
        raise BadInput(f"{address}: {body.get('detail') or response.reason_phrase}")
    return body
