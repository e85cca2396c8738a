"""docs/coming-from.md says the truth: each row of its tables is run with the other client and with Ottla, and both do the same.

Owns the reading of the tables, and the comparison. Must not know the rows. A table is a session: its rows run in their order, the
left cell against one broker, the right cell against another one with the same content. After each row the values of both cells,
what callbacks have appended to ``seen``, the ends of all partitions and the committed offsets are the same; at the end so are all
records. Rules of the page: where both have a value and the values differ, or one of them raises, the third cell begins with ≠; it
names the errors that are raised; a dash on the right says that Ottla has no such thing. ``None`` is no value.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import confluent_kafka.aio
import confluent_kafka.serialization
import kafka
import kafka.admin
import kafka.errors
import pytest

import ottla
import ottla.errors
from ottla import Admin, Broker, Consumer, Producer, TopicPartition
from ottla.config.other_clients import answer_to
from ottla.errors import error_class

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
PEERS = ("confluent-kafka", "kafka-python", "aiokafka")
NOTHING, DIFFERS = "—", "≠"
NOW = 1_700_000_000_000
CONTENT = {"orders": (5,), "payments": (3, 3)}
"""Topic -> the number of records in each partition."""
GROUP = "billing"
PATIENCE = 20.0
"""Seconds."""
CODE = re.compile(r"(`+) ?(.*?) ?\1")


class Row(NamedTuple):
    """A row of a session."""

    line: int
    theirs: str
    ours: str
    notes: str

    def __str__(self) -> str:
        return f"line {self.line}"


class Table(NamedTuple):
    """A session."""

    title: str
    peer: str
    rows: tuple[Row, ...]


def cells_of(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def code_of(cell: str) -> str:
    return cell if cell == NOTHING else "\n".join(code for _, code in CODE.findall(cell))


def tables() -> Iterator[tuple[str, list[str], list[tuple[int, list[str]]]]]:
    """The title, the names of the columns, and the rows of each table, with the numbers of their lines."""
    title, head, rows = "", list[str](), list[tuple[int, list[str]]]()
    for number, line in enumerate([*PAGE.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.startswith("#"):
            title = line.lstrip("# ")
        if not line.startswith("|"):
            if head:
                yield title, head, rows[1:]
            head, rows = [], []
        elif not head:
            head = cells_of(line)
        else:
            rows.append((number, cells_of(line)))


def sessions() -> Iterator[Table]:
    for title, head, rows in tables():
        if head[0] in PEERS and head[1] == "Ottla":
            yield Table(title, head[0], tuple(Row(number, code_of(row[0]), code_of(row[1]), row[2]) for number, row in rows))


# -- running a cell ----------------------------------------------------------------------------------------------------------


class Raised(NamedTuple):
    """The outcome of a cell that raises."""

    error: BaseException


def name_of(error: BaseException) -> str:
    """What a row calls an error: its class, or the code of a ``KafkaException``."""
    code = error.args[0] if error.args and isinstance(error.args[0], confluent_kafka.KafkaError) else None
    return code.name() if code is not None and type(error) is confluent_kafka.KafkaException else type(error).__name__


class Side:
    """One of the two clients, with its broker and its names."""

    def __init__(self, broker: Broker, names: Mapping[str, Any], runner: asyncio.Runner, *, in_task: bool) -> None:
        self._runner = runner
        self._in_task = in_task
        self._admin = Admin(bootstrap_servers=broker.bootstrap_servers)
        self._servers = broker.bootstrap_servers
        self.seen: list[Any] = []
        self.names: dict[str, Any] = {**names, "servers": broker.bootstrap_servers, "broker": broker, "seen": self.seen}

    def run(self, code: str) -> Any:
        """The value of the last expression."""
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        try:
            self._run(compile(tree, code, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if isinstance(last, ast.Expr):
                return self._run(compile(ast.Expression(last.value), code, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        except Exception as error:
            return Raised(error)
        return None

    def _run(self, code: CodeType) -> Any:
        async def run() -> Any:
            value = eval(code, self.names)
            return await value if code.co_flags & inspect.CO_COROUTINE else value

        # Calls that block must not run on an event loop; aiokafka's clients are created on one.
        return self._runner.run(run()) if self._in_task or code.co_flags & inspect.CO_COROUTINE else eval(code, self.names)

    def state(self) -> dict[str, Any]:
        """What the broker holds, and what callbacks were given."""
        topics = self._admin.list_topics()
        tps = [TopicPartition(name, one.partition) for name, topic in topics.items() for one in topic.partitions]
        ends = {tp: end.offset for tp, end in self._admin.list_offsets(dict.fromkeys(tps, "latest")).items() if end}
        offsets = {tp: one.offset for tp, one in self._admin.group_offsets(GROUP).items()}
        return {"ends": plain(ends), "committed": plain(offsets), "seen": plain(self.seen)}

    def records(self) -> Any:
        """All records that were committed, without their timestamps."""
        with Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            tps = [
                TopicPartition(name, one.partition)
                for name, topic in consumer.list_topics().items()
                for one in topic
                if name[:2] != "__"
            ]
            consumer.assign(tps)
            ends = consumer.end_offsets(tps)
            found: list[Any] = []
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                found += consumer.poll(1.0)
        return sorted(map(str, map(plain, found)))

    def close(self) -> None:
        for value in list(self.names.values()):
            for name in ("close", "stop"):
                if type(value).__module__.split(".")[0] in ("ottla", "kafka", "aiokafka", "confluent_kafka", "cimpl"):
                    end = getattr(value, name, None)
                    if end is not None and not isinstance(value, (Broker, type)):
                        with suppress(Exception):
                            outcome = end()
                            if inspect.isawaitable(outcome):
                                self._runner.run(_wait(outcome))
        self._admin.close()


async def _wait(outcome: Any) -> None:
    await outcome


def plain(value: Any) -> Any:
    """A value in the same form for all clients; ``None`` for objects of their own."""
    if isinstance(value, Raised):
        return "an error"
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, confluent_kafka.Message):
        where = (value.topic(), value.partition(), value.offset())
        return (*where, value.key(), value.value(), plain(value.headers() or ()))
    if isinstance(value, (kafka.consumer.fetcher.ConsumerRecord, aiokafka.ConsumerRecord, ottla.Record)):
        return (value.topic, value.partition, value.offset, value.key, value.value, plain(value.headers))
    if isinstance(value, confluent_kafka.TopicPartition):
        return (value.topic, value.partition)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(plain, value)))
    if isinstance(value, (list, tuple, ottla.Records)):
        return tuple(map(plain, value))
    return None


MODULES: Mapping[str, tuple[ModuleType, ...]] = {
    "confluent-kafka": (confluent_kafka, confluent_kafka.admin, confluent_kafka.aio, confluent_kafka.serialization),
    "kafka-python": (kafka, kafka.admin, kafka.partitioner, kafka.errors),
    "aiokafka": (aiokafka, aiokafka.errors),
    "Ottla": (ottla, ottla.errors),
}
"""What a cell may name without importing it."""


def names_of(client: str) -> dict[str, Any]:
    found = {name: getattr(module, name) for module in reversed(MODULES[client]) for name in dir(module)}
    return {name: value for name, value in found.items() if name[0] != "_" and not inspect.ismodule(value)}


def filled(broker: Broker) -> Broker:
    with (
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        admin.create_topics({topic: len(counts) for topic, counts in CONTENT.items()})
        for topic, counts in CONTENT.items():
            for partition, number in ((p, n) for p, count in enumerate(counts) for n in range(count)):
                headers = {"unit": b"cup"} if number == 0 else {}
                producer.send(topic, b"%d" % number, b"k%d" % number, partition=partition, headers=headers, timestamp=NOW + number)
    return broker


SLOW = "Handlers that take too long"
"""The title of the sessions that wait for seconds."""


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=f"{table.peer}: {table.title}", marks=pytest.mark.slow if table.title == SLOW else ())
        for table in sessions()
    ],
)
def test_each_row_does_the_same_with_both(table: Table) -> None:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        runner = stack.enter_context(asyncio.Runner())
        sides = []
        for names in (names_of(table.peer), names_of("Ottla")):
            side = Side(filled(stack.enter_context(Broker())), names, runner, in_task=table.peer == "aiokafka")
            stack.callback(side.close)
            sides.append(side)
        for row in table.rows:
            run_row(row, *sides)
        theirs, ours = (side.records() for side in sides)
        assert theirs == ours


def run_row(row: Row, theirs: Side, ours: Side) -> None:
    """Run both cells. Fails the test if they do not do the same."""
    results = theirs.run(row.theirs), None if row.ours == NOTHING else ours.run(row.ours)
    values = tuple(map(plain, results))
    raised = [result.error for result in results if isinstance(result, Raised)]
    differs = row.ours != NOTHING and values[0] != values[1] and (bool(raised) or None not in values)
    assert differs is row.notes.startswith(DIFFERS), f"{row}: {values[0]!r} and {values[1]!r}, {raised}"
    unnamed = [error for error in raised if name_of(error) not in row.notes]
    assert not unnamed, f"{row} does not name {unnamed}"
    until = time.monotonic() + PATIENCE
    while (left := theirs.state()) != (right := ours.state()):
        assert time.monotonic() < until, f"{row}: {left} is not {right}"
        time.sleep(0.02)


# -- the tables of names -----------------------------------------------------------------------------------------------------

CLASSES: Mapping[str, tuple[type, ...]] = {
    "confluent-kafka": (
        confluent_kafka.Consumer,
        confluent_kafka.Producer,
        confluent_kafka.Message,
        confluent_kafka.KafkaError,
        confluent_kafka.admin.AdminClient,
    ),
    "kafka-python": (kafka.KafkaConsumer, kafka.KafkaProducer, kafka.KafkaAdminClient),
    "aiokafka": (aiokafka.AIOKafkaConsumer, aiokafka.AIOKafkaProducer),
}


@pytest.mark.parametrize("peer", PEERS)
def test_every_method_of_other_clients_has_a_row(peer: str) -> None:
    text = "\n".join(row.theirs for table in sessions() if table.peer == peer for row in table.rows)
    names = {name for cls in CLASSES[peer] for name in dir(cls) if name[0] != "_" and not name.isupper()}
    missing = {name for name in names if not re.search(rf"\.{name}\b", text)}
    assert not missing, sorted(missing)


def test_errors_of_brokers_have_the_names_of_the_page() -> None:
    (rows,) = (rows for _, head, rows in tables() if head == ["kafka-python", "aiokafka", "Ottla"])
    renamed = {(at, name): code_of(cells[2]) for _, cells in rows for at in (0, 1) for name in code_of(cells[at]).splitlines()}
    renamed = {key: name for key, name in renamed.items() if key[1] != NOTHING}
    for at, module in enumerate((kafka.errors, aiokafka.errors)):
        for name, cls in vars(module).items():
            if (
                isinstance(cls, type)
                and issubclass(cls, module.BrokerResponseError)
                and (number := getattr(cls, "errno", None) or 0) > 0
            ):
                ours = error_class(number).__name__
                assert ours in (name, f"{name}Error", renamed.pop((at, name), None)), f"{module.__name__}.{name}"
    assert renamed == {}


def test_errors_of_clients_are_those_of_the_page() -> None:
    (rows,) = (rows for _, head, rows in tables() if head == [*PEERS, "Ottla"])
    columns = [{name for _, cells in rows for name in code_of(cells[at]).splitlines()} - {NOTHING} for at in range(4)]
    assert sorted(columns[3] - set(ottla.errors.__all__)) == []
    assert (
        sorted(name for name in columns[0] if not hasattr(confluent_kafka.KafkaError, name) and not hasattr(confluent_kafka, name))
        == []
    )
    for named, module in ((columns[1], kafka.errors), (columns[2], aiokafka.errors)):
        own = {
            name
            for name, cls in vars(module).items()
            if isinstance(cls, type) and issubclass(cls, Exception) and not (getattr(cls, "errno", None) or 0)
        }
        assert sorted(name for name in own ^ named if name != "NoError") == []


def test_every_number_of_librdkafka_has_a_class() -> None:
    numbers = {getattr(confluent_kafka.KafkaError, name) for name in dir(confluent_kafka.KafkaError) if name.isupper()}
    unknown = [
        number
        for number in numbers
        if isinstance(number, int) and number > 0 and error_class(number).__name__.startswith("Unknown")
    ]
    assert [error_class(number).__name__ for number in unknown if "UnknownCode" in error_class(number).__name__] == []


@pytest.mark.parametrize("client", ["Consumer", "Producer"])
def test_settings_are_those_of_the_errors(client: str) -> None:
    (rows,) = (rows for _, head, rows in tables() if head == [f"setting of a {client.lower()}", "in Ottla"])
    assert len(rows) > 10
    for _, (names, text) in rows:
        for name in code_of(names).splitlines():
            answer = answer_to(name.replace("_", "."), client)
            assert answer is not None, name
            assert text == (": ".join(filter(None, (answer.setting and f"`{answer.setting}`", answer.why)))), name
