"""The pytest plugin, active wherever Ottla is installed: a broker, a ZooKeeper and a Spark session for the test session, a new
topic for each test, and runs of a job of Spark.

Owns the fixtures; must not know how a broker or ZooKeeper works. Invariant: importing this module imports no other module of Ottla,
since every run of pytest in an environment with Ottla imports it.

::

    def test_orders_are_counted(kafka_broker, kafka_topic):
        with Producer(bootstrap_servers=kafka_broker.bootstrap_servers) as producer:
            producer.send(kafka_topic, "two coffees")

    @pytest.mark.kafka_topic(partitions=6, configs={"retention.ms": "-1"})
    def test_six_partitions(kafka_broker, kafka_topic): ...

    def test_a_lost_commit(kafka_broker, kafka_topic):
        kafka_broker.faults.lose_reply("OffsetCommit")  # ends with the test

    def test_a_lock(zookeeper_server):
        client = KazooClient(zookeeper_server.connect_string)

    def test_invoices(run_queries):
        output = run_queries("orders.py", {"orders": ["two coffees"]})
        assert [row.value for row in output["invoices"]] == ["6 euros"]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.embedded import Broker
    from ottla.runtime.zookeeper_server import ZooKeeperServer
    from ottla.spark.jobs.trial import JobTrial, TrialSession

_LONGEST = 200
"""Kafka accepts topic names of up to 249 characters; a number is appended to the truncated name of the test."""

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "kafka_topic(partitions=1, configs={}): properties of the topic of the fixture kafka_topic")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Clear a test's faults before its fixtures are finalized, which may close clients. Restart the broker if the test closed
    it, and the ZooKeeper server if the test stopped it."""
    fixtures = getattr(item, "funcargs", {})
    broker = fixtures.get("kafka_broker")
    if broker is not None:
        broker.faults.clear()
        broker.start()
    if (zookeeper := fixtures.get("zookeeper_server")) is not None:
        zookeeper.start()


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, object]:
    """The settings of ``kafka_broker``, by Kafka's names. To change them, override this fixture in ``conftest.py``."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_settings: dict[str, object]) -> Iterator[Broker]:
    """An embedded broker for all tests of the session, in a temporary directory; its address is ``.bootstrap_servers``."""
    from ottla.embedded import Broker

    with Broker(settings=kafka_broker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def zookeeper_server_settings() -> dict[str, object]:
    """The settings of ``zookeeper_server``, by the names of ``zoo.cfg``; override this fixture in ``conftest.py``."""
    return {}


@pytest.fixture(scope="session")
def zookeeper_server(zookeeper_server_settings: dict[str, object]) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper server for all tests of the session, in a temporary directory; its address is ``.connect_string``.

    It needs Java and the jars of PySpark. Without them the tests that use it end with an error that says what to install.
    """
    from ottla.errors import OttlaError
    from ottla.runtime.zookeeper_server import ZooKeeperFailed, ZooKeeperServer

    try:
        server = ZooKeeperServer(settings=zookeeper_server_settings)
    except OttlaError as error:
        output = error.output if isinstance(error, ZooKeeperFailed) else []
        pytest.fail("\n".join([f"zookeeper_server: {error}", *output]), pytrace=False)
    with server:
        yield server


@pytest.fixture(scope="session")
def _kafka_admin(kafka_broker: Broker) -> Iterator[Admin]:
    from ottla.admin import Admin

    with Admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, _kafka_admin: Admin) -> str:
    """The name of an empty topic that no other test uses, with one partition unless the marker ``kafka_topic`` says otherwise."""
    partitions, configs = _wanted(request.node.iter_markers("kafka_topic"))
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_LONGEST] + f"-{next(_numbers)}"
    _kafka_admin.create_topics({name: partitions}, configs=configs)
    return name


@pytest.fixture(scope="session")
def spark_session_settings() -> dict[str, str]:
    """The settings of ``spark_session``, such as ``spark.jars``; override this fixture in ``conftest.py``."""
    return {}


@pytest.fixture(scope="session")
def spark_session(spark_session_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialSession]:
    """A Spark session on two cores for all tests of the session, without a web page.

    It needs Java and ``ottla[spark]``. Without them the tests that use it end with an error that says what to install.
    """
    from ottla.errors import OttlaError

    try:
        from ottla.spark.jobs.trial import trial_session

        session = trial_session(spark_session_settings, tmp_path_factory.mktemp("spark"))
    except ImportError as error:
        pytest.fail(f"spark_session: {error}: pip install 'ottla[spark]'", pytrace=False)
    except OttlaError as error:
        pytest.fail(f"spark_session: {error}", pytrace=False)
    yield session
    session.stop()


@pytest.fixture
def run_queries(
    request: pytest.FixtureRequest,
    spark_session: TrialSession,
    kafka_broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> JobTrial:
    """``run_queries(FILE, {topic: records})``: produce the records, run the queries of the job in FILE on them, and return the rows
    that each query would have written.

    A record is a value, or a pair of a key and a value. The job finds the broker in ``OTTLA_BOOTSTRAP_SERVERS``. The first call of
    a test begins with empty topics and new checkpoints, the next ones continue.
    """
    from ottla.spark.jobs.trial import JobTrial

    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", kafka_broker.bootstrap_servers)
    return JobTrial(spark_session, kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("checkpoints"), request.path.parent)


def _wanted(markers: Iterable[pytest.Mark]) -> tuple[int, Mapping[str, str]]:
    """Return the number of partitions and the topic configs of the markers; the closest marker, such as the test's, takes
    precedence over one of the class."""
    partitions: int | None = None
    configs: dict[str, str] = {}
    for marker in markers:
        if marker.args or not marker.kwargs.keys() <= {"partitions", "configs"}:
            written = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
            pytest.fail(f"kafka_topic({written}): the marker takes only the keywords partitions=1 and configs={{}}", pytrace=False)
        given = marker.kwargs.get("configs", {})
        if not isinstance(given, Mapping):
            pytest.fail(f"kafka_topic(configs={given!r}): configs must be a mapping, as {{'retention.ms': '-1'}}", pytrace=False)
        partitions = marker.kwargs.get("partitions") if partitions is None else partitions
        configs = {**given, **configs}
    return 1 if partitions is None else partitions, configs
