"""The errors of ZooKeeper, under ZooKeeper's own names.

Owns ``KeeperCode``, the codes of ``KeeperException``, and ``ZooKeeperError``. Must not know the operations that fail. Invariant: a
code that may come back although the operation was executed is in ``OUTCOME_UNKNOWN``; one that proves that the session was alive is
in ``SENT_BY_SERVER``.
"""

from __future__ import annotations

import enum

from ottla.errors.tree import OttlaError


class KeeperCode(enum.Enum):
    """The codes of ``org.apache.zookeeper.KeeperException``, and what they mean."""

    SYSTEMERROR = "the server has failed"
    RUNTIMEINCONSISTENCY = "the server's state is inconsistent"
    DATAINCONSISTENCY = "the server's data is inconsistent"
    CONNECTIONLOSS = "the connection broke before the answer"
    MARSHALLINGERROR = "the operation cannot be encoded or decoded"
    UNIMPLEMENTED = "the server does not know this operation"
    OPERATIONTIMEOUT = "no answer in time"
    BADARGUMENTS = "the arguments are invalid"
    APIERROR = "the server refuses this operation"
    NONODE = "the node does not exist"
    NOAUTH = "not authorized"
    BADVERSION = "the node has another version"
    NOCHILDRENFOREPHEMERALS = "ephemeral nodes have no children"
    NODEEXISTS = "the node exists already"
    NOTEMPTY = "the node has children"
    SESSIONEXPIRED = "there is no session, or it has expired"
    INVALIDCALLBACK = "the callback is invalid"
    INVALIDACL = "the access control list is invalid"
    AUTHFAILED = "the authentication has failed"
    SESSIONMOVED = "the session has moved to another server"
    NOTREADONLY = "the server is read-only"


OUTCOME_UNKNOWN = frozenset({KeeperCode.CONNECTIONLOSS, KeeperCode.OPERATIONTIMEOUT})
"""The server may have executed the operation, or may still do so."""

SENT_BY_SERVER = frozenset(
    {
        KeeperCode.NONODE,
        KeeperCode.NOAUTH,
        KeeperCode.BADVERSION,
        KeeperCode.NOCHILDRENFOREPHEMERALS,
        KeeperCode.NODEEXISTS,
        KeeperCode.NOTEMPTY,
        KeeperCode.INVALIDACL,
    }
)
"""Only a server that has the session refuses an operation so. The client itself may report any other code, as kazoo does with
invalid arguments, after a failed authentication, and for its own exceptions; a read-only server does not keep the session alive."""

_RETRIABLE = OUTCOME_UNKNOWN | {KeeperCode.SESSIONEXPIRED, KeeperCode.SESSIONMOVED}


class ZooKeeperError(OttlaError):
    """ZooKeeper did not execute an operation, or did not answer. ``code`` is ZooKeeper's, ``path`` that of the operation.

    In a multi they are those of the first operation that failed, at ``index``; none of the others was executed.
    """

    def __init__(
        self,
        code: KeeperCode,
        path: str,
        *,
        index: int | None = None,
        hint: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        where = path if index is None else f"{path} (operation {index + 1} of a multi)"
        super().__init__(f"ZooKeeper: {code.name} at {where}: {code.value}", hint=hint, cause=cause)
        self.code, self.path, self.index = code, path, index
        self.retriable = code in _RETRIABLE

    @property
    def outcome_unknown(self) -> bool:
        """Whether the operation may have been executed all the same."""
        return self.code in OUTCOME_UNKNOWN

    @property
    def was_sent_by_server(self) -> bool:
        """Whether a server that has the session has surely sent this error, so that the session was alive."""
        return self.code in SENT_BY_SERVER
