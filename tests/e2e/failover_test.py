#!/usr/bin/env python3
"""The coordinator's machine is lost with its disk: the newest backup is put up on another one, as docs/deploy.md says, under the same name. The agent, which
never stopped, and its worker go on; what was submitted after the backup ends with a checkpoint.

    tests/e2e/failover_test.py BIN_DIR
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from ports import HeldPorts
from service import environment_of

JOB = {
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "runtime": {"device": "cpu"},
    "train": {"steps": 2000000, "seq_len": 64, "batch_size": 2, "eval_every": 0, "save_every": 100, "log_every": 100},
    "preflight": {"waive": {"MODEL_TOO_SMALL_FOR_RUN": "a test", "DATA_SYNTHETIC": "a test"}},
}


class Host:
    """A machine for a coordinator: a state folder, and the address that agents know."""

    def __init__(self, bin_dir, folder, name, address, **config):
        self.bin, self.folder, self.name = bin_dir, folder, name
        self.state = folder / name
        self.environment = environment_of(self.state)
        self.config = folder / f"{name}.yaml"
        self.config.write_text(yaml.safe_dump({"state_dir": str(self.state), "local_agent": False, "listen_address": address, "metrics_address": "", **config}))
        self.process = None

    def start(self):
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen([self.bin / "nsa-coordinator", "--config", self.config], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_until(lambda: self.ctl("nodes").returncode == 0, 120, "the coordinator answers")

    def ctl(self, *arguments, check=False):
        return subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=check)

    def job(self, name):
        found = self.ctl("describe", name, "-o", "json")
        return json.loads(found.stdout) if found.returncode == 0 else None

    def step(self, name):
        return int(self.job(name)["progress"]["step"])

    def wait_until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{(self.folder / f'{self.name}.log').read_text()[-4000:]}"
            time.sleep(0.1)
        return found

    def submit(self, name):
        file = self.folder / f"{name}-job.yaml"
        file.write_text(yaml.safe_dump({**JOB, "name": name, "train": {**JOB["train"], "out_dir": str(self.folder / f"out-{name}")}}))
        self.ctl("submit", file, check=True)
        self.wait_until(lambda: self.step(name) >= 100, 120, f"100 steps of {name}")


def start_agent(host, address, **config):
    """An agent on a machine of its own: it joins once with a token, and keeps its secret."""
    folder = host.folder / "agent"
    folder.mkdir(mode=0o700)
    (folder / "join").write_text(host.ctl("token", "create", "--role", "agent", "--node", "gpu-01", check=True).stdout)
    (folder / "join").chmod(0o600)
    (folder / "agent.yaml").write_text(yaml.safe_dump({"node_name": "gpu-01", "coordinator_address": address, "cpu_slots": 2, "state_dir": str(folder / "state"),
                                                       "join_token_file": str(folder / "join"), **config}))
    with open(folder / "log", "wb") as log:
        return subprocess.Popen([host.bin / "nsa-agent", "--config", folder / "agent.yaml"], env=environment_of(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def fail_over(first, second, backups):
    before = first.job("old")
    worker = int(before["ranks"][0]["pid"])
    backup = first.ctl("admin", "backup", backups, "--keep", 2, "--config", first.config, check=True)
    assert "verified" in backup.stdout, backup
    first.submit("young")
    first.process.kill()
    first.process.wait(30)
    shutil.rmtree(first.state)

    newest = max(backups.iterdir())
    restored = second.ctl("admin", "restore", newest, "--config", second.config, "--new")
    assert restored.returncode == 0, restored
    second.start()
    second.wait_until(lambda: "READY" in second.ctl("nodes").stdout, 120, "the agent joins with the secret that it had")
    at = int(before["progress"]["step"])
    second.wait_until(lambda: (job := second.job("old")) and int(job["progress"]["step"]) > at + 100, 120, "the job goes on")
    now = second.job("old")
    assert now["generation"] == before["generation"] and int(now["ranks"][0]["pid"]) == worker, "the same process trains"
    assert second.job("young") is None, "it was submitted after the backup"
    young = first.folder / "out-young"
    second.wait_until(lambda: not any("out-young" in line for line in processes()), 120, "the younger job's rank ends")
    assert any((young / "checkpoints").glob("step-*")), "with a checkpoint"
    return worker


def processes():
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "exe").readlink().name == "nsa-worker":
                yield str((entry / "cwd").readlink()) + (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue


def end_all(folder, bin_dir, *daemons):
    """Ends these processes, then the workers, which outlive them."""
    for process in daemons:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "exe").readlink() == bin_dir / "nsa-worker" and str(folder) in str((entry / "cwd").readlink()):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-failover-") as name:
        folder = pathlib.Path(name).resolve()
        bin_dir = pathlib.Path(sys.argv[1]).resolve()
        ports = HeldPorts()
        address = f"127.0.0.1:{ports.first}"
        first, second = (Host(bin_dir, folder, host, address) for host in ("first", "second"))
        backups = folder / "backups"
        backups.mkdir(mode=0o700)
        first.start()
        agent = start_agent(first, address)
        try:
            first.submit("old")
            fail_over(first, second, backups)
            second.ctl("stop", "old", "--now", check=True)
            second.wait_until(lambda: second.job("old")["state"] == "STATE_STOPPED", 120, "the end of the job")
        finally:
            end_all(folder, bin_dir, second.process, first.process, agent)
    print("on another machine the coordinator goes on where the backup was, and the worker never stopped")


if __name__ == "__main__":
    main()
