"""Runs a coordinator for a test: state in the given folder, no TCP except /metrics on a port of its own, with an agent."""
import os
import pathlib
import signal
import subprocess
import time
import urllib.request

from ports import HeldPorts


def environment_of(state, base=os.environ):
    """For programs of a service with this state folder: nothing of the user's own. Each rank computes on one core, also when a test is run by hand:
    threads of different ranks that wait for each other on busy cores nearly double the time of a step."""
    own = {name: value for name, value in base.items() if name not in ("NSACTL_ADDRESS", "NSACTL_CONTEXT")}
    return own | {"NSA_STATE_DIR": str(state), "NSACTL_CONFIG": "/dev/null", "NSACTL_TIMEOUT": "60s", "OMP_NUM_THREADS": "1"}


class Service:
    def __init__(self, bin_dir, folder, agent_environment=None, arguments=()):
        """The coordinator, with these further arguments, starts the agent. With `agent_environment`, the test starts an agent that also passes these
        variables on to its workers."""
        self.bin = pathlib.Path(bin_dir).resolve()
        self.environment = environment_of(folder / "state")
        self.log = folder / "coordinator.log"
        self.agent = None
        self.ports = HeldPorts()
        self.address = f"127.0.0.1:{self.ports.first}"
        arguments = ["--metrics", self.address, *arguments]
        if agent_environment:
            (folder / "coordinator.yaml").write_text("local_agent: false\n")
            arguments += ["--config", folder / "coordinator.yaml"]
        self.arguments = arguments
        self.start()
        if agent_environment:
            (folder / "agent.yaml").write_text(f"pass_environment: [{', '.join(agent_environment)}]\n")
            self.agent_environment = agent_environment
            self.start_agent()
        self.wait_until(lambda: self.ctl("nodes", "-o", "name").stdout.strip(), 120, "an agent in nsactl nodes")

    def start(self):
        """Starts the coordinator and waits until it answers. On a busy machine this can take longer than nsactl waits for a socket."""
        self.launch()
        self.wait_until(lambda: self.ctl("nodes").returncode == 0, 120, "the coordinator answers")

    def launch(self):
        """Starts the coordinator's process; for start() only."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.bin / "nsa-coordinator", *self.arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

    def start_agent(self):
        """Starts the agent of a service with an agent_environment, again if it has ended."""
        folder = self.log.parent
        with open(folder / "agent.log", "ab") as log:
            arguments = ["--config", folder / "agent.yaml", "--state-dir", folder / "state" / "agent"]
            self.agent = subprocess.Popen([self.bin / "nsa-agent", *arguments], env={**self.environment, **self.agent_environment},
                                          stdout=log, stderr=log)

    def kill_coordinator(self):
        """Ends the coordinator with SIGKILL and starts it again; its agent and the workers run on."""
        self.process.kill()
        self.process.wait(30)
        self.start()
        self.wait_until(lambda: self.ctl("nodes", "-o", "name").stdout.strip(), 120, "an agent in nsactl nodes")

    def wait_until(self, condition, seconds, what):
        """Waits until the condition is true; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            result = condition()
            if result:
                return result
            if self.process.poll() is not None:
                raise AssertionError(f"the coordinator ended with {self.process.returncode}:\n{self.log.read_text()}")
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {seconds} s\n{self.log.read_text()}")

    def ctl(self, *arguments, check=False, timeout=600):
        return subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True,
                              check=check, timeout=timeout)

    def scrape(self):
        return self.get("/metrics")

    def get(self, path):
        """What the coordinator answers to this path."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            return answer.read().decode()

    def processes(self, program):
        """Process ids of the processes of this program that belong to this service's state folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "exe") == str(self.bin / program) and (
                        self.environment["NSA_STATE_DIR"].encode() in (entry / "cmdline").read_bytes()):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def workers(self):
        return self.processes("nsa-worker") + self.processes("nsa-worker-cuda")

    def daemons(self):
        """Process ids of the coordinator and of the agent."""
        return [self.process.pid, *self.processes("nsa-agent")]

    def close(self):
        """Ends the daemons, then the workers, which outlive them. The coordinator first: it would start its agent again."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        for pid in self.processes("nsa-agent"):
            os.kill(pid, signal.SIGTERM)
        if self.agent is not None:
            self.agent.wait(30)
        deadline = time.monotonic() + 20
        while self.processes("nsa-agent") or self.workers():
            if time.monotonic() > deadline:
                raise AssertionError("agent or workers did not end")
            for pid in self.workers():
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
