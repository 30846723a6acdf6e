#!/usr/bin/env python3
"""Jobs of two people run as their Unix users: a coordinator of an ordinary user, an agent that is root, and real workers. Needs root and the users
nobody, games and daemon.

    tests/e2e/unix_users_test.py BIN_DIR

Each job must be its user and nothing else, write files of that user, read no file of the other, obey stop and dump-stack, and go on when the agent is killed.
A user that replaces the files of a run folder gets nothing of root. The audit log names the users who call over the coordinator's socket.
"""
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

SECONDS = 180  # for what takes moments on a machine with nothing else to do
SKIPPED = 77
ADA, BOB, COORDINATOR = "nobody", "games", "daemon"
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 16, n_sel: 4, w: 16}}
data: {data}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 2, lr: 1.0e-3, log_every: 100, eval_every: 0, save_every: 200, seed: 3, out_dir: {out_dir}}}
resources: {{gpus: {ranks}}}
restart: {{max_restarts: 0}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test, EVAL_OFF: a test, THROUGHPUT_GUARD_OFF: a test}}}}
"""
SYNTHETIC = "{source: synthetic, tokenizer: byte}"
SECRET = "what only root may read"


class UsersService(Service):
    def __init__(self, bin_dir, folder):
        self.folder = folder
        (folder / "state").mkdir(mode=0o700)
        shutil.chown(folder / "state", COORDINATOR, COORDINATOR)
        super().__init__(bin_dir, folder, agent_environment={"NSA_LOG_LEVEL": "info"})

    def launch(self):
        entry = pwd.getpwnam(COORDINATOR)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.bin / "nsa-coordinator", *self.arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])

    def start_agent(self):
        config = self.folder / "agent.yaml"
        config.write_text(f"unix_users: true\ncpu_slots: 4\nnode_name: users\ncoordinator_address: unix:{self.folder}/state/coordinator.sock\n")
        with open(self.folder / "agent.log", "ab") as log:
            arguments = ["--config", config, "--state-dir", self.folder / "agent"]
            self.agent = subprocess.Popen([self.bin / "nsa-agent", *arguments], env=self.environment, stdout=log, stderr=log)

    def processes(self, program):
        """Also those whose command line names the agent's folder, and as root, since they belong to others."""
        environment = self.environment
        found = super().processes(program)
        self.environment = {**environment, "NSA_STATE_DIR": str(self.folder / "agent")}
        found += super().processes(program)
        self.environment = environment
        return sorted(set(found))

    def done(self, *arguments):
        ended = self.ctl(*arguments)
        assert ended.returncode == 0, f"nsactl {arguments}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def token(self, name, user):
        file = self.folder / f"{name}.token"
        file.write_text(self.done("token", "create", name, "--role", "submitter", "--unix-user", user))
        file.chmod(0o600)
        return file

    def submit(self, token, name, user, data=SYNTHETIC, steps=1_000_000, ranks=1, refused=False, by="root"):
        """Returns the folder of the run, or what nsactl said if the job is `refused`. nsactl runs as the user `by`."""
        home = self.folder / f"home-{user}"  # closed to the other user; the coordinator passes through
        out_dir = home / name
        out_dir.mkdir(parents=True)
        home.chmod(0o710)
        shutil.chown(home, user, COORDINATOR)
        if user:
            shutil.chown(out_dir, user)
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, out_dir=out_dir, data=data, steps=steps, ranks=ranks))
        before = self.environment
        if token:
            self.environment = {**before, "NSACTL_TOKEN_FILE": str(token)}
        ended = as_user(by, self.bin / "nsactl", "submit", file, env=self.environment)
        self.environment = before
        assert (ended.returncode == 0) != refused, f"{name}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr if refused else out_dir

    def job(self, name):
        return json.loads(self.done("describe", name, "-o", "json"))

    def wait_for(self, name, what, condition):
        return self.wait_until(lambda: condition(self.job(name)), SECONDS, f"{name}: {what}")

    def wait_for_step(self, name, step):
        self.wait_for(name, f"step {step}", lambda job: int(job.get("progress", {}).get("step", 0)) >= step)

    def pids(self, name):
        return [int(rank["pid"]) for rank in self.job(name)["ranks"]]


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def check_identity(pid, user):
    entry = pwd.getpwnam(user)
    status = status_of(pid)
    assert status["Uid"] == [str(entry.pw_uid)] * 4, status["Uid"]
    assert status["Gid"] == [str(entry.pw_gid)] * 4, status["Gid"]
    groups = {str(group) for group in os.getgrouplist(user, entry.pw_gid)}
    assert set(status["Groups"]) == groups, status["Groups"]
    assert status["NoNewPrivs"] == ["1"], status["NoNewPrivs"]
    assert status["CapEff"] == status["CapPrm"] == ["0" * 16], status


