"""Hosts on one machine for tests: network namespaces, each with a cable to a switch, and, if asked, a folder that the others do not see.

Needs root and iproute2; Hosts() raises OSError, AssertionError or CalledProcessError where there are none.
"""
import pathlib
import subprocess
import time

NETWORK = "10.77.13."


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Hosts:
    """Each host is held by a process that sleeps. Host i has the address NETWORK(i + 1)."""

    def __init__(self, count, own_folder=None):
        kinds = ["--net"] if own_folder is None else ["--net", "--mount"]
        self.kinds = [kind.removeprefix("--").replace("mount", "mnt") for kind in kinds]
        self.holders = []
        self.addresses = [f"{NETWORK}{i + 1}" for i in range(count)]
        try:
            self.holders = [subprocess.Popen(["unshare", *kinds, "sleep", "infinity"]) for _ in range(count + 1)]  # the last is the switch
            for holder in self.holders:
                self.wait_for_namespace(holder)
            switch = self.holders[count].pid
            self.inside(count, "ip", "link", "add", "switch", "type", "bridge")
            self.inside(count, "ip", "link", "set", "switch", "up")
            for host, address in enumerate(self.addresses):
                self.inside(host, "ip", "link", "add", "cable", "type", "veth", "peer", "name", f"port-{host}", "netns", str(switch))
                self.inside(host, "ip", "address", "add", f"{address}/24", "dev", "cable")
                self.inside(host, "ip", "link", "set", "lo", "up")
                self.inside(host, "ip", "link", "set", "cable", "up")
                self.inside(count, "ip", "link", "set", f"port-{host}", "master", "switch")
                self.plug(host, "up")
                if own_folder is not None:
                    self.inside(host, "mount", "-t", "tmpfs", "none", str(own_folder))
        except BaseException:
            self.close()
            raise

    @staticmethod
    def wait_for_namespace(holder):
        own = pathlib.Path("/proc/self/ns/net").readlink()
        while pathlib.Path(f"/proc/{holder.pid}/ns/net").readlink() == own or pathlib.Path(f"/proc/{holder.pid}/comm").read_text() != "sleep\n":
            assert holder.poll() is None, "unshare failed"
            time.sleep(0.01)

    def enter(self, host):
        """The beginning of a command that runs on this host."""
        space = f"/proc/{self.holders[host].pid}/ns"
        return ["nsenter", *(f"--{'mount' if kind == 'mnt' else kind}={space}/{kind}" for kind in self.kinds)]

    def inside(self, host, *command):
        return run(*self.enter(host), *command)

    def plug(self, host, state):
        """Connects the host's cable to the switch ("up") or takes it out ("down")."""
        self.inside(len(self.addresses), "ip", "link", "set", f"port-{host}", state)

    def slow(self, host, rate):
        """From now on the host sends no faster than this, e.g. "1gbit"."""
        self.inside(host, "tc", "qdisc", "replace", "dev", "cable", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")

    def fast(self, host):
        self.inside(host, "tc", "qdisc", "del", "dev", "cable", "root")

    def received(self, host):
        """Bytes that have come over the host's cable."""
        text = self.inside(host, "cat", "/proc/net/dev")
        return next(int(line.split(":")[1].split()[0]) for line in text.splitlines() if line.strip().startswith("cable:"))

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()
