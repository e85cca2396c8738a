"""The rights that source and sink need are those of the documentation, and a missing one is named."""

from __future__ import annotations

import itertools
import re
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from ottla import Admin, Producer
from ottla.errors import OttlaError
from ottla.spark.arrow_rows import send_rows
from ottla.spark.exactly_once.driver import abort_batch, commit_batch, open_transactions
from ottla.spark.exactly_once.replay import SinkName
from ottla.spark.exactly_once.tasks import TaskAttempt, write_task
from ottla.spark.exactly_once.transactions import admins
from ottla.spark.options import parse_options
from ottla.spark.sink_options import SinkOptions, parse_sink_options
from ottla.spark.stream import OttlaStreamReader
from tests.secure.kafka import PASSWORD, Secured

DOCS = Path(__file__).parents[2] / "docs"
RESOURCES = {
    "transactional ids": ResourceType.TRANSACTIONAL_ID,
    "groups": ResourceType.GROUP,
    "the group": ResourceType.GROUP,
    "the topics": ResourceType.TOPIC,
    "topics": ResourceType.TOPIC,
}

_numbers = itertools.count(1)


Rights = list[tuple[ResourceType, AclOperation]]


def documented(page: str = "spark-exactly-once.md") -> dict[str, Rights]:
    """The rights in the table of a page, by what they are for."""
    found: dict[str, Rights] = {}
    pattern = r"^\| ((?:`[A-Z]+`(?:, )?)+) \| (.*?) \| (.*?) \|$"
    for operations, resource, purpose in re.findall(pattern, (DOCS / page).read_text(), re.MULTILINE):
        (kind,) = {kind for text, kind in RESOURCES.items() if resource.startswith(text)}
        found[purpose] = [(kind, AclOperation[name]) for name in re.findall(r"\w+", operations)]
    return found


EXACTLY_ONCE: Rights = [right for rights in documented().values() for right in rights]


