"""The report page: what it shows of event logs, and what it reports as missing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_faults import live, replay, report_page
from rpc_backends_faults.rules import KINDS, Rule
from support import steps
from support.workers import Workers

from . import fault_steps

HEAD = {"format": 1, "backend": "ZEROMQ", "pid": 7, "torch": "2.13.0", "replay": None}
TWICE = {"name": "twice", "what": "duplicate", "function": "*.update", "every": 2}


class Log:
    """Writes an event log."""

    def __init__(self, folder: Path, *rules: Rule, worker: str = "w0", seed: int = 7) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / replay.file_name(worker, 1)
        self._lines: list[str] = []
        self._id = 0
        native = [rule.native() for rule in rules]
        self.add("start", 0, worker=worker, workers=["w0", "w1"], seed=seed, rules=native, **HEAD)

    def add(self, event: str, at: float, **members: Any) -> None:
        self._lines.append(json.dumps({"t": 1000 + at, "event": event, **members}))

    def message(self, at: float, *faults: str, outcome: str = "answer", rule: str = "r") -> None:
        self._id += 1
        applied = [{"rule": rule, "what": what, "seconds": 0.0} for what in faults]
        call = {"to": "w1", "type": "PYTHON_CALL", "function": "m.f", "bytes": 1, "digest": "0"}
        self.add("request", at, id=self._id, nth=1, faults=applied, **call)
        self.add("end", at + 0.01, id=self._id, outcome=outcome)

    def end(self, at: float = 100, **looked_at: int) -> None:
        self.add("end of log", at, counts={}, looked_at=looked_at)
        self.write()

    def write(self, cut: int = 0) -> None:
        text = "".join(line + "\n" for line in self._lines)
        self.path.write_text(text[: len(text) - cut])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def story(folder: Path) -> dict[str, Any]:
    return report_page.story([folder]).data


def test_a_log_has_seed_backend_torch_and_process(folder: Path) -> None:
    Log(folder).end()
    [log] = story(folder)["logs"]

    assert (log["worker"], log["seed"], log["backend"], log["torch"], log["pid"]) == (
        "w0",
        7,
        "ZEROMQ",
        "2.13.0",
        7,
    )
    assert not log["cut_off"]


@pytest.mark.parametrize(
    ("given", "words", "terms"),
    [
        (TWICE, "each request that calls *.update is sent twice: every 2nd time.", "copies = 2"),
        (
            {"what": "delay", "seconds": {"uniform": [1, 2]}, "message": "PYTHON_CALL"},
            "each PYTHON_CALL is sent 1 to 2 s later.",
            "seconds = {uniform = [1, 2]}",
        ),
        (
            {"what": "reorder", "within": 3, "others": 2},
            "each request is held until 2 later requests to the same worker are answered, "
            "for at most 3 s.",
            "within = 3.0",
        ),
        (
            {"what": "drop", "after": 1, "first": 1, "per": "pair"},
            "each request is not sent, so its caller times out: after the first per receiver, once "
            "only.",
            "after = 1",
        ),
        (
            {"what": "crash", "exit_code": 3, "sender": "ps", "end": 9},
            "each request from ps is not sent: its sender's process ends, with exit status 3: "
            "until 9 s after init_rpc.",
            "exit_code = 3",
        ),
    ],
    ids=lambda value: value["what"] if isinstance(value, dict) else "",
)
def test_a_rule_shows_its_settings_and_explanation(
    folder: Path, given: dict[str, Any], words: str, terms: str
) -> None:
    Log(folder, live.make(**given)).end()
    [rule] = story(folder)["rules"]

    assert (rule["what"], rule["words"]) == (given["what"], words)
    assert terms in rule["terms"].splitlines()
    for key in given.keys() - {"name", "what"}:
        assert re.search(rf"^{key} = ", rule["terms"], re.MULTILINE)


def test_a_rule_with_changed_settings_is_two_rules(folder: Path) -> None:
    twice, every_third = live.make(**TWICE), live.make(**{**TWICE, "every": 3})
    log = Log(folder, twice)
    log.message(1, "duplicate", rule="twice")
    log.add("counts", 2, looked_at={"twice": 5})
    log.add("rules", 2, seed=7, rules=[every_third.native()])
    log.message(3, "duplicate", rule="twice")
    log.message(4, "duplicate", rule="twice")
    log.end(5, twice=9)

    rules = story(folder)["rules"]
    assert [(rule["looked_at"], rule["acted"]) for rule in rules] == [(5, 1), (9, 2)]


def test_rules_show_how_often_they_matched_and_fired(url: str, folder: Path) -> None:
    kept = {"name": "kept", "what": "fail", "function": "*.fault_steps.do", "every": 2}
    gone = {"name": "gone", "what": "duplicate", "function": "*.fault_steps.also_do"}
    with Workers(2, env={"RPC_BACKENDS_FAULTS_LOG": str(folder)}) as workers:
        workers.run(fault_steps.join, url, "ZEROMQ")
        workers[0].call(fault_steps.several, "worker1", list(range(5)), (kept,))
        workers[0].call(fault_steps.add, kept)
        workers[0].call(fault_steps.several, "worker1", list(range(3)), (gone,))
        workers.run(steps.leave)

    counts = {rule["name"]: (rule["looked_at"], rule["acted"]) for rule in story(folder)["rules"]}
    assert counts == {"kept": (8, 3), "gone": (0, 0)}
    assert not any(rule["uncounted"] for rule in story(folder)["rules"])


def test_a_log_without_an_end_is_reported_as_cut_off(folder: Path) -> None:
    rule = live.make(**TWICE)
    whole, cut, torn = (Log(folder, rule, worker=name) for name in ("w0", "w1", "w2"))
    for log in (whole, cut, torn):
        log.message(1)
    whole.end(2, twice=4)
    cut.write()
    torn.write(cut=9)

    page = report_page.story([folder])
    endings = [log["ending"] for log in page.data["logs"]]
    assert endings[0] == "is complete"
    assert endings[1].startswith("is cut off: it stops before its end. Its process was killed")
    assert endings[2].startswith("is cut off: it stops in the middle of a line")
    assert report_page.cut_off(whole.path) is None
    assert [report_page.cut_off(log.path) for log in (cut, torn)] == endings[1:]
    assert f"{cut.path} is cut off" in page.summary()
    assert [page.data["rules"][0][key] for key in ("looked_at", "uncounted")] == [4, 2]


def test_a_log_that_a_crash_ended_names_the_rule(folder: Path) -> None:
    log = Log(folder, live.make(what="crash", name="boom"))
    log.message(1, "crash", rule="boom")
    log.write()
    wanted = "stops before its end: the fault rule 'boom' ended the process"

    assert story(folder)["logs"][0]["ending"] == report_page.cut_off(log.path) == wanted


def test_a_log_of_an_earlier_version_has_no_match_counts(folder: Path) -> None:
    log = Log(folder, live.make(**TWICE))
    log.add("end of log", 1, counts={"twice": 0})
    log.write()

    assert story(folder)["rules"][0]["uncounted"] == 1
    assert not story(folder)["logs"][0]["cut_off"]


def test_an_incomplete_line_is_an_error_with_its_number(folder: Path) -> None:
    log = Log(folder)
    log.add("request", 1, id=1, type="PYTHON_CALL")
    log.write()

    with pytest.raises(ValueError, match=r"w0\.jsonl:2: this is not an event of .*'to'"):
        story(folder)


def test_every_kind_has_two_colours_and_its_own_letters() -> None:
    page = resources.files("rpc_backends_faults").joinpath("report.html").read_text()
    letters = dict(re.findall(r"(\w+): \"([A-Z]{2})\"", page))

    assert letters.keys() == KINDS.keys()
    assert len(set(letters.values())) == len(KINDS)
    for kind in KINDS:
        colours = re.findall(rf"--{kind}: (#\w+)", page)
        assert len(colours) == 2, kind


# --- in a browser ---------------------------------------------------------------------------------


def drawn(folder: Path) -> str:
    """Return the page after its script has run."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium, to draw the page")
    page = folder / "page.html"
    page.write_text(report_page.story([folder]).page())
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
    done = subprocess.run(
        [chromium, *options, page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    # Only the drawn elements, without the script that follows them.
    return done.stdout.partition("<script>")[0]


def test_the_chart_counts_ten_thousand_messages(folder: Path) -> None:
    log = Log(folder, live.make(what="duplicate", name="r"))
    for number in range(10_000):
        log.message(number / 100, *(["duplicate"] if number % 100 == 0 else []))
    log.end(100, r=10_000)
    page = drawn(folder)

    assert "10,000 messages in view. Each bar counts the messages" in page
    assert (
        sum(map(int, re.findall(r"<title>[^<]*: (\d+) answered, 0 not answered", page))) == 10_000
    )
    assert sum(map(int, re.findall(r"<title>(\d+) faults? of the kind duplicate", page))) == 100
    assert "(1 to 200 of 10,000)" in page


def test_few_messages_are_drawn_one_by_one(folder: Path) -> None:
    kinds = list(KINDS)
    log = Log(folder, *(live.make(what="fail", name=name) for name in ("r", "s")))
    for number, what in enumerate(kinds):
        log.message(number, what, outcome="answer" if what == "duplicate" else "timeout")
    log.write()
    page = drawn(folder)

    assert f"{len(kinds)} messages in view. Drag to zoom in." in page
    assert "seed 7 · backend ZEROMQ · torch 2.13.0 · workers w0, w1" in page
    assert "There is no log from w1" in page
    assert f"{log.path} stops before its end: the fault rule 'r' ended the process" in page
    legend = page.partition('id="key"')[2].partition('id="detail"')[0]
    for what in kinds:
        assert f'<span class="badge" style="background:var(--{what})" title="{what}">' in legend
        assert f"{what} (1)" in legend
    # A duplicate has its own colour.
    assert 'stroke="var(--duplicate)"' in page
