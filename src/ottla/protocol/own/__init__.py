"""Ottla's own messages: those of client-side assignors of consumer groups, and those of the central coordinator.

KIP-848 planned the former, and Apache Kafka never shipped them; the latter are Kafka's draft of a consumer coordinator for 0.9.

Owns those messages, one module each, declared as kio's are, so that the same code reads and writes them. Must not know their
meaning. Invariants: Ottla's APIs have keys above 20000, which Kafka does not use; a message of Kafka's is only extended, by tagged
fields with tags from 20000 on, which other implementations skip and whose defaults are never written.

No ``from __future__ import annotations`` in these modules: kio reads the types of the fields.
"""

from collections.abc import Callable
from typing import Any

from kio.schema.request_header.v1.header import RequestHeader as DraftHeader
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v0.header import ResponseHeader as DraftResponseHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType

_SIDES = {"request": (EntityType.request, RequestHeader), "response": (EntityType.response, ResponseHeader)}
_DRAFT_HEADERS = {"request": DraftHeader, "response": DraftResponseHeader, "answer": DraftHeader}


def of(api_key: int, version: int, side: str, *, whole: bool = False) -> Callable[[type[Any]], type[Any]]:
    """Give a class the attributes of kio's classes: for a part of a message, or for the ``whole`` message."""
    kind, header = _SIDES[side]
    return _marker(api_key, version, kind if whole else EntityType.nested, header, flexible=True)


def of_draft(api_key: int, side: str, *, whole: bool = False) -> Callable[[type[Any]], type[Any]]:
    """Do the same for a message of the central coordinator, which has the headers of the draft and is not flexible.

    ``side``: ``request``; ``response``, of a broker; or ``answer``, of a member to a request of the coordinator. An answer has the
    header of a request, since the draft gives both the same one.
    """
    kind = EntityType.request if side == "request" else EntityType.response
    return _marker(api_key, 0, kind if whole else EntityType.nested, _DRAFT_HEADERS[side], flexible=False)


def _marker(api_key: int, version: int, kind: EntityType, header: type[Any], *, flexible: bool) -> Callable[[type[Any]], type[Any]]:
    def mark(cls: type[Any]) -> type[Any]:
        cls.__type__ = kind
        cls.__version__ = version
        cls.__flexible__ = flexible
        cls.__api_key__ = api_key
        cls.__header_schema__ = header
        return cls

    return mark


def wire(kafka_type: str, tag: int | None = None) -> dict[str, object]:
    """The metadata of a field: its type on the wire, and its tag if it is a tagged field."""
    return {"kafka_type": kafka_type} if tag is None else {"kafka_type": kafka_type, "tag": tag}
