"""The protocol's error codes, with one class for each.

Owns the table. Must not know any other package. Invariant: each code maps to exactly one class, and the class of an unknown code
has the number, too. Source of codes and retriability: the protocol's error table (Apache Kafka 4.3).
"""

from __future__ import annotations

import re
from typing import ClassVar

from ottla.errors.tree import OttlaError

FINAL, RETRY, COORDINATOR, METADATA = "final", "retry", "coordinator", "metadata"
"""A client's action for a code: give up, retry, look up the coordinator first, or refresh the metadata first."""

ERROR_CODES: dict[int, tuple[str, str]] = {}
"""Code -> (the protocol's name, the client's action). 0, NONE, is not an error and not in this table."""

_BY_CODE: dict[int, type[BrokerError]] = {}


class BrokerError(OttlaError):
    """An error code in a broker's response. ``code`` and ``name`` are the protocol's."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    action: ClassVar[str] = FINAL

    def __init__(self, message: str = "", *, hint: str | None = None, cause: BaseException | None = None) -> None:
        super().__init__(f"{message} [{self.name}]" if message else self.name, hint=hint, cause=cause)

    def __init_subclass__(cls, *, code: int | None = None, name: str = "", action: str = FINAL) -> None:
        """Add a class with a ``code`` to the table. A class without one is a user's subclass."""
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.name, cls.action, cls.retriable = code, name, action, action != FINAL
            cls.__doc__ = f"{name} ({code})."
            _BY_CODE[code] = cls


class UnknownServerError(BrokerError, code=-1, name="UNKNOWN_SERVER_ERROR"): ...


class OffsetOutOfRangeError(BrokerError, code=1, name="OFFSET_OUT_OF_RANGE"):
    hint = 'seek() to an offset that exists, or set auto_offset_reset to "earliest" or "latest"'


class CorruptMessageError(BrokerError, code=2, name="CORRUPT_MESSAGE", action=RETRY): ...


class UnknownTopicOrPartitionError(BrokerError, code=3, name="UNKNOWN_TOPIC_OR_PARTITION", action=METADATA):
    hint = "create the topic, or check its name and partition"


class InvalidFetchSizeError(BrokerError, code=4, name="INVALID_FETCH_SIZE"): ...


class LeaderNotAvailableError(BrokerError, code=5, name="LEADER_NOT_AVAILABLE", action=METADATA):
    hint = "are the brokers that hold its replicas up? see ottla topic describe"


class NotLeaderOrFollowerError(BrokerError, code=6, name="NOT_LEADER_OR_FOLLOWER", action=METADATA): ...


class RequestTimedOutError(BrokerError, code=7, name="REQUEST_TIMED_OUT", action=RETRY): ...


class BrokerNotAvailableError(BrokerError, code=8, name="BROKER_NOT_AVAILABLE"): ...


class ReplicaNotAvailableError(BrokerError, code=9, name="REPLICA_NOT_AVAILABLE", action=METADATA): ...


class MessageTooLargeError(BrokerError, code=10, name="MESSAGE_TOO_LARGE"):
    hint = "see max.message.bytes of the topic"


class StaleControllerEpochError(BrokerError, code=11, name="STALE_CONTROLLER_EPOCH"): ...


class OffsetMetadataTooLargeError(BrokerError, code=12, name="OFFSET_METADATA_TOO_LARGE"):
    hint = "commit shorter metadata: the broker's offset.metadata.max.bytes is 4096 unless set"


class NetworkError(BrokerError, code=13, name="NETWORK_EXCEPTION", action=METADATA): ...


class CoordinatorLoadInProgressError(BrokerError, code=14, name="COORDINATOR_LOAD_IN_PROGRESS", action=RETRY):
    hint = "the broker that coordinates the group has just started: wait, and look at its log if that does not help"


class CoordinatorNotAvailableError(BrokerError, code=15, name="COORDINATOR_NOT_AVAILABLE", action=COORDINATOR):
    hint = "is __consumer_offsets (of transactions: __transaction_state) online? see ottla topic describe"


class NotCoordinatorError(BrokerError, code=16, name="NOT_COORDINATOR", action=COORDINATOR): ...


