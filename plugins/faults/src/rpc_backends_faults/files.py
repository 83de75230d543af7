"""Rule files: TOML to rules, with the line of whatever is wrong."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from rpc_backends_core.spi import nearest
from rpc_backends_faults.checking import Where, check_rule
from rpc_backends_faults.errors import RuleError
from rpc_backends_faults.rules import Rule, RuleSet

_HEADER = re.compile(r"\s*\[\[\s*(?:rule|\"rule\"|'rule')\s*\]\]\s*(?:#.*)?$")
_TABLE = re.compile(r"\s*\[")
_KEYS = ("rule", "seed")
_MOST_SEED = 2**63 - 1


def read(path: Path) -> RuleSet:
    """Return the rules in a file.

    :raises RuleError: it cannot be read, or does not mean anything.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuleError([f"the rule file {path} cannot be read: {reason}."]) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> RuleSet:
    """Return the rules in a text.

    :param name: the file's, for errors.
    :raises RuleError: with all that is wrong.
    """
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = f"{at[1]}" if at else f"{text.count(chr(10)) + 1}"
        raise RuleError([f"{name}:{line}: this is no TOML: {error}."]) from error
    lines = _Lines(text)
    problems = []
    for key in settings:
        if key not in _KEYS:
            close = nearest(key, _KEYS)
            hint = f" Did you mean {close!r}?" if close else ""
            problems.append(
                f"{name}:{lines.top(key)}: {key!r} means nothing here.{hint} A rule file has a 'seed' "
                "and a [[rule]] for each rule."
            )
    seed = settings.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MOST_SEED:
        problems.append(
            f"{name}:{lines.top('seed')}: the seed is {seed!r}; it must be a whole number, 0 or more."
        )
    tables = settings.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        problems.append(f"{name}:{lines.top('rule')}: write each rule under [[rule]].")
        tables = []
    rules = _rules(tables, name, lines, problems)
    if problems:
        raise RuleError(problems)
    return RuleSet(tuple(rules), seed)


def _rules(tables: list[Any], name: str, lines: _Lines, problems: list[str]) -> list[Rule]:
    rules: dict[str, Rule] = {}
    for number, table in enumerate(tables):
        where = _where(name, lines, number)
        default = f"{table.get('what', 'rule')}-{number + 1}"
        try:
            rule = check_rule(table, default_name=default, where=where)
        except RuleError as error:
            problems += error.problems
            continue
        if rule.name in rules:
            problems.append(
                f"{where('name')}the name {rule.name!r} is the rule's at {rules[rule.name].source} too; "
                "each needs its own."
            )
        rules[rule.name] = rule
    return list(rules.values())


def _where(name: str, lines: _Lines, number: int) -> Where:
    return lambda key: f"{name}:{lines.of(number, key)}: "


class _Lines:
    """Where what stands in a rule file: `tomllib` does not tell."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._headers = [n for n, line in enumerate(self._lines) if _HEADER.match(line)]

    def of(self, rule: int, key: str | None) -> int:
        """Return the line of a key of a rule, or of the rule."""
        if rule >= len(self._headers):
            return 1  # rule = [{...}], in one line
        begin = self._headers[rule]
        end = self._headers[rule + 1] if rule + 1 < len(self._headers) else len(self._lines)
        return self._find(key, begin + 1, end) or begin + 1

    def top(self, key: str) -> int:
        """Return the line of a key outside rules."""
        return self._find(key, 0, len(self._lines)) or 1

    def _find(self, key: str | None, begin: int, end: int) -> int | None:
        if key is None:
            return None
        quoted = re.escape(key)
        is_key = re.compile(rf"\s*\[*\s*(?:{quoted}|\"{quoted}\"|'{quoted}')\s*[=.\]]")
        for number in range(begin, end):
            if is_key.match(self._lines[number]):
                return number + 1
        return None
