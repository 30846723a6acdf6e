"""TCP ports of loopback for daemons that a test starts, and may start again, on a port that it must know beforehand."""
import socket


class HeldPorts:
    """`count` ports in a row that are this process's own until it ends, or close() is called.

    Each is bound, but nobody listens on it, and it may be shared (SO_REUSEADDR, SO_REUSEPORT). Linux then gives it to no connection and to no bind to
    port 0, whatever else runs on the machine; a daemon that asks for it by number, with one of these options as servers do, can listen on it. A port that
    was merely free a moment ago can be taken before the daemon is up, or between two daemons.
    """

    def __init__(self, count=1):
        self.sockets = []
        while not self.sockets:
            try:
                self.sockets.append(hold(0))
                while len(self.sockets) < count:
                    self.sockets.append(hold(self.first + len(self.sockets)))
            except (OSError, OverflowError):  # somebody has one of the row
                self.close()

    @property
    def first(self):
        return self.sockets[0].getsockname()[1]

    def close(self):
        for held in self.sockets:
            held.close()
        self.sockets = []


def hold(port):
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", port))  # before it may be shared: fails where another test holds it
    except BaseException:
        held.close()
        raise
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    return held
