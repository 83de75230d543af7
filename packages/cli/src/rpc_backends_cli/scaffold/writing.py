"""The files of a new package, from templates."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rpc_backends_cli.scaffold.names import Names
from rpc_backends_cli.scaffold.variants import Kind, Variant
from rpc_backends_core import __version__

_TEMPLATES = Path(__file__).parent / "templates"
_PLAIN = Variant(Kind.TENSORPIPE, dynamic_groups=False)


class _Template(Template):
    """Uses a placeholder mark that neither Python, shells, C++ nor GitHub workflows use."""

    delimiter = "%%"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a new package says about its origin.

    :ivar author: ``Name`` or ``Name <address>``.
    :ivar url: the page of the package's repository.
    :ivar source: a clone of this project, or its URL, from which the package's tests install it.
    """

    author: str | None = None
    url: str | None = None
    source: str = ""


def files(
    names: Names,
    variant: Variant = _PLAIN,
    facts: Facts = Facts(),
) -> dict[str, str]:
    """Return the text of each file, by its path in the package's folder."""
    from rpc_backends_core.spi import CONTRACT_VERSION, SPI_VERSION

    values = {
        "NAME": names.member,
        "Class": names.class_prefix,
        "package": names.package,
        "distribution": names.distribution,
        "authors": f"authors = [{_author(facts.author)}]\n" if facts.author else "",
        "holder": _holder(facts.author, names),
        "urls": _urls(facts.url),
        "source": shlex.quote(facts.source),
        "core": __version__,
        "suite_version": str(CONTRACT_VERSION),
        "spi_version": str(SPI_VERSION),
        "build": variant.build_table(names.package),
    }
    of_variant = variant.values(__version__)
    # Some of these have placeholders of their own.
    values |= {key: _fill(text, {**of_variant, **values}) for key, text in of_variant.items()}
    return {
        path: _fill((_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8"), values)
        if name
        else ""
        for path, name in variant.templates(names.package).items()
    }


def write(folder: Path, texts: dict[str, str]) -> None:
    """Write files into a new folder; if that fails, the folder is removed.

    :raises OSError: the folder already exists or cannot be written.
    """
    folder.mkdir()
    try:
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill(text: str, values: dict[str, str]) -> str:
    return _Template(text).substitute(values)


def _author(text: str) -> str:
    """Return an author as a table for pyproject.toml."""
    name, address = _name_and_address(text)
    fields = [("name", name), ("email", address)]
    fields_in_toml = ", ".join(f"{key} = {_quoted(value)}" for key, value in fields if value)
    return f"{{ {fields_in_toml} }}"


def _quoted(text: str) -> str:
    """Return a string of TOML. One of JSON is, except that TOML has no surrogates."""
    return json.dumps(text, ensure_ascii=False)


def _name_and_address(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*([^<>]*?)\s*<\s*([^<>]+?)\s*>\s*", text)
    return (match[1], match[2]) if match else (text.strip(), "")


def _holder(author: str | None, names: Names) -> str:
    """Return who has the copyright."""
    name, address = _name_and_address(author or "")
    return name or address or f"the {names.distribution} authors"


def _urls(url: str | None) -> str:
    if url is None:
        return (
            "# When the repository is public, say where it is:\n"
            "# [project.urls]\n"
            '# Repository = "https://github.com/OWNER/REPOSITORY"\n'
            '# Issues = "https://github.com/OWNER/REPOSITORY/issues"\n'
        )
    repository = url.rstrip("/")
    return (
        "[project.urls]\n"
        f"Repository = {_quoted(repository)}\n"
        f"Issues = {_quoted(f'{repository}/issues')}\n"
    )
