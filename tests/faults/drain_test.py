#!/usr/bin/env python3
"""Machines are cordoned and drained while jobs train, and a job reaches its time limit: one coordinator with two agents on this machine.

    tests/faults/drain_test.py BIN_DIR

A job that is moved from machine to machine must lose no step and end with the bits of a job that was left alone, also if the coordinator is killed in
the middle of a drain, and also if a rank hangs and is killed at the deadline. Without another machine the job waits and says why. A job that stops
at its time limit must continue after a resume, with the same bits.
"""
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

STEPS = 3000
SAVE_EVERY = 500
SECONDS = 180  # for what takes moments on a machine with nothing else to do
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 16, n_sel: 4, w: 16}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 2, lr: 1.0e-3, log_every: 100, eval_every: 0, save_every: {save_every}, seed: 3, out_dir: {out_dir}}}
resources: {{gpus: 2}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test, EVAL_OFF: a test, THROUGHPUT_GUARD_OFF: a test}}}}
"""


class TwoMachines(Service):
    """A coordinator without an agent of its own, and the agents a and b with two slots each."""

    def start_agent(self):
        folder = self.log.parent
        for name in ("a", "b"):
            (folder / f"{name}.yaml").write_text(f"node_name: {name}\ncpu_slots: 2\n")
            with open(folder / f"{name}.log", "ab") as log:
                arguments = ["--config", folder / f"{name}.yaml", "--state-dir", folder / "state" / f"agent-{name}"]
                self.agent = subprocess.Popen([self.bin / "nsa-agent", *arguments], env=self.environment, stdout=log, stderr=log)
        self.wait_until(lambda: len(self.nodes()) == 2, SECONDS, "both agents have joined")

    def done(self, *arguments):
        ended = self.ctl(*arguments)
        assert ended.returncode == 0, f"nsactl {arguments}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def nodes(self):
        listed = self.ctl("nodes", "-o", "json")
        return {node["info"]["name"]: node for node in json.loads(listed.stdout).get("nodes", [])} if listed.returncode == 0 else {}

    def submit(self, name, limits=""):
        folder = self.log.parent
        job = JOB.format(name=name, steps=STEPS, save_every=SAVE_EVERY, out_dir=folder / name) + limits
        (folder / f"{name}.yaml").write_text(job)
        self.done("submit", folder / f"{name}.yaml")

    def job(self, name):
        return json.loads(self.done("describe", name, "-o", "json"))

    def step(self, name):
        return int(self.job(name).get("progress", {}).get("step", 0))

    def machine(self, name):
        """The machine of the job's ranks while they run, else none."""
        job = self.job(name)
        places = {rank["node"] for rank in job.get("ranks", [])}
        return places.pop() if job["state"] == "STATE_RUNNING" and len(places) == 1 else None

    def wait_for_step(self, name, step):
        self.wait_until(lambda: self.step(name) >= step, SECONDS, f"step {step} of {name}")

    def wait_for_state(self, name, state):
        self.wait_until(lambda: self.job(name)["state"] == f"STATE_{state}", SECONDS, f"{name} is {state}: {self.done('events', name)}")
        return self.job(name)

    def events(self, name, reason):
        return [line for line in self.done("events", name).splitlines() if f" {reason} " in line]

    def weights(self, name):
        model = self.log.parent / name / f"checkpoints/step-{STEPS:08d}/model.safetensors"
        return hashlib.sha256(model.read_bytes()).hexdigest()


def number_after(text, line):
    return int(re.search(rf"{text} (\d+)", line).group(1))


