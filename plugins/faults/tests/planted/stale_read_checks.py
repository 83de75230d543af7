"""No gradient is of an old version."""

from rpc_backends_faults.explore import invariants


def check_gradients_are_fresh(run):
    assert not invariants.values(run, r"(stale gradient.*)")
