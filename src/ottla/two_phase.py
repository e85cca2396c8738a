"""``finish``: the second phase of a two-phase commit, from any process.

Owns the signature. Must not know requests. Invariant: nothing is sent for a transaction in which nothing was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ottla.admin import Admin
from ottla.arguments import Timeout
from ottla.client.produce.transactions.prepared import Prepared

if TYPE_CHECKING:
    from ottla.settings import AdminSettings


def finish(
    prepared: Prepared | Iterable[Prepared],
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    commit: bool,
    timeout: Timeout = None,
    **keywords: Unpack[AdminSettings],
) -> None:
    """Commit or abort what ``Transaction.prepare()`` returned, from any process: one ``Prepared``, or a collection of them.

    ``settings`` and keywords are those of ``Admin``; ``timeout`` is in seconds or a ``timedelta``. All transactions are tried, even
    if one fails; the error names those that failed, the others have ended. A process that calls this often should rather use
    ``Admin.end_transactions``, which keeps its connections.

    The call may be repeated, also by another process and after any error: it does no harm until the transactional id is initialized
    again. It raises:

    * ``InvalidTxnStateError`` if the transaction has ended the other way: it was aborted and should be committed, or vice versa;
    * ``TransactionOutcomeUnknownError`` if the coordinator no longer knows the outcome. Then only something that the transaction
      wrote itself, such as a marker, can tell whether it was committed;
    * ``OttlaTimeoutError`` if it could not be ended in time; the text says where it may have been ended nevertheless;
    * ``UnsupportedApiError`` if the cluster no longer has the version of transactions in which it was prepared.

    The brokers do not wait for ever: ``transaction_timeout`` of the producer after its transaction began they abort it, prepared or
    not. Set that to the longest time between the first record and this call, failures included; the brokers allow at most their
    ``transaction.max.timeout.ms``, 15 minutes unless it is changed. A producer that is initialized with the same transactional id
    aborts it at once: do not create one before this call has succeeded.
    """
    with Admin(settings, **keywords) as admin:
        admin.end_transactions(prepared, commit=commit, timeout=timeout)