def check_files(folder, user):
    found = [folder, *folder.rglob("*")]
    assert len(found) > 3, f"{folder} is empty"
    for path in found:
        assert path.owner() == user, f"{path} belongs to {path.owner()}"


def as_user(user, *command, env=None):
    entry = pwd.getpwnam(user)
    return subprocess.run(command, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], env=env, capture_output=True, text=True, check=False)


def check_run_folder(service, name, user, other):
    job = service.job(name)
    folder = service.folder / "agent" / "jobs" / job["id"] / "gen-000001"
    for path in ("rank-0000/log", "rank-0000/launch.pb", "rendezvous/gen-000001/rank-0000.address", "agent-0000/identity.json"):
        assert as_user(other, "cat", folder / path).returncode != 0, f"{other} can read {path}"
    assert as_user(user, "cat", folder / "rank-0000/log").returncode == 0
    assert as_user(user, "cat", folder / "agent-0000/identity.json").returncode != 0
    assert as_user(user, "touch", folder / "x").returncode != 0
    return folder / "rank-0000"


def origin(user, login):
    """Where a caller over the socket is said to come from; `login` is what /proc/PID/loginuid says."""
    name = user if int(login) == 2**32 - 1 else pwd.getpwuid(int(login)).pw_name
    return f"unix:{user}" if name == user else f"unix:{user} (login {name})"


def check_audit(service, job):
    """The job was submitted over the socket by the coordinator's user. Then root stops it, as somebody who logged in as ADA does with sudo."""
    stop = f"echo {pwd.getpwnam(ADA).pw_uid} >/proc/self/loginuid; read -r login </proc/self/loginuid; echo $login; exec \"$0\" stop {job}"
    stopped = subprocess.run(["bash", "-c", stop, service.bin / "nsactl"], env=service.environment, capture_output=True, text=True, check=True)
    by_owner = origin(COORDINATOR, pathlib.Path("/proc/self/loginuid").read_text())
    by_root = origin("root", stopped.stdout.split()[0])  # a container may not be allowed to set it
    entries = [json.loads(line) for line in service.done("audit", "-o", "json").splitlines()]
    calls = [(entry["who"], entry["from"], entry["what"]) for entry in entries if entry["subject"] == job]
    assert calls == [("local", by_owner, "SubmitJob"), ("local", by_root, "StopJob")], calls
    table = service.done("audit")
    assert by_owner in table and by_root in table, table
    assert service.job(job)["owner"] == "local", service.job(job)


def check_links(service, name, user, run_folder):
    """What the user does to the agent that reads the run folder."""
    secret = service.folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    for file in ("log", "journal", "status"):
        assert as_user(user, "ln", "-sfn", secret, run_folder / file).returncode == 0
    assert as_user(user, "ln", "-sfn", service.folder / "state" / "coordinator.sock", run_folder / "control.sock").returncode == 0
    service.wait_until(lambda: "its log cannot be read" in (service.folder / "agent.log").read_text(), SECONDS, "the agent says so")
    assert SECRET not in service.done("logs", name)
    dump = service.ctl("dump-stack", name)
    assert SECRET not in dump.stdout + dump.stderr and "rank 0" in dump.stdout, dump
    service.done("stop", name, "--now")
    service.wait_for(name, "it has ended", lambda job: job["state"] in ("STATE_STOPPED", "STATE_FAILED"))
    assert secret.read_text() == SECRET and secret.owner() == "root"


