"""How often passwords may be tried: by each address, and for each account.

An account is bounded as a whole against many addresses that try for it. That alone would let anybody lock a person out,
so an address from which the person has signed in before has tries of its own.
"""

from collections import OrderedDict, deque
from ipaddress import ip_address, ip_network

WINDOW_SECONDS = 600.0
ADDRESS_TRIES = 30
"""Wrong passwords within the window from one address, whatever the account: a whole office may be behind it."""
ACCOUNT_TRIES = 10
"""For one account from all addresses that are new to it, and again from each that is not."""
REMEMBERED = 10_000


class LoginThrottle:
    """Remembers the ``REMEMBERED`` addresses and accounts that failed last. A wait is never longer than the window,
    because what is refused unseen counts as no try."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, account: str, address: str, now: float, *, is_known: bool) -> float:
        """Seconds until a password is looked at, 0 for now. is_known: the person has signed in from there before."""
        own = self._wait(_account(account, address, is_known), ACCOUNT_TRIES, now)
        return own if is_known else max(own, self._wait(f"address {address}", ADDRESS_TRIES, now))

    def failed(self, account: str, address: str, now: float, *, is_known: bool) -> None:
        """Call before the password is looked at: tries that come at once are all counted."""
        if not is_known:
            self._add(f"address {address}", ADDRESS_TRIES, now)
        self._add(_account(account, address, is_known), ACCOUNT_TRIES, now)

    def succeeded(self, account: str, address: str, *, is_known: bool) -> None:
        """Takes back what ``failed`` counted for this try."""
        keys = [_account(account, address, is_known), *([] if is_known else [f"address {address}"])]
        for failures in filter(None, map(self._failures.get, keys)):
            failures.pop()

    def _wait(self, key: str, tries: int, now: float) -> float:
        failures = self._failures.get(key)
        return max(0.0, failures[0] + WINDOW_SECONDS - now) if failures and len(failures) >= tries else 0.0

    def _add(self, key: str, tries: int, now: float) -> None:
        self._failures.setdefault(key, deque(maxlen=tries)).append(now)
        self._failures.move_to_end(key)
        if len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)


def _account(account: str, address: str, is_known: bool) -> str:
    return f"account {account} from {address}" if is_known else f"account {account}"


def network_of(address: str) -> str:
    """An IPv6 client is its /64: it may choose the rest."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((int(parsed), 64), strict=False))
