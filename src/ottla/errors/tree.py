"""The exceptions that are not error codes of the protocol, from ``OttlaError`` on; ``ottla.errors`` shows their tree.

Owns the attributes of all errors, and how errors are copied and pickled. Must not know any other package. Invariant: an unpickled
error has the same text, and a cause if the original had one.
"""

from __future__ import annotations

import copy
from typing import Any, Self, TypeVar

_E = TypeVar("_E", bound="OttlaError")


class OttlaError(Exception):
    """Base of all errors of this package.

    ``retriable``: the same call may succeed later. ``fatal``: this object can no longer be used. ``hint``: what to do about it.
    """

    retriable: bool = False
    fatal: bool = False
    hint: str | None = None

    def __init__(self, message: str = "", *, hint: str | None = None, cause: BaseException | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        """The underlying error, or ``None``."""
        return self.__cause__

    def afresh(self) -> Self:
        """A copy of the error as if it had never been raised.

        Code that keeps an error and raises it repeatedly must raise this copy: otherwise the traceback would collect the frames of
        every raise, and keep their objects alive as long as the error.
        """
        return self._twin(self.args, self.__dict__)

    def __copy__(self) -> Self:
        return self.afresh()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._twin(copy.deepcopy(self.args, memo), copy.deepcopy(self.__dict__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default Python calls the class with ``args`` only. If ``__init__`` has other parameters, unpickling raises a TypeError,
        # and a multiprocessing.Pool that gets such an error from a worker hangs. The cause would be lost, too.
        return _unpickled, (type(self), self.args, self.__dict__, _pickled(self.__cause__))

    def _twin(self, args: tuple[Any, ...], state: dict[str, Any]) -> Self:
        twin = _remade(type(self), args, state)
        if self.__cause__ is not None:
            twin.__cause__ = self.__cause__
        return twin

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


def _remade(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    """An error with the contents of another; its ``__init__``, which has other parameters, is not called."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def _unpickled(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any], cause: tuple[bytes | None, str] | None) -> _E:
    """The unpickled error with its cause; an ``OttlaError`` with the text of a cause that cannot be pickled."""
    error = _remade(cls, args, state)
    if cause is not None:
        error.__cause__ = _cause(*cause)
    return error


def _pickled(cause: BaseException | None) -> tuple[bytes | None, str] | None:
    """The pickled cause, or ``None`` if it cannot be pickled (errors of other libraries may refer to sockets), and its text."""
    import pickle

    if cause is None:
        return None
    text = f"{type(cause).__name__}: {cause}"
    try:
        return pickle.dumps(cause), text
    except Exception:
        return None, text


def _cause(pickled: bytes | None, text: str) -> BaseException:
    import pickle

    if pickled is not None:
        # Some errors can be pickled but not unpickled: one whose __init__ has more parameters than args, or a class of __main__.
        try:
            cause = pickle.loads(pickled)
        except Exception:
            cause = None
        if isinstance(cause, BaseException):
            return cause
    return OttlaError(text)


class ConfigError(OttlaError, ValueError):
    """A setting, or an argument of a call, is unknown, contradictory or out of range."""


class IllegalStateError(OttlaError):
    """The call is not allowed in the present state."""


class ClosedError(IllegalStateError):
    """The consumer, or other client, was closed: before this call, or by another task while this call waited."""

    fatal = True


class ForkedError(IllegalStateError):
    """A client created before ``fork()`` was used in the child: its threads and sockets stayed with the parent."""

    fatal = True
    hint = "create the client in the process that uses it, after the fork"


class ConcurrentAccessError(OttlaError):
    """Two threads called one Consumer at the same time, or two tasks polled one AsyncConsumer."""

    hint = "use one Consumer per thread, or guard it with a lock"


class WakeupError(OttlaError):
    """``wakeup()`` was called while, or before, this call waited."""

    retriable = True


class OttlaTimeoutError(OttlaError, TimeoutError):
    """A call did not finish within its timeout."""

    retriable = True


class ConsumerTimeoutError(OttlaTimeoutError):
    """A stream of ``Consumer.streams()`` had no record for ``consumer_timeout``. The iteration may continue."""


def timeout_error(what: str, reason: OttlaError | None, silent: str) -> OttlaTimeoutError:
    """The error for ``what`` was not done in time, with the underlying error and its hint; ``silent`` is the text without one."""
    text = silent if reason is None else reason.args[0]
    return OttlaTimeoutError(f"{what}: {text}", hint=None if reason is None else reason.hint, cause=reason)


class ConnectionFailedError(OttlaError):
    """No broker could be reached. ``attempts`` maps each address tried to the reason it failed."""

    retriable = True

    def __init__(self, message: str, attempts: dict[str, str], *, hint: str | None = None) -> None:
        listed = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        super().__init__(f"{message}: {listed}" if listed else message, hint=hint)
        self.attempts = dict(attempts)


class AllKnownBrokersNotAvailableError(ConnectionFailedError):
    """A member of a central group reaches none of the brokers that it knows, so it cannot ask for the coordinator."""


class DisconnectedError(OttlaError):
    """The connection to one broker broke, or could not be established; the message names the node, its address and the reason."""

    retriable = True


class AuthenticationError(OttlaError):
    """The broker did not accept the credentials, or there were none to offer.

    Not retried within the call that raises it; a later call tries again. ``cause`` is the error of the broker or of the token
    provider.
    """


class TlsError(AuthenticationError):
    """TLS failed: a certificate that is expired, not trusted or for another host, no common version ...

    ``cause`` is the error of OpenSSL.
    """


class ProtocolError(OttlaError):
    """Bytes that are not a valid message of Kafka's protocol, or a value that a message cannot represent."""


class CorruptRecordError(ProtocolError):
    """A record batch fails its checksum, its declared lengths or its codec."""


class UnsupportedApiError(ProtocolError):
    """There is no version of a request that both sides support."""

    hint = "the broker is too old, or too new, for this: Ottla consumes from Apache Kafka 1.0 on, and administers it from 2.4 on"


class RecordDeserializationError(OttlaError):
    """A deserializer raised when ``record.key`` or ``record.value`` was accessed. The position is already after the record.

    ``topic``, ``partition`` and ``offset`` name the record; ``part`` is ``"key"`` or ``"value"``, ``raw`` the bytes that the
    deserializer got. ``record`` is the record without deserializers: its key, value and headers as they were sent (KIP-1036).
    """

    def __init__(self, message: str, topic: str, partition: int, offset: int, raw: bytes | None, *, part: str, record: Any) -> None:
        super().__init__(message, hint="continue with the next record, or fix the deserializer and seek() back")
        self.topic, self.partition, self.offset, self.raw = topic, partition, offset, raw
        self.part, self.record = part, record


class NoOffsetForPartitionError(OttlaError):
    """A partition has no position: nothing was committed and ``auto_offset_reset`` is ``"none"``."""

    hint = 'seek() to a position, commit one for the group, or set auto_offset_reset to "earliest" or "latest"'


class LogTruncationError(OttlaError):
    """Records before the position are no longer in the log, or others have replaced them; ``auto_offset_reset`` is ``"none"``.

    Up to ``divergent_offset`` the log still has what was read before ``offset``; ``None``: unknown, or the topic was deleted and
    recreated (KIP-320).
    """

    def __init__(self, message: str, topic: str, partition: int, offset: int, divergent_offset: int | None) -> None:
        super().__init__(message, hint="seek() to where reading should continue")
        self.topic, self.partition, self.offset, self.divergent_offset = topic, partition, offset, divergent_offset


class CommitFailedError(OttlaError):
    """The commit was refused because the group has rebalanced: the partitions may belong to another member now."""

    hint = "poll() to rejoin; records since the last successful commit will be delivered again"


class TransactionAbortedError(OttlaError):
    """The transaction was aborted, or has to be: nothing of it will be read by ``read_committed`` consumers."""


class TransactionOutcomeUnknownError(OttlaError):
    """Whether the transaction was committed is not known.

    The request to commit it was sent, no response came, and nothing that came later tells whether it was executed.
    """


class ReplayMismatchError(OttlaError):
    """Spark repeats a batch that a sink with ``exactlyOnce`` may have written, and it is not the same. Now it writes nothing."""


class ConsumerRebalanceFailedError(OttlaError):
    """A member of a ZooKeeper group could not claim its partitions within ``rebalance.max.retries``. It goes on trying.

    The message names the obstacle: which other member owns which partition, or why there is no assignment.
    """

    retriable = True
    hint = (
        "all members need the same partition.assignment.strategy and exclude.internal.topics; a member that hangs keeps its"
        " partitions until its session expires"
    )


class AssignmentError(OttlaError):
    """An assignor cannot assign the partitions, or its answer breaks the rules."""


class StorageError(OttlaError):
    """A data directory cannot be used: locked by another process, not writable, full or damaged."""
