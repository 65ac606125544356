"""Where lines name hosts: prefixes of system logs, reports of launchers and schedulers, their lists.

They find every name that a line gives away, whoever it speaks of; ``mentions`` finds the one that it is about.
"""

from itertools import chain, islice

from diagnoser.dialects.node_lists import LIST as _LIST
from diagnoser.dialects.node_lists import NAMES_MAX, PLACES, has_digit, is_host_name, names_at

_NAME = r"([A-Za-z](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?)"
_CLOCK = r"(?:[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.,]{8,20}(?:Z|[+-][0-9:]{4,6})?)"
_DAEMON = (
    r"(?:kernel|systemd|slurm|nvidia|nv-|dcgm|dockerd|containerd|kubelet|crio|sshd|mcelog|rasdaemon|munged|lustre|smartd"
    r"|ipmievd|pbs_mom|cron|chronyd|NetworkManager|rsyslogd|opensm|ibacm|audit)"
)
_PLACES = (
    rf"{_CLOCK} {_NAME} {_DAEMON}[A-Za-z0-9_.()@-]{{0,64}}(?:\[[0-9]{{1,10}}\])?:",  # syslog
    rf"[A-Z][a-z]{{2}} {{1,2}}[0-9]{{1,2}} [0-9:]{{8}} {_NAME} [A-Za-z0-9_./-]{{1,64}}\[[0-9]{{1,10}}\]:",
    rf"\bhost {{2,12}}: {_NAME}",  # torchrun's table of failures
    rf"\bslurmstepd-{_NAME}:",
    rf"\*\*\* (?:JOB|STEP) [^\s]{{1,40}} ON {_NAME}",
    rf"\bsrun: error: {_LIST}: ",
    rf"(?:^|[\s>|]){_NAME}:[0-9]{{1,10}}:[0-9]{{1,10}} \[[0-9]{{1,3}}\]",  # NCCL
    rf"<[0-9]{{1,5}}\*{_NAME}>",  # LSF
    rf"(?i)\bhosts?(?:\(s\))? {{0,2}}<{_NAME}>",
    r"\bhost(?:name)?[\"']?[:=] ?[\"']?([A-Za-z][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){2,6})",
    rf"\[[A-Za-z0-9_-]{{1,32}}@{_NAME} [^\]\n]{{1,200}}\][#$]",  # a shell's prompt
    r"\b(ip-[0-9]{1,3}(?:-[0-9]{1,3}){3}(?:\.[A-Za-z0-9-]{1,63}){0,5})\b",
)
"""Where nothing but the name of a host stands."""
_LIKELY = (
    rf"(?i)\b(?:host(?:name)?|node(?:name|_ip)?|server)[\"']?(?: {{0,2}}[:=] {{0,2}}| {{1,2}})[\"'<(]?{_NAME}",
    rf"(?i)\b(?:failure|failed|running|down|process|crash|died|lost) (?:on|at) {_NAME}",
    rf"\[{_NAME}\]:[0-9]{{2,5}}\b",
    rf"\b[a-z]{{2,8}}://{_NAME}:[0-9]{{2,5}}\b",
)
"""Where other words stand as well: what has no digit there is none."""


def hosts_in(text: str) -> list[str]:
    """Hosts that ``text`` names in places of their own, each once, in an order that depends on the text alone.
    Versions, devices and files are none."""
    likely = filter(has_digit, names_at(text, (*_LIKELY, *PLACES)))
    named = dict.fromkeys(islice(chain(names_at(text, _PLACES), likely), NAMES_MAX))
    return list(filter(is_host_name, named))