class Principal:
    """A user with some rights."""

    def __init__(self, secured: Secured, rights: Rights, prefix: str = "ottla.") -> None:
        self.name = f"erin-{next(_numbers)}"
        self.topic = f"invoices-{uuid.uuid4()}"
        for done in secured.admin.create_topics([NewTopic(self.topic, 2, 1)]).values():
            done.result(60)
        secured.let_in(self.name)
        names = {ResourceType.TOPIC: self.topic}
        for kind, operation in rights:
            pattern = ResourcePatternType.LITERAL if kind in names else ResourcePatternType.PREFIXED
            acl = AclBinding(kind, names.get(kind, prefix), pattern, f"User:{self.name}", "*", operation, AclPermissionType.ALLOW)
            for created in secured.admin.create_acls([acl]).values():
                created.result(60)
        self._servers = secured.addresses["LOGIN"]

    def settings(self) -> dict[str, str]:
        """The options with which this principal logs in."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": self.name}
        settings = {"bootstrap.servers": self._servers, **login, "sasl.password": PASSWORD, "max.block.ms": "5000"}
        return {f"kafka.{name}": value for name, value in settings.items()}

    def options(self, **more: str) -> SinkOptions:
        """The options of a sink with this login."""
        return parse_sink_options({**self.settings(), "topic": self.topic, **more})


def life_of_a_query(principal: Principal) -> None:
    """Batches, one that is repeated, one that is aborted, and a transaction that an earlier run has left open."""
    options, name = principal.options(exactlyOnce="true"), SinkName(str(uuid.uuid4()), "sink")
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"]})

    def task(batch: int, number: int, run: str) -> object:
        return write_task(options, ("value",), iter([rows]), TaskAttempt(name, batch, run, number, earlier))

    earlier = open_transactions(options)

    for batch in (0, 1, 1):
        commit_batch(options, [task(batch, 0, "one"), task(batch, 1, "one")], is_every_batch=True)  # type: ignore[list-item]
    abort_batch(options, [task(2, 0, "one")])  # type: ignore[list-item]
    task(2, 5, "one")
    earlier = open_transactions(options)
    reports = [task(2, 0, "two")]
    with admins.borrow(options.admin) as admin:
        assert [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])] == [name.of_task(0)]
    commit_batch(options, reports, is_every_batch=True)  # type: ignore[arg-type]


def test_the_documented_rights_are_enough(secured: Secured) -> None:
    assert len(EXACTLY_ONCE) == 6
    life_of_a_query(Principal(secured, EXACTLY_ONCE))


def write(principal: Principal) -> None:
    """What a task of the sink does that writes at least once."""
    options = principal.options()
    with Producer(dict(options.client)) as producer:
        assert send_rows(producer, [pa.RecordBatch.from_pydict({"value": ["a", "b"]})], principal.topic) == 2


def read(principal: Principal, **options: str) -> int:
    """What the driver and a task of a stream do."""
    given = {**principal.settings(), "subscribe": principal.topic, "startingOffsets": "earliest", **options}
    stream = OttlaStreamReader(parse_options(given).for_stream(), ("value",))
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows = sum(batch.num_rows for task in stream.partitions(start, end) for batch in stream.read(task))
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end  # waits for the last commit of its group
    stream.stop()
    return rows


def test_the_documented_rights_of_the_source_and_the_plain_sink_are_enough(secured: Secured) -> None:
    source, group, sink = documented("spark.md").values()
    principal = Principal(secured, [*source, *group, *sink], prefix="readers")
    write(principal)
    assert read(principal, groupId="readers-of-invoices") == 2
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        assert sum(each.offset for each in admin.group_offsets("readers-of-invoices").values()) == 2


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
def test_topics_that_may_not_be_described_any_more_are_not_taken_for_deleted(secured: Secured, how: str) -> None:
    """A broker that is asked for all topics leaves them out, as it does with those that do not exist."""
    principal, *others = (Principal(secured, [*documented("spark.md")["the source"]]) for _ in range(4))
    topics = [principal.topic, *(one.topic for one in others)]
    selection = {how: ",".join(topics) if how == "subscribe" else "invoices-.*"}
    options = parse_options({**principal.settings(), **selection, "failOnDataLoss": "false"}).for_stream()
    stream = OttlaStreamReader(options, ("value",))
    positions = {topic: {"0": 0, "1": 0} for topic in topics}
    for _ in range(2):
        with pytest.raises(OttlaError, match=r"invoices-.*TOPIC_AUTHORIZATION_FAILED"):
            stream.latestOffset(positions, stream.getDefaultReadLimit())
    if how == "subscribe":
        with pytest.raises(OttlaError, match=r"invoices-.*TOPIC_AUTHORIZATION_FAILED"):
            stream.initialOffset()
    stream.stop()


@pytest.mark.slow
def test_a_missing_right_of_the_source_or_the_plain_sink_is_named(secured: Secured) -> None:
    source, _, sink = documented("spark.md").values()
    reader, writer = Principal(secured, source), Principal(secured, sink)
    write(writer)
    with pytest.raises(OttlaError, match=f"{writer.topic}.*TOPIC_AUTHORIZATION_FAILED"):
        read(writer)
    with pytest.raises(OttlaError, match="has to allow this principal to WRITE to a topic"):
        write(reader)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ((ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE), "transactional"),
        ((ResourceType.GROUP, AclOperation.READ), "group"),
        ((ResourceType.TOPIC, AclOperation.WRITE), "topic"),
        ((ResourceType.TOPIC, AclOperation.READ), "topic"),
    ],
)
def test_a_missing_right_is_named(secured: Secured, missing: tuple[ResourceType, AclOperation], words: str) -> None:
    with pytest.raises(OttlaError) as raised:
        life_of_a_query(Principal(secured, [each for each in EXACTLY_ONCE if each != missing]))
    assert "not authorized" in str(raised.value).lower() or "authorization" in str(raised.value).lower()
    assert words in str(raised.value).lower()
