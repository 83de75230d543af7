"""Each update is applied once."""

from rpc_backends_faults.explore import invariants


def check_updates_are_applied_once(run):
    invariants.exactly_once(run, r"applied (\d+)")
