"""What must hold after each run of train.py."""

from rpc_backends_faults.explore import invariants


def check_parameters_are_those_of_a_run_without_faults(run):
    invariants.same_as_without_faults(run, r"^parameters (\w+)")
