import ctypes, errno, mmap, os, sys, threading, time
C = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    "A system call: its result and its error."
    ctypes.set_errno(0)
    C.syscall.restype = ctypes.c_long
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = C.syscall(ctypes.c_long(number), *made)
    return result, ctypes.get_errno() if result == -1 else 0


def reaches(name, number, *arguments):
    "Whether the call is done or refused for a reason of its own: the filter says EPERM."
    result, error = call(number, *arguments)
    if error == errno.ENOSYS:
        # A kernel without it.
        print("ABSENT", name)
    else:
        tell(name, error != errno.EPERM, result, error)


def tell(name, got, *facts):
    print("GOT" if got else "MISSED", name, *facts, flush=True)


def attempt(name, doing):
    "Whether something can be done without an error."
    try:
        tell(name, True, doing())
    except OSError as error:
        tell(name, False, error)


E = os.environ
