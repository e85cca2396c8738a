"""The rights that a sink with ``exactlyOnce`` needs are those of the documentation, and a missing one is named."""

from __future__ import annotations

import itertools
import re
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from ottla.errors import OttlaError
from ottla.spark.exactly_once import TaskAttempt, abort_batch, admin_of, commit_batch, open_transactions, write_task
from ottla.spark.replay import SinkName
from ottla.spark.sink_options import SinkOptions, parse_sink_options
from tests.secure.kafka import PASSWORD, Secured

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark-exactly-once.md"
RESOURCES = {"transactional ids": ResourceType.TRANSACTIONAL_ID, "groups": ResourceType.GROUP, "the topics": ResourceType.TOPIC}

_numbers = itertools.count(1)


def documented() -> list[tuple[ResourceType, AclOperation]]:
    """The rights in the table of the documentation."""
    found = []
    for operations, resource in re.findall(r"^\| ((?:`[A-Z]+`(?:, )?)+) \| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE):
        (kind,) = {kind for text, kind in RESOURCES.items() if resource.startswith(text)}
        found += [(kind, AclOperation[name]) for name in re.findall(r"\w+", operations)]
    return found


class Principal:
    """A user with some rights."""

    def __init__(self, secured: Secured, rights: list[tuple[ResourceType, AclOperation]]) -> None:
        self.name = f"erin-{next(_numbers)}"
        self.topic = f"invoices-{uuid.uuid4()}"
        for done in secured.admin.create_topics([NewTopic(self.topic, 2, 1)]).values():
            done.result(60)
        secured.let_in(self.name)
        names = {ResourceType.TOPIC: self.topic}
        for kind, operation in rights:
            pattern = ResourcePatternType.LITERAL if kind in names else ResourcePatternType.PREFIXED
            acl = AclBinding(kind, names.get(kind, "ottla."), pattern, f"User:{self.name}", "*", operation, AclPermissionType.ALLOW)
            for created in secured.admin.create_acls([acl]).values():
                created.result(60)
        self._servers = secured.addresses["LOGIN"]

    def options(self) -> SinkOptions:
        """The options of a sink with this login."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": self.name}
        settings = {"bootstrap.servers": self._servers, **login, "sasl.password": PASSWORD, "max.block.ms": "5000"}
        given = {f"kafka.{name}": value for name, value in settings.items()}
        return parse_sink_options({**given, "topic": self.topic, "exactlyOnce": "true"})


def life_of_a_query(principal: Principal) -> None:
    """Batches, one that is repeated, one that is aborted, and a transaction that an earlier run has left open."""
    options, name = principal.options(), SinkName(str(uuid.uuid4()), "sink")
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
    assert [each.transactional_id for each in admin_of(options).list_transactions(states=["Ongoing"])] == [name.of_task(0)]
    commit_batch(options, reports, is_every_batch=True)  # type: ignore[arg-type]


def test_the_documented_rights_are_enough(secured: Secured) -> None:
    assert len(documented()) == 6
    life_of_a_query(Principal(secured, documented()))


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
        life_of_a_query(Principal(secured, [each for each in documented() if each != missing]))
    assert "not authorized" in str(raised.value).lower() or "authorization" in str(raised.value).lower()
    assert words in str(raised.value).lower()
