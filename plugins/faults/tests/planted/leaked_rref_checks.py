"""All RRefs are deleted before the end."""

from rpc_backends_faults.explore import invariants


def check_rrefs_are_deleted(run):
    invariants.rrefs_deleted(run, before="__main__.finish")
