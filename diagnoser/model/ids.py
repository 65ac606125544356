"""Ids that sort by time, as ULIDs do: 26 characters, 48 bits of milliseconds and then 80 others."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
OTHER_BITS = 80


def id_of(time: float, other: int) -> str:
    """time: seconds since the epoch. other: less than 2**80; random where ids must not meet."""
    value = max(0, int(time * 1000)) << OTHER_BITS | other
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def first_id(time: float) -> str:
    """No id of this time or later sorts before it."""
    return id_of(time, 0)
