"""How often passwords may be tried: by each address, and for each account, at all replicas together.

An account is bounded as a whole against many addresses that try for it. That alone would let anybody lock a person out,
so an address from which the person has signed in before has tries of its own. A wait is never longer than the window,
because what is refused unseen counts as no try.
"""

from ipaddress import ip_address, ip_network

WINDOW_SECONDS = 600.0
ADDRESS_TRIES = 30
"""Wrong passwords within the window from one address, whatever the account: a whole office may be behind it."""
ACCOUNT_TRIES = 10
"""For one account from all addresses that are new to it, and again from each that is not."""


def counted_tries(account: str, address: str, *, is_known: bool) -> dict[str, int]:
    """What a try counts for -> how many there may be. is_known: the person has signed in from there before."""
    if is_known:
        return {f"account {account} from {address}": ACCOUNT_TRIES}
    return {f"account {account}": ACCOUNT_TRIES, f"address {address}": ADDRESS_TRIES}


def network_of(address: str) -> str:
    """An IPv6 client is its /64: it may choose the rest."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return address if parsed.version == 4 else str(ip_network((int(parsed), 64), strict=False))
