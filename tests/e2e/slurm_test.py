#!/usr/bin/env python3
"""Jobs that get their machines from a real Slurm on this machine, through every way in which an allocation can end.

    tests/e2e/slurm_test.py BIN_DIR

One job, left alone, gives the weights that all others must have. The others are stopped at a step and resumed, lose an agent, lose a node with
everything on it, lose one that an administrator takes away, are cancelled by hand, reach the time limit of their allocation, and see the coordinator killed while sbatch runs, while they are pending, while they
train and while their machines are given back. Another one is refused. In the end Slurm's queue, the shared folder, the tokens, the machines and the
processes are as before. Needs Slurm (deploy/packages.sh test) and root, else it is skipped.
"""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from slurm_cluster import HeldPorts, SlurmCluster, Unavailable  # puts tests/testing on the path
from service import environment_of

STEPS = 200  # a starved machine does them before an allocation ends
SAVE_EVERY = 50
STOP_AT = 120
LIMIT_SECONDS, GRACE_SECONDS = 60, 20  # of an allocation; before its end
WAIT_SECONDS = 150
ENDED = ("STATE_SUCCEEDED", "STATE_FAILED", "STATE_STOPPED")
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: synthetic}}
runtime: {{device: cpu}}
resources: {{gpus: 2, nodes: 2, provisioner: slurm}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
restart: {{hang_timeout_seconds: 120, stop_grace_seconds: {grace}, backoff_seconds: 1}}
train: {{steps: {steps}, seq_len: 32, batch_size: 4, log_every: 10, save_every: {save_every}, out_dir: {out}}}
"""
SBATCH = """\
#!/bin/sh
[ ! -e {folder}/sbatch-options ] || set -- $(cat {folder}/sbatch-options) "$@"
answer=$({sbatch} "$@"); code=$?
if [ -e {folder}/hold-answer ]; then touch {folder}/answer-held; while [ -e {folder}/hold-answer ]; do sleep 0.1; done; fi
echo "$answer"
exit $code
"""


class Service:
    """A coordinator that asks the cluster for machines, through an sbatch that the test can hold."""

    def __init__(self, bin_dir, folder, cluster):
        self.bin, self.folder, self.cluster = bin_dir, folder, cluster
        self.shared = folder / "shared"
        self.jobs = []  # ids of all that were submitted
        self.ports = HeldPorts()
        self.environment = environment_of(folder / "state", cluster.environment)
        programs = folder / "bin"
        programs.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel"):
            real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
            script = SBATCH.format(folder=folder, sbatch=real) if name == "sbatch" else f'#!/bin/sh\nexec {real} "$@"\n'
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        tls = folder / "tls"
        subprocess.run([self.bin / "nsactl", "admin", "init-tls", tls, "--host", "127.0.0.1", "--agent", "slurm"], check=True, capture_output=True)

        def files(name):
            return f"{{certificate_file: {tls}/{name}.crt, private_key_file: {tls}/{name}.key, client_ca_file: {tls}/ca.crt}}"
        (folder / "coordinator.yaml").write_text(f"""\
listen_address: 127.0.0.1:{self.ports.first}
token_file: {tls}/token
tls: {files("coordinator")}
metrics_address: ""
local_agent: false
node_unknown_seconds: 5
node_lost_seconds: 60
provisioners:
  slurm:
    shared_dir: {self.shared}
    tls: {files("slurm")}
    bin_dir: {programs}
    hours: {LIMIT_SECONDS / 3600}
    options: [--mem=0]
""")
        self.start()

    def start(self):
        with open(self.folder / "coordinator.log", "ab") as log:
            self.process = subprocess.Popen([self.bin / "nsa-coordinator", "--config", self.folder / "coordinator.yaml"], env=self.environment,
                                            stdout=log, stderr=log)
        self.wait_until(lambda: self.ctl("list", check=False).returncode == 0, "the coordinator answers")

    def kill_and_start(self):
        self.process.kill()
        self.process.wait(30)
        self.start()

    def ctl(self, *arguments, check=True):
        ended = subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=False)
        assert not check or ended.returncode == 0, f"nsactl {arguments}: {ended.stdout}{ended.stderr}\n{self.logs()}"
        return ended.stdout if check else ended

    def logs(self):
        files = [self.folder / "coordinator.log", *sorted(self.shared.glob("*/*.log"))]
        texts = [f"== {log}\n{log.read_text(errors='replace')[-6000:]}" for log in files if log.exists()]
        return "\n".join([*texts, self.cluster.run("squeue", "--states=all"), self.cluster.run("sinfo", "-N"), self.cluster.logs()])

    def wait_until(self, condition, what, pause=0.1):
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert self.process.poll() is None, f"{what}: the coordinator ended\n{self.logs()}"
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS} s\n{self.logs()}"
            time.sleep(pause)

    def submit(self, name):
        job = self.folder / f"{name}.yaml"
        job.write_text(JOB.format(name=name, grace=GRACE_SECONDS, steps=STEPS, save_every=SAVE_EVERY, out=self.folder / "out" / name))
        self.jobs.append(self.ctl("submit", job, "-o", "name").strip())
        return name

    def job(self, name):
        return json.loads(self.ctl("describe", name, "-o", "json"))

    def step(self, name):
        return int(self.job(name).get("progress", {}).get("step", 0))

    def logged_step(self, name):
        """The newest step in the job's training.csv."""
        file = self.folder / "out" / name / "training.csv"
        rows = file.read_text().splitlines() if file.exists() else []
        newest = rows[-1].split(",")[0] if rows else ""
        return int(newest) if newest.isdigit() else 0

    def wait_for_step(self, name, step):
        self.wait_until(lambda: self.step(name) >= step, f"step {step} of {name}")

    def allocation(self, name):
        return self.job(name).get("allocation", {})

    def wait_for_end(self, name, wanted):
        self.wait_until(lambda: self.job(name)["state"] in ENDED, f"the end of {name}")
        job = self.job(name)
        assert job["state"] == f"STATE_{wanted}", f"{json.dumps(job, indent=1)}\n{self.ctl('events', name)}\n{self.logs()}"
        self.wait_until(lambda: self.allocation(name)["state"] == "STATE_ENDED", f"the machines of {name} are given back")
        return job

    def reasons(self, name):
        return [event["reason"] for event in json.loads(self.ctl("events", name, "-o", "json"))["events"]]

    def weights(self, name):
        return hashlib.sha256((self.folder / "out" / name / f"checkpoints/step-{STEPS:08d}/model.safetensors").read_bytes()).hexdigest()

    def processes(self, text):
        found = subprocess.run(["pgrep", "-f", text], capture_output=True, text=True, check=False).stdout.split()
        return [int(pid) for pid in found]

    def agents(self, name=""):
        return self.processes(f"^[^ ]*nsa-agent --config {self.shared}/{self.allocation(name)['id'] if name else ''}")

    def workers(self, name=None):
        """Of a job, or of all jobs of this test: others beside it have workers too."""
        return self.processes(f"nsa-worker --run-dir .*/({self.job(name)['id'] if name else '|'.join(self.jobs)})/")

    def hold(self, name, step):
        """Suspends the ranks of a job once this step is done, so that it does not end before the test has done what it wants. Its file says when: on a
        busy machine nsactl takes seconds, in which the job could end."""
        job = self.job(name)["id"]
        self.wait_until(lambda: self.logged_step(name) >= step, f"step {step} of {name}", pause=0.01)
        for pid in self.processes(f"nsa-worker --run-dir .*/{job}/"):
            os.kill(pid, signal.SIGSTOP)
        self.wait_for_step(name, step)
        # Its records may arrive before the heartbeat that says that its ranks are up.
        self.wait_until(lambda: self.job(name)["state"] in ("STATE_RUNNING", *ENDED), f"{name} trains or has ended")
        assert self.job(name)["state"] == "STATE_RUNNING", f"too late\n{self.ctl('events', name)}"

    def release(self, name):
        for pid in self.workers(name):
            os.kill(pid, signal.SIGCONT)

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        # After a failure; Slurm's linuxproc does not know them any more when their agent was killed.
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)


