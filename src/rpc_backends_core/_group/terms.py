"""What a worker states of itself to its group, and what it demands of the other members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

#: What a worker may demand of the others: that they have such a term, or that theirs says the same.
DEMANDS = ("", "any", "same")
#: The longest text of a term; the store's other users read it.
_LONGEST = 500
_MOST = 16


@dataclass(frozen=True)
class GroupTerm:
    """A statement of a worker to its group, which a hook ``rpc_backends_terms`` makes.

    The members of a group read each other's terms before it forms. It does not form if one lacks what
    another demands, and both get an error that names the other. A term is what a worker says of itself:
    it finds mistakes in a configuration, and proves nothing.

    :ivar name: what it is about, as in "has no guard policy".
    :ivar state: what this worker says, such as a hash.
    :ivar demand: of all others: ``""`` for nothing, ``"any"`` that they have a term of this name,
        ``"same"`` that it says the same, too.
    :ivar remedy: a sentence for a worker that does not meet the demand: what to do.
    """

    name: str
    state: str
    demand: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        """Check a term of this process.

        :raises ValueError: the demand is none of these, or a text is too long.
        """
        if self.demand not in DEMANDS:
            raise ValueError(f"GroupTerm.demand is {self.demand!r}; it must be one of {DEMANDS}.")
        for text in (self.name, self.state, self.remedy):
            if len(text) > _LONGEST or not text.isprintable():
                raise ValueError(
                    f"GroupTerm has {text[:40]!r}...; its texts have at most {_LONGEST} characters, all "
                    "of them printable."
                )


def written(terms: Iterable[GroupTerm]) -> dict[str, list[str]]:
    """Return terms as JSON: state, demand and remedy by name."""
    return {term.name: [term.state, term.demand, term.remedy] for term in terms}


def read(value: Any) -> dict[str, GroupTerm]:
    """Return the terms that a worker has written, by name.

    :raises ValueError: they have another form.
    """
    if type(value) is not dict or len(value) > _MOST:
        raise ValueError("its 'terms' are no object of at most 16 members")
    terms = {}
    for name, fields in value.items():
        if type(fields) is not list or [type(field) for field in fields] != [str] * 3:
            raise ValueError("one of its 'terms' is no list of three texts")
        terms[name] = GroupTerm(name, *fields)
    return terms


def disagreement(terms: Mapping[str, Mapping[str, GroupTerm]]) -> str | None:
    """Return why workers do not agree on their terms, naming two of them; None if they do.

    :param terms: the terms of each worker, by how an error calls the worker.
    """
    if not any(term.demand for each in terms.values() for term in each.values()):
        return None
    for asking, asked in permutations(terms, 2):
        for name, wanted in terms[asking].items():
            theirs = terms[asked].get(name)
            if not wanted.demand:
                continue
            if theirs is None:
                return (
                    f"RPC worker {asked} has no {name}, and {asking} requires one of all members. "
                    f"{wanted.remedy}"
                )
            if wanted.demand == "same" and theirs.state != wanted.state:
                return (
                    f"RPC worker {asked} has another {name} ({theirs.state}) than {asking} "
                    f"({wanted.state}), which requires the same of all members. {wanted.remedy}"
                )
    return None
