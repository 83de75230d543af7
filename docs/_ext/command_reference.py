"""The directive `command-reference`: a click command with all its subcommands, as sections of a page."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandReference(SphinxDirective):
    """Show the command that the argument names as ``MODULE:OBJECT PROGRAM``."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Return the section of the command and, after it, those of its subcommands."""
        module, _, attribute = self.arguments[0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        return list(sections(command, click.Context(command, info_name=self.arguments[1])))


def sections(command: click.Command, context: click.Context) -> Iterator[nodes.section]:
    """Yield a section for each command: usage, what it does, arguments and options."""
    path = context.command_path
    section = nodes.section(ids=[nodes.make_id(path)], names=[path])
    section += nodes.title("", "", nodes.literal(text=path))
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    section += nodes.literal_block(usage, usage, language="text")
    section += paragraphs(command.help or "")
    records = [parameter.get_help_record(context) for parameter in command.params]
    options = [record for record in records if record and record[1]]
    if options:
        section += definitions(options)
    section += paragraphs(command.epilog or "")
    yield section
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from sections(subcommand, click.Context(subcommand, context, info_name=name))


def paragraphs(text: str) -> list[nodes.Node]:
    """Return the paragraphs of a help text; what follows a backspace keeps its lines, as in click."""
    parts: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text).strip()):
        if block.startswith("\b"):
            lines = block.removeprefix("\b").strip("\n")
            parts.append(nodes.literal_block(lines, lines, language="text"))
        elif block:
            parts.append(nodes.paragraph("", "", *words(" ".join(block.split()))))
    return parts


def definitions(records: list[tuple[str, str]]) -> nodes.definition_list:
    """Return the options, each with what it does."""
    options = nodes.definition_list()
    for option, help_text in records:
        item = nodes.definition_list_item()
        item += nodes.term("", "", nodes.literal(text=option))
        item += nodes.definition("", nodes.paragraph("", "", *words(help_text)))
        options += item
    return options


def words(text: str) -> list[nodes.Node]:
    """Return a text as it is, with what stands in backticks as code."""
    parts = text.replace("``", "`").split("`")
    return [nodes.literal(text=p) if n % 2 else nodes.Text(p) for n, p in enumerate(parts) if p]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
