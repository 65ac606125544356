"""Log records as JSON objects: the text, the time and the place of each, under the names that shippers use."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple

from diagnoser.ingest.batch import Labels, Place, RecordDefaults, Unattributed
from diagnoser.ingest.line_groups import YEAR_2000, YEAR_2100, LineGroup, LineGroups
from diagnoser.ingest.mapping import OWN, FieldMapping

NESTED_DEEP = 8


def flat(name: str, value: Any, deep: int = NESTED_DEEP) -> Iterator[tuple[str, str]]:
    """What an object holds, as ``kubernetes.pod_name``; nothing that is nested deeper than ``deep``."""
    if not isinstance(value, dict):
        if value is not None:
            yield name, label_text(value)
    elif deep:
        for key, inner in value.items():
            yield from flat(f"{name}.{key}" if name else key, inner, deep - 1)


def label_text(value: Any) -> str:
    """A number that a shipper's script has made a float is still whole; of a list, its first element."""
    match value:
        case float() if value.is_integer():
            return str(int(value))
        case [str() as first, *_]:
            return first
    return str(value)


MESSAGE = ("message", "log", "line", "msg", "text", "body", "MESSAGE")
NODE = ("node", "host", "hostname")
SOURCE = ("source", "stream")
TIME = ("time", "timestamp", "ts", "@timestamp", "date", "__REALTIME_TIMESTAMP")
_OURS = {
    name: OWN[0] + field
    for field, names in (
        ("job", ("job",)),
        ("attempt", ("attempt",)),
        ("rank", ("rank",)),
        ("cluster", ("cluster",)),
        ("node", NODE),
        ("source", SOURCE),
    )
    for name in names
}
"""Fields of our own format, and what they are called among labels: a record that has them was made for us."""
_TICKS = (1e3, 1e6, 1e9)  # numbers count seconds, milli-, micro- or nanoseconds: the size of the number tells


def text_of(record: dict[str, Any]) -> str | None:
    """The first text under one of the names of ``MESSAGE``: Filebeat's ``log`` is an object that names the file."""
    text = record.get("message")
    if type(text) is str:
        return text
    for name in MESSAGE:
        text = record.get(name)
        if type(text) is str:
            return text
    return None


def time_of(record: dict[str, Any]) -> float:
    """Seconds since the epoch; NaN when absent, infinity when unusable."""
    for name in TIME:
        value = record.get(name)
        if value is not None:
            return epoch(value)
    return math.nan


def epoch(value: Any) -> float:
    """Seconds since the epoch of a time as records write it; infinity when unusable."""
    if type(value) is str:
        value = _iso(value)
    if type(value) in (float, int):
        if YEAR_2000 <= value < YEAR_2100:
            return float(value)
        for ticks in _TICKS:
            if YEAR_2000 <= value / ticks < YEAR_2100:
                return float(value / ticks)
    return math.inf


def _iso(text: str) -> float | str:
    """ISO 8601 or a number in a string; a time without a zone is UTC."""
    try:
        if text[4:5] != "-":
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if not moment.tzinfo:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


_Getter = Callable[[dict[str, Any]], Any]


class _Outline(NamedTuple):
    """What matters of objects that have the same keys.

    plain: gets the values of keys that are names. holders: keys whose values may hold names, or be one, each with what
    stands in front of a name in it. values: gets those of both.
    """

    number: int
    plain: _Getter | None
    holders: tuple[tuple[str, str], ...]
    values: _Getter | None


class RecordPlaces:
    """Where records go. Those that name their place in the same words are placed once for all.

    groups: the lines of each place, for the caller to fill.
    """

    def __init__(self, defaults: RecordDefaults, mapping: FieldMapping) -> None:
        self.groups = LineGroups()
        self._defaults = defaults
        self._mapping = mapping
        self._outlines: dict[tuple[str, ...], _Outline] = {}
        self._known: dict[Any, tuple[Place, LineGroup] | Unattributed] = {}
        self._last: dict[tuple[str, ...], tuple[_Getter | None, Any, tuple[Place, LineGroup] | Unattributed]] = {}
        """Of the last record with these keys: what gets its values, these, and where it went. The next one with equal
        values, however deep, goes there too: to compare them takes a fifth of the time of looking for names."""

    def of(self, record: dict[str, Any]) -> tuple[Place, LineGroup] | Unattributed:
        """Where the record's line goes, and the lines that it joins."""
        keys = tuple(record)
        last = self._last.get(keys)
        if last is not None:
            get, before, placed = last
            values = get(record) if get else None
            if values == before:
                return placed
        says = self._says(record, "", NESTED_DEEP)
        try:
            known = self._known.get(says)
        except TypeError:  # a list where a name was expected
            return self._placed(record)
        if known is None:
            known = self._known[says] = self._placed(record)
        if last is None:
            get = self._outlines["", *keys].values
            values = get(record) if get else None
        self._last[keys] = get, values, known
        return known

    def _placed(self, record: dict[str, Any]) -> tuple[Place, LineGroup] | Unattributed:
        place = self._mapping.attribute(self.labels(record), self._defaults)
        if isinstance(place, Unattributed):
            return place
        return place, self.groups.at(place)

    def _says(self, record: dict[str, Any], path: str, deep: int) -> Any:
        """The values that may say where its line goes, in the order of the record. path: of an object in a record."""
        keys = (path, *record)
        outline = self._outlines.get(keys)
        if outline is None:
            outline = self._outlines[keys] = self._outline(path, record)
        said = [outline.number, outline.plain(record) if outline.plain else None]
        for key, inner in outline.holders:
            value = record[key]
            said.append(self._says(value, inner, deep - 1) if type(value) is dict and deep else value)
        return tuple(said)

    def _outline(self, path: str, record: dict[str, Any]) -> _Outline:
        """path: of an object in a record; "" for the record itself."""
        keys = list(record)
        ours: Mapping[str, str] = {}
        if not path:
            ours = _OURS
            text = next((key for key in MESSAGE if type(record.get(key)) is str), None)
            keys = [key for key in keys if key not in (text, *TIME)]
        holders, plain = list[str](), list[str]()
        for key in keys:
            if key in ours or self._mapping.may_hold_names(path + key):
                holders.append(key)
            elif self._mapping.name(path + key):
                plain.append(key)
        within = tuple((key, f"{path}{key}.") for key in holders)
        return _Outline(len(self._outlines), _getter(plain), within, _getter([*plain, *holders]))

    def labels(self, record: dict[str, Any]) -> Labels:
        """What the record says of its place, flat: ``kubernetes.pod_name``. Of our fields, the first that is there."""
        labels: dict[str, str] = {}
        ours = [key for key in _OURS if key in record]
        for key in dict.fromkeys((*ours, *record)):
            value = record[key]
            if value is None:
                continue
            if isinstance(value, dict):
                labels |= {name: text for name, text in flat(key, value) if self._mapping.name(name)}
            elif key in _OURS or self._mapping.name(key):
                labels.setdefault(_OURS.get(key, key), label_text(value))
        return tuple(labels.items())


def _getter(keys: Sequence[str]) -> _Getter | None:
    if not keys:
        return None
    return itemgetter(*keys)
