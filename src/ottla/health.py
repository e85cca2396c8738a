"""A consumer's health over HTTP: probes for container orchestrators, and metrics for Prometheus.

Owns the server's thread and the responses of each path. Must not know how a consumer determines its health. Invariants: probes
never block the consumer; the server ends with its ``with`` block, and with the process.

============  ============================================================================================
``/live``     200, or 503 if only a new consumer helps: it is closed or fenced, or its application hangs
``/ready``    200, or 503 if it is not live, not connected, not a member, or in a rebalance
``/health``   the result of ``consumer.health()``, as JSON; 200, or 503 if it is not healthy
``/metrics``  ``consumer.metrics()`` and the verdicts, for Prometheus; needs ``ottla[metrics]``
============  ============================================================================================
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

from ottla import arguments
from ottla.client.health.metrics import MetricName
from ottla.client.health.names import meaning
from ottla.client.health.verdicts import STUCK_AFTER, Health, PartitionHealth, WaitsFor


class Inspectable(Protocol):
    """``Consumer`` or ``AsyncConsumer``."""

    def health(self, stuck_after: float | timedelta = STUCK_AFTER) -> Health:
        """The health of the consumer."""

    def metrics(self) -> Mapping[MetricName, float]:
        """The metrics of the consumer."""


class PageServer:
    """Serves ``pages``, by their paths, on a separate thread; it listens on ``port``. A context manager."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]], port: int, host: str, thread: str) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(pages))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"{thread}-{self.port}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at port {self.port}, {'up' if self._thread.is_alive() else 'closed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server. A second call has no effect."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class HealthServer(PageServer):
    """The server that ``serve`` starts."""

    def __init__(self, consumer: Inspectable, port: int, host: str, stuck_after: float | timedelta) -> None:
        arguments.duration(stuck_after, "stuck_after")  # raise here, not in each probe on a thread of the server
        pages: dict[str, Callable[[], Page]] = {
            "/live": lambda: _verdict(health := consumer.health(stuck_after), health.live),
            "/ready": lambda: _verdict(health := consumer.health(stuck_after), health.ready),
            "/health": lambda: _as_json(consumer.health(stuck_after)),
            "/metrics": lambda: registry_page(PrometheusCollector(consumer, stuck_after)),
        }
        super().__init__(pages, arguments.integer(port, "port", 0, 65535), arguments.string(host, "host"), "ottla-health")


def serve(consumer: Inspectable, port: int = 0, *, host: str = "", stuck_after: float | timedelta = STUCK_AFTER) -> HealthServer:
    """Serve health probes and metrics of ``consumer`` on ``port`` (0: any free one), on a separate thread.

    ``host`` is the address to listen on, by default all addresses, since probes come from outside of a container. ``stuck_after``
    is as for ``consumer.health()``. Raises ``OSError`` if the port is in use::

        with Consumer(...) as consumer, ottla.health.serve(consumer, 8080):
            ...
    """
    return HealthServer(consumer, port, host, stuck_after)


class Page:
    """An HTTP response."""

    def __init__(self, status: HTTPStatus, content: str, kind: str = "text/plain; charset=utf-8") -> None:
        self.status, self.content, self.kind = status, content.encode(), kind


def _handler(pages: Mapping[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            answer = page() if page is not None else Page(HTTPStatus.NOT_FOUND, "try " + ", ".join(pages) + "\n")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests: probes arrive every few seconds."""

    return Handler


def _verdict(health: Health, holds: bool) -> Page:
    status = HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(status, "".join(f"{reason}\n" for reason in health.reasons) or "ok\n")


def _as_json(health: Health) -> Page:
    status = HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(status, json.dumps(health.as_dict(), indent=2) + "\n", "application/json")


def registry_page(collector: Any) -> Page:
    """Return the page with the metrics of a collector of ``prometheus-client``."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ImportError:
        return Page(HTTPStatus.NOT_IMPLEMENTED, "prometheus-client is missing: pip install 'ottla[metrics]'\n")
    registry = CollectorRegistry()
    registry.register(collector)
    return Page(HTTPStatus.OK, generate_latest(registry).decode(), CONTENT_TYPE_LATEST)


class PrometheusCollector:
    """``consumer.metrics()`` and its verdicts for a program's own registry of ``prometheus-client``::

        prometheus_client.REGISTRY.register(PrometheusCollector(consumer))

    Names are Kafka's with ``kafka_`` in front, such as ``kafka_consumer_fetch_manager_records_lag``; the verdicts are
    ``ottla_consumer_live``, ``ottla_consumer_ready`` and ``ottla_consumer_healthy``.
    """

    def __init__(self, consumer: Inspectable, stuck_after: float | timedelta = STUCK_AFTER) -> None:
        self._consumer = consumer
        self._stuck_after = stuck_after

    def collect(self) -> Iterable[Any]:
        """One family per metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        health = self._consumer.health(self._stuck_after)
        group = health.group_id or ""
        families: dict[str, Any] = {}

        def put(name: str, help: str, value: float, **labels: str) -> None:
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(name, help)
            # Kafka has some metrics per client, per topic and per partition under the same name, with different labels.
            families[name].add_sample(name, {"group_id": group, **labels}, value)

        for metric, value in sorted(self._consumer.metrics().items()):
            name = f"kafka_{metric.group.removesuffix('-metrics')}_{metric.name}".replace("-", "_")
            put(name, meaning(metric), value, **dict(metric.tags))
        for verdict in ("live", "ready", "healthy"):
            put(f"ottla_consumer_{verdict}", f"1 if the consumer is {verdict}", float(getattr(health, verdict)))
        for tp, part in health.partitions.items():
            where = {"topic": tp.topic, "partition": str(tp.partition)}
            put(
                "ottla_partition_stands_still_seconds",
                "seconds for which a partition has made no progress",
                part.stands_still,
                **where,
            )
        return families.values()


__all__ = ["Health", "HealthServer", "PartitionHealth", "PrometheusCollector", "WaitsFor", "serve"]
