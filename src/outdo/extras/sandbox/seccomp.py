"""Write the filter of system calls that a program in a sandbox has, as a BPF program for the kernel.

A program is a single process, which may start threads: it can neither start processes nor leave one behind, and its
limit of memory is the limit of all. It opens no socket but pairs that are connected with each other (asyncio needs
one), keeps no memory outside of its address space, changes no file and no other process, and reaches no part of the
kernel that a Python program does not need. The names of system calls are resolved by libseccomp, for the architecture
of this machine.
"""

import ctypes
import errno
import os
import struct
from functools import cache

LIBRARY = "libseccomp.so.2"

OWN_PROCESS = 0x5EC0_0D1E
"""Stands in a filter in place of the id of the process that installs it: four bytes, to be replaced."""

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with the number of the error
_NOT_EQUAL = 1
_MASKED_EQUAL = 7
_32_BITS = 0xFFFF_FFFF  # of a register, in which the kernel reads an int
_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG = 1
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902

_FIRST_UNKNOWN = 450
"""System calls with this number and above are newer than the list of those that are refused. Neither Python nor libc
needs one. From 424 on, numbers are the same on all architectures."""

# fmt: off
_REFUSED = (
    "fork", "vfork",
    "socket",
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
    "process_madvise", "process_mrelease", "move_pages", "migrate_pages", "tkill", "rt_sigqueueinfo",
    "rt_tgsigqueueinfo", "setpriority", "ioprio_set", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler",
    "memfd_create", "memfd_secret",
    "shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl",
    "mq_open", "mq_unlink",
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "truncate", "utime", "utimes", "utimensat",
    "futimesat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "getxattr",
    "lgetxattr", "listxattr", "llistxattr", "inotify_init", "inotify_init1", "fanotify_init", "sync", "syncfs",
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd",
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "acct", "swapon", "swapoff", "reboot", "syslog", "settimeofday", "clock_settime", "personality",
)
# fmt: on

_OF_SHELLS = (
    "fork",
    "vfork",
    "chmod",
    "fchmod",
    "fchmodat",
    "utimensat",
    "getxattr",
    "lgetxattr",
    "listxattr",
    "llistxattr",
)
"""Calls of shells and of the commands that they start, which change nothing outside of a file system of their own."""


_NO_UNKNOWN_CALL = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),  # load the number of the call
        (0x35, 0, 1, _FIRST_UNKNOWN),  # below: go on after the next instruction
        (0x06, 0, 0, _REFUSE | errno.ENOSYS),
    )
)


class _Comparison(ctypes.Structure):
    """The condition that argument `argument` of a call, masked, equals `value`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


@cache
def system_call_filter(*, signals: bool = True, children: bool = False) -> bytes:
    """Return the filter, as `bwrap --seccomp` reads it: the instructions of BPF, 8 bytes each.

    Without `signals`, a process can send signals to no other one than `OWN_PROCESS`. With `children` it may start
    processes and change the modes of files, as a shell does: its file system has to be its own.

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
        if not (children and name in _OF_SHELLS):
            refuse(name)
    refuse("clone3", errno.ENOSYS)  # its flags are in memory, where no filter sees them; libc then calls clone
    if not children:
        refuse("clone", errno.EPERM, _Comparison(0, _MASKED_EQUAL, _CLONE_THREAD, 0))
    refuse("prctl", errno.EPERM, _Comparison(0, _MASKED_EQUAL, _32_BITS, _PR_SET_PDEATHSIG))  # it ends with outdo
    refuse("prlimit64", errno.EPERM, _Comparison(0, _NOT_EQUAL, 0))  # 0: the process itself
    for call, owners in (("fcntl", (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)), ("ioctl", (_FIOSETOWN, _SIOCSPGRP))):
        for command in owners:  # the owner of a file gets signals
            refuse(call, errno.EPERM, _Comparison(1, _MASKED_EQUAL, _32_BITS, command))
    if not signals:
        for call in ("kill", "tgkill"):
            refuse(call, errno.EPERM, _Comparison(0, _NOT_EQUAL, OWN_PROCESS))
    with open(os.memfd_create("seccomp"), "w+b") as file:
        assert library.seccomp_export_bpf(rules, file.fileno()) == 0
        library.seccomp_release(rules)
        file.seek(0)
        return _NO_UNKNOWN_CALL + file.read()