def check_moved(service, name, wanted):
    """From a to b or back, with the coordinator killed in between; then back again while the command waits."""
    service.submit(name)
    service.wait_for_step(name, SAVE_EVERY // 2)
    # Its records may arrive before the heartbeat that says that its ranks are up.
    first = service.wait_until(lambda: service.machine(name), SECONDS, f"{name} trains")
    said = service.done("node", "drain", first, "--reason", "new kernel", "--no-wait")
    assert f"{first}: DRAINING, drained by local (new kernel)" in said, said
    service.kill_coordinator()
    second = service.wait_until(lambda: service.machine(name) not in (None, first) and service.machine(name), SECONDS, "the job has moved")
    node = service.nodes()[first]
    assert node["cordon"]["reason"] == "new kernel" and node["cordon"]["drain"], f"the drain is forgotten: {node}"
    stopped, resumed = service.events(name, "MOVED")[0], service.events(name, "RESUMED")
    assert number_after("at step", stopped) > 0 and resumed, service.done("events", name)
    assert number_after("step", resumed[0]) == number_after("at step", stopped), f"steps were lost:\n{stopped}\n{resumed[0]}"

    service.done("node", "uncordon", first)
    said = service.done("node", "drain", second)
    # It looks twice a second, and a job on a quick machine moves within that: the events have it.
    assert f"{name} (" in said and f"{second}: DRAINED" in said.splitlines()[-1], said
    service.wait_until(lambda: service.machine(name) == first, SECONDS, "the job has moved back")
    assert len(service.events(name, "MOVED")) == 2, service.done("events", name)
    service.done("node", "uncordon", second)
    job = service.wait_for_state(name, "SUCCEEDED")
    assert int(job.get("restarts", 0)) == 0 and int(job["generation"]) == 3, job
    assert service.weights(name) == wanted, "other bits than those of a job that was left alone"


def check_deadline(service, name, wanted):
    """A rank that was stopped by a signal never ends by itself."""
    service.submit(name)
    service.wait_for_step(name, SAVE_EVERY + SAVE_EVERY // 2)
    first = service.machine(name)
    os.kill(service.workers()[0], signal.SIGSTOP)
    said = service.done("node", "drain", first, "--deadline", "3s")
    assert said.splitlines()[-1].startswith(f"{first}: DRAINED"), said
    job = service.wait_for_state(name, "SUCCEEDED")
    service.done("node", "uncordon", first)
    assert int(job.get("restarts", 0)) == 0, job
    assert "its ranks were killed" in service.events(name, "MOVED")[0], service.done("events", name)
    assert service.weights(name) == wanted, "other bits than those of a job that was left alone"


def check_nowhere(service, name, wanted):
    service.submit(name)
    service.wait_for_step(name, 100)
    for machine in ("a", "b"):
        service.done("node", "drain", machine)
    job = service.wait_for_state(name, "QUEUED")
    service.wait_until(lambda: service.job(name)["reason"] == "CORDONED", SECONDS, "it says why it waits")
    assert "2 machines are cordoned: a, drained by local; b, drained by local" in service.job(name)["message"], job
    service.kill_coordinator()
    service.wait_until(lambda: len(service.nodes()) == 2, SECONDS, "both agents are back")
    assert [node["cordon"]["drain"] for node in service.nodes().values()] == [True, True]
    assert service.job(name)["state"] == "STATE_QUEUED"
    for machine in ("a", "b"):
        service.done("node", "uncordon", machine)
    service.wait_for_state(name, "SUCCEEDED")
    assert service.weights(name) == wanted, "other bits than those of a job that was left alone"


def check_time_limit(service, name, wanted):
    seconds = 4
    service.submit(name, f"limits: {{hours: {seconds / 3600}}}\n")
    resumes = 0
    while True:
        service.wait_for_step(name, 1)
        if resumes == 0:
            service.kill_coordinator()
        service.wait_until(lambda: service.job(name)["state"] in ("STATE_STOPPED", "STATE_SUCCEEDED"), SECONDS, "the job has ended")
        job = service.job(name)
        if job["state"] == "STATE_SUCCEEDED":
            break
        assert job["reason"] == "TIME_LIMIT" and f"nsactl resume {job['id']}" in job["message"], job
        assert job["progress"]["checkpoint_step"] == job["progress"]["step"], f"no checkpoint at the end: {job['progress']}"
        service.done("resume", name)
        resumes += 1
    assert resumes > 0, "the limit was not reached; raise STEPS"
    assert service.weights(name) == wanted, "other bits than those of a job that was left alone"
    return resumes


def run(options, folder):
    with TwoMachines(options.bin_dir, folder, agent_environment={"NSA_LOG_LEVEL": "info"}) as service:
        service.submit("alone")
        service.wait_for_state("alone", "SUCCEEDED")
        wanted = service.weights("alone")
        check_moved(service, "moved", wanted)
        check_deadline(service, "deadline", wanted)
        check_nowhere(service, "nowhere", wanted)
        resumes = check_time_limit(service, "limited", wanted)
        print(f"moved, killed at a deadline, waited, and resumed {resumes} times after its time limit: the same bits")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
