#!/usr/bin/env python3
"""Jobs train for a given time while faults happen to the service: a soak.

    tests/faults/soak.py BIN_DIR [--minutes N] [--seed N]     default: 1 minute, seed 1
    tests/faults/soak.py BIN_DIR --leak BYTES                 the coordinator loses as much at every commit: the soak must notice

Seeded random faults: workers, coordinator and agent are killed or stopped, the link between them is cut, the disk of the jobs fills up, the clock of
both daemons is stepped, checkpoints are damaged, and strangers speak to the open ports (soak/faults.py). Then all of this must hold:

  - no job ended otherwise than SUCCEEDED, and each has the losses and the final checkpoint, bit for bit, of an unbroken run of the same job;
  - no rank was ever run by two workers, and no worker is left;
  - in the second half, in which no daemon is killed, the daemons keep their size (soak/footprint.py): it is measured three times, each time after
    all jobs have ended and were deleted. The first third warms up.
"""
import collections
import dataclasses
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "soak"), str(HERE.parent / "testing")]
import faults  # noqa: E402
import footprint  # noqa: E402
import seeded  # noqa: E402
from service import Service  # noqa: E402

# Two kinds of job, which take some seconds each.
KINDS = {"one": {"ranks": 1, "steps": 400}, "two": {"ranks": 2, "steps": 300}}
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 16, n_sel: 4, w: 16}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 8, lr: 1.0e-3, warmup_steps: 10, log_every: 1, eval_every: 0, save_every: 40, keep_checkpoints: 3,
        seed: 3, out_dir: {out_dir}}}
resources: {{gpus: {ranks}}}
restart: {{max_restarts: 1000, backoff_seconds: 0.2, hang_timeout_seconds: 6, max_no_progress: 1000}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a soak, DATA_SYNTHETIC: a soak}}}}
"""
ENDS = ("SUCCEEDED", "FAILED", "STOPPED")
ROUNDS = 3  # of the second half
WAIT_SECONDS = 300  # for jobs to end; a machine with much else to do takes long


@dataclasses.dataclass
class Job:
    name: str
    kind: str
    steps: int
    out_dir: pathlib.Path
    id: str = ""
    state: str = ""
    checked: bool = False
    deleted: bool = False


class Soak:
    def __init__(self, service, folder, seed):
        self.service, self.folder = service, folder
        self.random = random.Random(seed)
        self.jobs, self.damaged, self.done = [], {}, collections.Counter()
        self.references = {}  # by kind: the outcome of the unbroken run
        self.twice, self.watching = [], True
        self.wrong_token = folder / "wrong.token"
        self.wrong_token.touch(mode=0o600)
        self.wrong_token.write_text("a-guess\n")
        threading.Thread(target=self.watch_workers, daemon=True).start()

    @staticmethod
    def run(command, **more):
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=WAIT_SECONDS, **more)

    def watch_workers(self):
        """Notes ranks that two workers run at the same time."""
        before = set()
        while self.watching:
            now = collections.defaultdict(set)
            for pid, folder in self.service.workers():
                now[folder.parents[1].name, folder.name].add(pid)
            double = {(rank, tuple(sorted(pids))) for rank, pids in now.items() if len(pids) > 1}
            self.twice += sorted(double & before)  # seen twice: not one that was just ending
            before = double
            time.sleep(0.25)

    # Jobs.

    def submit(self, kind):
        number = len(self.jobs)
        name = f"{kind}-{number}"
        job = Job(name, kind, KINDS[kind]["steps"], self.service.disk.path / name)
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, out_dir=job.out_dir, **KINDS[kind]))
        self.jobs.append(job)
        last = None

        def submitted():
            nonlocal last
            last = self.service.ctl("submit", "-q", file, "-o", "name", "--request-id", f"soak-{number}")
            return last.returncode == 0
        try:
            self.service.wait_until(submitted, WAIT_SECONDS, "a submit")
        except AssertionError as late:
            raise AssertionError(f"{late}: {last.stdout}{last.stderr}") from None
        job.id = last.stdout.strip()

    def refresh(self):
        for job in self.jobs:
            if job.state not in ENDS:
                shown = self.service.job(job.id)
                job.state = shown["state"].removeprefix("STATE_") if shown else job.state

    def active(self):
        self.refresh()
        return [job for job in self.jobs if job.state not in ENDS]

    def wait_for_jobs(self, seconds):
        try:
            self.service.wait_until(lambda: not self.active(), seconds, "every job ends")
        except AssertionError:
            for job in self.active():
                print(self.service.ctl("describe", job.id).stdout)
            raise
        self.service.wait_until(self.all_checked, WAIT_SECONDS, "the comparison of every job")

    def checkpoints(self, job):
        return sorted(path for path in job.out_dir.glob("checkpoints/step-*") if path.name[5:].isdigit())

    @staticmethod
    def step_of(checkpoint):
        return int(checkpoint.name[5:])

    def outcome(self, job):
        """Losses by step, as the coordinator has them, and digests of the final checkpoint; nothing while the coordinator does not answer."""
        done = self.service.ctl("metrics", job.id, "-o", "json", "--tail", "0")
        if done.returncode != 0:
            return None
        shown = json.loads(done.stdout)
        steps = [entry["record"]["step"] for entry in shown["records"] if "step" in entry["record"]]
        losses = {int(step["step"]): step["loss"] for step in steps}
        final = self.checkpoints(job)[-1]
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(final.glob("*.safetensors"))}
        return losses, final.name, digests

    # Faults.

    def soak(self, seconds, kinds):
        """Keeps jobs running and makes faults for this long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.service.revive()
            running = self.active()
            self.check_jobs()
            if len(running) < 2:
                self.submit(self.random.choice(list(KINDS)))
            fault = self.random.choices(list(kinds), weights=list(kinds.values()))[0]
            what = fault(self)
            if what is not None or fault in (faults.kill_coordinator, faults.kill_agent):
                self.done[fault.__name__] += 1
                print(f"{time.strftime('%H:%M:%S')} {fault.__name__} {what or ''}", flush=True)
            time.sleep(self.random.uniform(0.3, 2.5))

    # Checks.

    def delete_jobs(self):
        """Deletes the jobs, which have all ended and were compared: what is then left of them should be nothing."""
        def deleted(job):
            done = self.service.ctl("delete", "--yes", job.id)
            return done.returncode == 0 or "no job has the id" in done.stderr  # the answer to an earlier call was late
        for job in self.jobs:
            if not job.deleted:
                self.service.wait_until(lambda: deleted(job), WAIT_SECONDS, f"{job.name} is deleted")
                job.deleted = True

    def footprint(self):
        """The size of both daemons when no job is left."""
        self.wait_for_jobs(WAIT_SECONDS)
        ended = sum(not job.deleted for job in self.jobs)
        before = footprint.settled_heap(self.service)
        self.delete_jobs()
        sizes = footprint.measure(self.service, len(self.jobs))
        freed = (before - sizes["coordinator"].heap) / max(ended, 1) / 1024
        print(f"{time.strftime('%H:%M:%S')} at rest: coordinator {sizes['coordinator']}; agent {sizes['agent']}; before they were deleted the last {ended} jobs "
              f"took {freed:.1f} KiB each", flush=True)
        return sizes

    def check_jobs(self):
        """Compares the jobs that have ended with the unbroken runs, and removes what they wrote: the disk is small."""
        for job in self.jobs:
            if job.checked or job.state not in ENDS:
                continue
            if job.state != "SUCCEEDED":
                print(self.service.ctl("describe", job.id).stdout, self.service.ctl("events", job.id).stdout[-3000:])
            assert job.state == "SUCCEEDED", f"{job.name} ended {job.state}"
            got = self.outcome(job)
            if got is None:
                return  # the coordinator does not answer now
            losses, final, digests = got
            want_losses, want_final, want_digests = self.references.setdefault(job.kind, got)
            wrong = {step: (loss, losses.get(step)) for step, loss in want_losses.items() if losses.get(step) != loss}
            assert not wrong, f"{job.name}: losses that differ from the unbroken run: {list(wrong.items())[:3]}"
            assert (final, digests) == (want_final, want_digests), f"{job.name}: {final} {digests}, unbroken {want_final} {want_digests}"
            job.checked = True
            shutil.rmtree(job.out_dir)

    def all_checked(self):
        self.check_jobs()
        return all(job.checked for job in self.jobs)

    def check_processes(self):
        assert not self.twice, f"ranks with two workers: {self.twice[:3]}"
        self.service.wait_until(lambda: not self.service.workers(), WAIT_SECONDS, "no worker is left")


