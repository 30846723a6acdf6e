#!/usr/bin/env python3
"""nsactl bisect: two runs of one job, and one whose update differs from the first step on.

    tests/e2e/bisect_test.py BIN_DIR
"""
import json
import pathlib
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "name": "first",
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "train": {"steps": 20, "seq_len": 64, "batch_size": 2, "lr": 1e-3, "eval_every": 0, "save_every": 10, "log_every": 1},
}


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-bisect-") as name:
        folder = pathlib.Path(name)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(JOB))
        with Service(pathlib.Path(sys.argv[1]).resolve(), folder) as service:
            for job, changes in (("first", ()), ("again", ()), ("clipped", ("--set", "train.grad_clip=0.001"))):
                service.ctl("submit", file, "--set", f"name={job}", "--set", f"train.out_dir={folder}/{job}", *changes, "--watch", check=True)
            same = service.ctl("bisect", "first", "again")
            assert same.returncode == 0 and "20 steps compared, up to 20" in same.stdout and "after step 10, 20" in same.stdout, same
            # The first step computes the same gradient and applies less of it.
            other = service.ctl("bisect", "first", "clipped")
            assert other.returncode == 1 and "steps: equal up to 1\nstep 2: loss is " in other.stdout, other
            assert "the parameters after step 1 or the batch of step 2 differ" in other.stdout, other
            first = json.loads(service.ctl("bisect", "first", "clipped", "-o", "json").stdout)
            assert first["steps"]["first"]["step"] == 2, first
            assert first["checkpoints"]["first"]["step"] == 10 and first["checkpoints"]["first"]["tensor"].startswith("embed"), first
            assert service.ctl("bisect", "first").returncode == 2
    print(f"bisect:\n{same.stdout}{other.stdout}")


if __name__ == "__main__":
    main()
