"""Hypothesis strategies for the records of groups."""

from __future__ import annotations

from hypothesis import strategies as st

from ottla.protocol.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TargetTopicPartitions,
)
from ottla.protocol.messages import consumer_group_heartbeat_request as heartbeat

text = st.text(st.characters(codec="utf-8"), max_size=10)
optional_text = st.none() | text
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
offset_keys = st.builds(OffsetCommitKey, group=text, topic=text, partition=int32)
offset_values = st.builds(
    OffsetCommitValue,
    offset=int64,
    leader_epoch=int32,
    metadata=text,
    commit_timestamp=int64,
    topic_id=st.none() | st.uuids().filter(lambda one: one.int != 0),
)
group_keys = st.builds(GroupMetadataKey, group=text)
members = st.builds(
    GroupMetadataMember,
    member_id=text,
    group_instance_id=optional_text,
    client_id=text,
    client_host=text,
    rebalance_timeout=int32,
    session_timeout=int32,
    subscription=st.binary(max_size=10),
    assignment=st.binary(max_size=10),
)
group_values = st.builds(
    GroupMetadataValue,
    protocol_type=text,
    generation=int32,
    protocol=optional_text,
    leader=optional_text,
    current_state_timestamp=int64,
    members=st.lists(members, max_size=3).map(tuple),
)
texts = st.lists(text, max_size=3).map(tuple)
topic_ids = st.uuids().filter(lambda one: one.int != 0)
partitions = st.lists(int32, max_size=4).map(tuple)
current = st.lists(
    st.builds(CurrentTopicPartitions, topic_id=topic_ids, partitions=partitions, assignment_epochs=st.none() | partitions),
    max_size=2,
).map(tuple)
classic_metadata = st.builds(
    ClassicMemberMetadata,
    session_timeout_ms=int32,
    supported_protocols=st.lists(st.builds(ClassicProtocol, name=text, metadata=st.binary(max_size=10)), max_size=2).map(tuple),
)
int16 = st.integers(-(2**15), 2**15 - 1)
offers = st.builds(
    heartbeat.ClientAssignor,
    name=text,
    minimum_version=int16,
    maximum_version=int16,
    reason=st.integers(-128, 127),
    metadata_version=int16,
    metadata=st.binary(max_size=10),
)
member_values = st.builds(
    ConsumerGroupMemberMetadataValue,
    instance_id=optional_text,
    rack_id=optional_text,
    client_id=text,
    client_host=text,
    subscribed_topic_names=texts,
    subscribed_topic_regex=optional_text,
    rebalance_timeout_ms=int32,
    server_assignor=optional_text,
    classic_member_metadata=st.none() | classic_metadata,
    client_assignors=st.lists(offers, max_size=2).map(tuple),
)
of_group, of_member = {"group_id": text}, {"group_id": text, "member_id": text}
consumer_group_records = st.one_of(
    st.tuples(
        st.builds(ConsumerGroupMetadataKey, **of_group),
        st.none() | st.builds(ConsumerGroupMetadataValue, epoch=int32, metadata_hash=int64),
    ),
    st.tuples(st.builds(ConsumerGroupPartitionMetadataKey, **of_group), st.none()),
    st.tuples(st.builds(ConsumerGroupMemberMetadataKey, **of_member), st.none() | member_values),
    st.tuples(
        st.builds(ConsumerGroupTargetAssignmentMetadataKey, **of_group),
        st.none() | st.builds(ConsumerGroupTargetAssignmentMetadataValue, assignment_epoch=int32, assignment_timestamp=int64),
    ),
    st.tuples(
        st.builds(ConsumerGroupTargetAssignmentMemberKey, **of_member),
        st.none()
        | st.builds(
            ConsumerGroupTargetAssignmentMemberValue,
            topic_partitions=st.lists(st.builds(TargetTopicPartitions, topic_id=topic_ids, partitions=partitions), max_size=2).map(
                tuple
            ),
        ),
    ),
    st.tuples(
        st.builds(ConsumerGroupCurrentMemberAssignmentKey, **of_member),
        st.none()
        | st.builds(
            ConsumerGroupCurrentMemberAssignmentValue,
            member_epoch=int32,
            previous_member_epoch=int32,
            state=st.integers(-128, 127),
            assigned_partitions=current,
            partitions_pending_revocation=current,
        ),
    ),
    st.tuples(
        st.builds(ConsumerGroupRegularExpressionKey, group_id=text, regular_expression=text),
        st.none() | st.builds(ConsumerGroupRegularExpressionValue, topics=texts, version=int64, timestamp=int64),
    ),
)
