"""Every error that Ottla raises, and the one table of the protocol's error codes.

::

    OttlaError                      retriable, fatal, hint, cause
    +-- ConfigError                 a setting or an argument is unknown, contradictory or out of range   (also a ValueError)
    +-- IllegalStateError           this call is not allowed now: closed, not assigned, not subscribed ...
    |   +-- ClosedError             the consumer or client was closed, before this call or during it
    |   +-- ForkedError             the object was made before fork() and is used in the child
    +-- ConcurrentAccessError       two threads called one Consumer
    +-- WakeupError                 another thread called wakeup()
    +-- OttlaTimeoutError           a deadline passed                                              (also a TimeoutError)
    +-- ConnectionFailedError       no broker could be reached; lists every address and why each failed
    +-- DisconnectedError           the connection to a broker broke, or could not be made
    +-- AuthenticationError         the broker did not accept who we are, or could not prove who it is
    |   +-- TlsError                no TLS connection: a certificate that is not trusted, expired or for another host ...
    +-- ProtocolError               the peer sent something that is not Kafka's protocol
    |   +-- CorruptRecordError      a batch that fails its checksum, its lengths or its codec
    |   +-- UnsupportedApiError     no version of a request is known to both sides
    +-- RecordDeserializationError  the user's deserializer raised; carries the raw record
    +-- NoOffsetForPartitionError   no committed offset and auto_offset_reset="none"
    +-- LogTruncationError          what was read is not in the log any more, and auto_offset_reset="none"
    +-- CommitFailedError           the group moved on: the partitions may belong to somebody else now
    +-- AssignmentError             an assignor can not do what it was asked, or its answer can not be used
    +-- StorageError                the data directory can not be used
    +-- BrokerError                 an error code of the protocol; one generated class a code, e.g. ``UnknownTopicOrPartitionError``

Owns the tree and the table; must not know any other room. Invariant: each code maps to exactly one class, and the class of an
unknown code still carries the number. Source of codes and retriability: the protocol's error table (Apache Kafka 4.3).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

_E = TypeVar("_E", bound="OttlaError")


class OttlaError(Exception):
    """Base of all errors of this package.

    ``retriable``: the same call may succeed later. ``fatal``: this object can not be used any more. ``hint``: what to do about it.
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
        """The error behind this one, or ``None``."""
        return self.__cause__

    def afresh(self) -> Self:
        """The same error as if it had never been raised.

        Who keeps an error and raises it again and again raises this: else it would gather the frames of all who have raised it,
        and what they know would live as long as the error does.
        """
        twin = _remade(type(self), self.args, self.__dict__)
        if self.__cause__ is not None:
            twin.__cause__ = self.__cause__
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with ``args`` alone. Where ``__init__`` takes more, unpickling would raise a TypeError, and a
        # multiprocessing.Pool that gets such an error from a worker waits for ever.
        return _remade, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