def check_left_alone(service):
    name = service.submit("alone")
    service.wait_for_step(name, 1)
    folder = service.shared / service.allocation(name)["id"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in [service.shared, folder, *folder.glob("agent-*.yaml"), *folder.glob("*.token")]}
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    nodes = json.loads(service.ctl("nodes", "-o", "json"))["nodes"]
    jobs = [node["job_ids"] for node in nodes if node["info"]["allocation"] == folder.name]
    assert jobs == [[service.job(name)["id"]]] * 2, nodes
    service.wait_for_end(name, "SUCCEEDED")
    wanted = ["ALLOCATION_REQUESTED", "ALLOCATION_GRANTED", "PLACED", "COMPLETED", "ALLOCATION_RETURNED"]
    assert [reason for reason in service.reasons(name) if reason in wanted] == wanted, service.ctl("events", name)
    return service.weights(name)


def check_stopped_at_a_step(service, wanted):
    """Also: another job is not placed on its machines, and an agent that is killed comes back to its workers."""
    name = service.submit("stopped")
    service.ctl("stop", name, "--at-step", STOP_AT)
    service.hold(name, 1)
    victim = service.agents(name)[0]
    os.kill(victim, signal.SIGKILL)
    service.wait_until(lambda: len(service.agents(name)) == 2 and victim not in service.agents(name), "another agent starts")
    service.release(name)
    job = service.wait_for_end(name, "STOPPED")
    assert (int(job["progress"]["step"]), job["generation"], job["reason"]) == (STOP_AT, "1", "STOPPED_AT_STEP"), job
    service.ctl("resume", name)
    service.wait_for_end(name, "SUCCEEDED")
    assert service.reasons(name).count("ALLOCATION_GRANTED") == 2, service.ctl("events", name)
    assert service.weights(name) == wanted, "other weights after a stop"


