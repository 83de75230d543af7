"""Rule files: valid rules, and the errors for rules that are not valid."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from rpc_backends_faults import files, live, settings
from rpc_backends_faults.rules import (
    KINDS,
    MESSAGE_TYPES,
    WRAPPERS,
    Length,
    Rule,
    RuleError,
    matches,
)
from rpc_backends_faults.words import explain


def problems(text: str) -> list[str]:
    """Return the problems of a rule file."""
    with pytest.raises(RuleError) as caught:
        files.parse(dedent(text).lstrip(), "rules.toml")
    return caught.value.problems


def rules(text: str) -> tuple[Rule, ...]:
    return files.parse(dedent(text).lstrip(), "rules.toml").rules


def test_a_rule_has_kind_messages_and_times() -> None:
    [rule] = rules(
        """
        [[rule]]
        name = "late answers"  # no spaces, but see below
        what = "reply_delay"
        message = ["PYTHON_*", "SCRIPT_CALL"]
        sender = "trainer*"
        receiver = "ps"
        function = "train.*"
        seconds = {uniform = [0.1, 0.5]}
        probability = 0.5
        after = 10
        every = 2
        first = 3
        per = "payload"
        budget = 100
        start = 1.5
        end = 20
        mark = "epoch-?"
        """.replace("late answers", "late-answers")
    )

    assert rule == Rule(
        name="late-answers",
        what="reply_delay",
        messages=("PYTHON_*", "SCRIPT_CALL"),
        senders=("trainer*",),
        receivers=("ps",),
        functions=("train.*",),
        length=Length(0.1, "uniform", 0.5),
        probability=0.5,
        after=10,
        every=2,
        first=3,
        per="payload",
        budget=100,
        start=1.5,
        end=20.0,
        mark="epoch-?",
    )
    assert rule.source == "rules.toml:1"


def test_unnamed_rules_get_different_names() -> None:
    checked = rules("[[rule]]\nwhat = 'drop'\n[[rule]]\nwhat = 'drop'\n")

    assert [rule.name for rule in checked] == ["drop-1", "drop-2"]


@pytest.mark.parametrize(
    ("line", "where_and_why", "hint"),
    [
        ('waht = "drop"', "rules.toml:4: 'waht' is not a key of a rule.", "'what'"),
        (
            'message = "PYTON_CALL"',
            "rules.toml:4: 'PYTON_CALL' is not a request type",
            "'PYTHON_CALL'",
        ),
        (
            'message = "FORWARD_AUTOGRAD_REQ"',
            "rules.toml:4: rules do not see",
            "for example PYTHON_CALL",
        ),
        ("probability = 1.01", "rules.toml:4: the probability is 1.01", "from 0 to 1"),
        ("probability = -0.5", "rules.toml:4: the probability is -0.5", "from 0 to 1"),
        ("probability = nan", "rules.toml:4: the probability is nan", "from 0 to 1"),
        ('probability = "half"', "rules.toml:4: the probability is 'half'", "from 0 to 1"),
        ("start = 5\nend = 5", "rules.toml:5: 'end' (5 s) is not after 'start' (5 s)", "never"),
        ("start = -1", "rules.toml:4: 'start' is -1", "0 or more"),
        ("every = 0", "rules.toml:4: 'every' is 0", "1 or more"),
        ("first = 1.5", "rules.toml:4: 'first' is 1.5", "a whole number"),
        ("after = true", "rules.toml:4: 'after' is True", "a whole number"),
        ('per = "pairs"', "rules.toml:4: 'per' is 'pairs'.", "'pair'"),
        ('sender = ["a", 3]', "rules.toml:4: 'sender' is ['a', 3]", "a list of strings"),
        ('receiver = ""', "rules.toml:4: 'receiver' is ''", "a list of strings"),
        ("housekeeping = 1", "rules.toml:4: 'housekeeping' is 1", "true or false"),
        ("copies = 3", "rules.toml:4: 'delay' does not take 'copies'.", "seconds"),
        ('worker = "w"', "rules.toml:4: 'delay' does not take 'worker'.", "receiver"),
        (
            'message = "RREF_*"\nfunction = "f"',
            "rules.toml:5: messages of type RREF_*",
            "PYTHON_CALL",
        ),
        ('sender = "worker[01]"', "rules.toml:4: the pattern 'worker[01]' has brackets", "list"),
        ('mark = "step-[5]"', "rules.toml:4: the pattern 'step-[5]' has brackets", "list"),
        ('name = "two words"', "rules.toml:4: the name 'two words' is not valid", "letters"),
    ],
)
def test_an_error_names_the_line_and_the_valid_values(
    line: str, where_and_why: str, hint: str
) -> None:
    [text] = problems(f'[[rule]]\nwhat = "delay"\nseconds = 1\n{line}\n')

    assert text.startswith(where_and_why)
    assert hint in text


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ("-1", "'seconds' is -1"),
        ('"1 s"', "'seconds' is '1 s'"),
        ("{uniform = [2, 1]}", "'seconds' is {'uniform': [2, 1]}"),
        ("{uniform = 2}", "'seconds' is {'uniform': 2}"),
        ("{unifrom = [1, 2]}", "'unifrom' is not a distribution. Did you mean 'uniform'?"),
        ("{exponential = 0}", "'seconds' is {'exponential': 0}"),
    ],
)
def test_an_invalid_duration_is_refused(seconds: str, why: str) -> None:
    [text] = problems(f'[[rule]]\nwhat = "delay"\nseconds = {seconds}\n')

    assert text.startswith(f"rules.toml:3: {why}")


def test_an_unknown_kind_is_refused_with_a_suggestion() -> None:
    [text] = problems("[[rule]]\nname = 'a'\nwhat = 'dealy'\n")

    assert text.startswith("rules.toml:3: 'dealy' is not a kind of fault. Did you mean 'delay'?")


@pytest.mark.parametrize(
    ("what", "needs"), [("delay", "seconds"), ("reply_delay", "seconds"), ("bandwidth", "rate")]
)
def test_a_rule_without_a_required_key_is_refused(what: str, needs: str) -> None:
    assert problems(f"[[rule]]\nwhat = '{what}'\n") == [f"rules.toml:1: {what!r} needs {needs!r}."]


def test_a_pause_without_an_end_is_refused() -> None:
    [text] = problems("[[rule]]\nwhat = 'pause'\nworker = 'w'\n")

    assert text.startswith("rules.toml:1: a pause needs a duration")


def test_a_rule_without_a_kind_is_refused() -> None:
    [text] = problems("[[rule]]\nprobability = 0.5\n")

    assert text.startswith("rules.toml:1: the rule has no 'what'")


def test_two_rules_with_one_name_are_refused_with_both_lines() -> None:
    [text] = problems(
        "[[rule]]\nname = 'a'\nwhat = 'drop'\n\n[[rule]]\nname = 'a'\nwhat = 'fail'\n"
    )

    assert text.startswith(
        "rules.toml:6: the name 'a' is also the name of the rule at rules.toml:1"
    )


def test_all_problems_are_reported_together() -> None:
    texts = problems(
        """
        sed = 3
        [[rule]]
        what = "drop"
        probability = 2
        [[rule]]
        what = "fial"
        """
    )

    assert [text.split(": ")[0] for text in texts] == [
        "rules.toml:1",
        "rules.toml:4",
        "rules.toml:6",
    ]


def test_invalid_toml_is_refused_with_its_line() -> None:
    [text] = problems("[[rule]]\nwhat = drop\n")

    assert text.startswith("rules.toml:2: this is not valid TOML: ")


@pytest.mark.parametrize("seed", ["-1", "1.5", '"x"', "true", str(2**63)])
def test_an_invalid_seed_is_refused(seed: str) -> None:
    if seed == str(2**63):
        seed = "0x8000000000000000"
    [text] = problems(f"seed = {seed}\n")

    assert text.startswith("rules.toml:1: ")


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"rules\.toml cannot be read: No such file"):
        files.read(tmp_path / "rules.toml")


# --- values outside the limits --------------------------------------------------------------------

LONG = "9" * 401


@pytest.mark.parametrize(
    ("rule", "where_and_what", "allowed"),
    [
        ('what = ["drop", "delay"]', "rules.toml:2: 'what' is ['drop', 'delay']", "one of: fail"),
        ("what = 3", "rules.toml:2: 'what' is 3", "one of: fail"),
        (f'what = "drop"\nprobability = {LONG}', "rules.toml:3: the probability is 999", "0 to 1"),
        (
            f'what = "drop"\nprobability = 0x{"f" * 5000}',
            "rules.toml:3: the probability is an int too large to show",
            "0 to 1",
        ),
        ('what = "delay"\nseconds = 1e10', "rules.toml:3: 'seconds' is 10000000000.0", "31536000"),
        (f'what = "delay"\nseconds = {LONG}', "rules.toml:3: 'seconds' is 999", "31536000"),
        (
            'what = "delay"\nseconds = {uniform = [1, 1e10]}',
            "rules.toml:3: 'seconds' is {'uniform': [1, 10000000000.0]}",
            "31536000",
        ),
        (
            'what = "delay"\nseconds = {normal = [1, 1e10]}',
            "rules.toml:3: 'seconds' is {'normal'",
            "31536000",
        ),
        (
            'what = "delay"\nseconds = {exponential = 1e10}',
            "rules.toml:3: 'seconds' is {'exponential'",
            "31536000",
        ),
        (
            'what = "delay"\nseconds = [[[[[[1]]]]]]',
            "rules.toml:3: 'seconds' is [[[[[[1]]]]]]",
            "a number",
        ),
        ('what = "pause"\nseconds = 0', "rules.toml:3: 'seconds' is 0", "longer than 0"),
        ('what = "drop"\nstart = 1e10', "rules.toml:3: 'start' is 10000000000.0", "31536000"),
        ('what = "drop"\nend = 1e10', "rules.toml:3: 'end' is 10000000000.0", "31536000"),
        ('what = "reorder"\nwithin = 1e10', "rules.toml:3: 'within' is 10000000000.0", "31536000"),
        ('what = "bandwidth"\nrate = 1e-300', "rules.toml:3: 'rate' is 1e-300", "from 1 to"),
        ('what = "bandwidth"\nrate = 1e300', "rules.toml:3: 'rate' is 1e+300", "1000000000000"),
        (
            'what = "duplicate"\ncopies = 1000000000',
            "rules.toml:3: 'copies' is 1000000000",
            "at most 1000",
        ),
        (f'what = "drop"\nfirst = {LONG}', "rules.toml:3: 'first' is 999", str(2**63 - 1)),
        ('what = "drop"\nsender = []', "rules.toml:3: 'sender' is empty", "remove it"),
        ('what = "drop"\nreceiver = []', "rules.toml:3: 'receiver' is empty", "remove it"),
        ('what = "drop"\nmessage = []', "rules.toml:3: 'message' is empty", "remove it"),
        ('what = "drop"\nfunction = []', "rules.toml:3: 'function' is empty", "remove it"),
        ('what = "crash"\nworker = []', "rules.toml:3: 'worker' is empty", "remove it"),
        ('what = "drop"\nmark = ""', "rules.toml:3: 'mark' is empty", "remove it"),
        (
            f'what = "drop"\nsender = "{"w" * 1001}"',
            "rules.toml:3: 'sender' has a pattern of 1001 characters",
            "at most 1000",
        ),
        (
            f'what = "fail"\ntext = "{"w" * 10_001}"',
            "rules.toml:3: 'text' has 10001 characters",
            "at most 10000",
        ),
        (
            'what = "duplicate"\nmessage = ["PYTHON_CALL", "BACKWARD_*"]',
            "rules.toml:3: a BACKWARD_AUTOGRAD_REQ cannot be duplicated",
            "from ending",
        ),
        ('what = "drop"\nper = ["pair"]', "rules.toml:3: 'per' is ['pair']", "payload"),
        ('what = "drop"\nfirst = 2020-01-01', "rules.toml:3: 'first' is datetime", "whole number"),
    ],
)
def test_a_rule_outside_the_limits_is_refused(rule: str, where_and_what: str, allowed: str) -> None:
    [text] = problems(f"[[rule]]\n{rule}\n")

    assert text.startswith(where_and_what)
    assert allowed in text
    assert len(text) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"seed = 3\nrule = {'[' * 5000}", "rules.toml:2: the values are nested too deeply"),
        (
            f"[[rule]]\nwhat = 'delay'\nseconds{'.a' * 20} = 1",
            "rules.toml:3: a key has more than 16 parts",
        ),
        (f"[{'a.' * 20}a]", "rules.toml:1: a key has more than 16 parts"),
        (f"[[rule]]\nwhat = 'drop'\nafter = {'9' * 5000}", "rules.toml:3: a number of 5000 digits"),
        (f"seed = {LONG}", "rules.toml:1: the seed is 999"),
        (
            "[[rule]]\nwhat = 'drop'\n" * 1001,
            "rules.toml:2001: the file has 1001 rules; at most 1000 are",
        ),
        ("rule = [{what = 'drop'}, {what = 'dorp'}]", "rules.toml:1: rule 2: 'dorp' is not a kind"),
    ],
)
def test_a_file_outside_the_limits_is_refused(text: str, said: str) -> None:
    [problem] = problems(text)

    assert problem.startswith(said)
    assert len(problem) < 500


WORDS = ".".join(["word"] * 30)


@pytest.mark.parametrize(
    "value",
    [
        f'"{WORDS}"',
        f"'{WORDS}'",
        f'"a \\" quote {WORDS} . {WORDS}"',
        f'"""\n{WORDS}\n"{WORDS}" it"s\n"""',
        f"'''\n{WORDS}\n'{WORDS}' it's\n'''",
        f'"x"  # {WORDS}',
    ],
)
def test_a_string_may_have_any_number_of_dots(value: str) -> None:
    [rule] = rules(f"[[rule]]\nwhat = 'fail'\ntext = {value}\n")

    assert rule.text


