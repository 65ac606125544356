"""Runs the tools that a model calls, within the bounds of one consultation, and writes down what it looked at."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from diagnoser.failure_agent.tools import Findings, Look, Tool, tool_named
from diagnoser.llm import evidence
from diagnoser.llm.view import delimited, plain
from diagnoser.model import Line, ToolUse
from diagnoser.model.errors import BadInput
from diagnoser.ports import ToolCall, ToolRound
from diagnoser.redaction.redact import mask_key_blocks

ROUNDS_MAX = 3
CALLS_MAX = 4
"""Calls of one round that are run."""
CHARS_MAX = 9_000
"""Text of all results of a consultation."""
RESULTS_TOKENS = 4_000
"""Room for that, for the calls, and for what is said around them."""
_RESULT_CHARS = 3_000
_LINE_CHARS = 300
_SHOWN_CHARS = 160
"""Of a call, for people."""
_LAST = "These were the last results. Answer now."


class Toolbox:
    """One consultation's. marker: stands around every result, as around the log."""

    def __init__(self, look: Look, marker: str) -> None:
        self._look = look
        self._marker = marker
        self._numbers = {line: number for number, line in look.lines.items()}
        self._cited: dict[str, dict[int, Line]] = {}
        self._chars = CHARS_MAX
        self._rounds = 0
        self.uses: list[ToolUse] = []

    @property
    def cited(self) -> Mapping[str, Mapping[int, Line]]:
        """Lines outside the log that were shown: source -> number -> line."""
        return self._cited

    @property
    def is_spent(self) -> bool:
        """Whether the model has to answer now."""
        return self._rounds >= ROUNDS_MAX or self._chars <= 0

    async def run(self, calls: Sequence[ToolCall]) -> ToolRound:
        """The results of the first calls, each once. Whatever a call holds, there is an answer to it."""
        chosen: list[ToolCall] = []
        for call in calls:
            if call not in chosen:
                chosen.append(call)
        chosen = chosen[:CALLS_MAX]
        self._rounds += 1
        results = [await self._result(call) for call in chosen]
        if self.is_spent:
            results[-1] = f"{results[-1]}\n{_LAST}"
        return ToolRound(tuple(chosen), tuple(results))

    async def _result(self, call: ToolCall) -> str:
        try:
            tool = tool_named(call.name)
            arguments = tool.arguments.model_validate(call.arguments)
            found = await tool.run(self._look, arguments)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            return self._refused(call, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except BadInput as error:
            return self._refused(call, str(error))
        return self._shown(call, tool, found)

    def _refused(self, call: ToolCall, why: str) -> str:
        self.uses.append(ToolUse(self._spoken(call), None))
        return self._spend(f"{self._for_model(call.name)} was refused: {self._for_model(why)}")

    def _shown(self, call: ToolCall, tool: Tool, found: Findings) -> str:
        """The findings between markers, each line with the number that it may be cited by."""
        texts = [f"- {text}" for text in map(self._for_model, found.texts)]
        lines = [*self._numbered(tool, found.lines), *texts] or ["nothing"]
        self.uses.append(ToolUse(self._spoken(call), len(found.lines) + len(found.texts)))
        head = f"{self._marker} {tool.name} begins"
        if tool.source and found.lines:
            head += f'; to cite it, add "source": "{tool.source}"'
        body, room = [], min(_RESULT_CHARS, self._chars)
        for line in lines:
            room -= len(line) + 1
            if room < 0:
                body.append("... cut")
                break
            body.append(line)
        return self._spend("\n".join(filter(None, [head, *body, found.note, f"{self._marker} {tool.name} ends"])))

    def _numbered(self, tool: Tool, lines: Sequence[Line]) -> Iterator[str]:
        masked = mask_key_blocks(line.text for line in lines)
        for line, text in zip(lines, masked, strict=True):
            name = str(self._number_of(tool.source, line))
            if line.rank >= 0:
                name += f" r{line.rank}"
            yield f"{name}| {self._for_model(text)}"

    def _number_of(self, source: str, line: Line) -> int:
        """What the view calls a line of the log; of another source, its place among those that were shown of it."""
        if not source:
            return self._numbers[line]
        lines = self._cited.setdefault(source, {})
        for number, known in lines.items():
            if known == line:
                return number
        lines[len(lines) + 1] = line
        return len(lines)

    def _for_model(self, text: str) -> str:
        return delimited(self._look.pseudonyms.hide(text), self._marker)[:_LINE_CHARS]

    def _spoken(self, call: ToolCall) -> str:
        """A call as people read it: with true names, secrets masked, and no links to follow."""
        given = ", ".join(f"{name}={value!r}" for name, value in (call.arguments or {}).items())
        pseudonyms = self._look.pseudonyms
        text = pseudonyms.redact(pseudonyms.reveal(plain(f"{call.name}({given})")))
        return evidence.without_links(text)[:_SHOWN_CHARS]

    def _spend(self, text: str) -> str:
        self._chars -= len(text)
        return text
