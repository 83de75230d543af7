"""The page on stability names the public modules as they are."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from rpc_backends_agents import include_dir
from rpc_backends_core.spi import inspection

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "stability.md").read_text()
MODULES = re.findall(r"^\| `(rpc_\w+(?:\.\w+)*)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_lists_its_names(name: str) -> None:
    module = import_module(name)
    assert module.__all__
    for public in module.__all__:
        assert hasattr(module, public), public


def test_the_page_names_each_interface() -> None:
    assert "rpc_backends_core.spi" in MODULES
    for group in ("BACKENDS_GROUP", "HOOKS_GROUP", "COMMANDS_GROUP", "CHECKS_GROUP"):
        assert f"`{getattr(inspection, group)}`" in PAGE


def test_the_page_has_the_numbers_of_the_headers() -> None:
    headers = Path(include_dir(), "rpc_backends_agents").glob("*.h")
    text = "\n".join(path.read_text() for path in headers)
    capsules = re.findall(r'Capsule = "([\w.]+)"', text)
    assert len(capsules) == 2
    for capsule in capsules:
        assert f"`{capsule}`" in PAGE


def test_the_index_links_to_the_page() -> None:
    assert "reference/stability.md" in (DOCS / "index.md").read_text()
    assert "(stability.md)" in (DOCS / "reference" / "index.md").read_text()