@pytest.mark.parametrize("before", [f'text = """\n{WORDS}"""', f"# {WORDS} '", "text = 'a\"b'"])
def test_a_long_key_after_a_string_is_refused(before: str) -> None:
    [problem] = problems(f"[[rule]]\nwhat = 'fail'\n{before}\n'x' . {WORDS} = 1\n")

    assert "a key has more than 16 parts" in problem


@pytest.mark.parametrize("part", ['"', "'", '\\"', "a.", '"a".', '"""', "'a'.\n", 'x"'])
def test_a_file_of_unclosed_strings_is_checked_quickly(part: str) -> None:
    begin = time.monotonic()
    assert problems(part * (10**6 // len(part)))

    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("header", ["", "[[rule]]\nwhat = 'drop'\n"])
def test_thousands_of_unknown_keys_are_checked_quickly(header: str) -> None:
    texts = problems(header + "".join(f"key{number} = 1\n" for number in range(50_000)))

    assert len(texts) == 20


def test_the_limits_themselves_are_accepted() -> None:
    [delay, bandwidth, duplicate] = rules(
        """
        [[rule]]
        what = "delay"
        seconds = 31536000
        [[rule]]
        what = "bandwidth"
        rate = 1
        [[rule]]
        what = "duplicate"
        copies = 1000
        """
    )

    assert delay.length == Length(31536000.0)
    assert (bandwidth.rate, duplicate.copies) == (1.0, 1000)


def test_a_rule_file_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")

    with pytest.raises(RuleError, match=r"rules\.toml is not a regular file"):
        files.read(tmp_path / "rules.toml")


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_a_device_or_a_folder_is_refused(path: str) -> None:
    with pytest.raises(RuleError, match=r"is not a regular file|Is a directory"):
        files.read(Path(path))


def test_a_rule_file_of_more_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("#" * (2**20 + 1))

    with pytest.raises(RuleError, match="at most 1048576 bytes"):
        files.read(path)


def test_a_pattern_with_many_stars_is_fast() -> None:
    assert not matches("*a" * 25 + "b", "a" * 80)
    assert matches("*a" * 25 + "*", "a" * 80)
    assert matches("a*b?c", "a--b-c")
    assert not matches("a*a", "a")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"what": "drop", "sender": "\ud800"}], "cannot be encoded as UTF-8"),
        ([{"what": "fail", "text": "\ud800"}], "cannot be encoded as UTF-8"),
        ([{"what": {"drop"}}], "'what' is {'drop'}"),
        ([["what", "drop"]], "each rule must be a dict"),
        (3, "each rule must be a dict"),
        ([{3: "drop"}], "each rule must be a dict"),
    ],
)
def test_an_invalid_rule_of_the_program_is_refused(given: Any, said: str) -> None:
    with pytest.raises(RuleError) as caught:
        live.rule_set(given)

    assert said in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**63, "7", True])
