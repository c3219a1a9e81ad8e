"""Runs a program with the restrictions of a unit of systemd that a seccomp filter can express.

Arguments: NUMBERS USER GROUP PROGRAM [ARGUMENT ...], with the numbers of the permitted system calls.
Other system calls fail with EPERM, as with SystemCallErrorNumber=EPERM. x86-64 only. An empty USER
changes neither user nor capabilities. Only root has to be able to run the interpreter.
"""

import ctypes
import errno
import grp
import os
import pwd
import signal
import struct
import sys

PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 38, 22, 65
LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"
SECCOMP_MODE_FILTER, REFUSE_EXEC_GAIN = 2, 1
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, FIRST_ARGUMENT_OFFSET = 0, 4, 16
X86_64 = 0xC000003E
SOCKET = 41
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10


def instruction(code, value, if_equal=0, otherwise=0):
    return struct.pack("HBBI", code, if_equal, otherwise, value)


def program(numbers):
    instructions = [
        instruction(LOAD, ARCHITECTURE_OFFSET),
        instruction(JUMP_EQUAL, X86_64, 1, 0),
        instruction(RETURN, KILL),
        instruction(LOAD, NUMBER_OFFSET),
        # RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
        instruction(JUMP_EQUAL, SOCKET, 0, 6),
        instruction(LOAD, FIRST_ARGUMENT_OFFSET),
        instruction(JUMP_EQUAL, AF_UNIX, 3, 0),
        instruction(JUMP_EQUAL, AF_INET, 2, 0),
        instruction(JUMP_EQUAL, AF_INET6, 1, 0),
        instruction(RETURN, ERRNO | errno.EAFNOSUPPORT),
        instruction(RETURN, ALLOW),
    ]
    for number in numbers:
        instructions += [instruction(JUMP_EQUAL, number, 0, 1), instruction(RETURN, ALLOW)]
    instructions.append(instruction(RETURN, ERRNO | errno.EPERM))
    return instructions


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def control(libc, operation, *arguments):
    padded = list(arguments) + [0] * (4 - len(arguments))
    if libc.prctl(operation, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {operation}")


def become(libc, user, group):
    user, group = pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    with open(LAST_CAPABILITY, encoding="ascii") as file:
        last = int(file.read())
    # CapabilityBoundingSet=
    for capability in range(last + 1):
        control(libc, PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    # A change of the user removes it.
    control(libc, PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    numbers, user, group, *command = sys.argv[1:]
    numbers = [int(number) for number in numbers.split(",")]
    libc = ctypes.CDLL(None, use_errno=True)
    if user:
        become(libc, user, group)
    instructions = program(numbers)
    installed = Filter(len(instructions), b"".join(instructions))
    control(libc, PR_SET_NO_NEW_PRIVS, 1)
    # MemoryDenyWriteExecute=yes
    control(libc, PR_SET_MDWE, REFUSE_EXEC_GAIN)
    control(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(installed))
    os.execv(command[0], command)


main()
