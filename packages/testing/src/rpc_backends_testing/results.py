"""The data of a run: results, chapters, capabilities and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

#: The chapter that runs only if it is asked for.
OPTIONAL = "torch"


class Outcome(StrEnum):
    """The outcome of one requirement."""

    PASSED = "passed"
    FAILED = "failed"
    #: It fails, and needs a capability that the backend does not declare.
    NOT_DECLARED = "not declared"
    #: It passes, and needs a capability that the backend does not declare.
    WORKS_UNDECLARED = "works, not declared"
    #: It fails, and is newer than the version of the suite that counts.
    FAILS_NEWER = "fails, newer"
    #: It fails, and the backend excludes it.
    EXCLUDED = "excluded"
    #: It makes no sense for this backend or this torch; the reason says why.
    NOT_APPLICABLE = "does not apply"
    #: It could not run here; the reason says why.
    NOT_RUN = "not run"


@dataclass
class Result:
    """One requirement and its outcome.

    :ivar id: ``CHAPTER.NAME``, stable from version to version.
    :ivar title: the requirement, in a sentence.
    :ivar advice: where an author should look if it fails.
    :ivar capability: the capability that a backend must declare for it to count, or None.
    :ivar since: the first version of the suite with it.
    :ivar reason: why it was not run, why the backend excludes it, or why its failure does not count.
    :ivar call: the call that failed; ``expected`` and ``got`` are the expected and the actual result.
    :ivar detail: tracebacks, and the output of the workers.
    :ivar has_stacks: whether a worker hung or died; ``detail`` then has the stacks of all workers.
    """

    id: str
    chapter: str
    title: str
    advice: str
    capability: str | None
    since: int
    outcome: Outcome
    seconds: float
    reason: str = ""
    call: str = ""
    expected: str = ""
    got: str = ""
    detail: str = ""
    has_stacks: bool = False

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Return the result that :func:`dataclasses.asdict` has converted to ``data``."""
        return cls(**{**data, "outcome": Outcome(data["outcome"])})


def settle(
    works: bool, *, declared: bool, since: int, suite_version: int, excluded: bool = False
) -> Outcome:
    """Return the outcome of a requirement that was met or not.

    :param excluded: whether the backend excludes it; a requirement that is met must not be excluded.
    :param declared: whether the backend declares the capability that it needs, if any.
    :param suite_version: the version of the suite that counts.
    """
    if excluded:
        return Outcome.FAILED if works else Outcome.EXCLUDED
    if not declared:
        return Outcome.WORKS_UNDECLARED if works else Outcome.NOT_DECLARED
    if works:
        return Outcome.PASSED
    return Outcome.FAILED if since <= suite_version else Outcome.FAILS_NEWER


