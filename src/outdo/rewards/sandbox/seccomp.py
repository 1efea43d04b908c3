"""Write the filter of system calls that a program in a sandbox has, as a BPF program for the kernel.

A program is a single process, which may start threads: it can neither start processes nor leave one behind, and its
limit of memory is the limit of all. It opens no socket, keeps no memory outside of its address space, and reaches no
part of the kernel that a Python program does not need. The names of system calls are resolved by libseccomp, for the
architecture of this machine.
"""

import ctypes
import errno
import os
from functools import cache

LIBRARY = "libseccomp.so.2"

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with the number of the error
_MASKED_EQUAL = 7
_CLONE_THREAD = 0x00010000

# fmt: off
_REFUSED = (
    "fork", "vfork",
    "socket",
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_open", "pidfd_getfd",
    "memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open",
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "quotactl",
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "acct", "swapon", "swapoff", "reboot", "syslog", "settimeofday", "clock_settime", "personality",
)
# fmt: on


class _Comparison(ctypes.Structure):
    """The condition that argument `argument` of a call, masked, equals `value`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


@cache
def system_call_filter() -> bytes:
    """Return the filter, for `bwrap --seccomp`.

    Raises:
        OSError: libseccomp is not on this machine.
    """
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ALLOW))

    def refuse(name: str, error: int = errno.EPERM, *conditions: _Comparison) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # this architecture has no such call
            return
        refused = library.seccomp_rule_add_array(
            rules, _REFUSE | error, number, len(conditions), (_Comparison * len(conditions))(*conditions)
        )
        assert refused == 0, f"libseccomp does not accept the rule for {name}"

    for name in _REFUSED:
        refuse(name)
    refuse("clone3", errno.ENOSYS)  # its flags are in memory, where no filter sees them; libc then calls clone
    refuse("clone", errno.EPERM, _Comparison(0, _MASKED_EQUAL, _CLONE_THREAD, 0))
    with open(os.memfd_create("seccomp"), "w+b") as file:
        assert library.seccomp_export_bpf(rules, file.fileno()) == 0
        library.seccomp_release(rules)
        file.seek(0)
        return file.read()