class InvalidTopicError(BrokerError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    hint = "the name of a topic is up to 249 letters, digits, dots, underscores and hyphens, and neither . nor .."


class RecordListTooLargeError(BrokerError, code=18, name="RECORD_LIST_TOO_LARGE"): ...


class NotEnoughReplicasError(BrokerError, code=19, name="NOT_ENOUGH_REPLICAS", action=RETRY): ...


class NotEnoughReplicasAfterAppendError(BrokerError, code=20, name="NOT_ENOUGH_REPLICAS_AFTER_APPEND", action=RETRY): ...


class InvalidRequiredAcksError(BrokerError, code=21, name="INVALID_REQUIRED_ACKS"): ...


class IllegalGenerationError(BrokerError, code=22, name="ILLEGAL_GENERATION"):
    hint = "the group has rebalanced: poll() to rejoin"


class InconsistentGroupProtocolError(BrokerError, code=23, name="INCONSISTENT_GROUP_PROTOCOL"):
    hint = (
        "the members of a group must share at least one assignor and one protocol type, and those of a central group have"
        " group.protocol=central; ottla group describe shows what the group has"
    )


class InvalidGroupIdError(BrokerError, code=24, name="INVALID_GROUP_ID"): ...


class UnknownMemberIdError(BrokerError, code=25, name="UNKNOWN_MEMBER_ID"):
    hint = "the member was removed from the group: poll() to rejoin"


class InvalidSessionTimeoutError(BrokerError, code=26, name="INVALID_SESSION_TIMEOUT"):
    hint = "the broker's bounds are group.min.session.timeout.ms and group.max.session.timeout.ms"


class RebalanceInProgressError(BrokerError, code=27, name="REBALANCE_IN_PROGRESS"):
    hint = "call poll() so that the rebalance can finish, then commit again"


class InvalidCommitOffsetSizeError(BrokerError, code=28, name="INVALID_COMMIT_OFFSET_SIZE"): ...


class TopicAuthorizationFailedError(BrokerError, code=29, name="TOPIC_AUTHORIZATION_FAILED"):
    hint = "an administrator has to allow this principal to DESCRIBE and READ the topic (a producer: to WRITE)"


class GroupAuthorizationFailedError(BrokerError, code=30, name="GROUP_AUTHORIZATION_FAILED"):
    hint = "an administrator has to allow this principal to READ the group"


class ClusterAuthorizationFailedError(BrokerError, code=31, name="CLUSTER_AUTHORIZATION_FAILED"): ...


class InvalidTimestampError(BrokerError, code=32, name="INVALID_TIMESTAMP"): ...


class UnsupportedSaslMechanismError(BrokerError, code=33, name="UNSUPPORTED_SASL_MECHANISM"): ...


class IllegalSaslStateError(BrokerError, code=34, name="ILLEGAL_SASL_STATE"): ...


class UnsupportedVersionError(BrokerError, code=35, name="UNSUPPORTED_VERSION"):
    hint = "the broker is too old for this request"


class TopicAlreadyExistsError(BrokerError, code=36, name="TOPIC_ALREADY_EXISTS"):
    hint = "pick another name or delete the topic first"


class InvalidPartitionsError(BrokerError, code=37, name="INVALID_PARTITIONS"): ...


class InvalidReplicationFactorError(BrokerError, code=38, name="INVALID_REPLICATION_FACTOR"): ...


class InvalidReplicaAssignmentError(BrokerError, code=39, name="INVALID_REPLICA_ASSIGNMENT"): ...


class InvalidConfigError(BrokerError, code=40, name="INVALID_CONFIG"): ...


class NotControllerError(BrokerError, code=41, name="NOT_CONTROLLER", action=RETRY): ...


class InvalidRequestError(BrokerError, code=42, name="INVALID_REQUEST"): ...


class UnsupportedForMessageFormatError(BrokerError, code=43, name="UNSUPPORTED_FOR_MESSAGE_FORMAT"):
    hint = "the message.format.version of the topic is older: a producer has to set enable_idempotence=False there"


class PolicyViolationError(BrokerError, code=44, name="POLICY_VIOLATION"): ...


class OutOfOrderSequenceNumberError(BrokerError, code=45, name="OUT_OF_ORDER_SEQUENCE_NUMBER"): ...


class DuplicateSequenceNumberError(BrokerError, code=46, name="DUPLICATE_SEQUENCE_NUMBER"): ...


class InvalidProducerEpochError(BrokerError, code=47, name="INVALID_PRODUCER_EPOCH"):
    hint = "a producer that was initialized later has its transactional_id, or the transaction took more than transaction_timeout"


class InvalidTxnStateError(BrokerError, code=48, name="INVALID_TXN_STATE"): ...


class InvalidProducerIdMappingError(BrokerError, code=49, name="INVALID_PRODUCER_ID_MAPPING"): ...


class InvalidTransactionTimeoutError(BrokerError, code=50, name="INVALID_TRANSACTION_TIMEOUT"): ...


class ConcurrentTransactionsError(BrokerError, code=51, name="CONCURRENT_TRANSACTIONS", action=RETRY): ...


class TransactionCoordinatorFencedError(BrokerError, code=52, name="TRANSACTION_COORDINATOR_FENCED"): ...


class TransactionalIdAuthorizationFailedError(BrokerError, code=53, name="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"): ...


class SecurityDisabledError(BrokerError, code=54, name="SECURITY_DISABLED"): ...


class OperationNotAttemptedError(BrokerError, code=55, name="OPERATION_NOT_ATTEMPTED"): ...


class KafkaStorageError(BrokerError, code=56, name="KAFKA_STORAGE_ERROR", action=METADATA): ...


class LogDirNotFoundError(BrokerError, code=57, name="LOG_DIR_NOT_FOUND"): ...


class SaslAuthenticationFailedError(BrokerError, code=58, name="SASL_AUTHENTICATION_FAILED"): ...


class UnknownProducerIdError(BrokerError, code=59, name="UNKNOWN_PRODUCER_ID"): ...


class ReassignmentInProgressError(BrokerError, code=60, name="REASSIGNMENT_IN_PROGRESS"): ...


class DelegationTokenAuthDisabledError(BrokerError, code=61, name="DELEGATION_TOKEN_AUTH_DISABLED"): ...


class DelegationTokenNotFoundError(BrokerError, code=62, name="DELEGATION_TOKEN_NOT_FOUND"): ...


class DelegationTokenOwnerMismatchError(BrokerError, code=63, name="DELEGATION_TOKEN_OWNER_MISMATCH"): ...


class DelegationTokenRequestNotAllowedError(BrokerError, code=64, name="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"): ...


class DelegationTokenAuthorizationFailedError(BrokerError, code=65, name="DELEGATION_TOKEN_AUTHORIZATION_FAILED"): ...


class DelegationTokenExpiredError(BrokerError, code=66, name="DELEGATION_TOKEN_EXPIRED"): ...


class InvalidPrincipalTypeError(BrokerError, code=67, name="INVALID_PRINCIPAL_TYPE"): ...


class NonEmptyGroupError(BrokerError, code=68, name="NON_EMPTY_GROUP"):
    hint = "stop the members of the group first"


class GroupIdNotFoundError(BrokerError, code=69, name="GROUP_ID_NOT_FOUND"): ...


class FetchSessionIdNotFoundError(BrokerError, code=70, name="FETCH_SESSION_ID_NOT_FOUND", action=RETRY): ...


class InvalidFetchSessionEpochError(BrokerError, code=71, name="INVALID_FETCH_SESSION_EPOCH", action=RETRY): ...


class ListenerNotFoundError(BrokerError, code=72, name="LISTENER_NOT_FOUND", action=METADATA): ...


class TopicDeletionDisabledError(BrokerError, code=73, name="TOPIC_DELETION_DISABLED"): ...


class FencedLeaderEpochError(BrokerError, code=74, name="FENCED_LEADER_EPOCH", action=METADATA): ...


class UnknownLeaderEpochError(BrokerError, code=75, name="UNKNOWN_LEADER_EPOCH", action=RETRY): ...


class UnsupportedCompressionTypeError(BrokerError, code=76, name="UNSUPPORTED_COMPRESSION_TYPE"): ...


class StaleBrokerEpochError(BrokerError, code=77, name="STALE_BROKER_EPOCH"): ...


class OffsetNotAvailableError(BrokerError, code=78, name="OFFSET_NOT_AVAILABLE", action=RETRY): ...


class MemberIdRequiredError(BrokerError, code=79, name="MEMBER_ID_REQUIRED"): ...


class PreferredLeaderNotAvailableError(BrokerError, code=80, name="PREFERRED_LEADER_NOT_AVAILABLE", action=METADATA): ...


class GroupMaxSizeReachedError(BrokerError, code=81, name="GROUP_MAX_SIZE_REACHED"):
    hint = "the group is full: see the broker's group.max.size"


class FencedInstanceIdError(BrokerError, code=82, name="FENCED_INSTANCE_ID"):
    hint = "another member uses the same group_instance_id: give each its own"


class EligibleLeadersNotAvailableError(BrokerError, code=83, name="ELIGIBLE_LEADERS_NOT_AVAILABLE", action=METADATA): ...


class ElectionNotNeededError(BrokerError, code=84, name="ELECTION_NOT_NEEDED", action=METADATA): ...


class NoReassignmentInProgressError(BrokerError, code=85, name="NO_REASSIGNMENT_IN_PROGRESS"): ...


class GroupSubscribedToTopicError(BrokerError, code=86, name="GROUP_SUBSCRIBED_TO_TOPIC"): ...


class InvalidRecordError(BrokerError, code=87, name="INVALID_RECORD"): ...


class UnstableOffsetCommitError(BrokerError, code=88, name="UNSTABLE_OFFSET_COMMIT", action=RETRY): ...


class ThrottlingQuotaExceededError(BrokerError, code=89, name="THROTTLING_QUOTA_EXCEEDED", action=RETRY): ...


class ProducerFencedError(BrokerError, code=90, name="PRODUCER_FENCED"):
    hint = "a producer that was initialized later has its transactional_id, or the transaction took more than transaction_timeout"


class ResourceNotFoundError(BrokerError, code=91, name="RESOURCE_NOT_FOUND"): ...


class DuplicateResourceError(BrokerError, code=92, name="DUPLICATE_RESOURCE"): ...


class UnacceptableCredentialError(BrokerError, code=93, name="UNACCEPTABLE_CREDENTIAL"): ...


class InconsistentVoterSetError(BrokerError, code=94, name="INCONSISTENT_VOTER_SET"): ...


class InvalidUpdateVersionError(BrokerError, code=95, name="INVALID_UPDATE_VERSION"): ...


class FeatureUpdateFailedError(BrokerError, code=96, name="FEATURE_UPDATE_FAILED"): ...


class PrincipalDeserializationFailureError(BrokerError, code=97, name="PRINCIPAL_DESERIALIZATION_FAILURE"): ...


class SnapshotNotFoundError(BrokerError, code=98, name="SNAPSHOT_NOT_FOUND"): ...


class PositionOutOfRangeError(BrokerError, code=99, name="POSITION_OUT_OF_RANGE"): ...


class UnknownTopicIdError(BrokerError, code=100, name="UNKNOWN_TOPIC_ID", action=METADATA): ...


class DuplicateBrokerRegistrationError(BrokerError, code=101, name="DUPLICATE_BROKER_REGISTRATION"): ...


class BrokerIdNotRegisteredError(BrokerError, code=102, name="BROKER_ID_NOT_REGISTERED"): ...


class InconsistentTopicIdError(BrokerError, code=103, name="INCONSISTENT_TOPIC_ID", action=METADATA): ...


class InconsistentClusterIdError(BrokerError, code=104, name="INCONSISTENT_CLUSTER_ID"): ...


class TransactionalIdNotFoundError(BrokerError, code=105, name="TRANSACTIONAL_ID_NOT_FOUND"): ...


class FetchSessionTopicIdError(BrokerError, code=106, name="FETCH_SESSION_TOPIC_ID_ERROR", action=RETRY): ...


class IneligibleReplicaError(BrokerError, code=107, name="INELIGIBLE_REPLICA"): ...


class NewLeaderElectedError(BrokerError, code=108, name="NEW_LEADER_ELECTED"): ...


class OffsetMovedToTieredStorageError(BrokerError, code=109, name="OFFSET_MOVED_TO_TIERED_STORAGE"): ...


class FencedMemberEpochError(BrokerError, code=110, name="FENCED_MEMBER_EPOCH"): ...


class UnreleasedInstanceIdError(BrokerError, code=111, name="UNRELEASED_INSTANCE_ID"):
    hint = "another member uses the same group_instance_id: give each its own"


class UnsupportedAssignorError(BrokerError, code=112, name="UNSUPPORTED_ASSIGNOR"): ...


class StaleMemberEpochError(BrokerError, code=113, name="STALE_MEMBER_EPOCH"): ...


class MismatchedEndpointTypeError(BrokerError, code=114, name="MISMATCHED_ENDPOINT_TYPE"): ...


class UnsupportedEndpointTypeError(BrokerError, code=115, name="UNSUPPORTED_ENDPOINT_TYPE"): ...


class UnknownControllerIdError(BrokerError, code=116, name="UNKNOWN_CONTROLLER_ID"): ...


class UnknownSubscriptionIdError(BrokerError, code=117, name="UNKNOWN_SUBSCRIPTION_ID"): ...


class TelemetryTooLargeError(BrokerError, code=118, name="TELEMETRY_TOO_LARGE"): ...


class InvalidRegistrationError(BrokerError, code=119, name="INVALID_REGISTRATION"): ...


class TransactionAbortableError(BrokerError, code=120, name="TRANSACTION_ABORTABLE"): ...


class InvalidRecordStateError(BrokerError, code=121, name="INVALID_RECORD_STATE"): ...


class ShareSessionNotFoundError(BrokerError, code=122, name="SHARE_SESSION_NOT_FOUND", action=RETRY): ...


class InvalidShareSessionEpochError(BrokerError, code=123, name="INVALID_SHARE_SESSION_EPOCH", action=RETRY): ...


class FencedStateEpochError(BrokerError, code=124, name="FENCED_STATE_EPOCH"): ...


class InvalidVoterKeyError(BrokerError, code=125, name="INVALID_VOTER_KEY"): ...


class DuplicateVoterError(BrokerError, code=126, name="DUPLICATE_VOTER"): ...


class VoterNotFoundError(BrokerError, code=127, name="VOTER_NOT_FOUND"): ...


class InvalidRegularExpressionError(BrokerError, code=128, name="INVALID_REGULAR_EXPRESSION"): ...


class RebootstrapRequiredError(BrokerError, code=129, name="REBOOTSTRAP_REQUIRED"): ...


class StreamsInvalidTopologyError(BrokerError, code=130, name="STREAMS_INVALID_TOPOLOGY"): ...


class StreamsInvalidTopologyEpochError(BrokerError, code=131, name="STREAMS_INVALID_TOPOLOGY_EPOCH"): ...


class StreamsTopologyFencedError(BrokerError, code=132, name="STREAMS_TOPOLOGY_FENCED"): ...


class ShareSessionLimitReachedError(BrokerError, code=133, name="SHARE_SESSION_LIMIT_REACHED", action=RETRY): ...


ERROR_CODES.update((code, (cls.name, cls.action)) for code, cls in _BY_CODE.items())


def error_class(code: int) -> type[BrokerError]:
    """The class of an error code. An unknown code gets a class of its own, with the number in its name."""
    return _BY_CODE.get(code) or _unknown(code)


def broker_error(code: int, message: str = "") -> BrokerError:
    """The exception for a non-zero error code."""
    return error_class(code)(message)


def class_named(name: str) -> type[BrokerError] | None:
    """The class of a code that is not in the table, by its name, for unpickling; ``None`` for other names."""
    match = re.fullmatch(r"UnknownCode(-?\d+)Error", name)
    cls = None if match is None else error_class(int(match[1]))
    return cls if cls is not None and cls.__name__ == name else None


def _unknown(code: int) -> type[BrokerError]:
    class Unknown(BrokerError, code=code, name=f"UNKNOWN_CODE_{code}"): ...

    Unknown.__name__ = Unknown.__qualname__ = f"UnknownCode{code}Error"
    Unknown.__module__ = __package__
    return Unknown
