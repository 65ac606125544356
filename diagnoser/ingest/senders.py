"""Whose message a record of a node's log is, by what journald says of its sender.

journald sets the fields that begin with ``_`` itself. A transport of ``kernel`` also carries what root writes to
``/dev/kmsg``; only the kernel's own records have the facility ``kern``. An identifier, a tag or a program's name is the
sender's to choose.
"""

from collections.abc import Mapping

from diagnoser.ingest.presets import DAEMON_UNITS, SENDER_NAMES
from diagnoser.model import DAEMON, KERNEL_SOURCES, SYSLOG

_OF_KERNEL = {"transport": {"kernel"}, "facility": {"0", "kern"}, "identifier": {"kernel"}}
"""Role -> what a record of the kernel's own may say there."""


def vouched_source(source: str, values: Mapping[str, str]) -> str:
    """The source, or ``syslog`` where the record itself does not bear it out. Where it says nothing of its sender, the
    word of the shipper stands.

    values: of the record, by canonical name.
    """
    if source in KERNEL_SOURCES and _why_not_kernel(values):
        return SYSLOG
    if source != DAEMON:
        return source
    if not _may_be_daemon(values):
        return SYSLOG
    return source


def _may_be_daemon(values: Mapping[str, str]) -> bool:
    """Whether root runs it as one of the units of daemons, or nothing is said of either."""
    uids, units = _given(values, "uid"), _given(values, "unit")
    if not uids | units:
        return True
    if uids != {"0"}:
        return False
    if not units:
        return False
    return units <= set(DAEMON_UNITS)


def doubts(source: str, values: Mapping[str, str]) -> str:
    """Why lines of this source would prove nothing about their node, or may prove what the kernel never said; "" where
    neither is so. source: before ``vouched_source``."""
    vouched = vouched_source(source, values)
    if vouched == SYSLOG:
        why = _why_not_kernel(values) if source in KERNEL_SOURCES else ""
        return f"describes the node, and proves nothing about it{': ' if why else ''}{why}"
    if vouched in KERNEL_SOURCES and not _given(values, "facility"):
        return (
            "proves what the shipper calls the kernel's: let it read nothing but records of facility kern, from "
            "/dev/kmsg or of journald's _TRANSPORT=kernel, or send SYSLOG_FACILITY with each"
        )
    return ""


def _why_not_kernel(values: Mapping[str, str]) -> str:
    """What shows that the record is not the kernel's own; "" where nothing does."""
    for role, allowed in _OF_KERNEL.items():
        if others := _given(values, role) - allowed:
            return f"its {role} is {min(others)}, so it is not the kernel's own"
    if _given(values, "facility"):
        return ""
    if _given(values, "transport"):
        return "send journald's SYSLOG_FACILITY as well, for root may write to /dev/kmsg, too"
    return ""


def _is_shown(values: Mapping[str, str], *roles: str) -> bool:
    return any(_given(values, role) for role in roles)


def _given(values: Mapping[str, str], role: str) -> set[str]:
    """What the record says in this role, under any of its names."""
    return {values[name] for name in SENDER_NAMES[role] if values.get(name)}
