"""Runs beside a training: passes output through and ships it, follows log files, prints the diagnosis. Imports the
standard library of Python 3.8 or later and nothing else, so that the service can hand it out as one file."""

VARIABLES = frozenset(
    (
        "DIAGNOSER_URL",
        "DIAGNOSER_TOKEN",
        "DIAGNOSER_TOKEN_FILE",
        "DIAGNOSER_JOB",
        "DIAGNOSER_ATTEMPT",
        "DIAGNOSER_REPORTS",
        "DIAGNOSER_STACKS",
    )
)
"""What the environment may say to the client, and the client to its command; the service does not mind them."""
