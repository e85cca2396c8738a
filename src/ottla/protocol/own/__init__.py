"""Messages for client-side assignors of consumer groups, which KIP-848 planned and Apache Kafka never shipped.

Owns those messages, one module each, declared as kio's are, so that the same code reads and writes them. Must not know their
meaning. Invariants: Ottla's APIs have keys above 20000, which Kafka does not use; a message of Kafka's is only extended, by tagged
fields with tags from 20000 on, which other implementations skip and whose defaults are never written.

No ``from __future__ import annotations`` in these modules: kio reads the types of the fields.
"""

from collections.abc import Callable
from typing import Any

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType

_SIDES = {"request": (EntityType.request, RequestHeader), "response": (EntityType.response, ResponseHeader)}


def of(api_key: int, version: int, side: str, *, whole: bool = False) -> Callable[[type[Any]], type[Any]]:
    """Give a class the attributes of kio's classes: for a part of a message, or for the ``whole`` message."""
    kind, header = _SIDES[side]

    def mark(cls: type[Any]) -> type[Any]:
        cls.__type__ = kind if whole else EntityType.nested
        cls.__version__ = version
        cls.__flexible__ = True
        cls.__api_key__ = api_key
        cls.__header_schema__ = header
        return cls

    return mark


def wire(kafka_type: str, tag: int | None = None) -> dict[str, object]:
    """The metadata of a field: its type on the wire, and its tag if it is a tagged field."""
    return {"kafka_type": kafka_type} if tag is None else {"kafka_type": kafka_type, "tag": tag}
