"""A barrier opens when all live workers have arrived."""

from rpc_backends_faults.explore import invariants


def check_barrier_waits_for_the_live(run):
    early = invariants.values(run, r"(step \d+ opened without.*)")
    assert not early, early
