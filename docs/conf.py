"""The configuration of the documentation site; `make docs` builds it into build/docs."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import sphinx.search
import torch  # noqa: F401 - autodoc imports our extensions, which need its libraries
from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "rpc-backends"
author = "the rpc-backends authors"
copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.graphviz",
    "sphinx_copybutton",
    "command_reference",
]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"  # docstrings and --help texts write `names` in single backticks
add_module_names = False

# A reference that leads nowhere is an error, except to what is not ours: there is no network here.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!rpc_backend).*"),
    # Types in signatures that are no part of the interface.
    (r"py:class", r"rpc_backends_(cli|processes|testing)\.\w+\..*|rpc_backends_core\._.*"),
    (
        r"py:class",
        r"rpc_backends_agents\.engine\.(\w+\.([A-Z]|T_co|OptionChecks|Options|Record|Identity)|secret|sealed|host)(\..*)?",
    ),
    (r"py:class", r"rpc_backends_agents\.(TransportAgent|interception\..*|_C\..*|addressing\..*)"),
]

smartquotes_action = "D"  # dashes; a quote in a message or a command stays as it is typed

html_theme = "furo"
html_title = "rpc-backends"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "


def link_to_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Make each link that leaves docs/ a download; that to a folder, one of its README.md, or no link."""
    here = Path(app.srcdir, page).parent

    def linked(link: re.Match[str]) -> str:
        text, target = link.groups()
        file = (here / target).resolve()
        if file.is_relative_to(app.srcdir):
            return link[0]
        if file.is_dir():
            target = f"{target}/README.md"
        return f"[{text}](path:{target})" if (here / target).exists() or not file.is_dir() else text

    source[0] = re.sub(r"\[([^\]]*)\]\((\.\./[^)#\s]+)\)", linked, source[0])


class SearchParts(SearchEnglish):
    """A search that finds `RPC_BACKENDS_OVERRIDE` by "override" too."""

    def split(self, input: str) -> list[str]:
        """Return the words, and the parts of those with underscores."""
        words = super().split(input)
        return words + [part for word in words if "_" in word for part in word.split("_") if part]


def setup(app: Sphinx) -> None:
    """Connect the above."""
    sphinx.search.languages["en"] = SearchParts
    app.connect("source-read", link_to_files)


def graphviz() -> str:
    """Return the program that draws the diagrams: that of the `docs` extra, or the system's `dot`.

    :raises RuntimeError: there is neither.
    """
    program = shutil.which("graphviz-pure", path=Path(sys.executable).parent) or shutil.which("dot")
    if program is None:
        raise RuntimeError(
            "the diagrams need Graphviz, and there is neither `graphviz-pure` beside "
            f"{sys.executable} nor `dot` on PATH. Install one: pip install graphviz-pure, or on "
            "Debian and Ubuntu: apt install graphviz"
        )
    return program


graphviz_dot = graphviz()
graphviz_output_format = "svg"
graphviz_dot_args = [
    "-Gbgcolor=transparent",
    "-Gfontname=Helvetica",
    "-Gfontsize=12",
    "-Nfontname=Helvetica",
    "-Nfontsize=12",
    "-Nshape=box",
    "-Nstyle=rounded,filled",
    "-Nfillcolor=#eef3fb",
    "-Ncolor=#5b7aa8",
    "-Efontname=Helvetica",
    "-Efontsize=11",
    "-Ecolor=#666666",
]
