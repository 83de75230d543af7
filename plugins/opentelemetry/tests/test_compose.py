"""The configuration files of examples/observability fit each other. They are not started here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

yaml = pytest.importorskip(
    "yaml", reason="PyYAML is installed with the tools for the documentation"
)
EXAMPLE = Path(__file__).parents[3] / "examples/observability"


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLE / name).read_text())


def services() -> dict[str, Any]:
    by_name: dict[str, Any] = read("compose.yaml")["services"]
    return by_name


def published(service: str) -> set[int]:
    """Return the ports of a service that this host can reach."""
    return {int(port.rpartition(":")[2]) for port in services()[service]["ports"]}


def test_every_image_has_an_exact_version() -> None:
    images = [service["image"] for service in services().values()]
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+$", image)] == []


def test_every_file_that_a_service_reads_exists() -> None:
    missing = []
    for service in services().values():
        volumes = dict(
            volume.removesuffix(":ro").split(":") for volume in service.get("volumes", [])
        )
        missing += [here for here in volumes if not (EXAMPLE / here).is_file()]
        command = service.get("command", [])
        for word in [command] if isinstance(command, str) else command:
            _, separator, path = word.partition("config.file=")
            missing += [path] if separator and path not in volumes.values() else []
    assert missing == []


def test_ports_are_those_of_the_commands_in_the_readme() -> None:
    readme = (EXAMPLE / "README.md").read_text()
    used = {int(port) for port in re.findall(r"localhost:(\d+)", readme)}
    assert used == set().union(*map(published, services()))
    otlp = read("tempo.yaml")["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert {int(otlp.rpartition(":")[2])} == published("tempo")


def test_grafana_finds_both_servers() -> None:
    urls = {
        source["type"]: urlsplit(source["url"])
        for source in read("grafana/datasources.yaml")["datasources"]
    }
    assert {url.hostname for url in urls.values()} <= set(services())
    assert urls["prometheus"].port in published("prometheus")
    assert urls["tempo"].port == read("tempo.yaml")["server"]["http_listen_port"]
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    mounted = [volume.split(":")[1] for volume in services()["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/rpc.json" in mounted
