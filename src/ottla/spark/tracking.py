"""``track_progress``: commits the progress of streaming queries to a consumer group, whatever their Kafka source is.

Owns the listener, and what it has heard of each query. Must not know how offsets are committed. Invariant: nothing here delays or
ends a query.

Spark reports a batch when it has written the batch's commit log, so the records before its end offsets are processed.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from pyspark.sql.streaming import StreamingQueryListener

from ottla import arguments
from ottla.errors import ConfigError
from ottla.spark.client_settings import CLIENT_PREFIX
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import NAMED, StreamOffset
from ottla.spark.options import parse_options
from ottla.spark.progress import Progress, ProgressThread
from ottla.types import TopicPartition, short_list

log = logging.getLogger(__name__)

_OPTION = re.compile(r"(?:option )?" + re.escape(CLIENT_PREFIX) + r"([a-z][a-z.]*[a-z])")

LAST_EVENT_TIMEOUT = 10.0
"""Seconds that ``stop()`` waits for Spark's last reports of queries that have ended."""


class OffsetsBehindLatest(NamedTuple):
    """How far a query is behind the ends of the logs, as the metrics of Spark's own source: over all partitions."""

    min: int
    avg: float
    max: int


class ProgressTracker:
    """What ``track_progress`` returns. A context manager: its end is ``stop()``."""

    def __init__(self, streams: Any, progress: ProgressThread, queries: Collection[str] | None) -> None:
        self._streams = streams
        self._progress = progress
        self._queries = queries
        self._changed = threading.Condition()
        self._names: dict[str, str | None] = {}
        self._running: dict[str, str] = {}
        """Run -> query. A query that is started again has another run, and may be so before the end of its last run is reported."""
        self._positions: dict[str, dict[TopicPartition, int]] = {}
        self._lag: dict[str, OffsetsBehindLatest] = {}
        self._is_stopped = False
        self._listener = _Listener(self._started, self._progressed, self._terminated)
        streams.addListener(self._listener)
        for query in streams.active:
            self._started(str(query.id), str(query.runId), query.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def offsets_behind_latest(self) -> dict[str, OffsetsBehindLatest]:
        """Query (its name, or its id) -> how far it was behind after its latest batch, if it has a Kafka source."""
        with self._changed:
            return {self._names.get(query) or query: lag for query, lag in self._lag.items()}

    def stop(self) -> None:
        """Stop listening, after a last commit of what the queries have processed that have ended.

        If Spark's session has ended before, its last reports may be missing, which is logged.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            self._wait_for_last_reports()
            self._streams.removeListener(self._listener)
            self._warn_of_unknown_names()
        except Exception as error:  # of any class: the JVM may be gone. An exception of the user's program must not be hidden.
            log.warning("the session of Spark has ended, so the last reports of its queries may be missing: %s", error)
        finally:
            try:
                self._progress.finish(self._all_positions())
            finally:
                self._progress.close()

    def _wait_for_last_reports(self) -> None:
        active = {str(query.runId) for query in self._streams.active}
        with self._changed:
            self._changed.wait_for(lambda: self._running.keys() <= active, LAST_EVENT_TIMEOUT)

    def _warn_of_unknown_names(self) -> None:
        with self._changed:
            unknown = sorted(set(self._queries or ()).difference(name for name in self._names.values() if name is not None))
        if unknown:
            log.warning("no query with the name %s has run, so its progress is not committed", short_list(unknown, NAMED))

    def _all_positions(self) -> dict[TopicPartition, int]:
        """The least position of any query in each partition."""
        found: dict[TopicPartition, int] = {}
        with self._changed:
            for positions in self._positions.values():
                for tp, offset in positions.items():
                    found[tp] = min(offset, found.get(tp, offset))
        return found

    def _replace_ended(self, query: str, begun: Collection[TopicPartition]) -> None:
        """Forget the positions in ``begun``, partitions that ``query`` has begun to read, of ended queries with its name.

        An ended query counts until then: it may be started again, and if another query reads its topics, its lag must still grow.
        Spark reports the end of a query before the progress of one that is started after it, and two that run at a time have
        different names, or none.
        """
        running = self._running.values()
        for other, positions in self._positions.items():
            if other != query and other not in running and self._names[other] == self._names[query]:
                for tp in begun:
                    positions.pop(tp, None)

    # -- called by Spark, on its own thread ------------------------------------------------------------------------------------

    def _is_tracked(self, name: str | None) -> bool:
        return self._queries is None or name in self._queries

    def _started(self, query: str, run: str, name: str | None) -> None:
        if self._is_tracked(name):
            with self._changed:
                self._names[query] = name
                self._running[run] = query

    def _progressed(self, query: str, name: str | None, sources: Iterable[Any]) -> None:
        if not self._is_tracked(name):
            return
        positions: dict[TopicPartition, int] = {}
        behind: list[int] = []
        for source in sources:
            ends, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
            for tp, end in ends.items():
                positions[tp] = min(end, positions.get(tp, end))
            behind += [max(0, latest[tp] - end) for tp, end in ends.items() if tp in latest]
        with self._changed:
            self._names[query] = name
            if positions:
                self._replace_ended(query, positions.keys() - self._positions.get(query, {}).keys())
                self._positions[query] = positions
            if behind:
                self._lag.pop(query, None)  # to the end: of queries with one name, the lag of the latest is shown
                self._lag[query] = OffsetsBehindLatest(min(behind), sum(behind) / len(behind), max(behind))
        self._progress.report(self._all_positions())

    def _terminated(self, run: str) -> None:
        with self._changed:
            self._running.pop(run, None)
            self._changed.notify_all()


class _Listener(StreamingQueryListener):
    """Passes Spark's events on. An exception is logged: Spark would only print it."""

    def __init__(
        self,
        started: Callable[[str, str, str | None], None],
        progressed: Callable[[str, str | None, Iterable[Any]], None],
        terminated: Callable[[str], None],
    ) -> None:
        self._on_started, self._on_progress, self._on_terminated = started, progressed, terminated

    def onQueryStarted(self, event: Any) -> None:
        """Called when a query starts."""
        self._pass(self._on_started, str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: Any) -> None:
        """Called after each batch, and now and then without one."""
        progress = event.progress
        self._pass(self._on_progress, str(progress.id), progress.name, progress.sources)

    def onQueryIdle(self, event: Any) -> None:
        """Called while a query has no new records."""

    def onQueryTerminated(self, event: Any) -> None:
        """Called when a query has ended."""
        self._pass(self._on_terminated, str(event.runId))

    @staticmethod
    def _pass(call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception:
            log.exception("the progress of a query is not tracked")


def track_progress(
    spark: Any, *, group_id: str, bootstrap_servers: str, queries: Collection[str] | None = None, **settings: str
) -> ProgressTracker:
    """Commit the progress of streaming queries to a consumer group, so that tools for consumer groups show their lag.

    ::

        with ottla.spark.track_progress(spark, group_id="orders-to-lake", bootstrap_servers="localhost:9092") as tracker:
            query = spark.readStream.format("kafka")...start()
            query.awaitTermination()

    The queries of the session ``spark`` may have any source with Kafka's offsets: Spark's own ``format("kafka")`` as well as
    ``format("ottla")``. ``queries``: only those with these names. ``settings`` are those of ``Consumer``, for example
    ``security_protocol="SASL_SSL"``. No consumer may be a member of the group. The commits do not influence where a query goes on.

    If queries read the same partition, the group has the least of their positions. A query that has ended counts, too, until a new
    query with its name reads the partition; if it has no name, a new query without one.

    Raises ``ConfigError`` for wrong settings.
    """
    arguments.text(group_id, "group_id")
    arguments.text(bootstrap_servers, "bootstrap_servers")
    names = None if queries is None else arguments.names(queries, "queries")
    given = {f"{CLIENT_PREFIX}{name.replace('_', '.')}": str(value) for name, value in settings.items()}
    given |= {f"{CLIENT_PREFIX}bootstrap.servers": bootstrap_servers, "groupId": group_id, "subscribe": "any"}
    try:
        options = parse_options(given)
    except ConfigError as error:
        raise ConfigError(_with_argument_names(str(error.args[0])), hint=_with_argument_names(error.hint or "") or None) from error
    return ProgressTracker(spark.streams, ProgressThread(Progress(Cluster(options), group_id)), names)


def _with_argument_names(text: str) -> str:
    """Return the text of an error with the names of arguments, as they are given here, instead of those of Spark's options."""
    return _OPTION.sub(lambda found: found[1].replace(".", "_"), text)


def _offsets(text: str | None) -> dict[TopicPartition, int]:
    """The offsets of a source in a report; empty for a source other than Kafka."""
    offset = StreamOffset.parse(text or "null")
    return {} if offset is None else dict(offset.positions)