def print_logs(folder):
    for name in ("coordinator", "agent"):
        log = folder / f"{name}.log"
        print(f"--- {log.name}\n{log.read_text()[-3000:] if log.exists() else 'none'}")


def run(options, folder):
    service = Service(options.bin_dir, folder, options.leak)
    soak = Soak(service, folder, options.seed)
    began = time.monotonic()
    try:
        service.start()
        for kind in KINDS:
            soak.submit(kind)
            soak.wait_for_jobs(WAIT_SECONDS)
            losses = soak.references[kind][0]
            assert len(losses) == KINDS[kind]["steps"], f"the unbroken run of {kind} has {len(losses)} losses"
        soak.soak(30 * options.minutes, faults.ROUGH)
        sizes = []
        while len(sizes) < ROUNDS:
            soak.soak(30 * options.minutes / ROUNDS, faults.GENTLE)
            service.step_clock(0)
            sizes.append(soak.footprint())
            # Only sizes of one process can be compared.
            sizes = [size for size in sizes if size["coordinator"].pid == service.coordinator.pid]
        soak.check_processes()
        for name, after in sizes[-1].items():
            footprint.check_growth(name, sizes[0][name], after)
            footprint.check_descriptors(name, [size[name] for size in sizes])
        service.close()
        assert not service.workers(), "a worker outlived its job"
    except BaseException:
        print_logs(folder)
        raise
    finally:
        soak.watching = False
        service.end()
    restarts = sum(soak.done.values())
    print(f"soak: seed {options.seed}, {(time.monotonic() - began) / 60:.1f} minutes, {len(soak.jobs)} jobs with the bits of unbroken runs, {restarts} faults: "
          + ", ".join(f"{name} {count}" for name, count in sorted(soak.done.items())))


if __name__ == "__main__":
    seeded.main(__doc__, run, seed=1, minutes=1.0, leak=0)
