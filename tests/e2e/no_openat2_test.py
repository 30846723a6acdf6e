#!/usr/bin/env python3
"""Coordinator, agent and workers without the system call openat2, as under systemd's RestrictSUIDSGID=yes, on old kernels and in gVisor.

    tests/e2e/no_openat2_test.py BIN_DIR

Jobs end, resume, stop and are deleted, logs are read, and allowed_roots lets no link out. A log that cannot be stored keeps no job that is stopped at once.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

SECONDS = 120  # for what takes moments on a machine with nothing else to do
UNREACHABLE = "cannot be reached"
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 16, n_sel: 3, w: 32, audit_every: 0}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu}}
train: {{steps: {steps}, seq_len: 64, batch_size: 2, lr: 1.0e-3, eval_every: 0, save_every: 50, log_every: 10, out_dir: {out_dir}}}
restart: {{backoff_seconds: 0.2}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
"""
ENDLESS = 10_000_000


class FilteredService(Service):
    def __init__(self, bin_dir, folder):
        self.allowed = folder / "allowed"
        self.allowed.mkdir()
        (folder / "service.yaml").write_text(f"allowed_roots: [{self.allowed}]\n")
        self.folder = folder
        super().__init__(bin_dir, folder, arguments=["--config", folder / "service.yaml"])

    def launch(self):
        """The agent and its workers inherit the filter."""
        with open(self.log, "ab") as log:
            command = [self.bin / "no_openat2", self.bin / "nsa-coordinator", *self.arguments]
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def submit(self, name, steps=ENDLESS, out_dir=None):
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, steps=steps, out_dir=out_dir or self.allowed / name))
        return self.ctl("submit", file)

    def done(self, *arguments):
        ended = self.ctl(*arguments)
        assert ended.returncode == 0, f"nsactl {arguments}: {ended.returncode}\n{ended.stdout}{ended.stderr}\n{self.log.read_text()}"
        return ended.stdout

    def job(self, name):
        return json.loads(self.done("describe", name, "-o", "json"))

    def step(self, name):
        return int(self.job(name)["progress"].get("step", 0))

    def wait_for_state(self, name, state):
        self.wait_until(lambda: self.job(name)["state"] == f"STATE_{state}", SECONDS, f"{name} is {state}: {self.done('describe', name)}")

    def train(self, name, step):
        submitted = self.submit(name)
        assert submitted.returncode == 0, submitted
        self.wait_until(lambda: self.step(name) >= step, SECONDS, f"step {step} of {name}")

    def agent_log(self):
        return (self.folder / "state" / "agent" / "agent.log").read_text()


def require_filter(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert "\nSeccomp:\t2\n" in status, f"process {pid} has no filter:\n{status}"


def check_ends(service):
    submitted = service.submit("short", steps=30)
    assert submitted.returncode == 0, submitted
    service.wait_for_state("short", "SUCCEEDED")
    assert service.done("logs", "short").strip(), "no log"
    owner = service.allowed / "short" / "owner.json"
    assert owner.exists()
    service.done("delete", "short", "--yes")
    assert not owner.exists(), "owner.json still names a job that is deleted"


def check_resumes(service):
    service.train("long", 120)
    worker = service.workers()[0]
    for pid in (*service.daemons(), worker):
        require_filter(pid)
    assert "rank 0" in service.done("dump-stack", "long")
    os.kill(worker, signal.SIGKILL)
    service.wait_until(lambda: "RESUMED" in service.done("events", "long"), SECONDS, "long resumes")
    resumed_after = service.step("long")
    assert resumed_after >= 50, "it began afresh"
    service.wait_until(lambda: service.step("long") >= 400, SECONDS, "long goes on")
    kept = sorted(path.name for path in (service.allowed / "long" / "checkpoints").glob("step-*"))
    assert len(kept) <= 4, f"old checkpoints are not removed: {kept}"
    service.done("stop", "long")
    service.wait_for_state("long", "STOPPED")
    service.done("checkpoint", "verify", "long")
    service.train("hurried", 20)
    service.done("stop", "hurried", "--now")
    service.wait_for_state("hurried", "STOPPED")


def check_paths(service):
    elsewhere = service.folder / "elsewhere"
    elsewhere.mkdir()
    (service.allowed / "way_out").symlink_to(elsewhere)
    for name, out_dir in (("outside", elsewhere / "job"), ("through", service.allowed / "way_out" / "job"), ("link", service.allowed / "way_out")):
        refused = service.submit(name, out_dir=out_dir)
        assert refused.returncode != 0 and "is not beneath allowed_roots, or leads through a symbolic link" in refused.stderr, refused
    assert not list(elsewhere.iterdir())


def check_log_that_cannot_be_stored(service):
    service.train("logless", 20)
    logs = service.folder / "state" / "logs" / service.job("logless")["id"]
    service.wait_until(logs.exists, SECONDS, "the coordinator stores the first lines of its log")
    logs.rename(service.folder / "aside")
    logs.symlink_to(service.folder / "aside")
    service.wait_until(lambda: "does not take its log" in service.agent_log(), SECONDS, "the agent says so")
    read = service.ctl("logs", "logless")
    assert read.returncode != 0 and "leads through a symbolic link" in read.stderr and UNREACHABLE not in read.stderr, read
    before = time.monotonic()
    service.done("stop", "logless", "--now")
    service.wait_for_state("logless", "STOPPED")
    print(f"stopped at once in {time.monotonic() - before:.1f} s without its log")
    assert " bytes of its log, from byte " in service.agent_log(), service.agent_log()


def run(options, folder):
    with FilteredService(options.bin_dir, folder) as service:
        doctor = service.ctl("doctor")
        assert "can be opened" in doctor.stdout, doctor
        for check in (check_ends, check_resumes, check_paths, check_log_that_cannot_be_stored):
            check(service)
            print(f"{check.__name__}: ok")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
