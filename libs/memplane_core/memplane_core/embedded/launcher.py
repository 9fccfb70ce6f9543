"""Becomes the program it is given, as a child that cannot outlive its parent. Run by path, with the standard library.

It is a program of its own because what it does must happen after the fork and, for the last step, after the change of
user, where a threaded parent may not run Python safely.

Usage: `launcher.py PARENT_PID DEATH_SIGNAL UID GID KEEP_DAC program argument...`; a `UID` of -1 changes no user.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_SECBIT_NO_SETUID_FIXUP = 4
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Words(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def main(arguments: list[str]) -> None:
    """Replace this process by the program; returns never. Raises OSError where the system refuses."""
    parent, death_signal, uid, gid, keep_dac = (int(value) for value in arguments[:5])
    # A shell's background jobs inherit an ignored SIGINT, by which some parts are stopped.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if uid >= 0:
        if libc and keep_dac:
            # Without it access(2) would not count the capability, and Postgres asks by that for its own programs.
            _check(libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        if libc and keep_dac:
            _keep_dac_override(libc)
    if libc:
        _check(libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0))
    if os.getppid() != parent:  # it died before we could ask to be told
        raise SystemExit(1)
    os.execv(arguments[5], arguments[5:])  # noqa: S606 - the caller's own programs


def _keep_dac_override(libc: ctypes.CDLL) -> None:
    header = _Header(_CAPABILITY_VERSION_3, 0)
    mask = 1 << _CAP_DAC_OVERRIDE
    words = (_Words * 2)(_Words(mask, mask, mask), _Words(0, 0, 0))
    _check(libc.capset(ctypes.byref(header), ctypes.byref(words)))
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
