"""The names of UCX's transports and settings, as a program may pass them."""

from __future__ import annotations

from rpc_backends_core.spi import nearest

#: Transports within a host that only processes of the same user can use.
PRIVATE = ("self", "posix", "cma")

#: What a worker uses in a trusted network by default. TCP is the only network on which this package can
#: keep unknown processes away from UCX, so RDMA is used only if it is named.
TRUSTED = (*PRIVATE, "tcp")

#: By UCX's name of the memory of devices: the transports that move it within a host.
DEVICE_TRANSPORTS = {
    "host": (),
    "cuda": ("cuda_copy", "cuda_ipc"),
    "rocm": ("rocm_copy", "rocm_ipc"),
    "ze-device": ("ze_copy", "ze_ipc"),
}

#: All names that UCX accepts in UCX_TLS, with their meaning.
TRANSPORTS = {
    "self": "a worker's own memory",
    "posix": "shared memory (files in /dev/shm)",
    "sysv": "shared memory (System V)",
    "cma": "copying from another process of this user (process_vm_readv)",
    "xpmem": "mapping another process's memory (kernel module xpmem)",
    "knem": "copying from another process (kernel module knem)",
    "shm": "all of shared memory",
    "sm": "all of shared memory",
    "mm": "all of shared memory, without copying from other processes",
    "tcp": "TCP",
    "ib": "all of InfiniBand and RoCE",
    "rc": "RDMA, reliable connections",
    "rc_verbs": "RDMA, reliable connections (verbs)",
    "rc_v": "RDMA, reliable connections (verbs)",
    "rc_mlx5": "RDMA, reliable connections (ConnectX)",
    "rc_x": "RDMA, reliable connections (ConnectX)",
    "dc": "RDMA, dynamic connections (ConnectX)",
    "dc_mlx5": "RDMA, dynamic connections (ConnectX)",
    "dc_x": "RDMA, dynamic connections (ConnectX)",
    "ud": "RDMA, datagrams",
    "ud_verbs": "RDMA, datagrams (verbs)",
    "ud_v": "RDMA, datagrams (verbs)",
    "ud_mlx5": "RDMA, datagrams (ConnectX)",
    "ud_x": "RDMA, datagrams (ConnectX)",
    "srd": "RDMA on AWS (EFA)",
    "gga": "copying by a BlueField",
    "gga_mlx5": "copying by a BlueField",
    "cuda": "all of CUDA",
    "cuda_copy": "CUDA memory, through the host",
    "cuda_ipc": "CUDA memory of another process on this host",
    "gdr_copy": "CUDA memory, mapped into the host",
    "rocm": "all of ROCm",
    "rocm_copy": "ROCm memory, through the host",
    "rocm_ipc": "ROCm memory of another process on this host",
    "ze": "all of Level Zero",
    "ze_copy": "Level Zero memory, through the host",
    "ze_ipc": "Level Zero memory of another process on this host",
    "all": "all transports that UCX has on this machine",
}

#: Settings that a program cannot pass: they have an option of their own, or this backend depends on them.
RESERVED = {
    "UCX_TLS": "use the option transports",
    "UCX_NET_DEVICES": "use the option net_devices",
    "UCX_KEEPALIVE_INTERVAL": "use the option keepalive",
    "UCX_POSIX_USE_PROC_LINK": "the files of a worker in /dev/shm must not outlive it",
    "UCX_POSIX_ERROR_HANDLING": "the backend must notice lost workers",
}


def wrong_transport(name: str) -> str | None:
    """Return why ``name`` is not a transport's name; None if it is one."""
    if name in TRANSPORTS:
        return None
    close = nearest(name, TRANSPORTS)
    hint = f" Did you mean {close!r}?" if close else f" UCX has {', '.join(TRANSPORTS)}."
    return f"{name!r} is not a transport of UCX.{hint}"


def wrong_setting(name: str) -> str | None:
    """Return why a program cannot pass the setting ``name``; None if it can.

    Whether UCX has this setting is checked later.
    """
    if not name.startswith("UCX_"):
        return "the names of UCX's settings start with UCX_."
    if name in RESERVED:
        return f"it cannot be set here: {RESERVED[name]}."
    return None
