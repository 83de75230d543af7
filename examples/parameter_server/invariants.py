"""What must hold after each run of train.py, for `rpc-backends faults explore`."""

from rpc_backends_faults.explore import invariants


def check_each_update_counts_once(run):
    """Compare the parameters, which are the same to the last bit if each update counted once."""
    invariants.same_as_without_faults(run, r"parameters (\w+)")
