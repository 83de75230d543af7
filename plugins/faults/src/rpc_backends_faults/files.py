"""Reads files that a user names, and the rules in a rule file (TOML); errors name the line."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from rpc_backends_core.spi import nearest
from rpc_backends_faults.checking import Where, check_rule, default_name, is_seed
from rpc_backends_faults.rules import (
    MOST_BYTES,
    MOST_COUNT,
    MOST_PARTS,
    MOST_RULES,
    MOST_UNKNOWN,
    Rule,
    RuleError,
    RuleSet,
    shown,
)

_HEADER = re.compile(r"\s*\[\[\s*(?:rule|\"rule\"|'rule')\s*\]\]\s*(?:#.*)?$")
_KEYS = ("rule", "seed")
# `tomllib` takes quadratic time in the dotted parts of a key, so long keys are rejected before it runs.
# Comments and strings may contain any number of dots: each is one token, even if it is not closed.
_PART = r"(?:[\w-]++|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+')[ \t]*+"
_TOKEN = re.compile(
    r"#[^\n]*+"
    r"|\"{3}(?:[^\"\\]|\\.|\"(?!\"\"))*+(?:\"{3})?"
    r"|'{3}(?:[^']|'(?!''))*+(?:'{3})?"
    rf"|(?P<long_key>(?:{_PART}\.[ \t]*+){{{MOST_PARTS}}})"
    r"|\"(?:[^\"\\\n]|\\.)*+\"?"
    r"|'[^'\n]*+'?"
    r"|[\w-]++",
    re.DOTALL,
)
_LONG_NUMBER = re.compile(r"(?<!\w)\d[\d_]{1000,}")


def read(path: Path) -> RuleSet:
    """Return the rules in a file.

    :raises RuleError: the file cannot be read or is not valid; lists every problem.
    """
    return parse(read_text(path, "rule file", most=MOST_BYTES), str(path))


def parse(text: str, name: str) -> RuleSet:
    """Return the rules in the text of a rule file.

    :param name: the name of the file, for error messages.
    :raises RuleError: the text is not valid; lists every problem.
    """
    settings = _settings(text, name)
    lines = _Lines(text)
    problems = []
    unknown = [key for key in settings if key not in _KEYS]
    for key in unknown[:MOST_UNKNOWN]:
        close = nearest(key[:100], _KEYS)
        hint = f" Did you mean {close!r}?" if close else ""
        problems.append(
            f"{name}:{lines.top(key)}: {shown(key)} is not a key of a rule file.{hint} A rule file has "
            "a 'seed' and a [[rule]] for each rule."
        )
    seed = settings.get("seed", 0)
    if not is_seed(seed):
        problems.append(
            f"{name}:{lines.top('seed')}: the seed is {shown(seed)}; it must be a whole number from 0 "
            f"to {MOST_COUNT}."
        )
    tables = settings.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(f"{name}:{lines.top('rule')}: write each rule under [[rule]].")
        tables = []
    if len(tables) > MOST_RULES:
        line = lines.of(MOST_RULES, None)
        problems.append(
            f"{name}:{line}: the file has {len(tables)} rules; at most {MOST_RULES} are allowed."
        )
        tables = []
    rules = _rules(tables, name, lines, problems)
    if problems:
        raise RuleError(problems)
    return RuleSet(tuple(rules), seed)


def _settings(text: str, name: str) -> dict[str, Any]:
    long_key = next((token for token in _TOKEN.finditer(text) if token["long_key"]), None)
    if long_key:
        raise RuleError(
            [
                f"{name}:{_line(text, long_key.start())}: a key has more than {MOST_PARTS} parts "
                "joined by dots; keys of a rule have no dots."
            ]
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = f"{at[1]}" if at else f"{text.count(chr(10)) + 1}"
        raise RuleError([f"{name}:{line}: this is not valid TOML: {str(error)[:300]}."]) from error
    except RecursionError as error:
        deepest = max(enumerate(text.splitlines(), 1), key=lambda line: _brackets(line[1]))
        raise RuleError(
            [
                f"{name}:{deepest[0]}: the values are nested too deeply; no rule needs more than a "
                "list in a table."
            ]
        ) from error
    except ValueError as error:  # Python rejects numbers of more than 4300 digits
        number = _LONG_NUMBER.search(text)
        begin, digits = (number.start(), len(number[0])) if number else (0, 0)
        what = f"a number of {digits} digits" if number else str(error)[:300]
        raise RuleError(
            [f"{name}:{_line(text, begin)}: {what}; the largest allowed is {MOST_COUNT}."]
        ) from error


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _brackets(line: str) -> int:
    return line.count("[") + line.count("{")


def _rules(tables: list[Any], name: str, lines: _Lines, problems: list[str]) -> list[Rule]:
    rules: dict[str, Rule] = {}
    for number, table in enumerate(tables):
        where = _where(name, lines, number)
        try:
            rule = check_rule(table, default_name=default_name(table, number + 1), where=where)
        except RuleError as error:
            problems += error.problems
            continue
        if rule.name in rules:
            problems.append(
                f"{where('name')}the name {rule.name!r} is also the name of the rule at "
                f"{rules[rule.name].source}; each rule needs its own name."
            )
        rules[rule.name] = rule
    return list(rules.values())


def _where(name: str, lines: _Lines, number: int) -> Where:
    # Only a rule under its own [[rule]] header has its own lines.
    rule = "" if lines.has(number) else f"rule {number + 1}: "
    return lambda key: f"{name}:{lines.of(number, key)}: {rule}"


class _Lines:
    """Finds the lines of rules and keys in a rule file; `tomllib` does not report them."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._headers = [n for n, line in enumerate(self._lines) if _HEADER.match(line)]

    def has(self, rule: int) -> bool:
        """Return whether a rule has its own [[rule]] header."""
        return rule < len(self._headers)

    def of(self, rule: int, key: str | None) -> int:
        """Return the line of a key of a rule; if it is not found, the line of the rule's header."""
        if not self.has(rule):
            return 1  # written as rule = [{...}]
        begin = self._headers[rule]
        end = self._headers[rule + 1] if rule + 1 < len(self._headers) else len(self._lines)
        return self._find(key, begin + 1, end) or begin + 1

    def top(self, key: str) -> int:
        """Return the line of a key outside the rules."""
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


# --- any file; the path may lead to anything, for example a FIFO


def read_text(path: Path, what: str, *, most: int | None = None, errors: str = "strict") -> str:
    """Return the text of a file.

    :param what: the purpose of the file, for error messages.
    :param most: the largest size in bytes; None means no limit.
    :param errors: as for :meth:`bytes.decode`.
    :raises RuleError: the file cannot be read, is too large, or is not a regular file (reading a FIFO
        or a device may never end).
    """
    try:
        data = _data(path, -1 if most is None else most + 1)
        if data is None:
            problem = f"the {what} {path} is not a regular file."
        elif most is not None and len(data) > most:
            problem = f"the {what} {path} is too large: at most {most} bytes are allowed."
        else:
            return data.decode("utf-8", errors)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path, or invalid UTF-8
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuleError([f"the {what} {path} cannot be read: {reason}."]) from error
    raise RuleError([problem])


def _data(path: Path, most: int) -> bytes | None:
    with open(path, "rb", opener=_without_waiting) as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO would wait for its writer
