"""The service of a soak: coordinator and agent as own processes that can be killed and started again, a link between them that can be cut, a small
disk for the output of jobs, and a clock that can be stepped."""
import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import threading
import time

from ports import HeldPorts  # these are in testing/, which soak.py has made known
from processes import running

DISK_MEGABYTES = 96
# Daemons that end to be started again: a coordinator that cannot be reached, an agent that no connection helps.
ENDS = {"coordinator": (6, "could not reach itself"), "agent": (7, "had no answer on any connection")}
START_SECONDS = 120  # for a daemon on a machine with much else to do


class Link:
    """A TCP proxy on loopback. While it is cut, connections are closed as soon as they are made."""

    def __init__(self, to):
        self.to, self.whole, self.pairs = to, True, set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            here, _ = self.listener.accept()
            try:
                if not self.whole:
                    raise OSError("cut")
                there = socket.create_connection(("127.0.0.1", self.to), timeout=5)
            except OSError:
                here.close()
                continue
            self.pairs.add((here, there))
            threading.Thread(target=self.forward, args=(here, there), daemon=True).start()

    def forward(self, here, there):
        other = {here: there, there: here}
        with contextlib.suppress(OSError, ValueError):
            while True:
                for side in select.select([here, there], [], [])[0]:
                    data = side.recv(65536)
                    if not data:
                        raise OSError("closed")
                    other[side].sendall(data)
        self.pairs.discard((here, there))
        here.close()
        there.close()

    def cut(self):
        self.whole = False
        for pair in list(self.pairs):
            for side in pair:
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self.whole = True


class Disk:
    """A small file system in memory for what jobs write; without the right to mount one, a folder that cannot be filled."""

    def __init__(self, folder):
        self.path = folder / "disk"
        self.path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=0700", "tmpfs", self.path], capture_output=True)
        self.mounted = done.returncode == 0

    def fill(self):
        with contextlib.suppress(OSError), open(self.path / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 16))

    def free(self):
        (self.path / "filler").unlink(missing_ok=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=False)


class Service:
    def __init__(self, bin_dir, folder, leak=0):
        """With `leak`, the coordinator loses as many bytes whenever it has committed something."""
        self.bin, self.folder = pathlib.Path(bin_dir).resolve(), folder
        self.state = folder / "state"
        self.disk = Disk(folder)
        self.ports = HeldPorts(2)
        self.port, self.http = self.ports.first, self.ports.first + 1
        self.link = Link(self.port)
        self.environment = {**os.environ, "NSA_STATE_DIR": str(self.state), "NSACTL_CONFIG": "/dev/null", "NSACTL_TIMEOUT": "60s"}
        for name in ("NSACTL_ADDRESS", "NSACTL_CONTEXT"):
            self.environment.pop(name, None)
        self.shift = folder / "clock"
        self.shift.write_bytes(bytes(8))
        library = self.bin.parent / "tests" / "clock_shift.so"
        self.has_clock = library.exists()
        # Without the caches of its threads, the allocator knows what is in use to the byte.
        self.daemon_environment = {**self.environment, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        if self.has_clock:
            self.daemon_environment |= {"LD_PRELOAD": str(library), "NSA_CLOCK_SHIFT": str(self.shift)}
        self.leak = {}
        if leak:
            leaking = self.bin.parent / "tests" / "leak_at_sync.so"
            assert leaking.exists(), f"{leaking}: not built"
            before = self.daemon_environment.get("LD_PRELOAD", "")
            self.leak = {"LD_PRELOAD": f"{before}:{leaking}".lstrip(":"), "NSA_LEAK_AT_SYNC": str(leak)}
        (folder / "coordinator.yaml").write_text("local_agent: false\n")
        self.coordinator = self.agent = None

    def start(self):
        """Starts both daemons. end() is needed afterwards, whatever happens."""
        self.start_coordinator()
        self.wait_until(lambda: self.ctl("list").returncode == 0, START_SECONDS, "the coordinator answers")
        token = self.ctl("token", "create", "--role", "agent", "--node", "soak").stdout
        folder = self.folder
        join = folder / "join.token"
        join.touch(mode=0o600)
        join.write_text(token)
        (folder / "agent.yaml").write_text(f"node_name: soak\ncoordinator_address: 127.0.0.1:{self.link.port}\njoin_token_file: {join}\n"
                                           f"state_dir: {folder}/agent\ncpu_slots: 2\nheartbeat_seconds: 0.2\n")
        self.start_agent()
        self.wait_until(lambda: "soak" in self.ctl("nodes", "-o", "name").stdout, START_SECONDS, "the agent has joined")

    def spawn(self, name, *arguments, **environment):
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen([self.bin / f"nsa-{name}", *map(str, arguments)], env={**self.daemon_environment, **environment}, stdout=log,
                                    stderr=log)

    def start_coordinator(self):
        self.coordinator = self.spawn("coordinator", "--config", self.folder / "coordinator.yaml", "--listen", f"127.0.0.1:{self.port}",
                                      "--metrics", f"127.0.0.1:{self.http}", **self.leak)

    def start_agent(self):
        self.agent = self.spawn("agent", "--config", self.folder / "agent.yaml")

    def kill(self, name):
        """Kills a daemon and starts it again."""
        process = getattr(self, name)
        process.kill()
        process.wait()
        getattr(self, f"start_{name}")()

    def ctl(self, *arguments, timeout=300):
        return subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, timeout=timeout)

    def revive(self):
        """What a service manager does: starts a daemon again that has ended for it, as on a machine with far too much to do."""
        for name, (code, why) in ENDS.items():
            process = getattr(self, name)
            if process is not None and process.poll() == code:
                print(f"{time.strftime('%H:%M:%S')} the {name} {why}, and is started again", flush=True)
                getattr(self, f"start_{name}")()

    def wait_until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            self.revive()
            for name in ("coordinator", "agent"):
                process = getattr(self, name)
                assert process is None or process.poll() is None, f"{what}: the {name} ended by itself with {process.returncode}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
            time.sleep(0.1)

    def job(self, name):
        """A job as `nsactl describe` shows it; nothing while the coordinator does not answer."""
        done = self.ctl("describe", name, "-o", "json")
        shown = json.loads(done.stdout) if done.returncode == 0 else None
        return shown.get("job", shown) if shown else None

    def step_clock(self, seconds):
        with open(self.shift, "r+b", buffering=0) as file:  # in place: the daemons have it mapped
            file.write(int(seconds).to_bytes(8, "little", signed=True))

    def workers(self):
        """(process id, run folder) of the workers of this service."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if entry.name.isdigit() and os.readlink(entry / "exe") == str(self.bin / "nsa-worker"):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    folder = words[words.index(b"--run-dir") + 1].decode()
                    if folder.startswith(str(self.folder)) and running(int(entry.name)):
                        found.append((int(entry.name), pathlib.Path(folder)))
        return found

    def close(self):
        for process in (self.agent, self.coordinator):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (self.agent, self.coordinator):
            if process is not None:
                process.wait(START_SECONDS)

    def end(self):
        """After a failure too: nothing that was started stays behind."""
        for process in (self.agent, self.coordinator):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for pid, _ in self.workers():
            os.kill(pid, signal.SIGKILL)
        self.disk.close()
