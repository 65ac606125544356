"""Each dialect reads its own examples, in lines and in blurred lines alike."""

import pytest

from diagnoser.compress.line_masking import blurred
from diagnoser.compress.lines import body_of, carried_blur, clean, strip_blurred
from diagnoser.dialects import DIALECTS, Dialect, Example, Peeled, mentions

EXAMPLES = [(dialect, example) for dialect in DIALECTS for example in dialect.examples]


@pytest.mark.parametrize(("dialect", "example"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_a_dialect_reads_its_examples(dialect: Dialect, example: Example) -> None:
    """Body and fields are those that the example states, and the blurred line gives the blur of the same body."""
    carrier = dialect.name if dialect.peeled is Peeled.CARRIED else ""
    prefix, body = body_of(example.line.encode(), carrier)
    assert body.decode() == example.body
    fields = example.fields
    assert prefix.rank == int(fields.get("rank", -1))
    assert (prefix.task, prefix.local) == (int(fields.get("task", -1)), int(fields.get("local", -1)))
    assert prefix.node == fields.get("node", fields.get("host", fields.get("ip", "")))
    assert prefix.pod == fields.get("pod", "")
    _, blur_of_body = strip_blurred(blurred(example.line.encode()))
    blur_of_body = carried_blur(blur_of_body) if carrier else blur_of_body
    assert blur_of_body.strip() == blurred(example.body.encode()).strip()


def test_a_pod_is_no_node() -> None:
    """The name of a pod tells who speaks and nothing about the machine."""
    for line in (b"[pod/llm-worker-3/trainer] boom", b"llm-worker-3 boom"):
        prefix, body = body_of(line)
        assert (prefix.pod, prefix.node, body) == ("llm-worker-3", "", b"boom")


@pytest.mark.parametrize("mention", mentions.MENTIONS, ids=lambda mention: mention.examples[0][1])
def test_a_mention_reads_its_examples(mention: mentions.Mention) -> None:
    """A message tells the rank, node or host that its examples state."""
    for line, told in mention.examples:
        found = mention.pattern.search(line)
        assert found is not None and found[1] == told
        assert told in mentions.named(mention.tells, line)


def test_the_scheduler_of_kubernetes_places_a_pod() -> None:
    """Its event names pod and node; another line names none."""
    event = "Normal  Scheduled  2m  default-scheduler  Successfully assigned default/llm-worker-1 to gpu-017"
    assert mentions.assigned_pod(event) == ("llm-worker-1", "gpu-017")
    assert mentions.assigned_pod("assigned llm-worker-1 to gpu-017") is None


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            rb'{"log":"  File \"a.py\", line 3\n","stream":"stderr","time":"2026-01-02T03:04:05.123456789Z"}',
            b'2026-01-02T03:04:05.123456789Z stderr F   File "a.py", line 3',
        ),
        (
            rb'{"log":"half","stream":"stdout","time":"2026-01-02T03:04:05.1234567Z"}',
            b"2026-01-02T03:04:05.1234567Z stdout P half",
        ),
        (
            rb'{"log": "KeyError: 1\n", "stream": "stderr", "time": "2026-01-02T03:04:05.123456789Z"}',
            b"2026-01-02T03:04:05.123456789Z stderr F KeyError: 1",
        ),
        (rb'{"log":"x\n","stream":"stderr"}', rb'{"log":"x\n","stream":"stderr"}'),
        (rb'{"log":"cut', rb'{"log":"cut'),
        (rb'{"log":{"a":1},"loss":3}', rb'{"log":{"a":1},"loss":3}'),
    ],
)
def test_dockers_records_are_opened(record: bytes, line: bytes) -> None:
    """A record of the JSON log driver reads like a line of the container runtime; anything else stays as it came."""
    assert clean(record + b"\nnext\n").lines == [line, b"next"]
