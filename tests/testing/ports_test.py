#!/usr/bin/env python3
"""Nothing takes a held port by chance, in a network of its own that has 64 ports for connections, and a server that asks for it can listen on it.

    tests/testing/ports_test.py      skips (77) without the right to make a network
"""
import contextlib
import itertools
import pathlib
import socket
import struct
import subprocess
import sys

from ports import HeldPorts

FIRST, LAST = 40000, 40063
HOLD = 3
SERVER = 5000
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a closed connection leaves nothing behind
RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
SHARED = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def ports_given(options, address, connect_to=None):
    """The ports that the machine gives, until it has none left, to sockets that do not ask for one."""
    with contextlib.ExitStack() as stack:
        given = set()
        while True:
            one = stack.enter_context(socket.socket())
            one.setsockopt(*RESET)
            for option in options:
                one.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                one.connect(connect_to) if connect_to else one.bind((address, 0))
            except OSError:  # no port is left
                return given
            given.add(one.getsockname()[1])


def all_given():
    """What ports_given() says for connections and for servers of each kind."""
    with socket.create_server(("127.0.0.1", SERVER), backlog=2 * (LAST - FIRST)) as server:
        connections = ports_given((), "", server.getsockname())
    return [connections, *(ports_given(options, address) for options in ((), SHARED) for address in ("127.0.0.1", ""))]


def check():
    RANGE.write_text(f"{FIRST} {LAST}")
    every = set(range(FIRST, LAST + 1))
    assert set().union(*all_given()) == every, "without a held port, all are given"
    both = HeldPorts(HOLD), HeldPorts(HOLD)
    own = {held.first + i for held in both for i in range(HOLD)}
    assert len(own) == 2 * HOLD, own
    for given in all_given():
        assert len(given) > len(every) / 2 and not given & own, given & own
    for port, option in zip(own, itertools.cycle(SHARED)):
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, option, 1)
            daemon.bind(("127.0.0.1", port))
            daemon.listen()
            with socket.socket() as client:
                client.bind(("127.0.0.1", SERVER + port - FIRST + 1))
                client.setsockopt(*RESET)
                client.connect(("127.0.0.1", port))
    for held in both:
        held.close()
    assert own & ports_given((), "127.0.0.1"), "closed, they are free"


def main():
    if sys.argv[1:] == ["inside"]:
        check()
        return 0
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: no right to make a network namespace")
        return 77
    inside = f"ip link set lo up && exec {sys.executable} {__file__} inside"
    return subprocess.run(["unshare", "--net", "sh", "-c", inside], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
