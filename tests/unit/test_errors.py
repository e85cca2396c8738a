"""What every error can do, whoever raises it."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable, Iterator

import pytest

from ottla import errors
from ottla.errors import ConnectionFailedError, LogTruncationError, OttlaError, OttlaTimeoutError, RecordDeserializationError

OTHERS = [
    ConnectionFailedError("nobody", {"a:1": "refused"}, hint="look"),
    LogTruncationError("cut", "t", 0, 7, None),
    RecordDeserializationError("what is that", "t", 0, 7, b"\xff", part="value", record=None),
]
"""Those that want other arguments than a message."""


def kinds(kind: type[OttlaError] = OttlaError) -> Iterator[type[OttlaError]]:
    yield kind
    for more in kind.__subclasses__():
        if more.__module__ == errors.__name__:
            yield from kinds(more)


def one_of(kind: type[OttlaError]) -> OttlaError:
    special = next((error for error in OTHERS if type(error) is kind), None)
    return special or kind("it is broken", hint="mend it", cause=ValueError("a screw is loose"))


@pytest.mark.parametrize("error", [one_of(kind) for kind in kinds()], ids=lambda error: type(error).__name__)
def test_an_error_afresh_is_the_same_error_never_raised(error: OttlaError) -> None:
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


def test_an_error_that_is_kept_gathers_no_frames() -> None:
    kept, lengths = OttlaTimeoutError("too late"), set()
    for _ in range(3):
        try:
            raise kept.afresh()
        except OttlaTimeoutError as error:
            lengths.add(len(traceback.extract_tb(error.__traceback__)))
    assert lengths == {1}
    assert kept.__traceback__ is None
