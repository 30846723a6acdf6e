#!/usr/bin/env python3
"""A job whose learning rate is absurd fails with DIVERGED, is not restarted, and its message has a command that begins again; a healthy one succeeds.

    tests/e2e/diverged_test.py BIN_DIR
"""
import json
import pathlib
import re
import shlex
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "model": {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16, "mlp_ratio": 2},
    "nsa": {"l": 8, "d": 4, "l_sel": 8, "n_sel": 3, "w": 6},
    "data": {"source": "synthetic"},
    "runtime": {"device": "cpu", "precision": "fp32"},
    "train": {"steps": 20, "seq_len": 24, "batch_size": 4, "lr_schedule": "constant", "warmup_steps": 0, "weight_decay": 0, "grad_clip": 0, "seed": 7,
              "save_every": 1, "eval_every": 10, "eval_batches": 2},
}


def submit(service, folder, name, rate):
    """Submits the job, waits for its end, and returns what `submit --watch` did and the job."""
    job = {"name": name, **JOB, "train": {**JOB["train"], "lr": rate, "out_dir": str(folder / name)}}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(job))
    watched = service.ctl("submit", "--watch", file)
    return watched, json.loads(service.ctl("describe", name, "-o", "json", check=True).stdout)


def check_diverged(service, watched, job):
    assert watched.returncode == 1, watched
    assert job["state"] == "STATE_FAILED" and job["reason"] == "DIVERGED", job
    assert int(job.get("restarts", 0)) == 0, "it would diverge again"
    assert "DIVERGED" in watched.stdout and "nsactl resume" not in watched.stdout, watched.stdout
    listed = service.ctl("list", check=True).stdout
    assert re.search(r"wild.*failed", listed), listed
    checkpoints = sorted(path.name for path in pathlib.Path(job["spec"]["train"]["out_dir"], "checkpoints").glob("step-*"))
    assert checkpoints == ["step-00000001", "step-00000002", "step-00000003"], checkpoints
    command = re.search(r"nsactl (fork .* --at-step 1 --set train.lr=0.5)", job["message"])
    assert command, job["message"]
    service.ctl(*shlex.split(command.group(1)), check=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with Service(sys.argv[1], folder) as service:
            watched, job = submit(service, folder, "calm", 1e-3)
            assert watched.returncode == 0 and job["state"] == "STATE_SUCCEEDED" and job["reason"] == "COMPLETED", job
            check_diverged(service, *submit(service, folder, "wild", 1))


if __name__ == "__main__":
    main()
