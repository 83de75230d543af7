"""The site's tables agree with the code, its links work, and its examples run."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shutil
import subprocess
import sys
import types
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from rpc_backend_ucx import UCXRpcBackendOptions
from rpc_backend_zeromq import ZeroMQRpcBackendOptions
from rpc_backends_bench.results import Results
from rpc_backends_core import _other_variables as other_variables
from rpc_backends_core.spi import COMMITMENTS, Capability, inspection
from rpc_backends_core.spi.inspection import BUILTIN_CAPABILITIES, default_registry, settings
from rpc_backends_faults import settings as faults_variables
from rpc_backends_faults.rules import (
    KINDS,
    MESSAGE_TYPES,
    MOST_COPIES,
    MOST_COUNT,
    MOST_PARTS,
    MOST_RATE,
    MOST_SECONDS,
    MOST_TEXT,
    OF_A_WORKER,
)
from rpc_backends_testing.results import Report, Result
from structure.imports import ROOT
from support.messages import SOURCES, missing_from_the_code

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted(
    page
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/README.md"))
    if "build" not in page.parts
)


def rows(page: Path) -> list[list[str]]:
    """Return the rows of all tables of a page; each row is a list of cells."""
    lines = re.findall(r"^\| (.+) \|$", page.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in re.split(r" \|(?: |$)", line)] for line in lines]


# --- environment variables ---------------------------------------------------------------------------


@cache
def variables_in_the_code() -> set[str]:
    """Return the variables that modules declare, and those that the code names in a string."""
    declared = {
        *settings.VARIABLES,
        *ZeroMQRpcBackendOptions.variables(),
        *UCXRpcBackendOptions.variables(),
        *faults_variables.VARIABLES,
    }
    for source in SOURCES:
        for file in source.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    declared |= set(re.findall(r"^RPC_BACKENDS_[A-Z_]*[A-Z]$", node.value))
    return declared


def test_the_table_lists_every_variable() -> None:
    shown = [match[1] for row in rows(REFERENCE / "environment.md") if (match := VARIABLE(row[0]))]
    assert sorted(shown) == sorted(variables_in_the_code())


def test_packages_declare_every_variable() -> None:
    """The core warns of misspelt variables of packages that it has not loaded."""
    declarations = inspection.declared(inspection.VARIABLES_GROUP)
    assert {declaration.name: declaration.distribution for declaration in declarations} == {
        word: package for word, package in other_variables.PACKAGES.items() if word != "AGENTS"
    }
    declared = {*settings.VARIABLES, "RPC_BACKENDS_AGENTS_ANY_TORCH"}
    for declaration in declarations:
        variables = declaration.entry_point.load()
        declared |= {*(variables() if callable(variables) else variables)}
    assert declared == variables_in_the_code()


VARIABLE = re.compile(r"`(RPC_BACKENDS_\w+)`").fullmatch


def test_no_page_names_an_unknown_variable() -> None:
    known = variables_in_the_code() | {"RPC_BACKENDS_NAME", "RPC_BACKENDS_PIGEON"}
    for page in DOCS.rglob("*.md"):
        named = set(re.findall(r"\bRPC_BACKENDS_[A-Z_]*[A-Z]\b", page.read_text()))
        assert named <= known, page


@pytest.mark.parametrize(
    ("backend", "options"), [("ZEROMQ", ZeroMQRpcBackendOptions), ("UCX", UCXRpcBackendOptions)]
)
def test_the_tables_list_every_option(backend: str, options: type) -> None:
    page = (
        (REFERENCE / "environment.md")
        .read_text()
        .partition(f"## {backend}\n")[2]
        .partition("\n## ")[0]
    )
    variables = re.findall(rf"^\| `RPC_BACKENDS_{backend}_(\w+)`", page, re.MULTILINE)
    others = re.findall(r"^\| `(?!RPC_)(\w+)`", page, re.MULTILINE)
    names = inspect.signature(options).parameters
    assert sorted([*map(str.lower, variables), *others]) == sorted(names)


def test_the_generated_tables_of_options_are_up_to_date() -> None:
    """If this fails, run `python docs/_ext/option_tables.py`."""
    for page, wanted in runpy.run_path(str(DOCS / "_ext/option_tables.py"))["pages"]():
        assert page.read_text() == wanted, page


def test_the_table_of_torchs_private_names_is_up_to_date() -> None:
    """If this fails, run `python docs/_ext/private_names.py`."""
    made = runpy.run_path(str(DOCS / "_ext/private_names.py"))
    assert made["PAGE"].read_text() == made["page"]()


# --- errors ------------------------------------------------------------------------------------------


OURS = (REFERENCE / "errors.md").read_text().partition("## Errors of torch")[0]
ERRORS = re.findall(r"^\| `([^`]+)` ", OURS, re.MULTILINE)


@pytest.mark.parametrize("text", ERRORS)
def test_every_error_on_the_page_is_in_the_code(text: str) -> None:
    assert missing_from_the_code(text) == []


# --- capabilities ------------------------------------------------------------------------------------


def test_the_page_lists_every_capability() -> None:
    commitments = {
        row[0].strip("`"): row[1] for row in rows(REFERENCE / "capabilities.md") if len(row) == 2
    }
    commitments.pop("capability"), commitments.pop("---", None)
    assert {Capability(name): text for name, text in commitments.items()} == dict(COMMITMENTS)


def declared(title: str) -> dict[str, list[bool]]:
    """Return the table under a heading: for each capability, whether each cell says yes."""
    page = (
        (REFERENCE / "capabilities.md")
        .read_text()
        .partition(f"## {title}\n")[2]
        .partition("\n## ")[0]
    )
    table_rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", page, re.MULTILINE)
    return {
        name: [cell.strip() == "yes" for cell in cells.split("|")] for name, cells in table_rows
    }


def test_the_page_shows_the_capabilities_of_each_backend() -> None:
    names = ("ZEROMQ", "UCX", "TENSORPIPE", "FAULTY_TENSORPIPE")
    ours = [default_registry().backend(name).capabilities for name in names]
    assert declared("What each backend declares") == {
        capability: [capability in all_ for all_ in ours] for capability in Capability
    }


def test_the_page_shows_the_capabilities_of_torchs_backends() -> None:
    torchs = [BUILTIN_CAPABILITIES[name] for name in ("TENSORPIPE", "FAULTY_TENSORPIPE")]
    assert declared("What torch's own backends do") == {
        capability: [capability in all_ for all_ in torchs] for capability in Capability
    }


# --- file formats ------------------------------------------------------------------------------------


def section(page: str, title: str) -> str:
    """Return the text under a heading of a reference page, up to the next heading."""
    text = (REFERENCE / page).read_text().partition(f" {title}\n")[2]
    return text.partition("\n## ")[0].partition("\n### ")[0]


def test_the_table_lists_every_fault_with_its_keys() -> None:
    table = re.findall(
        r"^\| `(\w+)` \|.*\|([^|]*)\|$", section("file-formats.md", "Kinds of faults"), re.MULTILINE
    )
    shown = {kind: set(re.findall(r"`(\w+)`", keys)) for kind, keys in table if kind != "what"}
    real = {name: {*kind.needs, *kind.takes} - {"receiver"} for name, kind in KINDS.items()}
    assert shown == {
        name: keys | ({"worker"} if name in OF_A_WORKER else set()) for name, keys in real.items()
    }


def test_the_page_lists_every_message_type() -> None:
    text = section("file-formats.md", "Which messages")
    assert not [name for name in MESSAGE_TYPES if not re.search(rf"\b{name}\b", text)]


def test_the_page_shows_the_limits_of_rules() -> None:
    text = section("file-formats.md", "Limits")
    for limit in (
        MOST_SECONDS,
        MOST_RATE,
        MOST_COPIES,
        MOST_COUNT,
        MOST_TEXT,
        MOST_PARTS,
    ):
        assert f" {int(limit)} " in text.replace("/", " ").replace("(", " ")


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Conformance report", {field.name for of in (Report, Result) for field in fields(of)}),
        ("Bench results", set(Results({}, {}, [], "").to_json())),
    ],
)
def test_the_page_lists_every_member_of_a_report(title: str, names: set[str]) -> None:
    text = section("file-formats.md", title)
    assert not [name for name in names if f"`{name}`" not in text]


# --- links and examples ------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """Return the anchor of a heading, which is the same on GitHub and on the site."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", plain).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_works(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), target


