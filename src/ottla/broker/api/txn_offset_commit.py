"""TxnOffsetCommit (28): offsets in a transaction, once the transaction coordinator has said that they belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.verdicts import Writer, verdict_for
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.transactional_offsets import commit_in_transaction_refused, names_nothing_known
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import txn_offset_commit_request
from ottla.types import Now, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.TXN_OFFSET_COMMIT)
def txn_offset_commit(
    state: BrokerState, context: RequestContext, request: txn_offset_commit_request.TxnOffsetCommitRequest, now: Now
) -> list[Effect]:
    """The group coordinator decides; a producer whose transaction is not known in the group's log is asked about first."""
    refused = partial(commit_in_transaction_refused, request, state.catalog.topics)
    if not request.group_id:
        return [Reply(context.ticket, refused(ErrorCode.invalid_group_id))]
    partition = state.groups.offsets_partition_of(request.group_id)
    try:
        state.groups.ensure_topic()
        log = state.catalog.log(partition.topic, partition.partition)
        log.producers.check_epoch(request.producer_id, request.producer_epoch)
    except ApiError as api_error:
        return [Reply(context.ticket, refused(api_error.code))]
    if names_nothing_known(request, state.catalog.topics) or log.producers.is_writing(request.producer_id, request.producer_epoch):
        state.groups.handle(context, request, now)
        return []
    writer = Writer(request.transactional_id, request.producer_id, request.producer_epoch)

    def go_on(said: Mapping[TopicPartition, ErrorCode], at: Now) -> list[Effect]:
        error = verdict_for(context, said[partition])
        if error is not ErrorCode.none:
            return [Reply(context.ticket, refused(error))]
        state.groups.handle(context, request, at)
        return []

    state.transactions.enlist(context, {writer: [partition]}, go_on, now)
    return []
