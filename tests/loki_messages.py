"""Loki's push request as generated classes: nobody publishes them for Python, so their descriptor is made here.

``PushRequest`` has texts where Loki has texts, and refuses what is not UTF-8, as its clients do.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "loki_tests"
_Field = descriptor_pb2.FieldDescriptorProto


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, bool, str]) -> None:
        kind = file.message_type.add(name=name)
        for field, number, of, repeated, type_name in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            kind.field.add(name=field, number=number, type=of, label=label, type_name=type_name or None)

    inner = _Field.TYPE_MESSAGE
    message("Timestamp", ("seconds", 1, _Field.TYPE_INT64, False, ""), ("nanos", 2, _Field.TYPE_INT32, False, ""))
    message("LabelPair", ("name", 1, _Field.TYPE_STRING, False, ""), ("value", 2, _Field.TYPE_STRING, False, ""))
    message(
        "Entry",
        ("timestamp", 1, inner, False, f".{_PACKAGE}.Timestamp"),
        ("line", 2, _Field.TYPE_STRING, False, ""),
        ("structured_metadata", 3, inner, True, f".{_PACKAGE}.LabelPair"),
    )
    message(
        "Stream",
        ("labels", 1, _Field.TYPE_STRING, False, ""),
        ("entries", 2, inner, True, f".{_PACKAGE}.Entry"),
        ("hash", 3, _Field.TYPE_UINT64, False, ""),
    )
    message("PushRequest", ("streams", 1, inner, True, f".{_PACKAGE}.Stream"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("PushRequest", "Stream", "Entry", "LabelPair", "Timestamp")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


CLASSES = _classes()
PushRequest: Any = CLASSES["PushRequest"]