def test_the_page_of_modules_agrees_with_their_first_lines() -> None:
    """If the test fails, run `python docs/_ext/module_index.py`."""
    index = runpy.run_path(str(DOCS / "_ext" / "module_index.py"))
    assert (DOCS / "explanation" / "modules.md").read_text() == index["page"]()


def test_files_named_on_the_architecture_page_exist() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    table = page.partition("## Where to change what")[2].partition("\n## ")[0]
    paths = re.findall(
        r"`([\w.]+/[\w./]+)`", table.replace("`_bridge/", "`src/rpc_backends_core/_bridge/")
    )
    assert paths
    missing = [
        path
        for path in paths
        if not any(
            (top / path).exists() or (top / f"{path}.py").exists()
            for top in (ROOT, ROOT / "plugins/zeromq")
        )
    ]
    assert not missing


EXAMPLES = [
    pytest.param(page, code, id=f"{page.stem}-{number}")
    for page in sorted((*REFERENCE.glob("*.md"), *(DOCS / "explanation").rglob("*.md")))
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_an_example_runs(page: Path, code: str) -> None:
    module = types.ModuleType(page.stem)
    exec(compile(code, str(page), "exec"), vars(module))


# --- the build ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; as in `make docs`, a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(DOCS), str(folder / "html"), "-d", str(folder / "doctrees")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_built_site_loads_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        taken = re.findall(
            r"<(?:script|link|img|object|iframe)[^>]+(?:src|href|data)=\"([^\"]+)", page.read_text()
        )
        assert taken
        assert not [
            address for address in taken if address.startswith(("http:", "https:", "//"))
        ], page


