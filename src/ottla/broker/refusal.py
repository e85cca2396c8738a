"""How a handler refuses: the protocol's error code and a sentence for the client.

Owns the exception that handlers raise inside the broker. Must not know which API it ends up in. Invariant: it never leaves the
broker; every handler turns it into the error fields of its own response.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from ottla.protocol import ErrorCode


class Refusal(Exception):
    """A part of a request cannot be done; ``code`` is the wire's, ``message`` says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.code.name}]"


def check_time_left(timeout: timedelta) -> None:
    """Raise ``Refusal`` for a timeout of 0 or less: Kafka's controller treats such a request as expired."""
    if timeout <= timedelta(0):
        raise Refusal(ErrorCode.request_timed_out, "The timeout of the request leaves no time to carry it out.")


class RecordError(NamedTuple):
    """What is wrong with one record of a batch, by its place in it."""

    record: int
    message: str


class RecordsRefused(Refusal):
    """A batch is refused for some of its records; clients that get their numbers can retry the others (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: Sequence[RecordError]) -> None:
        first = "; ".join(f"record {error.record}: {error.message}" for error in errors[:3])
        more = f" The first of {len(errors)}:" if len(errors) > 3 else ""
        super().__init__(code, f"One or more records of the batch have been rejected.{more} {first}")
        self.errors = errors
