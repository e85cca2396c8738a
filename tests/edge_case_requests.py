"""Requests with edge cases in their fields, for every API and version, generated from kio's schema.

Owns the edge cases of each type, and the generation of messages. Must not know the meaning of an API. Invariant: the messages are
valid in Kafka's protocol, except strings that are not UTF-8; ``malformed_frames`` generates invalid ones.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from ottla.protocol.apis import PUSHED, SPOKEN, Api
from ottla.protocol.codec import RequestHeader, encode_request
from ottla.protocol.conversion import wire_class
from ottla.protocol.schema import is_nullable, is_tuple, nested_class
from ottla.records import NewRecord, encode_batch
from tests.message_conversion import upgrade
from tests.simulation.files import content

NOT_UTF8, _BROKEN = "¤¤", b"\xff\xfe\xfd\xfc"
"""A word that ``frame`` turns into bytes that are none."""

LOGIN = frozenset({Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""What only a client of ours speaks: the embedded broker asks no one who he is."""

CENTRAL = frozenset({Api.CONSULT, Api.REGISTER, Api.LEAVE}) | PUSHED
"""What only a broker in ZooKeeper serves."""

MANY = 3_000
"""The length of a giant array."""

_BATCH = encode_batch([NewRecord(b"k", b"v", timestamp=1)])
_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_WORDS = ["", "a", "\x00", "..", "x" * 249, "x" * 300, "topic with blanks", "__consumer_offsets", "-1", "0", "1", NOT_UTF8]
_BYTES = [b"", b"\x00", b"\x00\x01\x00\x00\x00\x00", b"\xff" * 50]
_RECORDS = [b"", _BATCH, _BATCH * 2, _BATCH[:-1], _BATCH[:40], b"\x00" * 61, _BATCH[:16] + b"\x01" + _BATCH[17:]]


@dataclasses.dataclass(frozen=True)
class Known:
    """Existing names, so that requests also use them."""

    words: Sequence[str] = ()
    ids: Sequence[uuid.UUID] = ()
    numbers: Sequence[int] = ()


def messages(api: Api, version: int, known: Known) -> st.SearchStrategy[Any]:
    """Neutral requests of one version of an API."""
    return _entity(wire_class(api, version, "request"), known).map(lambda wire: upgrade(api, "request", wire))


def one_edge_each(api: Api, version: int, known: Known) -> Iterator[Any]:
    """Neutral requests of one version in which one field after the other is at each of its edges, the others being plain.

    Giant arrays are in the newest version alone: they take long, and no version takes them differently.
    """
    giant = MANY if version == SPOKEN[api].maximum else 3
    for wire in _one_edge_each(wire_class(api, version, "request"), known, giant):
        yield upgrade(api, "request", wire)


def _one_edge_each(cls: type[Any], known: Known, giant: int) -> Iterator[Any]:
    plain = _plain(cls, known)
    for field in dataclasses.fields(cls):
        inner = nested_class(field.type)
        kind = field.metadata.get("kafka_type", "")
        values = list(_one_edge_each(inner, known, 3)) if inner is not None else dict.fromkeys(_EDGES[kind](known))
        if is_tuple(field.type):
            one = getattr(plain, field.name)
            values = [(), one * 2, one * giant, *((value,) for value in values)]
        if is_nullable(field.type) and kind != "uuid":
            values = [None, *values]
        for value in values:
            yield dataclasses.replace(plain, **{field.name: value})


def _plain(cls: type[Any], known: Known) -> Any:
    """A message that names what a broker knows: the first word is a topic, the second a group."""

    def value(field: dataclasses.Field[Any]) -> Any:
        inner = nested_class(field.type)
        kind = field.metadata.get("kafka_type", "")
        if inner is not None:
            one = _plain(inner, known)
        elif kind == "string":
            one = known.words["group" in field.name]
        elif kind == "uuid":
            one = known.ids[0]
        else:
            one = _BATCH if kind == "records" else _EDGES[kind](known)[0]
        return (one,) if is_tuple(field.type) else one

    return cls(**{field.name: value(field) for field in dataclasses.fields(cls)})


def frame(api: Api, version: int, message: Any, correlation_id: int = 1) -> bytes:
    """A request on the wire, without its length."""
    pieces = encode_request(RequestHeader(api, version, correlation_id, "edge"), message)
    data = b"".join(map(content, pieces))[4:]
    return data.replace(NOT_UTF8.encode(), _BROKEN)


def _entity(cls: type[Any], known: Known, giant: bool = True) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{field.name: _field(field, known, giant) for field in dataclasses.fields(cls)})


def _field(field: dataclasses.Field[Any], known: Known, giant: bool) -> st.SearchStrategy[Any]:
    inner = nested_class(field.type)
    kind = field.metadata.get("kafka_type", "")

    def value(giant: bool) -> st.SearchStrategy[Any]:
        return _entity(inner, known, giant) if inner is not None else st.sampled_from(_EDGES[kind](known))

    found = _array(value(giant), value(False) if giant else None) if is_tuple(field.type) else value(giant)
    return st.none() | found if is_nullable(field.type) and kind != "uuid" else found


def _array(item: st.SearchStrategy[Any], of_giant: st.SearchStrategy[Any] | None) -> st.SearchStrategy[tuple[Any, ...]]:
    """None, some, the same twice, very many times the same.

    ``of_giant``: the items of the last, without giant arrays in them: one of 3,000 in another is 9 million items, and took minutes.
    """
    some = st.lists(item, max_size=3).map(tuple)
    twice = item.map(lambda one: (one, one))
    many = of_giant.map(lambda one: (one,) * MANY) if of_giant is not None else twice
    return st.integers(0, 60).flatmap(lambda dice: many if dice == 60 else twice if dice > 50 else some)


def _integers(bits: int) -> Callable[[Known], list[int]]:
    limit = 1 << (bits - 1)
    edges = [0, 1, -1, 2, 3, limit - 1, -limit, -2]
    return lambda known: [*edges, *(number for number in known.numbers if -limit <= number < limit)]


_EDGES: dict[str, Callable[[Known], list[Any]]] = {
    **{kind: _integers(bits) for kind, bits in _INTEGERS.items()},
    "uint16": lambda known: [0, 1, 65_535],
    "bool": lambda known: [False, True],
    "float64": lambda known: [0.0, -1.0, float("inf"), float("nan")],
    "string": lambda known: [*known.words, *known.words, *_WORDS],
    "bytes": lambda known: _BYTES,
    "records": lambda known: [None, *_RECORDS],
    "uuid": lambda known: [None, uuid.UUID(int=2**127), *known.ids],
    "timedelta_i32": lambda known: [_milliseconds(count) for count in (0, 1, -1, 10_000, 2**31 - 1, -(2**31))],
}


def _milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)
