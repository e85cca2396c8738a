"""Every argument of every public call, with invalid values: the call itself raises, and names the argument.

No broker is needed: a call that tried to reach one would raise ``ConnectionFailedError`` or wait.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import math
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import Admin, AsyncConsumer, Broker, Consumer, OffsetAndMetadata, OttlaConfigWarning, Prepared, TopicPartition
from ottla.admin import ProducerState
from ottla.assignors import RangeAssignor
from ottla.errors import ConfigError, ConnectionFailedError, OttlaTimeoutError
from ottla.faults import Faults
from ottla.health import serve

NOWHERE = "127.0.0.1:1"
TP = TopicPartition("t", 0)
HUGE = 2**63

NOT_TIMEOUTS: list[Any] = ["5", b"5", True, -1, -0.5, math.nan, timedelta(seconds=-1), [1], TP]
NOT_TEXTS: list[Any] = [None, 5, 1.5, True, b"t", ["t"], TP, "", "\ud800"]
NOT_NAMES: list[Any] = [None, 5, True, "t", b"t", [None], [5], [b"t"], [""], [["t"]], [TP], ["\ud800"]]
NOT_FLAGS: list[Any] = [None, 0, 1, "true", [], 1.0]
NOT_PARTITIONS: list[Any] = [
    None,
    5,
    True,
    "t",
    b"t",
    ("t", "0"),
    ("t", True),
    ("t", -1),
    ("t", 1.0),
    ("t", 2**31),
    ("", 0),
    ("\ud800", 0),
    (0, "t"),
]
NOT_PARTITION_LISTS: list[Any] = [*NOT_PARTITIONS, ["t"], [b"t"], [("t", "0")], [("t", -1)], [("t", 2**31)], {"t": 0}, [TP, None]]
NOT_OFFSETS: list[Any] = [
    None,
    "5",
    b"5",
    True,
    1.0,
    math.nan,
    -1,
    HUGE,
    (5,),
    OffsetAndMetadata(-1),
    OffsetAndMetadata(HUGE),
    OffsetAndMetadata("5"),  # type: ignore[arg-type]
    OffsetAndMetadata(5, metadata=b"m"),  # type: ignore[arg-type]
    OffsetAndMetadata(5, metadata="\ud800"),
    OffsetAndMetadata(5, leader_epoch="1"),  # type: ignore[arg-type]
    OffsetAndMetadata(5, leader_epoch=2**31),
]
NOT_NUMBERS: list[Any] = [None, "5", True, 1.0, math.nan, HUGE, -2]
NOT_CALLABLES: list[Any] = [5, "f", [print]]
NOT_MAPPINGS: list[Any] = [5, True, "t", b"t", ["t"], [TP], TP]


def by_partition(values: list[Any]) -> list[Any]:
    """Mappings by partition with an invalid key or value, and values that are no mappings."""
    return [*NOT_MAPPINGS, *({TP: value} for value in values), {"t": 0}, {("t", "0"): 0}, {None: 0}, {("t", -1): 0}]


CONSUMER: dict[str, dict[str, list[Any]]] = {
    "subscribe": {
        "topics": [*NOT_NAMES, ["^t.*"], ["t|u"], {"t.+"}],
        "pattern": [5, b"t", ["t"], True, "\ud800", "", re.compile("t")],
        "blacklist": [5, b"t", ["t"], True, "\ud800", "", re.compile("t")],
        "on_assign": NOT_CALLABLES,
        "on_revoke": NOT_CALLABLES,
        "on_lost": NOT_CALLABLES,
    },
    "streams": {
        "topics": [*NOT_MAPPINGS, {}, *({"t": n} for n in [None, "1", True, 1.0, 0, -1, 10_001]), {"": 1}, {5: 1}, {"^t.*": 1}],
        "pattern": [5, b"t", ["t"], True, "\ud800", "", re.compile("t")],
        "blacklist": [5, b"t", ["t"], True, "\ud800", "", re.compile("t")],
        "n": ["1", True, 1.0, 0, -1, 10_001],
        "on_assign": NOT_CALLABLES,
        "on_revoke": NOT_CALLABLES,
        "on_lost": NOT_CALLABLES,
    },
    "unsubscribe": {},
    "assign": {"partitions": NOT_PARTITION_LISTS},
    "poll": {"timeout": [*NOT_TIMEOUTS, None]},
    "seek": {"partition": NOT_PARTITIONS, "offset": NOT_OFFSETS},
    "seek_to_beginning": {"partitions": NOT_PARTITION_LISTS},
    "seek_to_end": {"partitions": NOT_PARTITION_LISTS},
    "position": {"partition": NOT_PARTITIONS, "timeout": NOT_TIMEOUTS},
    "pause": {"partitions": NOT_PARTITION_LISTS},
    "resume": {"partitions": NOT_PARTITION_LISTS},
    "commit": {"offsets": by_partition(NOT_OFFSETS), "timeout": NOT_TIMEOUTS},
    "commit_async": {"offsets": by_partition(NOT_OFFSETS), "callback": NOT_CALLABLES},
    "committed": {"partitions": NOT_PARTITION_LISTS, "timeout": NOT_TIMEOUTS},
    "beginning_offsets": {"partitions": NOT_PARTITION_LISTS, "timeout": NOT_TIMEOUTS},
    "end_offsets": {"partitions": NOT_PARTITION_LISTS, "timeout": NOT_TIMEOUTS},
    "offsets_for_times": {"timestamps": [None, *by_partition([None, "latest", 1.5, -1, HUGE, True])], "timeout": NOT_TIMEOUTS},
    "lag": {"partition": NOT_PARTITIONS, "timeout": NOT_TIMEOUTS},
    "partitions_for": {"topic": NOT_TEXTS, "timeout": NOT_TIMEOUTS},
    "list_topics": {"timeout": NOT_TIMEOUTS},
    "close": {"timeout": [*NOT_TIMEOUTS, None], "group_membership": [None, 5, "stay", True, [], ""]},
    "assignment": {},
    "subscription": {},
    "paused": {},
    "group_metadata": {},
    "health": {"stuck_after": [*NOT_TIMEOUTS, None]},
    "metrics": {},
    "processing": {"limit": [*NOT_TIMEOUTS, None, 0]},
    "wakeup": {},
}
"""Call -> argument -> invalid values."""

ASYNC_CONSUMER = {name: wrong for name, wrong in CONSUMER.items() if name != "streams"}

PREPARED = Prepared("a", 1, 1, 2)
PRODUCER: Any = ProducerState(1, 1)

ADMIN: dict[str, dict[str, list[Any]]] = {
    "create_topics": {
        "topics": [None, *NOT_MAPPINGS, *({"t": n} for n in [None, "1", True, 1.0, 0, -2, 2**31]), {"": 1}, {5: 1}, {None: 1}],
        "replication_factor": [None, "1", True, 1.0, 0, -2, 2**15],
        "configs": [*NOT_MAPPINGS, {"a": "\ud800"}, {"a": 5}, {"a": None}, {"a": b"b"}, {5: "b"}, {"": "b"}],
        "validate_only": NOT_FLAGS,
        "timeout": NOT_TIMEOUTS,
    },
    "delete_topics": {"topics": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "list_topics": {"include_internal": NOT_FLAGS, "timeout": NOT_TIMEOUTS},
    "describe_topics": {"topics": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "describe_cluster": {"timeout": NOT_TIMEOUTS},
    "describe_log_dirs": {"brokers": [5, "1", ["1"], [True], [-1], [1.0], [2**31], [None]], "timeout": NOT_TIMEOUTS},
    "describe_configs": {"kind": [*NOT_TEXTS, "cluster"], "name": [None, 1.5, b"t", ["t"], "", "\ud800"], "timeout": NOT_TIMEOUTS},
    "alter_configs": {
        "kind": [*NOT_TEXTS, "cluster"],
        "name": [None, 1.5, b"t", ["t"], "", "\ud800"],
        "changes": [*NOT_MAPPINGS, {"a": "\ud800"}, {"a": 5}, {"a": b"b"}, {5: "b"}, {"": "b"}],
        "validate_only": NOT_FLAGS,
        "timeout": NOT_TIMEOUTS,
    },
    "create_partitions": {
        "counts": [None, *NOT_MAPPINGS, *({"t": n} for n in [None, "1", True, 1.0, 0, -1, 2**31]), {"": 1}, {5: 1}],
        "validate_only": NOT_FLAGS,
        "timeout": NOT_TIMEOUTS,
    },
    "delete_records": {"offsets": [None, *by_partition([None, "5", True, 1.0, -1, HUGE, "earliest"])], "timeout": NOT_TIMEOUTS},
    "list_groups": {"timeout": NOT_TIMEOUTS},
    "describe_groups": {"groups": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "delete_groups": {"groups": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "group_offsets": {
        "group": NOT_TEXTS,
        "partitions": NOT_PARTITION_LISTS[1:],
        "require_stable": NOT_FLAGS,
        "timeout": NOT_TIMEOUTS,
    },
    "alter_group_offsets": {
        "group": NOT_TEXTS,
        "offsets": [None, *by_partition(NOT_OFFSETS)],
        "retention": NOT_TIMEOUTS,
        "timeout": NOT_TIMEOUTS,
    },
    "list_offsets": {
        "times": [None, *by_partition([None, "newest", True, 1.5, -1, HUGE])],
        "isolation_level": [None, 1, "serializable", True, []],
        "timeout": NOT_TIMEOUTS,
    },
    "end_transactions": {
        "prepared": [None, 5, True, PREPARED.dumps(), PREPARED.dumps().encode(), [None], ["a"], [PREPARED, ("a", 1, 1, 2)]],
        "commit": NOT_FLAGS,
        "timeout": NOT_TIMEOUTS,
    },
    "describe_transactions": {"transactional_ids": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "list_transactions": {
        "states": NOT_NAMES,
        "producer_ids": [None, 5, "1", ["1"], [True], [-1], [1.0], [HUGE], [None]],
        "duration": ["1", True, -1, math.nan],
        "transactional_id_pattern": NOT_TEXTS[1:],
        "timeout": NOT_TIMEOUTS,
    },
    "describe_producers": {"partitions": NOT_PARTITION_LISTS, "timeout": NOT_TIMEOUTS},
    "fence_producers": {"transactional_ids": NOT_NAMES, "timeout": NOT_TIMEOUTS},
    "abort_transaction": {
        "partition": NOT_PARTITIONS,
        "producer": [
            *(None, 5, (1, 1), [PRODUCER]),
            *(replace(PRODUCER, producer_id=wrong) for wrong in (None, "1", True, -1, HUGE)),
            *(replace(PRODUCER, producer_epoch=wrong) for wrong in (None, "1", True, -1, 2**15)),
            *(replace(PRODUCER, coordinator_epoch=wrong) for wrong in ("1", True, -1, 2**31)),
        ],
        "timeout": NOT_TIMEOUTS,
    },
    "close": {},
}

NARROWED: dict[str, list[Any]] = {
    "client_id": NOT_TEXTS[1:],
    "group": NOT_TEXTS[1:],
    "topic": NOT_TEXTS[1:],
    "transactional_id": NOT_TEXTS[1:],
    "times": ["1", True, 1.0, 0, -1, HUGE],
    "after": [None, "1", True, 1.0, -1, HUGE],
}
NOT_APIS: list[Any] = [5, True, b"Fetch", [5], [None], "Fech", ["Fech"], ""]

FAULTS: dict[str, dict[str, list[Any]]] = {
    "fail": {"api": [None, *NOT_APIS], "error": [None, True, 1.5, b"x", [16], "NOT_COORDINATER", 9999, ValueError], **NARROWED},
    "delay": {"api": NOT_APIS, "seconds": [None, *NOT_TIMEOUTS], **NARROWED},
    "drop": {"api": NOT_APIS, "at": [None, 5, "somewhere", ""], **NARROWED},
    "lose_reply": {"api": [None, *NOT_APIS], **NARROWED},
    "disconnect": {"client_id": NOT_TEXTS[1:]},
    "move_coordinator": {
        "group": NOT_TEXTS[1:],
        "transactional_id": NOT_TEXTS[1:],
        "to": [5, True, b"h:1", "", "host", "host:port", "host:0", "host:70000", ":1"],
        "seconds": NOT_TIMEOUTS,
    },
    "expire_member": {
        "group": NOT_TEXTS,
        "member_id": NOT_TEXTS[1:],
        "client_id": NOT_TEXTS[1:],
        "instance_id": NOT_TEXTS[1:],
    },
    "freeze": {"seconds": NOT_TIMEOUTS},
    "fill_disk": {
        "topic": NOT_TEXTS,
        "partition": ["0", True, 0.0, -1, HUGE],
        "times": NARROWED["times"],
        "after": NARROWED["after"],
        "seconds": NOT_TIMEOUTS,
    },
    "clear": {},
}


def _without_parameters() -> Any:
    """Cannot be called with a ``GroupSpec``."""


async def _coroutine_function(group: Any) -> Any:
    """Returns a coroutine, which a broker would not await."""


BROKER: dict[str, list[Any]] = {
    "data_dir": [5, True, b"/tmp", "", "a\0b", [Path("x")]],
    "port": [None, "9092", True, 1.0, -1, 65536],
    "host": [None, 5, b"localhost", ["localhost"]],
    "zookeeper": [5, True, b"localhost:2181", ["localhost:2181"], ""],
    "settings": [5, True, "x", ["a"], [("a", "b")], {5: "x"}, {"": "x"}],
    "assignors": [
        *(5, True, "x", ["a"], {5: "x"}, {"x": 5}, {"x": None}, {"x": RangeAssignor}, {"x": RangeAssignor()}, {"a,b": dict}),
        {"x": _without_parameters},
        {"x": lambda group, more: {}},
        {"x": _coroutine_function},
    ],
}

GOOD: dict[str, Any] = {
    "partition": TP,
    "partitions": [TP],
    "offset": 5,
    "offsets": {TP: 5},
    "timestamps": {TP: 5},
    "times": {TP: 5},
    "topic": "t",
    "group": "g",
    "groups": ["g"],
    "kind": "topic",
    "name": "t",
    "changes": {"a": "b"},
    "counts": {"t": 2},
    "limit": 5,
    "api": "Fetch",
    "error": 16,
    "seconds": 1,
    "prepared": PREPARED,
    "commit": True,
    "transactional_ids": ["a"],
    "producer": PRODUCER,
}
"""Valid values of arguments that have no default."""


def cases(calls: dict[str, dict[str, list[Any]]]) -> list[Any]:
    return [
        pytest.param(name, argument, value, id=f"{name}-{argument}-{value!r:.60}")
        for name, wrong in calls.items()
        for argument, values in wrong.items()
        for value in values
    ]


def arguments_of(call: Callable[..., Any], argument: str, value: Any, topics: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a call, all valid except one."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [value] if name == argument else [GOOD[name]]
        elif name == argument:
            keywords[name] = value
        elif parameter.default is inspect.Parameter.empty:
            keywords[name] = topics if name == "topics" else GOOD[name]
    if positional and any(name in keywords for name in ("partition", "offset")):
        positional = [keywords.pop(name) for name in ("partition", "offset") if name in keywords]
    return positional, keywords


def check(refused: pytest.ExceptionInfo[Exception], argument: str) -> None:
    """Check that the error names the argument and was raised by the check of arguments."""
    assert not isinstance(refused.value, ConnectionFailedError | OttlaTimeoutError)
    singular = argument.removesuffix("s")
    assert singular in str(refused.value).lower(), str(refused.value)
    raised_in = Path(traceback.extract_tb(refused.tb)[-1].filename)
    assert raised_in.parent.name == "ottla", raised_in


@pytest.fixture
def no_threads() -> Iterator[None]:
    """Check that the test starts no threads of Ottla."""
    before = set(threading.enumerate())
    yield
    assert [thread for thread in threading.enumerate() if thread not in before and "ottla" in thread.name] == []


@pytest.mark.parametrize(("call", "argument", "value"), cases(CONSUMER))
@pytest.mark.usefixtures("no_threads")
def test_a_consumer_says_which_argument_is_wrong(call: str, argument: str, value: Any) -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    method = getattr(consumer, call)
    positional, keywords = arguments_of(method, argument, value, ["t"])
    with pytest.raises((TypeError, ValueError)) as refused:
        method(*positional, **keywords)
    check(refused, argument)
    assert consumer.subscription() == set()
    assert consumer.assignment() == set()


@pytest.mark.parametrize(("call", "argument", "value"), cases(ASYNC_CONSUMER))
@pytest.mark.usefixtures("no_threads")
def test_an_async_consumer_says_which_argument_is_wrong(call: str, argument: str, value: Any) -> None:
    async def run() -> Any:
        consumer = AsyncConsumer(bootstrap_servers=NOWHERE, group_id="g")
        method = getattr(consumer, call)
        positional, keywords = arguments_of(method, argument, value, ["t"])
        answer = method(*positional, **keywords)
        return await answer if inspect.isawaitable(answer) else answer

    with pytest.raises((TypeError, ValueError)) as refused:
        asyncio.run(run())
    check(refused, argument)


@pytest.mark.parametrize(("call", "argument", "value"), cases(ADMIN))
@pytest.mark.usefixtures("no_threads")
def test_an_admin_says_which_argument_is_wrong(call: str, argument: str, value: Any) -> None:
    admin = Admin(bootstrap_servers=NOWHERE)
    method = getattr(admin, call)
    positional, keywords = arguments_of(method, argument, value, {"t": 1} if call == "create_topics" else ["t"])
    with pytest.raises((TypeError, ValueError)) as refused:
        method(*positional, **keywords)
    check(refused, argument)


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with Broker() as broker:
        yield broker.faults


@pytest.mark.parametrize(("call", "argument", "value"), cases(FAULTS))
def test_faults_say_which_argument_is_wrong(faults: Faults, call: str, argument: str, value: Any) -> None:
    method = getattr(faults, call)
    positional, keywords = arguments_of(method, argument, value, "t")
    with pytest.raises((TypeError, ValueError)) as refused:
        method(*positional, **keywords)
    check(refused, argument)
    assert list(faults) == []


@pytest.mark.parametrize(("argument", "value"), [(name, value) for name, values in BROKER.items() for value in values])
@pytest.mark.usefixtures("no_threads")
def test_a_broker_says_which_argument_is_wrong(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Broker(**{argument: value})
    check(refused, argument)


@pytest.mark.parametrize("times", [None, "1", True, 1.5, -1])
def test_a_fault_says_which_argument_is_wrong(faults: Faults, times: Any) -> None:
    with faults.freeze() as fault:
        with pytest.raises((TypeError, ValueError), match="times"):
            fault.wait(times)
        for timeout in (*NOT_TIMEOUTS, None):
            with pytest.raises((TypeError, ValueError), match="timeout"):
                fault.wait(1, timeout)


@pytest.mark.parametrize(
    ("kind", "swept"), [(Consumer, CONSUMER), (AsyncConsumer, ASYNC_CONSUMER), (Admin, ADMIN), (Faults, FAULTS)]
)
def test_the_sweep_has_every_argument_of_every_call(kind: type[Any], swept: dict[str, dict[str, list[Any]]]) -> None:
    public = {
        name: set(inspect.signature(method).parameters) - {"self"}
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in OF_THE_BROKER
    }
    assert public == {name: set(wrong) for name, wrong in swept.items()}


OF_THE_BROKER = {"on_strike", "forget"}
"""Methods of ``Faults`` that a broker calls, and users do not."""


def test_the_sweep_has_every_argument_of_a_broker() -> None:
    assert set(inspect.signature(Broker).parameters) == set(BROKER)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("port", value) for value in (None, "8080", True, 1.0, -1, 65536)),
        *(("host", value) for value in (None, 5, b"localhost")),
        *(("stuck_after", value) for value in (None, *NOT_TIMEOUTS)),
    ],
)
@pytest.mark.usefixtures("no_threads")
def test_a_health_server_says_which_argument_is_wrong(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        serve(Consumer(bootstrap_servers=NOWHERE), **{argument: value})
    check(refused, argument)


# -- common mistakes, and values of other types --------------------------------------------------------------------------


def test_a_pattern_among_the_topics_raises_with_the_right_call() -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    with pytest.raises(ValueError, match=r"'\^t\.\*' is not a topic name; for a regular expression pass pattern='t\.\*'"):
        consumer.subscribe(["^t.*"])


def refuse_polls(consumer: Consumer, *timeouts: float | timedelta) -> None:
    """Polls that end at once, since nothing is subscribed to."""
    for timeout in timeouts:
        with pytest.raises(ottla.OttlaError, match="subscribe"):
            consumer.poll(timeout)


@pytest.mark.parametrize("timeout", [1000, 1000.0, 300.5])
def test_a_timeout_in_milliseconds_warns_once(timeout: float) -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    with pytest.warns(OttlaConfigWarning, match=rf"poll\({timeout}\) may wait for {timeout} seconds") as caught:
        refuse_polls(consumer, timeout, timeout)
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
    consumer.close()


def test_an_intended_long_timeout_does_not_warn() -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_polls(consumer, 300, math.inf, timedelta(hours=1))
    consumer.close()


def test_an_async_consumer_warns_of_a_timeout_in_milliseconds() -> None:
    async def run() -> None:
        consumer = AsyncConsumer(bootstrap_servers=NOWHERE, group_id="g")
        with pytest.raises(ottla.OttlaError, match="subscribe"):
            await consumer.poll(1000)
        await consumer.close()

    with pytest.warns(OttlaConfigWarning, match="1000 seconds") as caught:
        asyncio.run(run())
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


def test_durations_of_an_admin_may_be_timedeltas() -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"t": 1}, timeout=timedelta(seconds=30))
        assert list(admin.list_topics(timeout=timedelta(seconds=30))) == ["t"]
        with broker.faults.freeze(timedelta(milliseconds=1)) as ice:
            ice.wait(0, timedelta(seconds=5))
    with Admin(bootstrap_servers=NOWHERE) as admin, pytest.raises((ConnectionFailedError, OttlaTimeoutError)):
        admin.list_topics(timeout=timedelta(milliseconds=1))


def test_numbers_of_other_types_are_accepted() -> None:
    import numpy as np

    consumer = Consumer(bootstrap_servers=NOWHERE)
    consumer.assign([TopicPartition("t", np.int64(0))])  # type: ignore[arg-type]
    consumer.seek(TP, np.int64(7))  # type: ignore[arg-type]
    assert consumer.position(TP) == 7
    assert type(consumer.position(TP)) is int
    for timeout in (np.int64(0), np.float32(0), Fraction(0), Decimal(0)):
        consumer.poll(timeout)  # type: ignore[arg-type]
    for wrong in (np.array([1, 2]), int):
        with pytest.raises(TypeError, match="offset must be a whole number"):
            consumer.seek(TP, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            consumer.poll(wrong)  # type: ignore[arg-type]
    consumer.close()


class Topic(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its text
    ORDERS = "orders"


def test_a_subclass_of_str_counts_as_its_text() -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g")
    consumer.subscribe([Topic.ORDERS])
    assert consumer.subscription() == {"orders"}
    assert str(*consumer.subscription()) == "orders"
    consumer.close()


def test_the_error_names_the_module_of_another_librarys_class() -> None:
    namesake = type("OffsetAndMetadata", (), {"__module__": "kafka.structs", "__repr__": lambda self: "OffsetAndMetadata(5)"})
    with pytest.raises(TypeError, match=r"not a kafka\.structs\.OffsetAndMetadata: OffsetAndMetadata"):
        Consumer(bootstrap_servers=NOWHERE).seek(TP, namesake())


@pytest.mark.parametrize(
    ("assignor", "message"),
    [
        (5, r"assignors\['x'\] must be a function, not 5"),
        (RangeAssignor, r"assignors\['x'\] is an assignor for members, and a broker cannot run it: .*group_client_assignors"),
        (_without_parameters, r"assignors\['x'\] must accept one argument"),
        (_coroutine_function, r"assignors\['x'\] is a coroutine function"),
    ],
)
def test_an_invalid_assignor_of_a_broker_raises(assignor: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Broker(assignors={"x": assignor})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log.dirs", "data_dir="),
        ("listeners", "host=..., port="),
        ("process.roles", "leave it out"),
        ("NUM.PARTITIONS", "did you mean num.partitions?"),
    ],
)
def test_a_setting_of_kafkas_broker_raises_with_the_alternative(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Broker(settings={name: "1"})


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_consumer_with_too_many_positional_arguments_raises(kind: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"^{kind.__name__}\(\) takes one mapping of settings, or settings by name: {kind.__name__}"
    ):
        kind("localhost:9092", "topic")
