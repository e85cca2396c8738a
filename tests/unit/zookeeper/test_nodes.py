"""The data of Kafka 0.8's nodes: the bytes of Kafka 1.1.1 out, everything that other versions write in, and clear errors."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla.errors import OttlaError, ProtocolError
from ottla.types import Node
from ottla.zookeeper import nodes
from ottla.zookeeper.nodes import (
    ConsumerThread,
    GenerationNode,
    MemberRegistration,
    TopicNode,
    decode_cluster_id,
    decode_configs,
    decode_found_generation,
    decode_partition_state,
    decode_topic,
    decode_topic_node,
    encode_cluster_id,
    encode_configs,
    encode_partition_state,
    encode_topic,
    process_digest,
)

# As Kafka 1.1.1 wrote them.
STATIC = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795378530365"}'
WHITE_LIST = b'{"version":1,"subscription":{"orders|te.*":1},"pattern":"white_list","timestamp":"1795377382364"}'
BROKER = (
    b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:19092"],"jmx_port":-1,'
    b'"host":"127.0.0.1","timestamp":"1795377273165","port":19092,"version":4}'
)
TOPIC = b'{"version":1,"partitions":{"4":[1],"1":[1],"0":[1],"2":[1],"3":[1],"10":[1]}}'
STATE = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["version", "subscription", "pattern", "timestamp", "endpoints", "host", "port", "partitions", "leader"],
)


@pytest.mark.parametrize("data", [STATIC, WHITE_LIST])
def test_a_member_is_written_with_the_bytes_of_kafka(data: bytes) -> None:
    assert MemberRegistration.decode(data, "/m").encode() == data


def test_a_member_without_pattern_and_timestamp_names_its_topics() -> None:
    assert MemberRegistration.decode(b'{"version":1,"subscription":{"a":1}}', "/m") == MemberRegistration({"a": 1})


def test_brokers_of_all_versions() -> None:
    old = b'{"jmx_port":-1,"timestamp":"1","host":"old","version":1,"port":9092}'
    tls = b'{"endpoints":["TLS://[::1]:9093"],"listener_security_protocol_map":{"TLS":"SSL"},"host":null,"port":-1,"version":4}'
    assert nodes.decode_broker(1, BROKER, "/b") == Node(1, "127.0.0.1", 19092)
    assert nodes.decode_broker(1, old, "/b") == Node(1, "old", 9092)
    assert nodes.decode_broker(1, tls, "/b", "SSL") == nodes.decode_broker(1, tls, "/b", "TLS") == Node(1, "::1", 9093)
    with pytest.raises(ProtocolError, match="broker 1 has no address for PLAINTEXT"):
        nodes.decode_broker(1, tls, "/b")


@pytest.mark.parametrize(
    "fields", [r'"host":"h\ud800","port":9', r'"endpoints":["PLAINTEXT://\udfff:9"]', r'"\udc00":1,"host":"h","port":9']
)
def test_a_string_that_cannot_be_sent_to_clients_is_refused(fields: str) -> None:
    with pytest.raises(ProtocolError, match=r"/b of ZooKeeper is malformed: a string in it is not Unicode: .*\\ud"):
        nodes.decode_broker(1, f"{{{fields}}}".encode(), "/b")


def test_escapes_of_whole_characters_are_read() -> None:
    assert decode_configs(rb'{"config":{"a":"\u00e9\ud83d\ude00\\u"}}', "/c") == {"a": "\u00e9\U0001f600\\u"}


def test_a_host_that_is_too_long_is_refused() -> None:
    with pytest.raises(ProtocolError, match="the host has 40,000 characters"):
        nodes.decode_broker(1, json.dumps({"host": "h" * 40_000, "port": 9}).encode(), "/b")


def test_brokers_topics_and_leaders_are_written_with_the_bytes_of_kafka() -> None:
    assert nodes.encode_broker("127.0.0.1", 19092, 1795377273165) == BROKER
    assert nodes.decode_broker(1, nodes.encode_broker("::1", 9093, 1), "/b") == Node(1, "::1", 9093)
    assert nodes.encode_topic([1, 2]) == b'{"version":1,"partitions":{"0":[1],"1":[2]}}'
    assert nodes.encode_partition_state(1) == STATE


def test_topics_owners_and_offsets() -> None:
    assert nodes.decode_topic(TOPIC, "/t") == (0, 1, 2, 3, 4, 10)
    assert nodes.decode_owner(b"bar_vm-1795377382328-12a618e8-0", "/o") == ConsumerThread("bar_vm-1795377382328-12a618e8", 0)
    assert nodes.decode_offset(b"10", "/o") == 10


@given(st.text(min_size=1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_owners_and_offsets_are_read_as_written(member: str, thread: int, offset: int) -> None:
    owner = ConsumerThread(member, thread)
    assert nodes.decode_owner(nodes.encode_owner(owner), "/o") == owner
    assert nodes.decode_offset(nodes.encode_offset(offset), "/o") == offset


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "the subscription is missing"),
        (b'{"subscription":{"a":0}}', "the streams of 'a' is 0, not a whole number from 1"),
        (b'{"subscription":{"a":"x"}}', "the streams of 'a' is 'x'"),
        (b'{"subscription":{"a":1},"pattern":"grey_list"}', "the pattern is 'grey_list'"),
        (b'{"subscription":{"a":1,"b":1},"pattern":"black_list"}', "a black_list has one regular expression, not 2"),
        (b'{"subscription":{"a":1},"timestamp":true}', "the timestamp is True"),
        (b'{"subscription":{"a":2147483647}}', "the streams of 'a' is 2147483647, not a whole number from 1 to 10000"),
        (json.dumps({"subscription": dict.fromkeys(map(str, range(101)), 10_000)}).encode(), "it has 1,010,000 streams"),
    ],
)
def test_a_malformed_member_is_refused_with_its_path(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        MemberRegistration.decode(data, "/consumers/g/ids/m")
    assert "/consumers/g/ids/m" in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"x", b"x-", b"-1", b"x-y", b"x-1.0", b"x-99999999999", b"\xff-1"])
def test_a_malformed_owner_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="/o"):
        nodes.decode_owner(data, "/o")


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"x", "²".encode(), b"9" * 40])
def test_a_malformed_offset_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="/o"):
        nodes.decode_offset(data, "/o")


@given(st.binary() | st.dictionaries(FIELDS, JSON).map(lambda fields: json.dumps(fields).encode()))
def test_no_data_raises_anything_else(data: bytes) -> None:
    readers: list[Any] = [
        MemberRegistration.decode,
        lambda data, path: nodes.decode_broker(1, data, path),
        nodes.decode_topic,
        nodes.decode_owner,
        nodes.decode_offset,
    ]
    for read in readers:
        error = None
        try:
            read(data, "/p")
        except OttlaError as raised:
            error = raised
        assert error is None or (isinstance(error, ProtocolError) and "/p" in str(error))


def test_a_topic_with_an_id_has_the_form_of_kafka_2_8() -> None:
    topic_id = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
    data = encode_topic([3, 1], topic_id)
    assert data == (
        b'{"version":3,"topic_id":"ASNFZ4mrze8BI0VniavN7w","partitions":{"0":[3],"1":[1]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert decode_topic_node(data, "/t") == TopicNode(topic_id, (3, 1))
    assert decode_topic(data, "/t") == (0, 1), "Kafka 0.8's members read it, too"
    assert decode_topic_node(encode_topic([1, 2, 3]), "/t") == TopicNode(None, (1, 2, 3))
    several = decode_topic_node(b'{"version":1,"partitions":{"1":[2],"0":[1,2]}}', "/t")
    assert several == TopicNode(None, (1, 2), has_more_replicas=True), "the first replica"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"partitions":{}}', "not numbered from 0"),
        (b'{"partitions":{"1":[1]}}', "not numbered from 0"),
        (b'{"partitions":{"0":[]}}', "partition 0 has no replica"),
        (b'{"partitions":{"0":1}}', "partition 0 has no replica"),
        (b'{"partitions":{"0":["a"]}}', "the first replica of partition 0 is 'a'"),
        (b'{"partitions":{"0":[1]},"topic_id":"x"}', "its topic id is 'x'"),
        (b'{"partitions":{"0":[1]},"topic_id":7}', "its topic id is 7"),
        (b"[]", "not a JSON object"),
    ],
)
def test_a_topic_that_no_broker_can_lead(data: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=f"/t of ZooKeeper is malformed: .*{says}"):
        decode_topic_node(data, "/t")


def test_settings_and_leader_epochs() -> None:
    assert encode_configs({"a": "1"}) == b'{"version":1,"config":{"a":"1"}}'
    assert decode_configs(encode_configs({"a": "1"}), "/c") == {"a": "1"}
    for malformed in (b'{"config":[]}', b'{"config":{"a":1}}', b"{}"):
        with pytest.raises(ProtocolError, match="the settings are missing, or not all of them are strings"):
            decode_configs(malformed, "/c")
    assert decode_partition_state(encode_partition_state(1, 7), "/s") == (1, 7)
    with pytest.raises(ProtocolError, match="the leader is None"):
        decode_partition_state(b"{}", "/s")
    assert decode_cluster_id(encode_cluster_id("abc"), "/cluster/id") == "abc"


def test_a_generation_that_was_found_leaves_enough_numbers_for_the_next_ones() -> None:
    highest = GenerationNode(2**30, 1, 9_000, 1)
    assert decode_found_generation(highest.encode(), "/g") == highest
    for generation in (2**30 + 1, 2**31 - 1, 2**31, -1):
        with pytest.raises(ProtocolError, match=f"/g of ZooKeeper is malformed: the generation is {generation},"):
            decode_found_generation(highest._replace(generation=generation).encode(), "/g")


def test_the_processes_of_a_generation() -> None:
    processes = frozenset(
        {process_digest("a", "1"), process_digest("a", "2"), process_digest("ab", "1"), process_digest("a", "b1")}
    )
    assert len(processes) == 4
    assert {len(each) for each in processes} == {12}
    node = GenerationNode(1, 2, 9_000, 1, processes)
    assert GenerationNode.decode(node.encode(), "/g") == node
    assert GenerationNode.decode(b'{"generation":1,"members":2,"session_timeout":9000,"epoch":1}', "/g") == node._replace(
        processes=frozenset()
    )
    for malformed in (b"7", b"null", b'{"a":1}', b'["a",1]'):
        data = b'{"generation":1,"members":2,"session_timeout":9000,"epoch":1,"processes":%b}' % malformed
        with pytest.raises(ProtocolError, match="/g of ZooKeeper is malformed: the processes are a list of strings"):
            GenerationNode.decode(data, "/g")
