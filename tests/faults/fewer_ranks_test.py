#!/usr/bin/env python3
"""A job of four ranks on two machines loses one of them and goes on with two ranks: one coordinator with two agents on this machine.

    tests/faults/fewer_ranks_test.py BIN_DIR

The losses must be those of a job that kept its four ranks, up to the order of sums. When the machine is back nothing must happen until the job is stopped
and resumed; then it must have four ranks again. A job with another seed shows that the comparison can fail.
"""
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

STEPS = 1_000_000  # more than any run does: the test ends them
OTHER_STEPS = 1000  # of the job with another seed, whose losses differ by a tenth and more from the first steps on
SAVE_EVERY = 100
SECONDS = 180  # for what takes moments on a machine with nothing else to do
CLOSE = 0.01  # largest relative difference of losses that only the order of sums may cause after so many steps
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 32, batch_size: 4, lr: 1.0e-3, log_every: 10, save_every: {save_every}, seed: {seed}, out_dir: {out_dir}}}
resources: {{gpus: 4, nodes: 2}}
restart: {{min_ranks: 2, backoff_seconds: 0.5, hang_timeout_seconds: 20}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test, EVAL_OFF: a test, THROUGHPUT_GUARD_OFF: a test}}}}
"""


class TwoMachines(Service):
    """A coordinator without an agent of its own, and the agents a and b with two slots each."""

    def __init__(self, bin_dir, folder):
        self.agents = {}
        (folder / "coordinator.yaml").write_text("local_agent: false\nnode_unknown_seconds: 2\nnode_lost_seconds: 6\n")
        super().__init__(bin_dir, folder, arguments=["--config", folder / "coordinator.yaml"])
        self.wait_until(lambda: self.ready() == ["a", "b"], SECONDS, "both agents have joined")

    def start(self):
        super().start()
        for name in ("a", "b"):
            self.start_machine(name)

    def start_machine(self, name):
        folder = self.log.parent
        ports = {"a": "29610-29619", "b": "29620-29629"}[name]
        (folder / f"{name}.yaml").write_text(f"node_name: {name}\ncpu_slots: 2\nrank_address: 127.0.0.1\nrank_ports: {ports}\n")
        with open(folder / f"{name}.log", "ab") as log:
            arguments = ["--config", folder / f"{name}.yaml", "--state-dir", folder / "state" / f"agent-{name}"]
            self.agents[name] = subprocess.Popen([self.bin / "nsa-agent", *arguments], env=self.environment, stdout=log, stderr=log)

    def lose_machine(self, name):
        """Its agent and its workers end at once, as when its power fails."""
        self.agents[name].kill()
        self.agents[name].wait(30)
        folder = str(self.log.parent / "state" / f"agent-{name}").encode()
        for pid in self.workers():
            if folder in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def done(self, *arguments):
        ended = self.ctl(*arguments)
        assert ended.returncode == 0, f"nsactl {arguments}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def ready(self):
        listed = self.ctl("nodes", "-o", "json")
        nodes = json.loads(listed.stdout).get("nodes", []) if listed.returncode == 0 else []
        return sorted(node["info"]["name"] for node in nodes if node["state"] == "READY")

    def submit(self, name, seed=3):
        folder = self.log.parent
        (folder / f"{name}.yaml").write_text(JOB.format(name=name, steps=STEPS, save_every=SAVE_EVERY, seed=seed, out_dir=folder / name))
        self.done("submit", folder / f"{name}.yaml")

    def job(self, name):
        return json.loads(self.done("describe", name, "-o", "json"))

    def step(self, name):
        return int(self.job(name).get("progress", {}).get("step", 0))

    def machines(self, name):
        """The machines of the job's ranks while they run."""
        job = self.job(name)
        return [rank["node"] for rank in job.get("ranks", [])] if job["state"] == "STATE_RUNNING" else []

    def wait_for_machines(self, name, machines):
        self.wait_until(lambda: self.machines(name) == machines, SECONDS, f"{name} runs on {machines}: {self.done('events', name)}")

    def stop_at(self, name, step):
        """Ends a job after this step."""
        self.done("stop", name, "--at-step", step)
        self.wait_until(lambda: self.job(name)["state"] in ("STATE_STOPPED", "STATE_FAILED"), SECONDS, f"the end of {name}")
        assert self.step(name) == step and self.job(name)["state"] == "STATE_STOPPED", self.done("events", name)

    def losses(self, name):
        with open(self.log.parent / name / "training.csv", encoding="utf-8") as rows:
            return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(rows)}


def largest_difference(losses, wanted):
    """The largest relative difference of two runs' losses at the steps of `wanted`. A run that stops also logs its last step."""
    assert losses.keys() >= wanted.keys() and len(wanted) >= OTHER_STEPS // 10, (len(losses), len(wanted))
    return max(abs(losses[step] - wanted[step]) / wanted[step] for step in wanted)


def lose_one_machine(service, name):
    service.submit(name)
    service.wait_for_machines(name, ["a", "a", "b", "b"])
    service.wait_until(lambda: service.step(name) > SAVE_EVERY + 20, SECONDS, "a checkpoint")
    service.lose_machine("b")
    service.wait_for_machines(name, ["a", "a"])
    before = service.step(name)
    for arguments in (("describe", name), ("list",), ("events", name)):
        said = service.done(*arguments)
        assert "2 of 4 ranks" in said, f"nsactl {arguments}:\n{said}"

    service.start_machine("b")
    service.wait_until(lambda: service.ready() == ["a", "b"], SECONDS, "the machine is back")
    generation = service.job(name)["generation"]
    step = service.step(name)
    service.wait_until(lambda: service.step(name) > step + 100, SECONDS, "the job trains on")
    assert service.machines(name) == ["a", "a"] and service.job(name)["generation"] == generation, "it was started again"
    service.done("stop", name)
    service.wait_until(lambda: service.job(name)["state"] == "STATE_STOPPED", SECONDS, "it has stopped")
    stopped = service.step(name)
    service.done("resume", name)
    service.wait_for_machines(name, ["a", "a", "b", "b"])
    end = (max(OTHER_STEPS, service.step(name) + 500) + 9) // 10 * 10  # a step that every job logs
    service.stop_at(name, end)
    return before, stopped, end


def run(options, folder):
    with TwoMachines(options.bin_dir, folder) as service:
        # First, so that the others train no more steps than this one needs: its number depends on how long a machine takes to be lost and to come back.
        first, last, end = lose_one_machine(service, "lost")
        service.submit("alone")
        service.stop_at("alone", end)
        wanted = service.losses("alone")
        difference = largest_difference(service.losses("lost"), wanted)
        assert difference < CLOSE, f"losses differ by {difference:.2%} from those of four ranks"
        service.submit("other", seed=4)
        service.stop_at("other", OTHER_STEPS)
        other = largest_difference(service.losses("other"), {step: loss for step, loss in wanted.items() if step <= OTHER_STEPS})
        assert other > 2 * CLOSE, f"another seed's losses differ by {other:.2%} only: the comparison says nothing"
        print(f"two of four ranks from step {first} to {last}, then four again: losses within {difference:.1e} of those of four ranks "
              f"(another seed: {other:.1e})")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
