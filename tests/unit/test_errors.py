"""All errors can be pickled, copied and raised again."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from ottla import errors
from ottla.errors import (
    AllKnownBrokersNotAvailableError,
    ConnectionFailedError,
    KeeperCode,
    LogTruncationError,
    OttlaError,
    OttlaTimeoutError,
    RecordDeserializationError,
    ZooKeeperError,
)

OTHERS = [
    ConnectionFailedError("no server answers", {"a:1": "refused"}, hint="look"),
    AllKnownBrokersNotAvailableError("no broker answers", {"a:1": "refused"}, hint="look"),
    LogTruncationError("cut", "t", 0, 7, None),
    ZooKeeperError(KeeperCode.NONODE, "/consumers/g", index=1, hint="look"),
    RecordDeserializationError("what is that", "t", 0, 7, b"\xff", part="value", record=None),
]
"""Errors whose constructors take other arguments than a message."""


def kinds(kind: type[OttlaError] = OttlaError) -> Iterator[type[OttlaError]]:
    yield kind
    for more in kind.__subclasses__():
        if more.__module__ == errors.__name__:
            yield from kinds(more)


def one_of(kind: type[OttlaError]) -> OttlaError:
    special = next((error for error in OTHERS if type(error) is kind), None)
    return special or kind("it is broken", hint="repair it", cause=ValueError("a screw is loose"))


@pytest.mark.parametrize("error", [one_of(kind) for kind in kinds()], ids=lambda error: type(error).__name__)
def test_afresh_returns_the_same_error_without_a_traceback(error: OttlaError) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    twin = raised.value.afresh()
    assert twin is not error
    assert twin.__traceback__ is None
    assert (type(twin), str(twin), twin.args, vars(twin)) == (type(error), str(error), error.args, vars(error))
    assert (twin.hint, twin.cause, twin.retriable, twin.fatal) == (error.hint, error.cause, error.retriable, error.fatal)


@pytest.mark.parametrize("error", [one_of(kind) for kind in kinds()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_is_pickled_and_copied(error: OttlaError, copied: Callable[[OttlaError], OttlaError]) -> None:
    twin = copied(error)
    assert twin is not error
    assert (type(twin), str(twin), twin.args, vars(twin)) == (type(error), str(error), error.args, vars(error))
    assert (twin.hint, repr(twin.cause)) == (error.hint, repr(error.cause))


class Wordy(Exception):
    """Can be pickled, but not unpickled: Python calls it with its ``args``."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class HoldsALock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it is locked")
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("cause", "kept"),
    [
        (OttlaTimeoutError("too late", cause=KeyError("k")), OttlaTimeoutError("too late")),
        (Wordy("a", "b"), OttlaError("Wordy: a: b")),
        (HoldsALock(), OttlaError("HoldsALock: it is locked")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pickled_error_keeps_its_cause_or_the_text_of_its_cause(cause: Exception, kept: OttlaError) -> None:
    error = errors.DisconnectedError("it broke", hint="wait", cause=cause)
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), repr(twin.cause)) == ("it broke (wait)", repr(kept))
    assert repr(twin.cause.cause) == repr(getattr(cause, "cause", None))
    assert copy.copy(error).cause is copy.deepcopy(error).cause is cause


def test_an_error_of_an_unknown_code_can_be_pickled() -> None:
    error = errors.broker_error(4711, "what is that")
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.code) == (type(error), "what is that [UNKNOWN_CODE_4711]", 4711)
    assert errors.UnknownCode4711Error is type(error)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'UnknownCode3Error'"):
        _ = errors.UnknownCode3Error  # type: ignore[attr-defined]


def test_a_star_import_has_every_class_and_nothing_else() -> None:
    found: dict[str, object] = {}
    exec("from ottla.errors import *", found)
    del found["__builtins__"]
    named = {kind.__name__ for kind in kinds() if not kind.__name__.startswith("UnknownCode")}
    assert set(found) == named
    assert len(named) > len(errors.ERROR_CODES) > 130
    assert [name for name in errors.__all__ if getattr(errors, name).__module__ != "ottla.errors"] == []


def test_a_users_subclass_has_the_attributes_of_its_base() -> None:
    class Fenced(errors.FencedInstanceIdError):
        """A subclass without a row in the table of error codes."""

    assert (Fenced.code, Fenced.name, Fenced("twice").hint) == (82, "FENCED_INSTANCE_ID", errors.FencedInstanceIdError.hint)
    assert errors.error_class(Fenced.code) is errors.FencedInstanceIdError


def test_an_error_that_is_raised_repeatedly_does_not_collect_frames() -> None:
    kept, lengths = OttlaTimeoutError("too late"), set()
    for _ in range(3):
        try:
            raise kept.afresh()
        except OttlaTimeoutError as error:
            lengths.add(len(traceback.extract_tb(error.__traceback__)))
    assert lengths == {1}
    assert kept.__traceback__ is None
