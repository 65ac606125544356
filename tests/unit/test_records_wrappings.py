"""What a carrier puts around each message, as the tracebacks within show it."""

from diagnoser.records import wrappings

_TABLE = [
    '7,gpu-4,stderr,"Traceback (most recent call last):"',
    '8,gpu-4,stderr,"  File ""fit.py"", line 3, in step"',
    "9,gpu-4,stderr,\"KeyError: 'lr'\"",
]


def _messages(lines: list[str]) -> list[str]:
    wrapping = wrappings.learn(lines, lambda body: body)
    return [wrapping.split(line)[1] for line in lines]


def test_cells_of_a_table_around_a_traceback_are_taken_off() -> None:
    """A row of a table is its last cell, with its quotes as they were printed."""
    assert _messages(_TABLE) == [
        "Traceback (most recent call last):",
        '  File "fit.py", line 3, in step',
        "KeyError: 'lr'",
    ]


def test_names_in_front_of_messages_tell_who_speaks() -> None:
    """Two processes that are numbered in front of their lines have two voices."""
    lines = [
        f"pod/run-{number} stderr {text}"
        for number in (0, 1)
        for text in ("Traceback (most recent call last):", '  File "a.py", line 3')
    ]
    wrapping = wrappings.learn(lines, lambda body: body)
    assert {wrapping.split(line)[0].voice for line in lines} == {"wpod/run-0", "wpod/run-1"}


def test_the_head_of_a_logger_is_no_wrapping() -> None:
    """A head that only the first line of a traceback has belongs to its record."""
    lines = ["fit[3]: Traceback (most recent call last):", '  File "fit.py", line 3, in step', "KeyError: 'lr'"]
    assert _messages(lines) == lines


def test_a_stream_whose_tracebacks_are_whole_has_no_wrapping() -> None:
    """What known prefixes stand in front of is not broken, and its lines are read no further."""
    lines = ["[rank0]: Traceback (most recent call last):", '[rank0]:   File "fit.py", line 3, in step']
    assert wrappings.learn(lines, lambda line: line.removeprefix("[rank0]: ")) is wrappings.UNWRAPPED
