#!/usr/bin/env python3
"""What the container of deploy/compose.yaml runs, without Docker: the entry point of the image in a PID namespace of its own, and the health check.

    tests/deploy/container_test.py BIN_DIR

A daemon that is killed is started again and finds its worker; a stop of the container saves a checkpoint at the step in progress, and the next start
continues from it; a wrong configuration ends the container. Needs the right to make PID namespaces (else 77).
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/testing"))
from ports import HeldPorts  # noqa: E402
from processes import OWN_NAMESPACE, children, may_have_own_namespace, until  # noqa: E402

JOB = """
name: job
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: synthetic}}
runtime: {{device: cpu}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test, LOST_WORK: a test}}}}
train: {{steps: 1000000, seq_len: 32, batch_size: 4, save_every: 1000000, eval_every: 0, out_dir: {out}}}
"""


def instruction(name):
    """The JSON list of an instruction of the Dockerfile, with the paths of this tree."""
    text = (TOP / "deploy/docker/Dockerfile").read_text()
    (found,) = re.findall(rf"^{name}\b[^\[\n]*(\[.*\])$", text, re.MULTILINE)
    return json.loads(found)


class Container:
    def __init__(self, bin_dir, folder):
        self.bin, self.folder = bin_dir, folder
        self.ports = HeldPorts()
        self.environment = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "HOME": str(folder), "NSA_STATE_DIR": str(folder / "state"), "NSACTL_CONFIG": "/dev/null",
                            "STOP_SECONDS": "60"}
        self.log = folder / "log"
        self.process = None

    def run(self, *arguments):
        entry = [word.replace("/opt/nsa/deploy", str(TOP / "deploy")).replace("/opt/nsa/bin", str(self.bin)) for word in instruction("ENTRYPOINT")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*OWN_NAMESPACE, *entry, "--metrics", f"127.0.0.1:{self.ports.first}", *arguments], env=self.environment,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self):
        (first,) = children(self.process.pid)
        os.kill(first, signal.SIGTERM)
        assert self.process.wait(60) == 0, self.told()

    def pid(self, program):
        """The process id, as this machine sees it, of a process in the container."""
        (first,) = children(self.process.pid)
        own = os.readlink(f"/proc/{first}/ns/pid")
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() == program and os.readlink(process / "ns/pid") == own:
                    return int(process.name)
            except OSError:
                continue  # it has ended
        return None

    def ctl(self, *arguments):
        return subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=False)

    def job(self):
        described = self.ctl("describe", "job", "-o", "json")
        return json.loads(described.stdout) if described.returncode == 0 else {}

    def step(self):
        return int(self.job().get("progress", {}).get("step", 0))

    def healthy(self):
        return subprocess.run(instruction("HEALTHCHECK"), env=self.environment, capture_output=True, check=False).returncode == 0

    def told(self):
        return self.log.read_text(errors="replace")[-3000:]


def check_compose():
    """The files that the container takes are there, it has longer to stop than its processes take, the page is on the machine's loopback, nobody logs in
    to Grafana, and Grafana starts when it has its dashboard."""
    services = yaml.safe_load((TOP / "deploy/compose.yaml").read_text())["services"]
    service = services["coordinator"]
    modes = {name: each["network_mode"] for name, each in services.items()}
    assert modes == {"coordinator": "host", "prometheus": "host", "grafana": "host", "dashboard": "none"}, f"{modes}: the page cannot be reached"
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true" and grafana["GF_AUTH_BASIC_ENABLED"] == "false", grafana
    assert services["grafana"]["depends_on"]["dashboard"]["condition"] == "service_completed_successfully", services["grafana"]
    default = int(re.search(r"STOP_SECONDS:-(\d+)", (TOP / "deploy/docker/run_daemon.sh").read_text())[1])
    assert default + 15 < int(service["stop_grace_period"].rstrip("s")), (default, service)
    ignored = (TOP / ".dockerignore").read_text().split()
    assert ".git" in ignored and "build" in ignored, ignored


def check_stop(container, folder):
    assert not container.healthy(), "nobody answers yet"
    container.run()
    until(container.healthy, lambda: f"the health check; {container.told()}")
    (folder / "job.yaml").write_text(JOB.format(out=folder / "out"))
    until(lambda: container.ctl("nodes", "-o", "name").stdout.strip(), "an agent")
    submitted = container.ctl("submit", folder / "job.yaml")
    assert submitted.returncode == 0, submitted
    until(lambda: container.step() > 20, lambda: f"training; {container.told()}")
    worker, before = container.pid("nsa-worker"), container.step()
    for daemon in "nsa-coordinator", "nsa-agent":
        killed = container.pid(daemon)
        os.kill(killed, signal.SIGKILL)
        until(lambda daemon=daemon, killed=killed: container.pid(daemon) not in (None, killed), container.told)
    until(lambda: container.step() > before + 100, lambda: f"training goes on; {container.told()}")
    assert container.pid("nsa-worker") == worker, "the worker did not survive its daemons"
    before = container.step()
    container.stop()
    saved = [int(path.name.rpartition("-")[2]) for path in (folder / "out/checkpoints").glob("step-*")]
    assert saved and max(saved) >= before, (saved, before)
    container.run()
    until(lambda: container.job().get("state") == "STATE_RUNNING" and container.step() > max(saved), lambda: f"training in the next container; {container.told()}")
    assert f"from step {max(saved)}" in container.ctl("events", "job").stdout, container.ctl("events", "job").stdout
    container.stop()
    print(f"ok: stopped at step {max(saved)}, and continued from it")


def check_wrong_configuration(container, folder):
    (folder / "wrong.yaml").write_text("no_such_key: 1\n")
    container.run("--config", str(folder / "wrong.yaml"))
    assert container.process.wait(30) == 2, container.told()
    print("ok: a wrong configuration ends the container")


def main():
    if not may_have_own_namespace():
        print("no right to make PID namespaces here")
        sys.exit(77)
    check_compose()
    with tempfile.TemporaryDirectory(prefix="nsa-container-") as name:
        folder = pathlib.Path(name)
        container = Container(pathlib.Path(sys.argv[1]).resolve(), folder)
        try:
            check_stop(container, folder)
            check_wrong_configuration(container, folder)
        finally:
            if container.process and container.process.poll() is None:
                container.process.kill()
                container.process.wait()


if __name__ == "__main__":
    main()
