#!/usr/bin/env python3
"""The 16 job files of the Python system get the same verdict offline, at submit and from the worker; every accepted one trains two steps.

    tests/e2e/python_files_test.py BIN_DIR

A test machine has no GPU and little time: of each file that describes a run, the device, the sizes of the model and the number of steps are
replaced, and everything else is left as it is (tests/common/job/python/). tests/common/job/legacy_files_test.cc checks the files' own values.
"""
import pathlib
import re
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service
from verdicts import check_runs, check_verdicts

FILES = pathlib.Path(__file__).resolve().parents[1] / "common/job/python"
# fp16, which is not supported; two files that describe no run.
REFUSED = {"m7c_3090_smoke", "profiles_a100", "profiles_sm89"}
SMALL = {"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16}
SPARSE = {"l": 16, "d": 8, "l_sel": 16, "n_sel": 4, "w": 32}


def on_this_machine(job, out_dir):
    """The same job with two steps of a small model on the CPU. train.steps counts micro-steps in these files."""
    job["runtime"]["device"] = "cpu"
    if job["runtime"].get("precision") == "bf16":
        job["runtime"]["precision"] = "fp32"
    job["model"] |= SMALL
    job["nsa"] |= SPARSE
    train = job["train"]
    train |= {"steps": 2 * train.get("accumulate_grad_batches", 1), "warmup_steps": 1, "seq_len": 256, "out_dir": str(out_dir)}
    return job


def ranks_of(name):
    """Of the names that count GPUs, as m7c_125m_2xa100_production."""
    counted = re.search(r"(\d)xa100", name)
    return int(counted[1]) if counted else 1


def check_all(programs, folder):
    failures, accepted = {}, []
    files = sorted(FILES.glob("*.yaml"))
    with Service(programs, folder) as service:
        for source in files:
            job = yaml.safe_load(source.read_text())
            file = folder / source.name
            file.write_text(yaml.safe_dump(on_this_machine(job, folder / f"out-{source.stem}") if "model" in job else job))
            expected = "refused" if source.stem in REFUSED else "accepted"
            wrong, taken = check_verdicts(service, file, expected, ranks_of(source.stem))
            accepted += [source.stem.replace("_", "-")] if taken else []  # the name of the job
            if wrong:
                failures[source.stem] = wrong
        failures |= check_runs(service, accepted)
    for name, wrong in failures.items():
        print(f"{name}: FAILED\n  " + "\n  ".join(wrong))
    print(f"{len(files)} files: {len(accepted)} accepted and trained, {len(files) - len(accepted)} refused, {len(failures)} wrong")
    sys.exit(1 if failures or len(files) != 16 else 0)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        check_all(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(folder))


if __name__ == "__main__":
    main()
