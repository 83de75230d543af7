"""Tests of a transport alone: no agent, no worker processes, and no torch.

:class:`~rpc_backends_testing.transports.contract.TransportContract` has all tests. Each module with
tests has those of one promise: messages, replies, losses, ends, errors and threads.
"""
