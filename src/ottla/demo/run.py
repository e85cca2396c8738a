"""The steps of the demo.

Owns their order and the exit code. Must not know how a step works. Invariant: however the run ends, none of its processes is left.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ottla import Admin, OffsetAndMetadata, TopicPartition, ZooKeeperAdmin
from ottla.demo import DemoFailed, charts, delays, dispatch, report, tally
from ottla.demo.dispatch import MEMBERS, NEWCOMER, VICTIM, Act
from ottla.demo.display import Display, Step
from ottla.demo.output_directory import locked_output_directory
from ottla.demo.processes import ENDED, Children
from ottla.errors import OttlaError
from ottla.runtime.java import find_java
from ottla.signals import Stop

TOPIC = "flights"
PARTITIONS = 6
DELAYS_TOPIC = "delays"
"""The topic that the Spark job writes, and the group that has its progress."""
DELAYS_PARTITIONS = 3
TOPIC_CONFIG = {"retention.ms": "-1"}
"""Without retention: the flights are of 2013, so the default of a week would delete them."""
NOTHING_COMMITTED = OffsetAndMetadata(0)
ADMIN_TIMEOUT, BROKER_START, LOADING, PRODUCING, SPARK_START, SPARK_RUN = 10.0, 30.0, 120.0, 120.0, 120.0, 300.0
"""Seconds after which a step counts as failed."""
SPARK_JAVA = 17
"""The oldest Java that Spark runs on."""
ON_ZOOKEEPER = {"zookeeper": "a ZooKeeper group", "central": "a central group"}
"""The group protocols that need ZooKeeper, and what their groups are called."""
DONE, WRONG, WITHOUT_SPARK = 0, 1, 3
"""Exit codes."""
ANNOUNCED = {
    Act.WORKING: f"{', '.join(MEMBERS)} share the partitions",
    Act.ORPHANED: f"a third is done: {VICTIM} is killed (SIGKILL); nothing reads its partitions until its session expires",
    Act.SURVIVING: "the other members have taken over its partitions",
    Act.JOINING: f"{NEWCOMER} joins",
    Act.FINISHING: "the partitions are shared again",
}


def run(out: Path, limit: int | None, protocol: str, console: Console, stop: Stop) -> int:
    """Run the demo with all flights, or the first ``limit``, and its output in ``out``. Return the exit code.

    ``protocol`` is that of the group: ``zookeeper``, ``classic``, ``consumer`` or ``central``.

    Raises ``DemoFailed`` if it cannot continue, ``Interrupted`` after a signal in ``stop``.
    """
    display = Display(console)
    began = time.monotonic()
    java_error = _missing_java()
    if java_error is not None and protocol in ON_ZOOKEEPER:
        raise DemoFailed(f"{ON_ZOOKEEPER[protocol]} needs a ZooKeeper server, and that needs Java: {java_error}")
    try:
        with locked_output_directory(out), Children(out / "logs", stop) as children:
            main_job = MainJob(out, children, display, limit, protocol, stop)
            try:
                main_job.produce()
                main_job.dispatch()
                if java_error is None:
                    main_job.analyse()
            except BaseException:
                with suppress(OSError):  # do not hide the error that ended the run
                    main_job.finish(began)
                raise
            main_job.finish(began)
            files = [out / name for name in ("summary.json", "owners.png", "delays.png", "flights")]
            report.print_report(console, main_job.summary, display.seconds, files)
    except (OttlaError, OSError) as error:
        raise DemoFailed(str(error)) from error
    if main_job.summary.wrong:
        return WRONG
    if java_error is not None:
        console.print(f"[yellow bold]without the Spark part:[/] {escape(java_error)}", soft_wrap=True)
        return WITHOUT_SPARK
    return DONE


def _missing_java() -> str | None:
    """Return why Spark cannot run, or ``None`` if it can."""
    try:
        find_java(SPARK_JAVA)
    except OttlaError as error:
        return str(error)
    return None


def announce(step: Step, act: Act) -> None:
    """Print a line about the start of an act."""
    if act in ANNOUNCED:
        step.say(ANNOUNCED[act])


class MainJob:
    """The steps. Their figures are in ``summary``."""

    def __init__(self, out: Path, children: Children, display: Display, limit: int | None, protocol: str, stop: Stop) -> None:
        self._out, self._children, self._display, self._stop = out, children, display, stop
        self._limit, self._protocol = limit, protocol
        self._zookeeper_connect = ""
        self.summary = report.Summary()

    def produce(self) -> None:
        """Start the broker, after its ZooKeeper if the group needs one, and produce every flight."""
        if self._protocol in ON_ZOOKEEPER:
            self._start_zookeeper()
        with self._display.step("broker", "start a broker"):
            served = {"data_dir": str(self._out / "broker"), "zookeeper": self._zookeeper_connect}
            broker = self._children.start("broker", "ottla.demo.broker_process", served)
            self._bootstrap: str = self._children.wait_for(broker, "listening", BROKER_START).data["bootstrap_servers"]
            with self._admin() as admin:
                admin.create_topics({TOPIC: PARTITIONS, DELAYS_TOPIC: DELAYS_PARTITIONS}, configs=TOPIC_CONFIG)
        with self._display.step("load", "load the flights of 2013"):
            arguments = {"bootstrap_servers": self._bootstrap, "topic": TOPIC, "limit": self._limit}
            producer = self._children.start("producer", "ottla.demo.producer_process", arguments)
            self._truth = self._children.wait_for(producer, "loaded", LOADING).data
            self._flights: int = self._truth["flights"]
        with self._display.step("produce", f"produce into {TOPIC}", self._flights) as step:
            produced = self._children.wait_for(producer, "produced", PRODUCING, lambda data: step.update(data["done"]))
            self.summary.check("produced", produced.data["count"], self._flights)
        self._ends = self._end_offsets()
        self.summary.check("end_offsets", sum(self._ends.values()), self._flights)
        self.summary.add(end_offsets_by_partition=self._ends)

    def _start_zookeeper(self) -> None:
        """Start ZooKeeper."""
        with self._display.step("zookeeper", "start ZooKeeper"):
            arguments = {"data_dir": str(self._out / "zookeeper")}
            zookeeper = self._children.start("zookeeper", "ottla.demo.zookeeper_process", arguments)
            self._zookeeper_connect = self._children.wait_for(zookeeper, "listening", BROKER_START).data["connect"]

    def _member_settings(self) -> dict[str, object]:
        """The settings of the group's members. In a ZooKeeper group they find the brokers there."""
        settings: dict[str, object] = {"group_protocol": self._protocol, **dispatch.MEMBER_SETTINGS[self._protocol]}
        if self._protocol == "zookeeper":
            return {**settings, "zookeeper_connect": self._zookeeper_connect}
        return {**settings, "bootstrap_servers": self._bootstrap}

    def dispatch(self) -> None:
        """Run the consumer group, and read the results from the members' files."""
        total, members = self._flights, self._out / "members"
        pace = dispatch.pace_for(total)
        group = dispatch.Dispatch(self._children, self._member_settings(), TOPIC, self._ends, members, pace)
        with self._display.step("dispatch", f"share them in the {self._protocol} group {dispatch.GROUP}", total) as step:
            step.say(f"each member handles at most {pace:,} flights a second; its session is {dispatch.SESSION_TIMEOUT:g} s")
            result = group.run(step.update, lambda act: announce(step, act))
        self._display.console.print(report.owners_table(result.snapshots, TOPIC))
        charts.draw_owners(result.owners.periods, result.moments, self._out / "owners.png")
        counted = tally.read(members.glob("*.tsv"))
        self.summary.check("dispatch_distinct", counted.distinct, total)
        self.summary.check("dispatch_by_carrier", counted.by_carrier, self._truth["by_carrier"])
        self.summary.check("dispatch_group_lag", self._lag(dispatch.GROUP), 0)
        self.summary.add(
            dispatch_repeated=counted.repeated,
            dispatch_by_member=counted.by_member,
            dispatch_pace=pace,
            dispatch_owners=result.snapshots,
            dispatch_commits_refused=result.commits_refused,
        )

    def analyse(self) -> None:
        """Run the Spark job, and compare its totals with those of the produced flights."""
        with self._display.step("spark_start", "start Spark"):
            spark = self._children.start(
                "spark",
                "ottla.demo.pipeline_process",
                {"bootstrap_servers": self._bootstrap, "out": str(self._out)},
            )
            self._children.wait_for(spark, "ready", SPARK_START)
        what = f"stream into Parquet, and exactly once into {DELAYS_TOPIC}"
        with self._display.step("spark_stream", what, self._flights) as step:
            streamed = self._children.wait_for(spark, "streamed", SPARK_RUN, lambda data: step.update(data["done"])).data
            self._check_totals("spark_stream", streamed)
            self.summary.check("spark_stream_whole", streamed["whole"], self._flights)
            self.summary.check("delays_group_lag", self._lag(DELAYS_TOPIC), 0)
        with self._display.step("spark_batch", "read the flights again as a batch"):
            self._check_totals("spark_batch", self._children.wait_for(spark, "batch", SPARK_RUN).data)
            self._children.wait_for(spark, ENDED, SPARK_RUN)
        with self._display.step("delays", f"read {DELAYS_TOPIC} with a consumer, and average them"):
            found = delays.read_delays(self._bootstrap, DELAYS_TOPIC, self._stop.check)
            self.summary.check("delays_read", found.flights, self._truth["departed"])
            self.summary.check("delays_distinct", found.distinct, self._truth["departed"])
            self.summary.check("delays_minutes", found.minutes, self._truth["departure_delay"])
            rows = found.rows
            by_hour = report.average_delays(rows, "origin", "hour")
            charts.draw_delays(by_hour, self._out / "delays.png")
            self.summary.add(
                delay_by_carrier=report.average_delays(rows, "carrier", "airline"),
                delay_by_origin=report.average_delays(rows, "origin"),
                delay_by_origin_and_hour=by_hour,
            )

    def finish(self, began: float) -> None:
        """Write the summary of a run that began at ``began`` (monotonic clock)."""
        self._display.seconds["total"] = round(time.monotonic() - began, 2)
        self.summary.write(self._out / "summary.json", self._display.seconds)

    def _admin(self) -> Admin:
        return Admin(bootstrap_servers=self._bootstrap, request_timeout=ADMIN_TIMEOUT, default_api_timeout=ADMIN_TIMEOUT)

    def _end_offsets(self) -> dict[int, int]:
        with self._admin() as admin:
            found = admin.list_offsets({TopicPartition(TOPIC, number): "latest" for number in range(PARTITIONS)})
        return {partition.partition: 0 if end is None else end.offset for partition, end in found.items()}

    def _lag(self, group: str) -> int:
        """Return the lag of the group; a partition without a committed offset counts from offset 0."""
        with ZooKeeperAdmin(self._zookeeper_connect) if self._stores_in_zookeeper(group) else self._admin() as admin:
            committed = admin.group_offsets(group)
        ends = self._end_offsets().items()
        return sum(end - committed.get(TopicPartition(TOPIC, number), NOTHING_COMMITTED).offset for number, end in ends)

    def _stores_in_zookeeper(self, group: str) -> bool:
        return self._protocol == "zookeeper" and group == dispatch.GROUP

    def _check_totals(self, prefix: str, totals: Any) -> None:
        self.summary.check(f"{prefix}_rows", totals["rows"], self._flights)
        self.summary.check(f"{prefix}_distinct", totals["distinct"], self._flights)
        self.summary.check(f"{prefix}_distance", totals["distance"], self._truth["distance"])
        self.summary.check(f"{prefix}_departure_delay", totals["departure_delay"], self._truth["departure_delay"])
