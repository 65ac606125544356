"""The shipped rules, read once for processes that are forked from here: each would spend a quarter second on them."""

import sys

from diagnoser.config import loader, settings
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer

_read = loader.load_analyzer
_shipped = _read(settings.load({}))


def use() -> None:
    """In this process, wherever the rules are loaded, unless the site has rules of its own."""
    for module in list(sys.modules.values()):
        if getattr(module, "load_analyzer", None) is _read:
            module.load_analyzer = _loaded  # type: ignore[attr-defined]


def _loaded(settings: Settings) -> LogAnalyzer:
    return _read(settings) if settings.rules_dir else _shipped
