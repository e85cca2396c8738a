"""Errors that several handlers raise: no time left, and bad records in a batch.

Owns their codes and texts. Must not know which API they end up in.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode


def check_time_left(timeout: timedelta) -> None:
    """Raise ``ApiError`` for a timeout of 0 or less: Kafka's controller treats such a request as expired."""
    if timeout <= timedelta(0):
        raise ApiError(ErrorCode.request_timed_out, "The timeout of the request leaves no time to carry it out.")


class RecordError(NamedTuple):
    """What is wrong with one record of a batch, by its place in it."""

    record: int
    message: str


class InvalidRecordsError(ApiError):
    """A batch is refused for some of its records; clients that get their numbers can retry the others (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: Sequence[RecordError]) -> None:
        first = "; ".join(f"record {error.record}: {error.message}" for error in errors[:3])
        more = f" The first of {len(errors)}:" if len(errors) > 3 else ""
        super().__init__(code, f"One or more records of the batch have been rejected.{more} {first}")
        self.errors = errors
