"""The columns and Arrow types that ``send_arrow`` accepts.

Owns their names, the format strings, and the errors about them. Must not know arrays. Invariant: what is accepted here can be read
by ``input_columns``; an error names the column, its type and the types that are expected.

Sources: "The Arrow C data interface" (format strings); Spark's Kafka sink (names and types of the columns).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.records.arrow_stream import ArrowField

IGNORED = frozenset({"offset", "timestampType", "timestamp_type", "leader_epoch"})
"""Columns of records that were read, which mean nothing for writing."""

_EXPECTED = {
    "key": "binary or utf8",
    "value": "binary or utf8",
    "topic": "utf8",
    "partition": "int32 or int64",
    "headers": "list<struct<key: utf8, value: binary>>",
    "timestamp": "timestamp, or int64 for milliseconds",
}

NULLS, OFFSETS_32, OFFSETS_64, FIXED, VIEW, DICTIONARY, INT_32, INT_64 = range(8)
"""How a column is laid out. ``input_columns`` has these as literal numbers."""


class ColumnType(NamedTuple):
    """``width``: the size of a fixed value or of an index in bytes; of a timestamp, how many units a millisecond has, negated if
    it is the unit that has so many milliseconds. ``inner``: the types of the values, or of the children at ``places``."""

    kind: int
    width: int = 0
    inner: tuple[ColumnType, ...] = ()
    places: tuple[int, ...] = ()


class Layout(NamedTuple):
    """The types of the columns, and where they are among the children; those that the data does not have are missing."""

    types: dict[str, ColumnType]
    places: dict[str, int]


_BINARY = {
    "n": ColumnType(NULLS),
    "z": ColumnType(OFFSETS_32),
    "u": ColumnType(OFFSETS_32),
    "Z": ColumnType(OFFSETS_64),
    "U": ColumnType(OFFSETS_64),
    "vz": ColumnType(VIEW),
    "vu": ColumnType(VIEW),
}
_PARTITION = {"n": ColumnType(NULLS), "i": ColumnType(INT_32), "l": ColumnType(INT_64)}
_UNITS = {"tss": -1000, "tsm": 1, "tsu": 1000, "tsn": 1000000}
_LISTS = {"+l": OFFSETS_32, "+L": OFFSETS_64, "+m": OFFSETS_32}
_INDEX_WIDTHS = {"c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8}


def layout_of(field: ArrowField, topic: str | None) -> Layout:
    """The layout of these columns. ``topic``: where all rows go, whatever a column ``topic`` has.

    Raises ``TypeError`` for a wrong type, ``ValueError`` for unknown, doubled and missing columns.
    """
    if field.format != "+s":
        raise TypeError(f"data must have named columns, not a single one of the Arrow type {_text_of(field)}")
    layout = Layout({}, {})
    names = [child.name for child in field.children]
    for place, child in enumerate(field.children):
        if child.name in IGNORED or (child.name == "topic" and topic is not None):
            continue
        if child.name not in _EXPECTED:
            known = ", ".join(_EXPECTED)
            text = f"unknown column {child.name!r} of the Arrow type {_text_of(child)}: the columns of a record are {known}"
            raise ValueError(text + ("; reset_index(drop=True) leaves out the index of pandas" if _is_index(child) else ""))
        if child.name in layout.types:
            raise ValueError(f"there are two columns {child.name!r}")
        layout.types[child.name] = _type_of(child)
        layout.places[child.name] = place
    if "value" not in layout.types:
        raise ValueError(f"there is no column 'value', only {names}: it may be null, but it must be there")
    if topic is None and "topic" not in layout.types:
        raise ValueError(f"there is no topic: neither a column 'topic', only {names}, nor an argument")
    return layout


def _type_of(field: ArrowField) -> ColumnType:
    if field.name == "partition":
        found = None if field.dictionary else _PARTITION.get(field.format)
    elif field.name == "timestamp":
        found = None if field.dictionary else _timestamp(field.format)
    elif field.name == "headers":
        found = None if field.dictionary else _headers(field)
    else:
        found = _binary(field)
    if found is None:
        raise _wrong_type(field, _EXPECTED[field.name])
    return found


def _wrong_type(field: ArrowField, expected: str) -> TypeError:
    return TypeError(f"column {field.name!r} has the Arrow type {_text_of(field)}; expected: {expected}")


def _is_index(field: ArrowField) -> bool:
    return field.name.startswith("__index_level_")


_NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "e": "float16", "f": "float32", "g": "float64", "z": "binary", "Z": "large_binary", "u": "utf8",
    "U": "large_utf8", "vz": "binary_view", "vu": "utf8_view", "+l": "list", "+L": "large_list", "+s": "struct", "+m": "map",
}  # fmt: skip
_PREFIXES = {
    "ts": "timestamp",
    "td": "date",
    "tt": "time",
    "tD": "duration",
    "ti": "interval",
    "d:": "decimal",
    "w:": "fixed_size_binary",
}
"""Format strings, and the beginnings of those with parameters -> the names of the types."""


def _text_of(field: ArrowField) -> str:
    """The name of a type with those of the children, as ``list<struct<key: utf8, value: binary>>``."""
    name = _NAMES.get(field.format) or _PREFIXES.get(field.format[:2], repr(field.format))
    if field.dictionary:
        return f"dictionary<{name}, {_text_of(field.dictionary)}>"
    with_names = field.format == "+s"
    inner = ", ".join(f"{child.name}: {_text_of(child)}" if with_names else _text_of(child) for child in field.children)
    return f"{name}<{inner}>" if inner else name


def _binary(field: ArrowField) -> ColumnType | None:
    if field.dictionary is not None:
        width, values = _INDEX_WIDTHS.get(field.format), _binary(field.dictionary)
        nested = field.dictionary.dictionary is not None
        return None if width is None or values is None or nested else ColumnType(DICTIONARY, width, (values,))
    if field.format.startswith("w:"):
        return ColumnType(FIXED, int(field.format[2:]))
    return _BINARY.get(field.format)


def _timestamp(form: str) -> ColumnType | None:
    if form == "n":
        return ColumnType(NULLS)
    unit = 1 if form == "l" else _UNITS.get(form.partition(":")[0])
    return None if unit is None else ColumnType(INT_64, unit)


def _headers(field: ArrowField) -> ColumnType | None:
    """Lists of pairs, whose fields are found by name; or a map, where they are found by place: libraries name them differently."""
    if field.format == "n":
        return ColumnType(NULLS)
    if field.format not in _LISTS:
        return None
    pair = field.children[0]
    names = [child.name for child in pair.children]
    if field.format == "+m" and len(names) == 2:
        places = (0, 1)
    elif pair.format == "+s" and sorted(names) == ["key", "value"]:
        places = (names.index("key"), names.index("value"))
    else:
        return None
    inner = tuple(kind for kind in (_binary(pair.children[place]) for place in places) if kind is not None)
    if len(inner) < 2:
        return None
    return ColumnType(_LISTS[field.format], 0, (ColumnType(NULLS, 0, inner, places),))
