#!/usr/bin/env python3
"""Forty random job files get the same verdict offline, at submit and from the worker; every accepted one trains two steps.

    tests/e2e/random_jobs_test.py BIN_DIR [--seed N] [--files N] [--keep FOLDER]

Each file is drawn from values that are valid, then up to two mistakes are made in it. What is expected of a file is not written
down: the three verdicts must agree, a file without a mistake must be accepted, and a mistake must be refused.
"""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded
from service import Service
from verdicts import check_runs, check_verdicts


def model(source):
    groups = source.choice([1, 2, 3])
    return {"dim": source.choice([16, 24, 32, 40, 64]), "n_layers": source.choice([1, 2, 3]), "n_heads": groups * source.choice([1, 2, 4]),
            "n_kv_groups": groups, "d_k": source.choice([16, 32, 64]), "d_v": source.choice([16, 32]), "mlp_ratio": source.choice([1, 2, 3]),
            "rope_base": source.choice([100, 10000, 5e5]), "rope_scale": source.choice([0.5, 1, 4]),
            "activation": source.choice(["silu", "relu2"]), "qk_norm": source.choice([True, False])}


def nsa(source, layers):
    stride = source.choice([2, 4, 8])
    section = {"d": stride, "l": stride * source.choice([1, 2, 4]), "l_sel": stride * source.choice([1, 2, 4]), "n_sel": source.choice([3, 4, 7]),
               "w": source.choice([1, 5, 16, 64]), "phi": source.choice(["avg", "mlp"]), "gate": source.choice(["softmax", "sigmoid"]),
               "audit_every": source.choice([0, 1, 100])}
    branches = source.choice([None, ["win"], ["cmp", "sel"], ["cmp", "sel", "win"], *(["layers"] if layers > 1 else [])])
    if branches == "layers":
        section["layers"] = source.choice([["win", "cmp+sel"], ["cmp+sel+win", "win"], ["full", "win"], ["sel"]])
    elif branches:
        section["branches"] = branches
    return section


def data(source, folder):
    kind = source.choice(["synthetic", "uniform", "text", "jsonl"])
    section = {"source": kind, "document_mask": source.choice([True, False]), "on_exhausted": source.choice(["repeat", "stop"])}
    if kind in ("text", "jsonl"):
        section["path"] = str(folder / ("train.txt" if kind == "text" else "train.jsonl"))
        section["val_fraction"] = source.choice([0, 0.3])
    return section


def train(source, out_dir, ranks):
    section = {"steps": 2, "seq_len": source.choice([32, 48, 64, 128]), "batch_size": ranks * source.choice([1, 2]),
            "accumulate_grad_batches": source.choice([1, 2]), "lr": source.choice([1e-4, 3e-3, 0.1]), "warmup_steps": source.choice([0, 1, 5]),
            "min_lr_ratio": source.choice([0, 0.1, 1]), "lr_schedule": source.choice(["cosine", "linear", "constant", "wsd"]),
            "weight_decay": source.choice([0, 0.1]), "grad_clip": source.choice([0, 1]), "log_every": source.choice([1, 20]),
            "eval_every": source.choice([0, 1]), "eval_batches": 1, "save_every": source.choice([0, 1, 2, 3]), "seed": source.randrange(1 << 31),
            "optimizer": source.choice(["adamw", "muon"]), "out_dir": str(out_dir)}
    if section["optimizer"] == "muon" and source.random() < 0.5:
        section |= {"muon_lr": source.choice([1e-3, 0.05]), "muon_betas": [0.9, 0.99]}
    if section["lr_schedule"] == "wsd" and source.random() < 0.5:
        section["decay_steps"] = source.choice([1, 2])
    return section


