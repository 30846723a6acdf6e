#!/usr/bin/env python3
"""A sweep of eight small jobs is halved three times by validation loss, although the coordinator is killed in every phase.

    tests/e2e/sweep_test.py BIN_DIR

The learning rates reach from far too small to good, so the order of the losses is known after few steps.
"""
import json
import pathlib
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

RATES = ["1e-7", "1e-6", "1e-5", "1e-4", "2e-4", "4e-4", "1e-3", "2e-3"]
JOB = {
    "name": "rates",
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "train": {"steps": 64, "seq_len": 128, "batch_size": 2, "lr": 1e-3, "eval_every": 8, "eval_batches": 4, "save_every": 8, "log_every": 8},
}


def jobs_of(service):
    """The jobs of the sweep, best first."""
    return json.loads(service.ctl("sweep", "rates", "-o", "json", check=True).stdout)["jobs"]


def step_of(job):
    return int(job["progress"]["step"])


def dropped(jobs):
    return [job for job in jobs if job["reason"] == "SWEEP_DROPPED"]


def submit(service, file):
    sweep = ["--sweep", f"train.lr={','.join(RATES)}", "--stop-worst"]
    refused = service.ctl("submit", file, "--sweep", "train.lr=1e-3,50", "--sweep-name", "bad")
    assert refused.returncode == 2 and "job 2 of 2 (train.lr=50)" in refused.stderr, refused
    assert not json.loads(service.ctl("list", "-o", "json").stdout)["jobs"], "a refused sweep left jobs behind"
    first = service.ctl("submit", file, *sweep, "-o", "name", check=True).stdout.split()
    again = service.ctl("submit", file, *sweep, "-o", "name", check=True).stdout.split()
    assert len(first) == 8 and again == first, (first, again)
    other = service.ctl("submit", file, "--sweep", "train.lr=1e-3,2e-3", "--set", f"train.out_dir={file.parent}/other")
    assert other.returncode != 0 and "choose another name" in other.stderr, other


def run(service):
    """Kills the coordinator whenever another two jobs were dropped, until every job has ended for good."""
    kills = 0
    while True:
        jobs = jobs_of(service)
        if len(dropped(jobs)) == 7 and any(job["state"] == "STATE_SUCCEEDED" for job in jobs):
            return jobs, kills
        failed = [job for job in jobs if job["state"] == "STATE_FAILED"]
        assert not failed, failed[0]["message"]
        if len(dropped(jobs)) // 2 > kills or (kills == 0 and any(step_of(job) >= 8 for job in jobs)):
            service.kill_coordinator()
            kills += 1
        service.wait_until(lambda: any(job["state"] != before["state"] or job["reason"] != before["reason"]
                                       for job, before in zip(jobs_of(service), jobs)) or None, 120, "a change in the sweep")


def check(jobs, events):
    steps = sorted(step_of(job) for job in jobs)
    assert steps == [8, 8, 8, 8, 16, 16, 32, 64], steps
    best = jobs[0]
    assert best["state"] == "STATE_SUCCEEDED" and best["spec"]["labels"]["train.lr"] == RATES[-1], best["spec"]["labels"]
    for step in (8, 16, 32):
        stopped = [job for job in jobs if step_of(job) == step]
        beyond = [job for job in jobs if step_of(job) > step]
        at = {job["id"]: loss_at(job, step) for job in jobs if step_of(job) >= step}
        assert max(at[job["id"]] for job in beyond) <= min(at[job["id"]] for job in stopped), (step, at)
    promotions = [event for event in events if event["reason"] == "SWEEP_PROMOTED"]
    assert len(promotions) == 4 + 2 + 1, promotions


def loss_at(job, step):
    """The validation loss that the worker wrote for this step."""
    rows = (pathlib.Path(job["spec"]["train"]["out_dir"]) / "val.csv").read_text().splitlines()
    head = rows[0].split(",")
    values = [dict(zip(head, row.split(","))) for row in rows[1:]]
    return next(float(row["val_loss"]) for row in values if int(row["step"]) == step)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        file = folder / "rates.yaml"
        JOB["train"]["out_dir"] = str(folder / "out")
        file.write_text(yaml.safe_dump(JOB))
        with Service(sys.argv[1], folder) as service:
            submit(service, file)
            jobs, kills = run(service)
            check(jobs, json.loads(service.ctl("events", "-o", "json", check=True).stdout)["events"])
            print(service.ctl("sweep", "rates").stdout)
            print(f"8 jobs, halved after steps 8, 16 and 32; the coordinator was killed {kills} times")


if __name__ == "__main__":
    main()
