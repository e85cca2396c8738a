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
    |   +-- ConsumerTimeoutError    a stream had no record for consumer_timeout
    +-- ConnectionFailedError       no broker could be reached; lists every address and why each failed
    |   +-- AllKnownBrokersNotAvailableError  a member of a central group reaches no broker that it knows
    +-- DisconnectedError           the connection to a broker broke, or could not be made
    +-- AuthenticationError         the broker did not accept the credentials, or could not prove its identity
    |   +-- TlsError                no TLS connection: a certificate that is not trusted, expired or for another host ...
    +-- ProtocolError               not Kafka's protocol, or a value that it cannot represent
    |   +-- CorruptRecordError      a batch that fails its checksum, its lengths or its codec
    |   +-- UnsupportedApiError     no version of a request is known to both sides
    +-- RecordDeserializationError  the user's deserializer raised; carries the raw record
    +-- NoOffsetForPartitionError   no committed offset and auto_offset_reset="none"
    +-- LogTruncationError          what was read is no longer in the log, and auto_offset_reset="none"
    +-- CommitFailedError           the group has rebalanced: the partitions may belong to another member now
    +-- TransactionAbortedError     the transaction was aborted, or has to be
    +-- TransactionOutcomeUnknownError  the transaction was committed, or was not: a response was lost
    +-- ReplayMismatchError         Spark repeats a batch that was written exactly once, with other rows or tasks
    +-- ConsumerRebalanceFailedError  a member of a ZooKeeper group could not claim its partitions so far
    +-- AssignmentError             an assignor failed, or its answer cannot be used
    +-- StorageError                the data directory cannot be used
    +-- ZooKeeperError              ZooKeeper did not execute an operation, or did not answer; ``code`` is ZooKeeper's own
    +-- BrokerError                 an error code of the protocol; one class per code, e.g. ``UnknownTopicOrPartitionError``

