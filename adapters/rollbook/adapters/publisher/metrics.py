"""A publisher's counts for the prometheus-client of the process that publishes: a trainer, a rollout worker.

Importing this module imports prometheus-client, which only those need who register it (`pip install rollbook[server]`,
or prometheus-client alone).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rollbook.adapters.publisher.publisher import Publisher


class PublisherCollector(Collector):
    """`registry.register(PublisherCollector(publisher))`, with any registry of that process; nothing is global here.

    The numbers are read at the scrape. A closed publisher keeps its last ones.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        stats = self._publisher.stats()
        yield CounterMetricFamily("rollbook_publisher_accepted", "Facts taken into the outbox.", value=stats.accepted)
        yield CounterMetricFamily(
            "rollbook_publisher_sent", "Facts that the log acknowledged.", value=stats.acknowledged
        )
        yield CounterMetricFamily(
            "rollbook_publisher_not_sent", "Facts given up and reported as not sent.", value=stats.refused
        )
        yield CounterMetricFamily(
            "rollbook_publisher_superseded",
            "Verdicts that were void, because something else had happened to the worker.",
            value=stats.superseded,
        )
        yield CounterMetricFamily(
            "rollbook_publisher_reconnects", "Times that the connection was made again.", value=stats.reconnects
        )
        yield GaugeMetricFamily("rollbook_publisher_outbox", "Facts that wait in the outbox.", value=stats.waiting)
        yield GaugeMetricFamily(
            "rollbook_publisher_outbox_oldest_seconds",
            "How long the oldest of them has been waiting; 0 if none is.",
            value=stats.oldest_seconds,
        )
        yield GaugeMetricFamily(
            "rollbook_publisher_left_unsent",
            "Facts of an earlier process in the durable outbox that nobody can send any more.",
            value=len(self._publisher.left_unsent),
        )
        yield GaugeMetricFamily(
            "rollbook_publisher_connected", "Whether NATS is connected.", value=float(stats.connected)
        )
