"""A program with a star import of all errors, for mypy and pyright, like ``user_program.py``."""

# ruff: noqa: F405
from __future__ import annotations

from typing import assert_type

from ottla.errors import *  # noqa: F403


def code_of(error: UnknownTopicOrPartitionError) -> int:
    assert_type(error.retriable, bool)
    return error.code


def explain(error: BaseException) -> str | None:
    if isinstance(error, CoordinatorLoadInProgressError | ConnectionFailedError | BrokerError):
        return error.hint
    return None
