#!/usr/bin/env python3
"""What a dense model loses when it becomes sparse, and how fast it is made good (docs/convert.md).

    tests/e2e/gpu/convert_bench.py BIN_DIR --data FOLDER [--layers LIST]… [--seed 1337] [--work FOLDER]
    tests/e2e/gpu/convert_bench.py BIN_DIR --device cpu --shape tiny     tests this script, with generated data

FOLDER has openstax-train.jsonl.zst and openstax-val.jsonl.zst. The model is that of configs/jobs/openstax_best.yaml, a step 65,536 bytes. Two models
are trained for 500 steps with sequences of 2,048, a dense and a sparse one. Then these go on for 250 steps with sequences of 8,192, in which the rates
rise for 25 steps to 0.3 times their peaks before and fall to 0 again: the dense model as it is, the dense model converted to each LIST of layers (win,sel
and sel), and the sparse one, which has the first LIST and then has been sparse for all tokens. Prints validation losses before the first of these steps
and after every 50, speeds, and losses by position. At the speeds of docs/quality.md the training takes an H200 less than four minutes.
"""
import argparse
import csv
import json
import pathlib
import shutil
import subprocess
import tempfile

JOB = """name: {name}
model: {{{model}, qk_norm: true, activation: relu2}}
nsa: {{{nsa}, audit_every: 0}}
data: {{{data}}}
runtime: {{device: {device}}}
train: {{steps: {steps}, seq_len: {seq_len}, batch_size: {batch}, optimizer: muon, lr: {lr}, muon_lr: {muon_lr}, lr_schedule: linear, min_lr_ratio: 0,
  warmup_steps: {warmup}, log_every: 1, eval_every: {eval_every}, eval_batches: 20, save_every: 0, seed: {seed}, out_dir: {out}}}
{restart}
"""
SHAPES = {
    "best": {"model": "dim: 768, n_layers: 12, n_heads: 12, n_kv_groups: 2, d_k: 64, d_v: 64", "blocks": "l: 32, d: 16, l_sel: 64, n_sel: 16",
             "w": 256, "short": 2048, "long": 8192, "tokens": 65536, "steps": (500, 250), "warmup": 50},
    "tiny": {"model": "dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16", "blocks": "l: 8, d: 4, l_sel: 8, n_sel: 4",
             "w": 16, "short": 64, "long": 128, "tokens": 256, "steps": (6, 5), "warmup": 1},
}