Must not know any other package. Invariant: ``__all__`` names every error class, and nothing else.
"""

# ruff: noqa: F405 - the 134 classes of codes are not listed twice
from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.errors.codes import *  # noqa: F403
from ottla.errors.codes import (
    COORDINATOR as COORDINATOR,
    ERROR_CODES as ERROR_CODES,
    FINAL as FINAL,
    METADATA as METADATA,
    RETRY as RETRY,
    broker_error as broker_error,
    class_named,
    error_class as error_class,
)
from ottla.errors.tree import (
    AllKnownBrokersNotAvailableError,
    AssignmentError,
    AuthenticationError,
    ClosedError,
    CommitFailedError,
    ConcurrentAccessError,
    ConfigError,
    ConnectionFailedError,
    ConsumerRebalanceFailedError,
    ConsumerTimeoutError,
    CorruptRecordError,
    DisconnectedError,
    ForkedError,
    IllegalStateError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OttlaError,
    OttlaTimeoutError,
    ProtocolError,
    RecordDeserializationError,
    ReplayMismatchError,
    StorageError,
    TlsError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnsupportedApiError,
    WakeupError,
    timeout_error as timeout_error,
)
from ottla.errors.zookeeper import KeeperCode as KeeperCode, ZooKeeperError

__all__ = [
    "AllKnownBrokersNotAvailableError",
    "AssignmentError",
    "AuthenticationError",
    "BrokerError",
    "BrokerIdNotRegisteredError",
    "BrokerNotAvailableError",
    "ClosedError",
    "ClusterAuthorizationFailedError",
    "CommitFailedError",
    "ConcurrentAccessError",
    "ConcurrentTransactionsError",
    "ConfigError",
    "ConnectionFailedError",
    "ConsumerRebalanceFailedError",
    "ConsumerTimeoutError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorruptMessageError",
    "CorruptRecordError",
    "DelegationTokenAuthDisabledError",
    "DelegationTokenAuthorizationFailedError",
    "DelegationTokenExpiredError",
    "DelegationTokenNotFoundError",
    "DelegationTokenOwnerMismatchError",
    "DelegationTokenRequestNotAllowedError",
    "DisconnectedError",
    "DuplicateBrokerRegistrationError",
    "DuplicateResourceError",
    "DuplicateSequenceNumberError",
    "DuplicateVoterError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "FeatureUpdateFailedError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "FencedMemberEpochError",
    "FencedStateEpochError",
    "FetchSessionIdNotFoundError",
    "FetchSessionTopicIdError",
    "ForkedError",
    "GroupAuthorizationFailedError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupSubscribedToTopicError",
    "IllegalGenerationError",
    "IllegalSaslStateError",
    "IllegalStateError",
    "InconsistentClusterIdError",
    "InconsistentGroupProtocolError",
    "InconsistentTopicIdError",
    "InconsistentVoterSetError",
    "IneligibleReplicaError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigError",
    "InvalidFetchSessionEpochError",
    "InvalidFetchSizeError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidPrincipalTypeError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidRecordStateError",
    "InvalidRegistrationError",
    "InvalidRegularExpressionError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidShareSessionEpochError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "InvalidUpdateVersionError",
    "InvalidVoterKeyError",
    "KafkaStorageError",
    "LeaderNotAvailableError",
    "ListenerNotFoundError",
    "LogDirNotFoundError",
    "LogTruncationError",
    "MemberIdRequiredError",
    "MessageTooLargeError",
    "MismatchedEndpointTypeError",
    "NetworkError",
    "NewLeaderElectedError",
    "NoOffsetForPartitionError",
    "NoReassignmentInProgressError",
    "NonEmptyGroupError",
    "NotControllerError",
    "NotCoordinatorError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetMetadataTooLargeError",
    "OffsetMovedToTieredStorageError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OperationNotAttemptedError",
    "OttlaError",
    "OttlaTimeoutError",
    "OutOfOrderSequenceNumberError",
    "PolicyViolationError",
    "PositionOutOfRangeError",
    "PreferredLeaderNotAvailableError",
    "PrincipalDeserializationFailureError",
    "ProducerFencedError",
    "ProtocolError",
    "ReassignmentInProgressError",
    "RebalanceInProgressError",
    "RebootstrapRequiredError",
    "RecordDeserializationError",
    "RecordListTooLargeError",
    "ReplayMismatchError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "ResourceNotFoundError",
    "SaslAuthenticationFailedError",
    "SecurityDisabledError",
    "ShareSessionLimitReachedError",
    "ShareSessionNotFoundError",
    "SnapshotNotFoundError",
    "StaleBrokerEpochError",
    "StaleControllerEpochError",
    "StaleMemberEpochError",
    "StorageError",
    "StreamsInvalidTopologyEpochError",
    "StreamsInvalidTopologyError",
    "StreamsTopologyFencedError",
    "TelemetryTooLargeError",
    "ThrottlingQuotaExceededError",
    "TlsError",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicDeletionDisabledError",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionCoordinatorFencedError",
    "TransactionOutcomeUnknownError",
    "TransactionalIdAuthorizationFailedError",
    "TransactionalIdNotFoundError",
    "UnacceptableCredentialError",
    "UnknownControllerIdError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownServerError",
    "UnknownSubscriptionIdError",
    "UnknownTopicIdError",
    "UnknownTopicOrPartitionError",
    "UnreleasedInstanceIdError",
    "UnstableOffsetCommitError",
    "UnsupportedApiError",
    "UnsupportedAssignorError",
    "UnsupportedCompressionTypeError",
    "UnsupportedEndpointTypeError",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "VoterNotFoundError",
    "WakeupError",
    "ZooKeeperError",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # tracebacks and pickles name the module from which users import

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> type[BrokerError]:
        """The class of a code that the table does not have: ``UnknownCode4711Error``."""
        cls = class_named(name)
        if cls is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return cls
