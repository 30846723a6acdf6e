"""What the kernel says of a process."""
import os
import pathlib
import subprocess
import time


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


# In front of a command: as the first process of a PID namespace, as in a container.
OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_have_own_namespace():
    return subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def until(condition, what, seconds=120):
    """Waits for a condition and returns its value. `what` is a text, or a function for a text as it is in the end."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what() if callable(what) else what}: not within {seconds} s"
        time.sleep(0.1)
    return value
