"""Malformed frames, and the smallest requests of every API and version, from which they are made.

Owns the generation of malformed frames. Must not know a broker's reaction. Invariant: a seed determines the sequence of frames.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import typing
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from ottla.protocol.apis import PUSHED, SPOKEN, Api
from ottla.protocol.codec import RequestHeader, encode_answer, encode_request
from ottla.protocol.messages import message_class, produce_request
from ottla.records import NewRecord, encode_batch
from tests.simulation.files import content


def bad_frames(count: int, seed: int) -> Iterator[bytes]:
    """Yield malformed frames: random bytes, truncated requests, requests with flipped bytes, wrong lengths."""
    chance = random.Random(seed)
    noise = {api: [some_request(api, version) for version in range(low, high + 1)] for api, (low, high) in SPOKEN.items()}
    for number in range(count):
        whole = bytearray(chance.choice(noise[chance.choice(list(noise))]))
        match number % 4:
            case 0:
                yield struct.pack(">i", size := chance.randrange(0, 200)) + chance.randbytes(size)
            case 1:
                cut = whole[4 : chance.randrange(4, len(whole))]
                yield struct.pack(">i", len(cut)) + cut
            case 2:
                for _ in range(chance.randrange(1, 6)):
                    whole[chance.randrange(8, len(whole))] = chance.randrange(256)
                yield bytes(whole)
            case _:
                head = whole[4 : chance.randrange(12, max(13, len(whole)))] + chance.randbytes(chance.randrange(60))
                yield struct.pack(">i", chance.choice((len(head), -1, 2**31 - 1, 105 << 20))) + head


def some_request(api: Api, version: int) -> bytes:
    """Return a minimal request of an API, with a body where that is simple; of the coordinator's own ones, a member's answer."""
    header = RequestHeader(api, version, 1, "fuzz")
    if api in PUSHED:
        return b"".join(map(content, encode_answer(header, _smallest(message_class(api, "response")))))
    if api is Api.PRODUCE:
        data = produce_request.PartitionProduceData(index=0, records=encode_batch([NewRecord(b"k", b"v", timestamp=1)] * 5))
        message: Any = produce_request.ProduceRequest(
            acks=1, timeout=timedelta(0), topic_data=(produce_request.TopicProduceData(name="t", partition_data=(data,)),)
        )
    else:
        message = _smallest(message_class(api, "request"))
    pieces = encode_request(header, message)
    return b"".join(map(content, pieces))


def _smallest(cls: type) -> object:
    """Return a minimal message: lists with one item, everything else as small as possible."""
    empty: dict[str, Any] = {"string": "g", "bytes": b"", "bool": False}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        kind = field.metadata.get("kafka_type", "")
        nested = _class_in(field.type)
        if field.default is not dataclasses.MISSING and kind != "string" and "tuple" not in str(field.type):
            continue
        if nested is not None:
            values[field.name] = (_smallest(nested),)
        elif kind == "uuid":
            values[field.name] = None
        elif "tuple" in str(field.type):
            values[field.name] = (empty.get(kind, 0),)
        else:
            values[field.name] = timedelta(0) if kind.startswith("timedelta") else empty.get(kind, 0)
    return cls(**values)


def _class_in(annotation: object) -> type | None:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    return next((found for found in map(_class_in, typing.get_args(annotation)) if found is not None), None)