def _remade(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    """An error with the contents of another; its ``__init__``, which wants to be told what it says, is not called."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(OttlaError, ValueError):
    """A setting, or an argument of a call, is unknown, contradictory or out of range."""


class IllegalStateError(OttlaError):
    """The call is not allowed in the present state."""


class ClosedError(IllegalStateError):
    """The consumer, or other client, was closed: before this call, or by another task while this call waited."""

    fatal = True


class ForkedError(IllegalStateError):
    """A client made before ``fork()`` was used in the child: its threads and sockets stayed with the parent."""

    fatal = True
    hint = "create the client in the process that uses it, after the fork"


class ConcurrentAccessError(OttlaError):
    """Two threads called one Consumer at the same time, or two tasks polled one AsyncConsumer."""

    hint = "use one Consumer a thread, or guard it with a lock"


class WakeupError(OttlaError):
    """``wakeup()`` was called while, or before, this call waited."""

    retriable = True


class OttlaTimeoutError(OttlaError, TimeoutError):
    """A call did not finish within the time it was given."""

    retriable = True


def too_late(what: str, reason: OttlaError | None, silent: str) -> OttlaTimeoutError:
    """That ``what`` was not done in time, with the error behind that and its advice; ``silent`` is said where none is known."""
    said = silent if reason is None else reason.args[0]
    return OttlaTimeoutError(f"{what}: {said}", hint=None if reason is None else reason.hint, cause=reason)


class ConnectionFailedError(OttlaError):
    """No broker could be reached. ``attempts`` maps each address tried to the reason it failed."""

    retriable = True

    def __init__(self, message: str, attempts: dict[str, str], *, hint: str | None = None) -> None:
        listed = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        super().__init__(f"{message}: {listed}" if listed else message, hint=hint)
        self.attempts = dict(attempts)


class DisconnectedError(OttlaError):
    """The connection to one broker broke, or could not be made; the message names the node, its address and the reason."""

    retriable = True


class AuthenticationError(OttlaError):
    """The broker did not accept the credentials, or there were none to offer.

    Not retried within the call that raises it; a later call tries again. ``cause`` is what the broker, or the token provider, said.
    """


class TlsError(AuthenticationError):
    """TLS came to nothing: a certificate that is expired, not trusted or for another host, no common version ...

    ``cause`` is the error of OpenSSL.
    """


class ProtocolError(OttlaError):
    """The peer sent bytes that are not a valid message of Kafka's protocol."""

    hint: str | None = "is it a Kafka port, and does anything in between change what is sent?"


class CorruptRecordError(ProtocolError):
    """A record batch fails its checksum, its declared lengths or its codec."""

    hint: str | None = None


class UnsupportedApiError(ProtocolError):
    """There is no version of a request that both sides know."""

    hint = "the broker is too old, or too new, for this: Ottla consumes from Apache Kafka 1.0 on, and administers it from 2.4 on"


class RecordDeserializationError(OttlaError):
    """A deserializer raised, as ``record.key`` or ``record.value`` was asked for. The position is behind the record already.

    ``topic``, ``partition`` and ``offset`` name the record; ``part`` is ``"key"`` or ``"value"``, ``raw`` the bytes that the
    deserializer was given. ``record`` is the record without deserializers: its key, value and headers as they were sent (KIP-1036).
    """

    def __init__(self, message: str, topic: str, partition: int, offset: int, raw: bytes | None, *, part: str, record: Any) -> None:
        super().__init__(message, hint="go on with the next record, or mend the deserializer and seek() back")
        self.topic, self.partition, self.offset, self.raw = topic, partition, offset, raw
        self.part, self.record = part, record


class NoOffsetForPartitionError(OttlaError):
    """A partition has no position: nothing was committed and ``auto_offset_reset`` is ``"none"``."""

    hint = 'seek() to a position, commit one for the group, or set auto_offset_reset to "earliest" or "latest"'


class LogTruncationError(OttlaError):
    """Records before the position are gone from the log, or others have taken their place; ``auto_offset_reset`` is ``"none"``.

    ``divergent_offset`` is up to where the log still holds what was read before ``offset``; ``None``: nobody knows, or the topic
    was deleted and made anew (KIP-320).
    """

    def __init__(self, message: str, topic: str, partition: int, offset: int, divergent_offset: int | None) -> None:
        super().__init__(message, hint="seek() to where reading is to go on")
        self.topic, self.partition, self.offset, self.divergent_offset = topic, partition, offset, divergent_offset


class CommitFailedError(OttlaError):
    """The commit was refused because the group has rebalanced: the partitions may belong to another member now."""

    hint = "poll() to rejoin; records since the last successful commit will be delivered again"


class AssignmentError(OttlaError):
    """An assignor can not share out the partitions that it was asked to, or its answer breaks the rules."""


class StorageError(OttlaError):
    """A data directory can not be used: locked by another process, not writable, full or damaged."""


FINAL, RETRY, COORDINATOR, METADATA = "final", "retry", "coordinator", "metadata"
"""What a client does about a code: give up, send again, look the coordinator up again, or refresh its metadata first."""

ERROR_CODES: dict[int, tuple[str, str]] = {
    -1: ("UNKNOWN_SERVER_ERROR", FINAL),
    1: ("OFFSET_OUT_OF_RANGE", FINAL),
    2: ("CORRUPT_MESSAGE", RETRY),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", METADATA),
    4: ("INVALID_FETCH_SIZE", FINAL),
    5: ("LEADER_NOT_AVAILABLE", METADATA),
    6: ("NOT_LEADER_OR_FOLLOWER", METADATA),
    7: ("REQUEST_TIMED_OUT", RETRY),
    8: ("BROKER_NOT_AVAILABLE", FINAL),
    9: ("REPLICA_NOT_AVAILABLE", METADATA),
    10: ("MESSAGE_TOO_LARGE", FINAL),
    11: ("STALE_CONTROLLER_EPOCH", FINAL),
    12: ("OFFSET_METADATA_TOO_LARGE", FINAL),
    13: ("NETWORK_EXCEPTION", METADATA),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", RETRY),
    15: ("COORDINATOR_NOT_AVAILABLE", COORDINATOR),
    16: ("NOT_COORDINATOR", COORDINATOR),
    17: ("INVALID_TOPIC_EXCEPTION", FINAL),
    18: ("RECORD_LIST_TOO_LARGE", FINAL),
    19: ("NOT_ENOUGH_REPLICAS", RETRY),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", RETRY),
    21: ("INVALID_REQUIRED_ACKS", FINAL),
    22: ("ILLEGAL_GENERATION", FINAL),
    23: ("INCONSISTENT_GROUP_PROTOCOL", FINAL),
    24: ("INVALID_GROUP_ID", FINAL),
    25: ("UNKNOWN_MEMBER_ID", FINAL),
    26: ("INVALID_SESSION_TIMEOUT", FINAL),
    27: ("REBALANCE_IN_PROGRESS", FINAL),
    28: ("INVALID_COMMIT_OFFSET_SIZE", FINAL),
    29: ("TOPIC_AUTHORIZATION_FAILED", FINAL),
    30: ("GROUP_AUTHORIZATION_FAILED", FINAL),
    31: ("CLUSTER_AUTHORIZATION_FAILED", FINAL),
    32: ("INVALID_TIMESTAMP", FINAL),
    33: ("UNSUPPORTED_SASL_MECHANISM", FINAL),
    34: ("ILLEGAL_SASL_STATE", FINAL),
    35: ("UNSUPPORTED_VERSION", FINAL),
    36: ("TOPIC_ALREADY_EXISTS", FINAL),
    37: ("INVALID_PARTITIONS", FINAL),
    38: ("INVALID_REPLICATION_FACTOR", FINAL),
    39: ("INVALID_REPLICA_ASSIGNMENT", FINAL),
    40: ("INVALID_CONFIG", FINAL),
    41: ("NOT_CONTROLLER", RETRY),
    42: ("INVALID_REQUEST", FINAL),
    43: ("UNSUPPORTED_FOR_MESSAGE_FORMAT", FINAL),
    44: ("POLICY_VIOLATION", FINAL),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", FINAL),
    46: ("DUPLICATE_SEQUENCE_NUMBER", FINAL),
    47: ("INVALID_PRODUCER_EPOCH", FINAL),
    48: ("INVALID_TXN_STATE", FINAL),
    49: ("INVALID_PRODUCER_ID_MAPPING", FINAL),
    50: ("INVALID_TRANSACTION_TIMEOUT", FINAL),
    51: ("CONCURRENT_TRANSACTIONS", RETRY),
    52: ("TRANSACTION_COORDINATOR_FENCED", FINAL),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", FINAL),
    54: ("SECURITY_DISABLED", FINAL),
    55: ("OPERATION_NOT_ATTEMPTED", FINAL),
    56: ("KAFKA_STORAGE_ERROR", METADATA),
    57: ("LOG_DIR_NOT_FOUND", FINAL),
    58: ("SASL_AUTHENTICATION_FAILED", FINAL),
    59: ("UNKNOWN_PRODUCER_ID", FINAL),
    60: ("REASSIGNMENT_IN_PROGRESS", FINAL),
    61: ("DELEGATION_TOKEN_AUTH_DISABLED", FINAL),
    62: ("DELEGATION_TOKEN_NOT_FOUND", FINAL),
    63: ("DELEGATION_TOKEN_OWNER_MISMATCH", FINAL),
    64: ("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", FINAL),
    65: ("DELEGATION_TOKEN_AUTHORIZATION_FAILED", FINAL),
    66: ("DELEGATION_TOKEN_EXPIRED", FINAL),
    67: ("INVALID_PRINCIPAL_TYPE", FINAL),
    68: ("NON_EMPTY_GROUP", FINAL),
    69: ("GROUP_ID_NOT_FOUND", FINAL),
    70: ("FETCH_SESSION_ID_NOT_FOUND", RETRY),
    71: ("INVALID_FETCH_SESSION_EPOCH", RETRY),
    72: ("LISTENER_NOT_FOUND", METADATA),
    73: ("TOPIC_DELETION_DISABLED", FINAL),
    74: ("FENCED_LEADER_EPOCH", METADATA),
    75: ("UNKNOWN_LEADER_EPOCH", RETRY),
    76: ("UNSUPPORTED_COMPRESSION_TYPE", FINAL),
    77: ("STALE_BROKER_EPOCH", FINAL),
    78: ("OFFSET_NOT_AVAILABLE", RETRY),
    79: ("MEMBER_ID_REQUIRED", FINAL),
    80: ("PREFERRED_LEADER_NOT_AVAILABLE", METADATA),
    81: ("GROUP_MAX_SIZE_REACHED", FINAL),
    82: ("FENCED_INSTANCE_ID", FINAL),
    83: ("ELIGIBLE_LEADERS_NOT_AVAILABLE", METADATA),
    84: ("ELECTION_NOT_NEEDED", METADATA),
    85: ("NO_REASSIGNMENT_IN_PROGRESS", FINAL),
    86: ("GROUP_SUBSCRIBED_TO_TOPIC", FINAL),
    87: ("INVALID_RECORD", FINAL),
    88: ("UNSTABLE_OFFSET_COMMIT", RETRY),
    89: ("THROTTLING_QUOTA_EXCEEDED", RETRY),
    90: ("PRODUCER_FENCED", FINAL),
    91: ("RESOURCE_NOT_FOUND", FINAL),
    92: ("DUPLICATE_RESOURCE", FINAL),
    93: ("UNACCEPTABLE_CREDENTIAL", FINAL),
    94: ("INCONSISTENT_VOTER_SET", FINAL),
    95: ("INVALID_UPDATE_VERSION", FINAL),
    96: ("FEATURE_UPDATE_FAILED", FINAL),
    97: ("PRINCIPAL_DESERIALIZATION_FAILURE", FINAL),
    98: ("SNAPSHOT_NOT_FOUND", FINAL),
    99: ("POSITION_OUT_OF_RANGE", FINAL),
    100: ("UNKNOWN_TOPIC_ID", METADATA),
    101: ("DUPLICATE_BROKER_REGISTRATION", FINAL),
    102: ("BROKER_ID_NOT_REGISTERED", FINAL),
    103: ("INCONSISTENT_TOPIC_ID", METADATA),
    104: ("INCONSISTENT_CLUSTER_ID", FINAL),
    105: ("TRANSACTIONAL_ID_NOT_FOUND", FINAL),
    106: ("FETCH_SESSION_TOPIC_ID_ERROR", RETRY),
    107: ("INELIGIBLE_REPLICA", FINAL),
    108: ("NEW_LEADER_ELECTED", FINAL),
    109: ("OFFSET_MOVED_TO_TIERED_STORAGE", FINAL),
    110: ("FENCED_MEMBER_EPOCH", FINAL),
    111: ("UNRELEASED_INSTANCE_ID", FINAL),
    112: ("UNSUPPORTED_ASSIGNOR", FINAL),
    113: ("STALE_MEMBER_EPOCH", FINAL),
    114: ("MISMATCHED_ENDPOINT_TYPE", FINAL),
    115: ("UNSUPPORTED_ENDPOINT_TYPE", FINAL),
    116: ("UNKNOWN_CONTROLLER_ID", FINAL),
    117: ("UNKNOWN_SUBSCRIPTION_ID", FINAL),
    118: ("TELEMETRY_TOO_LARGE", FINAL),
    119: ("INVALID_REGISTRATION", FINAL),
    120: ("TRANSACTION_ABORTABLE", FINAL),
    121: ("INVALID_RECORD_STATE", FINAL),
    122: ("SHARE_SESSION_NOT_FOUND", RETRY),
    123: ("INVALID_SHARE_SESSION_EPOCH", RETRY),
    124: ("FENCED_STATE_EPOCH", FINAL),
    125: ("INVALID_VOTER_KEY", FINAL),
    126: ("DUPLICATE_VOTER", FINAL),
    127: ("VOTER_NOT_FOUND", FINAL),
    128: ("INVALID_REGULAR_EXPRESSION", FINAL),
    129: ("REBOOTSTRAP_REQUIRED", FINAL),
    130: ("STREAMS_INVALID_TOPOLOGY", FINAL),
    131: ("STREAMS_INVALID_TOPOLOGY_EPOCH", FINAL),
    132: ("STREAMS_TOPOLOGY_FENCED", FINAL),
    133: ("SHARE_SESSION_LIMIT_REACHED", RETRY),
}
"""Code -> (the protocol's name, what a client does about it). Zero, NONE, is no error and not in here."""

_HINTS: dict[str, str] = {
    "UNKNOWN_TOPIC_OR_PARTITION": "create the topic, or check its name and partition",
    "LEADER_NOT_AVAILABLE": "are the brokers that hold its replicas up? see ottla topic describe",
    "OFFSET_OUT_OF_RANGE": 'seek() to an offset that exists, or set auto_offset_reset to "earliest" or "latest"',
    "OFFSET_METADATA_TOO_LARGE": "commit shorter metadata: the broker's offset.metadata.max.bytes is 4096 unless set",
    "FENCED_INSTANCE_ID": "another member runs with the same group_instance_id: give each its own",
    "UNRELEASED_INSTANCE_ID": "another member runs with the same group_instance_id: give each its own",
    "INCONSISTENT_GROUP_PROTOCOL": "the members of a group must share at least one assignor and one protocol type",
    "INVALID_SESSION_TIMEOUT": "the broker's bounds are group.min.session.timeout.ms and group.max.session.timeout.ms",
    "GROUP_MAX_SIZE_REACHED": "the group is full: see the broker's group.max.size",
    "UNKNOWN_MEMBER_ID": "the member was removed from the group: poll() to rejoin",
    "ILLEGAL_GENERATION": "the group has rebalanced: poll() to rejoin",
    "REBALANCE_IN_PROGRESS": "call poll() so that the rebalance can finish, then commit again",
    "TOPIC_ALREADY_EXISTS": "pick another name or delete the topic first",
    "NON_EMPTY_GROUP": "stop the members of the group first",
    "MESSAGE_TOO_LARGE": "see max.message.bytes of the topic",
    "TOPIC_AUTHORIZATION_FAILED": "let an administrator allow this principal to DESCRIBE and READ the topic",
    "GROUP_AUTHORIZATION_FAILED": "let an administrator allow this principal to READ the group",
    "UNSUPPORTED_VERSION": "the broker is too old for this request",
}


class BrokerError(OttlaError):
    """An error that a broker answered with. ``code`` and ``name`` are the protocol's."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    action: ClassVar[str] = FINAL

    def __init__(self, message: str = "", *, hint: str | None = None, cause: BaseException | None = None) -> None:
        super().__init__(f"{message} [{self.name}]" if message else self.name, hint=hint, cause=cause)


def _class_name(name: str) -> str:
    words = "".join(word.capitalize() for word in name.removesuffix("_EXCEPTION").split("_"))
    return words if words.endswith("Error") else f"{words}Error"


def _leaf(code: int, name: str, action: str) -> type[BrokerError]:
    fields = {"code": code, "name": name, "action": action, "retriable": action != FINAL, "hint": _HINTS.get(name)}
    return type(_class_name(name), (BrokerError,), {**fields, "__module__": __name__, "__doc__": f"{name} ({code})."})


_BY_CODE: dict[int, type[BrokerError]] = {code: _leaf(code, *row) for code, row in ERROR_CODES.items()}
_BY_NAME: dict[str, type[BrokerError]] = {cls.__name__: cls for cls in _BY_CODE.values()}


def __getattr__(name: str) -> type[BrokerError]:
    """The generated leaves as attributes of the module: ``errors.OffsetOutOfRangeError``."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def error_class(code: int) -> type[BrokerError]:
    """The class of an error code; an unknown code gets a class of its own that carries the number."""
    known = _BY_CODE.get(code)
    return known if known is not None else _BY_CODE.setdefault(code, _leaf(code, f"UNKNOWN_CODE_{code}", FINAL))


def broker_error(code: int, message: str = "") -> BrokerError:
    """The exception for a non-zero error code, ready to be raised."""
    return error_class(code)(message)
