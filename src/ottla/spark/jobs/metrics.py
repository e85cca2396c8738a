"""The figures of a run for Prometheus.

Owns the metrics' names. Must not know Spark. Invariant: a figure that is not known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.errors import OttlaError
from ottla.health import Page, PageServer, registry_page
from ottla.spark.jobs.supervision import QueryState

FAMILIES = (
    # name, type, key in the state, meaning
    ("ottla_pipeline_rows", "counter", "rows", "rows of finished batches"),
    ("ottla_pipeline_batch", "gauge", "batch", "number of the latest finished batch"),
    ("ottla_pipeline_batch_seconds", "gauge", "batch_seconds", "duration of the latest finished batch"),
    ("ottla_pipeline_rows_per_second", "gauge", "rows_per_second", "rows per second in the latest finished batch"),
    ("ottla_pipeline_lag_records", "gauge", "lag", "records behind the ends of the logs"),
    ("ottla_pipeline_restarts", "counter", "restarts", "restarts after failures"),
)


class PipelineCollector:
    """Collects from the state of a run."""

    def __init__(self, state: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._state = state

    def collect(self) -> Iterable[Any]:
        """One family per metric, with the label ``query``."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self._state()
        for name, kind, key, meaning in FAMILIES:
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, meaning, labels=["query"])
            for query, figures in state.items():
                if figures[key] is not None:
                    family.add_metric([query], figures[key])
            yield family
        running = GaugeMetricFamily("ottla_pipeline_running", "whether Spark runs the query now", labels=["query"])
        for query, figures in state.items():
            running.add_metric([query], figures["state"] in (QueryState.RUNNING.value, QueryState.DRAINING.value))
        yield running


def serve_metrics(state: Callable[[], Mapping[str, Mapping[str, Any]]], port: int) -> PageServer:
    """Serve ``/metrics`` on ``port`` (0: any free one). Raises ``OttlaError`` if the port is in use."""

    def metrics() -> Page:
        return registry_page(PipelineCollector(state))

    try:
        return PageServer({"/metrics": metrics}, port, "", "ottla-pipeline-metrics")
    except OSError as error:
        raise OttlaError(f"cannot serve metrics on port {port}: {error.strerror}", cause=error) from error