def valid_job(source, number, folder):
    ranks = source.choice([1, 1, 2])
    sizes = model(source)
    job = {"name": f"random-{number}", "model": sizes, "nsa": nsa(source, sizes["n_layers"]), "data": data(source, folder), "runtime": {"device": "cpu"},
           "train": train(source, folder / f"out-{number}", ranks), "resources": {"gpus": ranks}}
    if job["data"].get("val_fraction") == 0:
        job["train"]["eval_every"] = 0  # there is nothing to validate on
    if source.random() < 0.3:
        job["runtime"]["gradient_checkpointing"] = True
    return job


# section, key, value: each makes a valid job invalid, whatever else is in it.
MISTAKES = [
    ("model", "dim", 0), ("model", "n_heads", 35), ("model", "d_k", 48), ("model", "n_layers", 513), ("model", "rope_base", 1),
    ("model", "vocab", 100), ("model", "n_kv_groups", 5), ("nsa", "l", 129), ("nsa", "d", 5), ("nsa", "n_sel", 2), ("nsa", "w", 0),
    ("nsa", "gate", "tanh"), ("nsa", "branches", ["cmp", "cmp"]), ("nsa", "layers", ["dense"]), ("nsa", "layers", ["full+win"]), ("nsa", "audit_every", -1),
    ("data", "source", "parquet"), ("data", "val_fraction", 0.6), ("data", "path", "/nowhere/at/all.txt"), ("runtime", "precision", "bf16"),
    ("runtime", "device", "tpu"), ("train", "steps", 0), ("train", "lr", 1.1), ("train", "betas", [0.9, 1]), ("train", "batch_size", 0),
    ("train", "keep_checkpoints", 1), ("train", "warmup", 3), ("train", "decay_steps", 0), ("train", "muon_betas", [0.9]), ("train", "optimizer", "sgd"), ("train", "seq_len", "long"), ("train", "out_dir", "~/nsa"),
    ("resources", "nodes", 9), ("resources", "gpus", 0), ("restart", "max_restarts", 1001), ("restart", "resume", "/nowhere/step-1"),
    ("guard", "after_steps", -1), ("guard", "hash_every", -1), ("preflight", "waive", {"NO_SUCH_RULE": "because"}), ("preflight", "max_lost_seconds", 59),
]


def with_mistakes(source, job):
    made = source.sample(MISTAKES, source.choice([0, 0, 1, 2]))
    for section, key, value in made:
        job.setdefault(section, {})[key] = value
        if (section, key) == ("data", "path"):
            job["data"]["source"] = "text"
    return [f"{section}.{key}: {value}" for section, key, value in made]


def write_data(folder):
    text = " ".join(f"{n} squared is {n * n}." for n in range(4000))
    (folder / "train.txt").write_text(text)
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text[k:k + 500]}) + "\n" for k in range(0, len(text), 500)))


def check_all(options, folder):
    write_data(folder)
    source = random.Random(options.seed)
    failures, accepted = {}, []
    with Service(options.bin_dir, folder) as service:
        for number in range(options.files):
            job = valid_job(source, number, folder)
            mistakes = with_mistakes(source, job)
            file = folder / f"random-{number}.yaml"
            file.write_text(json.dumps(job, indent=1))  # JSON is YAML
            wrong, taken = check_verdicts(service, file, "refused" if mistakes else "accepted", job["resources"]["gpus"])
            accepted += [job["name"]] if taken else []
            if wrong:
                failures[job["name"]] = [*wrong, f"mistakes: {mistakes}"]
        for name, wrong in check_runs(service, accepted).items():
            failures.setdefault(name, []).extend(wrong)
    for name, wrong in failures.items():
        print(f"{name}: FAILED\n  " + "\n  ".join(wrong) + f"\n  {(folder / name).with_suffix('.yaml').read_text()}")
    print(f"{options.files} files of seed {options.seed}: {len(accepted)} accepted and trained, {options.files - len(accepted)} refused, "
          f"{len(failures)} wrong")
    if len(accepted) < options.files // 4 or len(accepted) > options.files * 3 // 4:
        sys.exit("too few files of one kind: the test shows little")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    seeded.main(__doc__, check_all, seed=20261122, files=40)