class Bench:
    def __init__(self, flags, work):
        self.flags, self.work, self.shape = flags, work, SHAPES[flags.shape]
        self.nsactl = flags.bin_dir / "nsactl"
        self.worker = flags.bin_dir / ("nsa-worker-cuda" if flags.device == "cuda" else "nsa-worker")
        self.data = "source: synthetic, tokenizer: byte"
        if flags.data:
            self.data = f"source: jsonl, tokenizer: byte, path: {flags.data}/openstax-train.jsonl.zst, val_path: {flags.data}/openstax-val.jsonl.zst"

    def nsa(self, layers, seq_len):
        """Of these layers; dense without any."""
        window = self.shape["w"] if layers else seq_len
        return f"{self.shape['blocks']}, phi: avg, w: {window}, layers: [{layers or 'win'}]"

    def train(self, name, layers, seq_len, steps, *, warmup, eval_every, rate=1.0, init=None):
        """The out_dir of a finished run."""
        out = self.work / name
        job = self.work / f"{name}.yaml"
        job.write_text(JOB.format(name=name, model=self.shape["model"], nsa=self.nsa(layers, seq_len), data=self.data, device=self.flags.device, steps=steps,
                                  seq_len=seq_len, batch=self.shape["tokens"] // seq_len, lr=6e-4 * rate, muon_lr=3e-3 * rate, warmup=warmup,
                                  eval_every=eval_every, seed=self.flags.seed, out=out, restart=f"restart: {{init: {init}}}" if init else ""))
        self.run(self.worker, "--job", job)
        return out

    def run(self, *command):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def convert(self, dense, layers, checkpoint):
        sizes = f"{self.shape['blocks']}, w: {self.shape['w']}".split(", ")
        sets = [part for size in sizes for part in ("--set", "nsa." + size.replace(": ", "="))]
        self.run(self.nsactl, "import", dense, checkpoint, "--attention", "nsa", "--layers", layers, *sets)

    def go_on(self, name, layers, init):
        """Validation losses by step, 0 included, and the out_dir."""
        steps = self.shape["steps"][1]
        # A run validates after its steps: at this rate the weights stay what they are.
        start = self.train(f"{name}-start", layers, self.shape["long"], 1, warmup=0, eval_every=1, rate=1e-6, init=init)
        out = self.train(name, layers, self.shape["long"], steps, warmup=steps // 10, eval_every=max(1, steps // 5), rate=0.3, init=init)
        losses = {0: losses_of(start)[1], **losses_of(out)}
        return losses, out

    def loss_by_position(self, out, text):
        return json.loads(self.run(self.nsactl, "eval", out, "--data", text, "--device", self.flags.device, "-o", "json"))["by_context"]


def rows(file):
    with open(file, encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def losses_of(out):
    return {int(row["step"]): float(row["val_loss"]) for row in rows(out / "val.csv")}


def speed_of(out):
    speeds = sorted(float(row["toks_per_s"]) for row in rows(out / "training.csv"))
    return speeds[len(speeds) // 2]


def measure(bench):
    """Losses and out_dir of each model, by name."""
    shape, lists = bench.shape, bench.flags.layers
    first, _ = shape["steps"]
    short = {"warmup": shape["warmup"], "eval_every": first}
    dense = bench.train("dense-short", None, shape["short"], first, **short)
    sparse = bench.train("sparse-short", lists[0], shape["short"], first, **short)
    print(f"after {first} steps of sequences of {shape['short']}: dense {losses_of(dense)[first]:.4f}, sparse {losses_of(sparse)[first]:.4f}")
    runs = {"dense": bench.go_on("dense", None, dense)}
    for number, layers in enumerate(lists):
        checkpoint = bench.work / f"checkpoint-{number}"
        bench.convert(dense, layers, checkpoint)
        runs[f"converted, [{layers}]"] = bench.go_on(f"converted-{number}", layers, checkpoint)
    runs["sparse from the beginning"] = bench.go_on("sparse", lists[0], sparse)
    return runs


def show(runs):
    steps = sorted(next(iter(runs.values()))[0])
    print("| model | " + " | ".join(f"{step} steps" for step in steps) + " | tok/s |")
    print("| --- " * (len(steps) + 2) + "|")
    for name, (losses, out) in runs.items():
        print(f"| {name} | " + " | ".join(f"{losses[step]:.4f}" for step in steps) + f" | {speed_of(out):,.0f} |")


def show_positions(bench, runs):
    """Loss by position, on the validation text."""
    text = bench.flags.data / "openstax-val.jsonl.zst"
    columns = {name: bench.loss_by_position(out, text) for name, (_, out) in runs.items()}
    print("| tokens seen | " + " | ".join(columns) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for buckets in zip(*columns.values()):
        print(f"| {bucket_name(buckets[0])} | " + " | ".join(f"{bucket['loss_nats_per_token']:.4f}" for bucket in buckets) + " |")


def bucket_name(bucket):
    return f"{bucket['least_tokens_seen']}-{bucket['most_tokens_seen']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="best")
    parser.add_argument("--layers", action="append", help="branches of the layers in turn, e.g. win,sel; may be repeated")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--work", type=pathlib.Path, help="folder for jobs, curves and checkpoints, which stay; by default one that is removed")
    flags = parser.parse_args()
    flags.layers = flags.layers or ["win,sel", "sel"]
    flags.bin_dir = flags.bin_dir.resolve()
    flags.data = flags.data and flags.data.resolve()
    work = flags.work.resolve() if flags.work else pathlib.Path(tempfile.mkdtemp(prefix="nsa-convert-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        bench = Bench(flags, work)
        runs = measure(bench)
        show(runs)
        if flags.data:
            show_positions(bench, runs)
    finally:
        if not flags.work:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
