"""Making a group of the workers that arrived, or the reason why they cannot form one. Pure functions."""

from __future__ import annotations

from typing import Any

from rpc_backends_core._group import terms
from rpc_backends_core._group.contents import MAX_ID, is_id

#: The fields that each worker writes when it arrives, with their types.
_ARRIVAL = {"name": str, "rank": int, "backend": str, "nonce": str}


def arrival_of(rank: int, value: Any) -> dict[str, Any]:
    """Return the arrival record of the worker of ``rank``.

    :raises ValueError: it is not a valid arrival record.
    """
    for name, wanted in _ARRIVAL.items():
        if type(value[name]) is not wanted:
            raise ValueError(f"its {name!r} is of type {type(value[name]).__name__}")
    if value["rank"] != rank:
        raise ValueError(f"its rank is {value['rank']}")
    if value["fixed_id"] is not None and not is_id(value["fixed_id"]):
        raise ValueError(f"its 'fixed_id' is not a number from 0 to {MAX_ID}")
    terms.read(value.get("terms", {}))
    return dict(value)


def members_of(world_size: int, value: Any) -> tuple[list[str], list[tuple[str, int, int, int]]]:
    """Return the nonces and members from a result of :func:`compose`.

    :raises ValueError: it is not a valid result for ``world_size`` workers.
    """
    nonces, members = value["nonces"], [tuple(member) for member in value["members"]]
    if [len(nonces), len(members)] != [world_size] * 2:
        raise ValueError(f"it has {len(members)} workers")
    for expected, (name, rank, *ids) in enumerate(members):
        if type(name) is not str or rank != expected or len(ids) != 2 or not all(map(is_id, ids)):
            raise ValueError(f"its member {expected} is invalid")
    return [str(nonce) for nonce in nonces], members


def compose(arrivals: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the group of all arrivals, or an error. All workers read the same answer."""
    ranks_by_name: dict[str, list[int]] = {}
    for arrival in arrivals:
        ranks_by_name.setdefault(arrival["name"], []).append(arrival["rank"])
    for name, ranks in ranks_by_name.items():
        if len(ranks) > 1:
            who = " and ".join(map(str, ranks))
            return {"error": f"RPC worker name {name} is not unique: ranks {who} share it."}
    backends = {arrival["backend"] for arrival in arrivals}
    if len(backends) > 1:
        each = ", ".join(f"{a['name']!r} (rank {a['rank']}): {a['backend']}" for a in arrivals)
        return {
            "error": f"the workers of one group use different RPC backends: {each}. Name the same "
            "backend in all workers, or set RPC_BACKENDS_OVERRIDE to its name for all of them. "
            "`rpc-backends list` on each host shows what is installed."
        }
    demands = {
        f"{arrival['name']!r} (rank {arrival['rank']})": terms.read(arrival.get("terms", {}))
        for arrival in arrivals
    }
    problem = terms.disagreement(demands)
    if problem is not None:
        return {"error": problem}
    ids = worker_ids([arrival["fixed_id"] for arrival in arrivals])
    containers = autograd_ids([arrival["fixed_id"] for arrival in arrivals], ids)
    return {
        "nonces": [arrival["nonce"] for arrival in arrivals],
        "members": [
            (arrival["name"], arrival["rank"], ids[rank], containers[rank])
            for rank, arrival in enumerate(arrivals)
        ],
    }


def worker_ids(fixed: list[int | None]) -> list[int]:
    """Give each rank a worker id below the world size: its previous id, its rank, or a free id."""
    size = len(fixed)
    ids: list[int | None] = [None] * size
    free = set(range(size))
    for rank, wanted in [*enumerate(fixed), *enumerate(range(size))]:
        if ids[rank] is None and wanted in free:
            ids[rank] = wanted
            free.remove(wanted)
    return [free.pop() if own is None else own for own in ids]


def autograd_ids(fixed: list[int | None], ids_of_workers: list[int]) -> list[int]:
    """Give each rank an autograd container id: its fixed id, its worker id, or a free id."""
    taken = {fixed_id for fixed_id in fixed if fixed_id is not None}
    ids: list[int] = []
    spare = MAX_ID
    for fixed_id, worker_id in zip(fixed, ids_of_workers, strict=True):
        if fixed_id is not None:
            ids.append(fixed_id)
        elif worker_id not in taken:
            ids.append(worker_id)
        else:
            while spare in taken:
                spare -= 1
            taken.add(spare)
            ids.append(spare)
    return ids
