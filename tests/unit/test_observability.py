"""The page on observability says of the metrics what the code has, and the alerts ask for metrics that exist."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML
from support.fleet import Fleet

from rollbook.adapters.publisher import PublisherStats
from rollbook.adapters.publisher.metrics import PublisherCollector
from rollbook.adapters.web.fleet_metrics import FleetCollector
from rollbook.adapters.web.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/observability.md").read_text()
OWN = "rollbook_"


class FakePublisher:
    """Only the numbers: a real one is scraped in tests/integration/test_publisher_metrics.py."""

    left_unsent = ()

    def stats(self):
        return PublisherStats(
            accepted=0,
            acknowledged=0,
            waiting=0,
            oldest_seconds=0.0,
            refused=0,
            superseded=0,
            reconnects=0,
            connected=False,
            last_error=None,
        )


def described(registry):
    """Name as scraped → (type, labels, help)."""
    found = {}
    for family in registry.collect():
        if family.name.startswith(OWN):
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, family.documentation)
    return found


def controller_metrics():
    fleet = Fleet("a")
    controller = fleet.make()
    metrics = Metrics(0, ["a"])
    metrics.registry.register(FleetCollector(controller, controller._resources, metrics))
    return metrics


def rows(columns):
    """The page's tables of metrics with that many columns."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| `{OWN}") and len(cells) == columns:
            yield cells


def test_the_table_of_the_controllers_metrics_is_true():
    page = {name.strip("`"): (kind, told) for name, kind, _, told in rows(4)}
    assert page == described(controller_metrics().registry)


def test_the_labels_in_the_table_are_true():
    metrics = controller_metrics()
    own = {
        collector._name: tuple(collector._labelnames)
        for collector in metrics.registry._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    own |= {
        family.name: tuple(getattr(family, "_labelnames", ()))
        for family in metrics.registry.collect()
        if family.name not in own and family.name.startswith(OWN)
    }
    for name, _, labels, _ in rows(4):
        bare = name.strip("`").removesuffix("_total")
        assert own[bare] == tuple(part for part in labels.split(", ") if part), name


def test_the_table_of_the_publishers_metrics_is_true():
    registry = CollectorRegistry()
    registry.register(PublisherCollector(FakePublisher()))
    assert {name.strip("`"): (kind, told) for name, kind, told in rows(3)} == described(registry)


def names():
    registry = CollectorRegistry()
    registry.register(PublisherCollector(FakePublisher()))
    return set(described(controller_metrics().registry)) | set(described(registry))


ALERTS = [rule for group in YAML(typ="safe").load(ROOT / "deploy/alerts.yml")["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_that_exist(rule):
    asked = set(re.findall(rf"{OWN}\w+", rule["expr"]))
    assert asked
    assert asked <= names()


def test_prometheus_reads_the_alerts_and_the_documented_port():
    config = YAML(typ="safe").load(ROOT / "deploy/prometheus.yml")
    assert all((ROOT / "deploy" / name).is_file() for name in config["rule_files"])
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
    assert 'listen = "127.0.0.1:9464"' in PAGE