def run(options, folder):
    if os.geteuid() != 0:
        print("needs root")
        return SKIPPED
    folder.chmod(0o711)
    try:
        runs = as_user(ADA, options.bin_dir / "nsa-worker", "--version").returncode == 0
    except PermissionError:  # a folder above it is closed to other users
        runs = False
    if not runs:
        print(f"{ADA} cannot run {options.bin_dir}/nsa-worker")
        return SKIPPED
    with UsersService(options.bin_dir, folder) as service:
        ada, bob = service.token("ada", ADA), service.token("bob", BOB)
        listed = service.done("token", "list")
        assert "UNIX USER" in listed and ADA in listed and BOB in listed, listed
        assert f"ada with Unix user {ADA}" in service.done("audit"), service.done("audit")

        pair = service.submit(ada, "pair", ADA, ranks=2)
        single = service.submit(bob, "single", BOB)
        service.wait_for_step("pair", 300)
        service.wait_for_step("single", 300)
        for name, user, out_dir in (("pair", ADA, pair), ("single", BOB, single)):
            for pid in service.pids(name):
                check_identity(pid, user)
            check_files(out_dir, user)
            assert len(json.loads(service.done("checkpoint", "list", name, "-o", "json"))["checkpoints"]) > 0
            assert f"Unix user:   {user}" in service.done("describe", name), service.done("describe", name)
        run_folder = check_run_folder(service, "pair", ADA, BOB)

        before = service.pids("pair")
        service.agent.kill()
        service.agent.wait(30)
        step = int(service.job("pair")["progress"]["step"])
        service.start_agent()
        service.wait_for_step("pair", step + 200)
        assert service.pids("pair") == before, "another process"
        stacks = service.done("dump-stack", "pair")
        assert "rank 1" in stacks and "nsa::train::" in stacks and "no stack" not in stacks, stacks

        trace = folder / "trace.json.gz"
        service.done("profile", "pair", "--steps", "1", "-o", trace)
        assert trace.stat().st_size > 1000

        service.submit(None, "nobodys", None, by=COORDINATOR)
        waits = service.wait_for("nobodys", "it says why it waits", lambda job: job["reason"] == "UNPLACEABLE" and job)
        assert "nsactl token create --unix-user" in waits["message"], waits
        check_audit(service, "nobodys")

        private = folder / "private.txt"
        private.write_text("To be read by its owner. " * 4000)
        shutil.chown(private, BOB, COORDINATOR)  # preflight reads it too
        private.chmod(0o640)
        refused = service.submit(ada, "curious", ADA, data=f"{{source: text, path: {private}, tokenizer: byte}}", refused=True)
        assert f"{private}: Permission denied for the Unix user {ADA}" in refused, refused
        service.submit(bob, "owner", BOB, data=f"{{source: text, path: {private}, tokenizer: byte}}", steps=20)
        service.wait_for("owner", "it has succeeded", lambda job: job["state"] == "STATE_SUCCEEDED")

        service.done("token", "create", "eve", "--role", "submitter", "--unix-user", "no-such-user")
        eve = folder / "eve.token"
        eve.write_text(service.done("token", "rotate", "eve"))
        eve.chmod(0o600)
        service.submit(eve, "strange", None)
        strange = service.wait_for("strange", "it has failed", lambda job: job["state"] == "STATE_FAILED" and job)
        assert strange["reason"] == "START_FAILED" and "no-such-user is not on this machine" in strange["message"], strange
        assert strange.get("restarts", 0) == 0 and int(strange["generation"]) == 1, strange

        check_links(service, "pair", ADA, run_folder)
        service.done("stop", "single")
        service.wait_for("single", "it has stopped", lambda job: job["state"] == "STATE_STOPPED")
        check_files(single, BOB)
        print("two users' jobs ran apart, through the death of the agent; links gave nothing away")
    return 0


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
