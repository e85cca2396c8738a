"""Java as the judge of groups with Java's old consumers and ours, on a real Kafka 1.1.1.

After each step the owners are those of 0.8's formula, and four tools agree about them and about the committed offsets:
VerifyConsumerRebalance and ``kafka-consumer-groups`` of 1.1.1, ConsumerOffsetChecker of 0.8.2.2, and ``ottla group describe``.
Records are produced all the time, and each is read at least once.

A walk takes one to two minutes, and up to six on a busy machine. Its steps mostly wait: Java's member sleeps two seconds
(``rebalance.backoff.ms``) after each conflict; a killed or stopped member owns its partitions until its session is over, six to
nine seconds. The tools of Kafka run in JVMs that stay, so they take one to two seconds for each step, and longer with offsets in
Kafka: ConsumerOffsetChecker prints nothing until each partition has a committed offset.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, run_tool
from tests.interop.zookeeper.formula import children
from tests.interop.zookeeper.group import Group
from tests.interop.zookeeper.load import Load
from tests.interop.zookeeper.members import OLDEST, VERSION, Member, Stage, until

pytestmark = pytest.mark.interop

BOTH_STORES = {"offsets_storage": "kafka", "dual_commit_enabled": "true"}
ONLY_KAFKA = {"offsets_storage": "kafka", "dual_commit_enabled": "false"}
STORES: dict[str, dict[str, str]] = {"zookeeper": {}, "kafka": ONLY_KAFKA, "both": BOTH_STORES}


@pytest.fixture(scope="module")
def whole_stage(kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    for version in (VERSION, OLDEST):
        run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(whole_stage: Stage) -> Iterator[Stage]:
    try:
        yield whole_stage
    finally:
        whole_stage.stop_members()


class Walk:
    """The steps of a group, in the order that a seed draws."""

    def __init__(self, stage: Stage, size: int, strategy: str, store: str) -> None:
        self._stage, self._size, self._store = stage, size, store
        self._dice = random.Random(f"{size} {strategy} {store}")
        self._name = f"walk{size}-{strategy}-{store}"
        self.topics = [stage.create_topic(f"{self._name}-{number}", partitions) for number, partitions in enumerate((11, 3))]
        self.group = Group(stage, self._name, strategy)
        self.load = Load(stage.broker, *self.topics)
        self._joined = 0

    def run(self) -> None:
        for _ in range(self._size):
            self.join()
        self._check()
        steps: list[Callable[[], None]] = [self.join, self.leave, self.grow, self.add_topic]
        steps += [partial(step, java) for step in (self.kill, self.stop) for java in (False, True)]
        for step in self._dice.sample(steps, len(steps)):
            step()
            self._check()
            while len(self.group.members) < max(1, self._size - 1):
                self.join()

    def _check(self) -> None:
        self.group.settle()
        if self.group.members:
            self.group.check_tools()

    def join(self) -> None:
        # 0.8.2.2 orders the partitions of roundrobin by other hash codes, so its members agree with no others, not even of Java.
        oldest = VERSION if self.group.strategy == "roundrobin" else OLDEST
        java, streams = [("", 0), (VERSION, 1), ("", 2), (oldest, 2)][self._joined % 4]
        more = {"java": java, "streams": streams, **STORES[self._store]}
        self.group.join(f"m{self._joined:03}", whitelist=f"{self._name}-.*", **more)
        self._joined += 1

    def leave(self) -> None:
        self.group.leave(self._dice.choice(self.group.members))

    def kill(self, java: bool) -> None:
        self.group.kill(self._member(java))

    def stop(self, java: bool) -> None:
        """Stop a member until the others have its partitions, then let it continue."""
        stopped = self._member(java)
        stopped.signal(signal.SIGSTOP)
        try:
            self.group.settle(stopped)
        finally:
            stopped.signal(signal.SIGCONT)

    def _member(self, java: bool) -> Member:
        """A member of one side, or, in a group of one, any."""
        members = [member for member in self.group.members if bool(member.java) is java]
        return self._dice.choice(members or self.group.members)

    def grow(self) -> None:
        partitions = len(children(self._stage.client, f"/brokers/topics/{self.topics[0]}/partitions"))
        self._stage.grow_topic(self.topics[0], partitions + self._dice.randint(1, 3))

    def add_topic(self) -> None:
        self.topics.append(self._stage.create_topic(f"{self._name}-{len(self.topics)}", self._dice.randint(1, 12)))
        self.load.topics.append(self.topics[-1])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("size", "strategy", "store"),
    [
        (1, "range", "both"),
        (1, "roundrobin", "zookeeper"),
        (3, "range", "zookeeper"),
        (3, "roundrobin", "kafka"),
        (8, "range", "kafka"),
        (8, "roundrobin", "both"),
    ],
)
def test_after_each_step_the_owners_are_those_of_the_formula(stage: Stage, size: int, strategy: str, store: str) -> None:
    walk = Walk(stage, size, strategy, store)
    try:
        walk.run()
    finally:
        produced = walk.load.end()
    wait_until_all_is_read(walk.group, produced)
    until(lambda: lags(walk.group) == {0}, lambda: str(walk.group.described()))
    walk.group.check_tools()


def test_a_group_moves_from_java_to_the_brokers_under_load(stage: Stage) -> None:
    """The steps A of docs/leaving-0.8.md, on a broker without ``consumer`` groups: the last members are ``classic``.

    No record is lost. None is read by two members of ours, nor by one on the broker and another one. Java's members may read some
    again: they read the committed offsets before they have claimed the partitions.
    """
    topic = stage.create_topic("moving", 6)
    group, load = Group(stage, "moving"), Load(stage.broker, topic)

    def replace(name: str, **more: Any) -> None:
        """Members join and leave one by one."""
        for number, earlier in enumerate(tuple(group.members)):
            group.join(f"{name}{number}", topic, **more)
            group.leave(earlier)
            group.settle()
            group.check_tools()

    try:
        for number in range(3):
            group.join(f"java{number}", topic, java=VERSION)
        group.settle()
        until(lambda: all("zookeeper" in row["stored_in"] for row in group.described()))
        replace("both", java=VERSION, **BOTH_STORES)
        replace("ours", **BOTH_STORES)
        until(lambda: all(row["stored_in"] == ["zookeeper", "kafka"] for row in group.described()), lambda: str(group.described()))
        ours = tuple(group.members)
        for member in ours:
            group.leave(member)
        assert group.owners() == {}
        before = load.produced
        last = [Member(stage, "moving", f"broker{number}", topic, on_broker=True, group_protocol="classic") for number in range(3)]
        group.members += last
        until(lambda: any(int(value) > before for member in last for value in member.read()))
    finally:
        produced = load.end()
    wait_until_all_is_read(group, produced)
    twice = [value for one in (*ours, *last) for value in one.read()]
    assert sorted(value for value in {*twice} if twice.count(value) > 1) == []
    earlier = {value for member in group.gone for value in member.read()}
    assert earlier & {value for member in last for value in member.read()} == set()


@pytest.mark.parametrize("store", STORES)
def test_java_continues_where_ours_ended_and_back(stage: Stage, store: str) -> None:
    topic = stage.create_topic(f"turns-{store}", 3)
    group = Group(stage, f"turns-{store}")
    for turn, java in enumerate(("", VERSION, "", VERSION)):
        load = Load(stage.broker, topic)
        try:
            member = group.join(f"m{turn}", topic, java=java, **STORES[store])
            until(member.read)
        finally:
            produced = load.end()
        until(lambda member=member, produced=produced: {*member.read()} >= produced)
        group.leave(member)
        assert sorted(member.read()) == sorted(produced), "records were read again"


@pytest.mark.parametrize(("first", "second"), [(VERSION, VERSION), (VERSION, ""), ("", OLDEST)])
def test_two_members_with_two_threads_each_share_five_partitions(stage: Stage, first: str, second: str) -> None:
    """The example of 0.8's design, with Java's members and streams of ours; then a third member, and later more partitions."""
    name = f"threads-{first or 'ours'}-{second or 'ours'}"
    topic = stage.create_topic(name, 5)
    group, load = Group(stage, name), Load(stage.broker, topic)
    try:
        one, two = (group.join(f"C{number}", topic, java=java, streams=2) for number, java in ((1, first), (2, second)))
        owners = [f"{one.id}-0", f"{one.id}-0", f"{one.id}-1", f"{two.id}-0", f"{two.id}-1"]
        until(
            lambda: group.owners() == {(topic, number): owner for number, owner in enumerate(owners)}, lambda: str(group.owners())
        )
        group.check_tools()
        group.join("C3", topic, streams=2)
        group.settle()
        stage.grow_topic(topic, 14)
        group.settle()
        group.check_tools()
    finally:
        produced = load.end()
    wait_until_all_is_read(group, produced)


@pytest.mark.parametrize(
    ("java", "given", "registered", "topics"),
    [
        (OLDEST, r"'names\.[ab]-.*, names_\w+'", r"names\.[ab]-.*|names_\w+", {"names.a-1", "names.b-1", "names_c"}),
        (OLDEST, r"(?i)NAMES\.a-1", r"(?i)NAMES\.a-1", {"names.a-1"}),
        (VERSION, "'names[.][ab]-.*, names_[a-z]+'", "names[.][ab]-.*|names_[a-z]+", {"names.a-1", "names.b-1", "names_c"}),
    ],
)
def test_each_side_reads_the_pattern_of_the_other(stage: Stage, java: str, given: str, registered: str, topics: set[str]) -> None:
    create_names(stage)
    group = Group(stage, f"names-{java}-{len(topics)}")
    both = [group.join("java", whitelist=given, java=java), group.join("ours", whitelist=given)]
    group.settle()
    group.check_tools()
    assert {topic for topic, _ in group.owners()} == topics
    assert set(group.owners().values()) == {f"{member.id}-0" for member in both}
    nodes = [json.loads(stage.client.get(f"/consumers/{group.name}/ids/{member.id}")[0]) for member in both]
    assert [(node["pattern"], node["subscription"]) for node in nodes] == [("white_list", {registered: 1})] * 2


def test_a_backslash_of_java_1_1_1_becomes_two_and_both_sides_read_them_so(stage: Stage) -> None:
    """Its members read their own pattern from ZooKeeper, so this one matches no topic; ours must not give it any partitions."""
    create_names(stage)
    group = Group(stage, "backslashes")
    java = group.join("java", whitelist=r"names\.[ab]-.*", java=VERSION)
    until(lambda: java.id in children(stage.client, "/consumers/backslashes/ids"))
    ours = group.join("ours", whitelist=r"names\.[ab]-.*")
    group.settle()
    group.check_tools()
    assert json.loads(stage.client.get(f"/consumers/backslashes/ids/{java.id}")[0])["subscription"] == {r"names\\.[ab]-.*": 1}
    assert set(group.owners().values()) == {f"{ours.id}-0"}
    assert len(group.owners()) == 4


def create_names(stage: Stage) -> None:
    """Topics for patterns, with two partitions each."""
    for topic in ("names.a-1", "names.b-1", "names_c", "names-d"):
        if topic not in children(stage.client, "/brokers/topics"):
            stage.create_topic(topic, 2)


def test_black_lists(stage: Stage) -> None:
    """All topics of the cluster but some: also those that are created later, and never the internal ones."""
    stage.create_topic("listed", 3)
    group = Group(stage, "black")
    for name, java in (("java", VERSION), ("ours", ""), ("oldest", OLDEST)):
        group.join(name, blacklist="(?!listed).*", java=java)
    group.settle()
    stage.create_topic("listed-2", 4)
    until(lambda: len(group.owners()) == 7)
    group.settle()
    group.check_tools()
    assert {topic for topic, _ in group.owners()} == {"listed", "listed-2"}


def wait_until_all_is_read(group: Group, produced: set[str]) -> None:
    until(lambda: group.read() >= produced, lambda: f"missing: {sorted(produced - group.read(), key=int)[:20]}")


def lags(group: Group) -> set[int | None]:
    """The lags of the partitions that have records."""
    return {row["lag"] for row in group.described() if row["end_offset"]}
