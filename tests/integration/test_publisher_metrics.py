"""What a publisher tells prometheus-client, with the log there and away."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.stream import FleetStream

from rollbook.adapters.publisher import Publisher
from rollbook.adapters.publisher.metrics import PublisherCollector

pytestmark = pytest.mark.integration


def scrape(registry):
    text = generate_latest(registry).decode()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_the_outbox_is_seen_to_fill_and_to_empty(start_nats, fleet, tmp_path):
    server = start_nats()
    FleetStream(server.url, fleet).make()
    registry = CollectorRegistry()
    with Publisher(fleet, server.url, outbox=tmp_path / "outbox") as publisher:
        registry.register(PublisherCollector(publisher))
        publisher.worker_up("w-0-0").result(30)
        found = scrape(registry)
        assert found["rollbook_publisher_sent_total"] == found["rollbook_publisher_accepted_total"] == 1
        assert found["rollbook_publisher_outbox"] == found["rollbook_publisher_outbox_oldest_seconds"] == 0
        assert found["rollbook_publisher_connected"] == 1
        server.kill()
        waiting = publisher.worker_down("w-0-0", incarnation=1)
        publisher.flush(0.2)
        found = scrape(registry)
        assert found["rollbook_publisher_outbox"] == 1
        assert found["rollbook_publisher_outbox_oldest_seconds"] > 0.1
        server.start()
        waiting.result(30)
        found = scrape(registry)
        assert found["rollbook_publisher_outbox"] == found["rollbook_publisher_outbox_oldest_seconds"] == 0
        assert found["rollbook_publisher_sent_total"] == 2
        assert found["rollbook_publisher_not_sent_total"] == 0
    assert scrape(registry)["rollbook_publisher_sent_total"] == 2


def test_the_age_of_what_an_earlier_process_left_is_counted_from_this_ones_start(fleet, tmp_path):
    nowhere = "nats://127.0.0.1:1"
    with Publisher(fleet, nowhere, outbox=tmp_path / "outbox") as first:
        receipt = first.worker_up("w-0-0", incarnation=1)
        assert receipt.wait_persisted(30)
        first.close(0)
    with Publisher(fleet, nowhere, outbox=tmp_path / "outbox") as second:
        registry = CollectorRegistry()
        registry.register(PublisherCollector(second))
        found = scrape(registry)
        assert found["rollbook_publisher_outbox"] == 1
        assert 0 <= found["rollbook_publisher_outbox_oldest_seconds"] < 30
        second.close(0)