def check_node_failure(service, wanted):
    """Everything on one of the job's nodes dies at the same moment, Slurm's daemon too. Slurm would notice after half a minute; it is informed."""
    name = service.submit("node-failure")
    service.hold(name, SAVE_EVERY)
    allocation = service.allocation(name)
    node = service.cluster.nodes_of(allocation["cluster_id"])[0]
    service.cluster.kill_node(node)
    service.cluster.update_nodes(node, "down")
    service.wait_until(lambda: service.allocation(name).get("id") not in (None, allocation["id"]), "another allocation is asked for")
    service.wait_for_end(name, "SUCCEEDED")
    service.cluster.revive_node(node)
    reasons = service.reasons(name)
    assert "ALLOCATION_LOST" in reasons and reasons.count("ALLOCATION_GRANTED") == 2, service.ctl("events", name)
    assert service.weights(name) == wanted, "other weights after a node failed"


def check_node_set_down(service, wanted):
    """An administrator takes a node away: the ranks have time for a checkpoint."""
    name = service.submit("node-down")
    service.hold(name, 20)  # Slurm's signals make it continue
    node = service.cluster.nodes_of(service.allocation(name)["cluster_id"])[0]
    service.cluster.update_nodes(node, "down")
    job = service.wait_for_end(name, "SUCCEEDED")
    assert job["generation"] == "2" and service.weights(name) == wanted, f"{job}\n{service.ctl('events', name)}"
    assert "NODE_FAIL" in service.ctl("events", name), service.ctl("events", name)


def check_cancelled_by_hand(service, wanted):
    name = service.submit("cancelled")
    service.hold(name, 20)
    service.cluster.run("scancel", service.allocation(name)["cluster_id"], check=True)
    job = service.wait_for_end(name, "STOPPED")
    assert job["reason"] == "ALLOCATION_CANCELLED", job
    step = int(job["progress"]["checkpoint_step"])
    assert 20 <= step < STEPS and step == int(job["progress"]["step"]), f"no checkpoint at the end: {job}"
    service.ctl("resume", name)
    service.wait_for_end(name, "SUCCEEDED")
    assert service.weights(name) == wanted, "other weights after scancel"


