"""Reports phrases that a reader stumbles over: `python -m tools.plain_words [FILE ...]`, a part of `make lint`.

It reads documents, templates, alerts, and every line with a help text or a description of a setting.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHOLE = ("README.md", "docs/*.md", "deploy/**/*.md", "deploy/prometheus/*.yml", "diagnoser/web/templates/*.html")
PHRASES = {
    r"whatever(?! the verdict)": "say what is meant",
    r"(?:as (?:it|they)|as lines) comes?\b": "as it arrives; unchanged",
    r"of (?:its|their|your|our|her|his) own\b": "its own X, a separate X",
    r"(?:is|are|was|were|be|been) (?:told|said|asked for)\b": "name who does it: the service notifies",
    r"tell(?:s|ing)? of\b": "reports, shows",
    r"(?:is|are) to be \w+": "must be, or an active verb",
    r"nobody else's|(?:everybody|somebody|nobody) else's": "name whose",
    r"press(?:es)? (?:does|do)\b": "the button does nothing",
    r"(?:say|says|tell|tells) (?:its|their|the) (?:labels|name)s?\b": "put the subject first: its labels say",
    r"more right|as right\b": "correct, more accurate",
    r"painted over|at hand\b|by itself alone": "masked; available",
    r"(?-i:Of a|Whom|Whoever) ": "begin with the subject",
}
PATTERN = re.compile("|".join(rf"(?P<p{number}>\b(?:{phrase}))" for number, phrase in enumerate(PHRASES)), re.I)
HELP = re.compile(r"\bhelp=|description=|^\s+f?\"")


def findings(path: Path) -> Iterator[str]:
    """One line for each phrase: where it stands, and what to write in its place."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if path.suffix != ".py" or HELP.search(line):
            for match in PATTERN.finditer(line):
                advice = list(PHRASES.values())[int(str(match.lastgroup)[1:])]
                yield f"{path}:{number}: {match[0]!r}: {advice}"


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or [path for form in WHOLE for path in sorted(ROOT.glob(form))]
    if not sys.argv[1:]:
        files += [*sorted((ROOT / "diagnoser/commands").glob("*.py")), ROOT / "diagnoser/config/settings.py"]
    reports = [report for path in files for report in findings(path)]
    print("\n".join(reports), end="\n" if reports else "")  # noqa: T201
    sys.exit(bool(reports))


if __name__ == "__main__":
    main()
