"""What the kernel says of a process."""
import os
import pathlib


def fields(pid):
    """The fields of /proc/PID/stat after the name: state, parent, …"""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def running(pid):
    """False when it has ended, also before its parent has asked how."""
    try:
        return fields(pid)[0] not in ("Z", "X")
    except OSError:
        return False


def processor_seconds(pid):
    """User and system time of a process, without its children."""
    return sum(map(int, fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def children(pid):
    """Process ids of what its first thread has started."""
    return [int(one) for one in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