@pytest.mark.slow
def test_every_link_of_the_built_site_works(site: Path) -> None:
    anchors = {
        page: set(re.findall(r'\bid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")
    }
    for page in anchors:
        for target in re.findall(r'<a [^>]*href="(?!https?:|mailto:)([^"]+)"', page.read_text()):
            file, _, anchor = target.partition("#")
            linked = (page.parent / file).resolve() if file else page
            assert linked.exists(), (page, target)
            assert not anchor or linked not in anchors or anchor in anchors[linked], (page, target)


@pytest.mark.slow
def test_the_diagrams_are_drawn(site: Path) -> None:
    assert len(list((site / "_images").glob("graphviz-*.svg"))) == sum(
        page.read_text().count("```{graphviz}") for page in DOCS.rglob("*.md")
    )


@pytest.mark.slow
def test_the_search_finds_part_of_a_variable(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert '"overrid":' in index
    assert '"rpc_backends_overrid' in index


@pytest.mark.slow
def test_the_page_of_the_command_lists_every_subcommand(site: Path) -> None:
    page = (site / "reference" / "command.html").read_text()
    for name in (
        "list",
        "show",
        "doctor",
        "new",
        "bench",
        "conformance",
        "faults check",
        "faults run",
        "faults report",
        "faults explore",
        "build-agents",
        "secret",
    ):
        assert f'id="rpc-backends-{name.replace(" ", "-")}"' in page, name


def test_a_build_without_graphviz_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    with pytest.raises(RuntimeError, match=r"pip install graphviz-pure.*apt install graphviz"):
        runpy.run_path(str(DOCS / "conf.py"))


def test_the_site_and_the_readme_install_the_same_packages() -> None:
    blocks = [
        page.read_text().partition("## Install")[2].partition("```console\n")[2].partition("```")[0]
        for page in (ROOT / "README.md", DOCS / "index.md")
    ]
    assert "pip install" in blocks[0]
    assert blocks[0] == blocks[1]