def test_an_invalid_seed_of_the_program_is_refused(seed: Any) -> None:
    with pytest.raises(RuleError, match="the seed is"):
        live.enable(seed=seed)
    settings.disable()


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("what = 'clock'", "'clock' needs 'by'"),
        ("what = 'clock'\nby = 0", "'by' is 0; it must be a number of seconds, not 0"),
        ("what = 'memory'\nseconds = 1", "'memory' needs 'bytes'"),
        ("what = 'corrupt'\nbit = 128", "'bit' is 128; it must be a whole number, 0 or more"),
        (
            "what = 'store'\nseconds = 1\neach = 0",
            "'each' is 0; it must be a number of seconds, above 0",
        ),
    ],
)
def test_faults_of_processes_and_tensors_are_checked(rule: str, why: str) -> None:
    with pytest.raises(RuleError) as caught:
        rules(f"[[rule]]\n{rule}\n")

    assert why in str(caught.value)


def test_every_kind_has_its_own_explanation() -> None:
    needs = {"delay": "seconds = 1", "reply_delay": "seconds = 1", "bandwidth": "rate = 5"}
    needs |= {"pause": "seconds = 1", "stop": "seconds = 1", "store": "seconds = 1"}
    needs |= {"memory": "seconds = 1\nbytes = 9", "clock": "by = -3"}
    said = {
        explain(rules(f"[[rule]]\nwhat = '{what}'\n{needs.get(what, '')}\n")[0]) for what in KINDS
    }

    assert len(said) == len(KINDS)
    assert "each request is sent 1 s later." in said


def test_the_message_types_are_all_of_torchs_requests() -> None:
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/rpc/message.h"
    requests = re.findall(
        r"(\w+)\s*=\s*0x\w+\s*\|\s*MessageTypeFlags::REQUEST_TYPE", header.read_text()
    )

    assert {*MESSAGE_TYPES, *WRAPPERS} == set(requests)


@pytest.mark.parametrize(
    "page",
    ["docs/how-to/inject-faults.md", "docs/reference/file-formats.md", "plugins/faults/README.md"],
)
def test_the_rules_in_the_guides_are_valid(page: str) -> None:
    text = (Path(__file__).parents[3] / page).read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)

    assert blocks
    for block in blocks:
        assert files.parse(block, page).rules