def check_killed_coordinator(service, wanted):
    everything = ",".join(service.cluster.nodes)
    (service.folder / "hold-answer").touch()
    service.cluster.update_nodes(everything, "drain")
    name = service.submit("killed")
    service.wait_until((service.folder / "answer-held").exists, "sbatch is asked")
    assert service.allocation(name).get("cluster_id", "") == "", service.job(name)
    service.kill_and_start()
    (service.folder / "hold-answer").unlink()
    service.wait_until(lambda: service.allocation(name)["state"] == "STATE_PENDING", "the job is found again")
    service.wait_until(lambda: service.job(name).get("message", "").startswith("waiting for slurm: PENDING ("), "it says what it waits for")
    assert "WAITING_FOR_ALLOCATION: waiting for slurm: PENDING" in service.ctl("list", "-o", "wide"), service.ctl("list", "-o", "wide")
    service.kill_and_start()
    service.cluster.update_nodes(everything, "resume")
    service.hold(name, 20)
    service.kill_and_start()
    service.release(name)
    service.wait_until(lambda: service.job(name)["state"] in ENDED, "the end of the job")
    service.kill_and_start()
    job = service.wait_for_end(name, "SUCCEEDED")
    assert job["generation"] == "1", job
    asked = [known for known in service.cluster.jobs("--states=all") if known[2] == f"nsa-{job['allocation']['id']}"]
    assert len(asked) == 1, f"asked more than once: {asked}"
    assert service.weights(name) == wanted, "other weights after the coordinator was killed"


def check_refused(service):
    (service.folder / "sbatch-options").write_text("--partition=nowhere")
    name = service.submit("refused")
    job = service.wait_for_end(name, "FAILED")
    (service.folder / "sbatch-options").unlink()
    assert job["reason"] == "ALLOCATION_REFUSED", job
    assert "Invalid partition name" in job["message"] and "resume" in job["message"], job["message"]


def begin_time_limit(service):
    """The ranks are suspended until the coordinator asks them to stop before the end of the allocation, so the job cannot end earlier."""
    name = service.submit("time-limit")
    service.hold(name, 20)
    return name


def end_time_limit(service, name, wanted):
    end = int(service.allocation(name)["end_unix_nanos"]) / 1e9
    time.sleep(max(0, end - GRACE_SECONDS + 2 - time.time()))
    assert int(service.job(name)["generation"]) == 1, service.ctl("events", name)
    service.release(name)
    job = service.wait_for_end(name, "SUCCEEDED")
    reasons = service.reasons(name)
    assert "PREEMPTED" in reasons and reasons.count("ALLOCATION_GRANTED") == 2, service.ctl("events", name)
    resumed = [line for line in service.ctl("events", name).splitlines() if "RESUMED" in line]
    assert resumed and "from step 0" not in resumed[0], service.ctl("events", name)
    assert job["restarts"] == 1 and service.weights(name) == wanted, "other weights after the time limit"


def check_nothing_is_left(service, names):
    for name in names:
        service.ctl("delete", name, "--yes")
    service.wait_until(lambda: not service.cluster.jobs(), "Slurm's queue is empty")
    service.wait_until(lambda: [path.name for path in service.shared.iterdir()] == ["lock"], "the shared folder is empty")
    service.wait_until(lambda: not service.agents() and not service.workers(), "no process is left")
    assert "slurm-" not in service.ctl("token", "list"), service.ctl("token", "list")
    assert service.ctl("nodes", "-o", "name") == "", service.ctl("nodes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin_dir", type=pathlib.Path)
    bin_dir = (parser.parse_args().bin_dir / "nsa-worker").resolve().parent
    with tempfile.TemporaryDirectory(prefix="nsa-slurm-") as name:
        folder = pathlib.Path(name)
        try:
            cluster = SlurmCluster(folder / "slurm", nodes=4)
        except Unavailable as why:
            print(f"skipped: no Slurm here: {why}")
            return 77
        began = time.monotonic()
        with contextlib.closing(cluster), contextlib.closing(Service(bin_dir, folder, cluster)) as service:
            limited = begin_time_limit(service)
            wanted = check_left_alone(service)  # alone beside it: the allocation ends after a minute, however busy the machine is
            end_time_limit(service, limited, wanted)
            check_stopped_at_a_step(service, wanted)
            check_node_failure(service, wanted)
            check_node_set_down(service, wanted)
            check_cancelled_by_hand(service, wanted)
            check_killed_coordinator(service, wanted)
            check_refused(service)
            check_nothing_is_left(service, ["alone", "stopped", limited, "node-failure", "node-down", "cancelled", "killed", "refused"])
        print(f"every way in which an allocation ends gave the weights of the job that was left alone, in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
