"""Messages that Apache Kafka does not have: client-side assignors of consumer groups, which KIP-848 planned and Apache Kafka never
shipped.

Owns those messages, one module each, in kio's vocabulary, so that everything that reads kio's classes reads these too. Must not
know what they mean. Invariants: an API of ours has a key above 20000, which no Kafka will ever use; a message of Kafka's is added
to, never changed, and by tagged fields alone, with tags from 20000 on, which other implementations skip and whose defaults are
never written.

No ``from __future__ import annotations`` in these modules: kio reads the types of the fields.
"""

from collections.abc import Callable
from typing import Any

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType

_SIDES = {"request": (EntityType.request, RequestHeader), "response": (EntityType.response, ResponseHeader)}


def of(api_key: int, version: int, side: str, *, whole: bool = False) -> Callable[[type[Any]], type[Any]]:
    """Mark a class as kio marks its own: a part of a message, or the ``whole`` of it."""
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
    """Metadata of a field: its type on the wire, and its tag where it is a tagged field."""
    return {"kafka_type": kafka_type} if tag is None else {"kafka_type": kafka_type, "tag": tag}