@dataclass
class Report:
    """One run of the suite for one backend.

    :ivar suite_version: the version of the suite that ran.
    :ivar counted_version: the version whose requirements count.
    :ivar backend: the backend's name, distribution, version, description and options.
    :ivar machine: versions, platform, processors and accelerators.
    :ivar declared: the capabilities that the backend declares.
    :ivar started: when the run started: UTC, ISO 8601.
    :ivar complete: whether all requirements of the suite were in the run.
    :ivar stopped: why the run ended before its last test; empty if it did not.
    """

    suite_version: int
    counted_version: int
    backend: dict[str, Any]
    machine: dict[str, Any]
    declared: list[str]
    started: str
    seconds: float
    complete: bool
    results: list[Result] = field(default_factory=list)
    stopped: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """Return the report that :meth:`to_json` has converted to ``data``."""
        names = {field.name for field in fields(cls)}
        facts = {name: value for name, value in data.items() if name in names}
        return cls(**{**facts, "results": [Result.from_json(field) for field in data["results"]]})

    @property
    def verdict(self) -> str:
        """The verdict on the backend: the :attr:`conclusion`, and what it says nothing of.

        For example ``conforms; transport not tested; devices tested in part``.
        """
        if not self.is_qualified:
            return self.conclusion
        gaps = self.not_tested()
        whole = ", ".join(name for name, (missing, count) in gaps.items() if missing == count)
        part = ", ".join(name for name, (missing, count) in gaps.items() if missing < count)
        parts = (f"{whole} not tested" if whole else "", f"{part} tested in part" if part else "")
        return "; ".join([self.conclusion, *filter(None, parts)])

    @property
    def is_qualified(self) -> bool:
        """Whether nothing failed, and a requirement that counts could not be tested here."""
        return self.conclusion.startswith("conforms") and bool(self.not_tested())

    def not_tested(self) -> dict[str, tuple[int, int]]:
        """Return where requirements that count were not run: how many of how many, by chapter.

        Requirements of a declared capability are under its name, the others under that of their chapter.
        Requirements of capabilities that are not declared do not count, nor do torch's suites.
        """
        counted: dict[str, list[Result]] = {}
        for name, results in self.chapters().items():
            for result in results:
                if name != OPTIONAL and (
                    not result.capability or result.capability in self.declared
                ):
                    counted.setdefault(result.capability or name, []).append(result)
        gaps = {
            name: (self.count(results)[Outcome.NOT_RUN], len(results))
            for name, results in counted.items()
        }
        return {name: gap for name, gap in gaps.items() if gap[0]}

    @property
    def conclusion(self) -> str:
        """What the requirements say that were tested.

        ``does not conform`` if a requirement failed; ``partial`` if none failed, and not all were in the
        run, or the run was stopped; else ``conforms`` or ``conforms with exclusions``.
        """
        if any(result.outcome is Outcome.FAILED for result in self.results):
            return "does not conform"
        if not self.complete or self.stopped:
            return "partial"
        return "conforms with exclusions" if self.excluded else "conforms"

    @property
    def excluded(self) -> dict[str, str]:
        """The requirements that fail and that the backend excludes: their ids, with the reasons."""
        return {
            result.id: result.reason
            for result in self.results
            if result.outcome is Outcome.EXCLUDED
        }

    def count(self, results: Iterable[Result] | None = None) -> Counter[Outcome]:
        """Count the outcomes of all results, or of some."""
        return Counter(result.outcome for result in (self.results if results is None else results))

    def chapters(self) -> dict[str, list[Result]]:
        """Return the results by chapter, in the order of the chapters."""
        from rpc_backends_testing.chapters import CHAPTERS

        order = [chapter.name for chapter in CHAPTERS]
        order += sorted({result.chapter for result in self.results} - set(order))
        grouped = {name: [r for r in self.results if r.chapter == name] for name in order}
        return {name: results for name, results in grouped.items() if results}

    def reasons(self, outcome: Outcome) -> list[tuple[str, str]]:
        """Return what has this outcome, and why: ids of requirements, or a whole chapter in one entry."""
        ids_and_reasons: list[tuple[str, str]] = []
        for name, results in self.chapters().items():
            if len(results) > 1 and {(r.outcome, r.reason) for r in results} == {
                (outcome, results[0].reason)
            }:
                ids_and_reasons.append((f"{name} ({len(results)} requirements)", results[0].reason))
            else:
                ids_and_reasons += [
                    (result.id, result.reason) for result in results if result.outcome is outcome
                ]
        return ids_and_reasons

    def capabilities(self) -> dict[str, str]:
        """Return the state of each capability that is declared or was tested.

        ``kept``, ``kept, tested in part``, ``broken`` or ``declared, not tested``; ``works, not
        declared`` or ``not declared``.
        """
        seen = {result.capability for result in self.results if result.capability}
        return {name: self._capability(name) for name in sorted(seen | set(self.declared))}

    def _capability(self, name: str) -> str:
        outcomes = {result.outcome for result in self.results if result.capability == name}
        in_part = Outcome.NOT_RUN in outcomes
        outcomes -= {Outcome.NOT_RUN, Outcome.NOT_APPLICABLE}
        if name not in self.declared:
            if outcomes == {Outcome.WORKS_UNDECLARED}:
                return "works, not declared"
            return "not declared"
        if Outcome.FAILED in outcomes:
            return "broken"
        if Outcome.PASSED not in outcomes:
            return "declared, not tested"
        return "kept, tested in part" if in_part else "kept"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, including what is computed from the results."""
        data = asdict(self)
        results = data.pop("results")
        return {
            "verdict": self.verdict,
            **data,
            "not_tested": {
                name: {"not run": missing, "of": count}
                for name, (missing, count) in self.not_tested().items()
            },
            "capabilities": self.capabilities(),
            "excluded": self.excluded,
            "chapters": {
                name: {str(outcome): n for outcome, n in self.count(results).items()}
                for name, results in self.chapters().items()
            },
            "results": results,
        }
