"""Jobs under a real coordinator, for tests on GPUs: write, submit and watch them, read their output, compare bits."""
import argparse
import csv
import hashlib
import json
import pathlib
import statistics
import subprocess
import tempfile

from service import Service

JOB = """\
name: {name}
model: {model}
nsa: {nsa}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: {device}, precision: {precision}, gradient_checkpointing: {checkpointing}, cuda_graphs: {graphs}{merge}{runtime}}}
train: {{steps: {steps}, seq_len: {seq_len}, batch_size: {batch}, accumulate_grad_batches: {accumulate}, lr: 3.0e-4, warmup_steps: 10,
        eval_every: 0, save_every: {save_every}, keep_checkpoints: 2, log_every: 1, seed: 3, out_dir: {out_dir}{train}}}
resources: {{gpus: {ranks}, context_parallel: {context}}}
restart: {{max_restarts: 2, backoff_seconds: 4, hang_timeout_seconds: {hang_timeout}, resume: {resume}}}
preflight: {{policy: experiment}}
"""
SHAPES = {
    "tiny": {"model": "{dim: 128, n_layers: 3, n_heads: 8, n_kv_groups: 2, d_k: 16, d_v: 16}",
             "nsa": "{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 64}", "seq_len": 256},
    "m7c": {"model": "{dim: 768, n_layers: 12, n_heads: 12, n_kv_groups: 2, d_k: 64, d_v: 64}",
            "nsa": "{l: 32, d: 16, l_sel: 64, n_sel: 16, w: 512}", "seq_len": 2048},
}


def gpus(what="memory.used"):
    """A figure of each GPU from nvidia-smi, by default the memory in use in MiB."""
    try:
        text = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                              check=True).stdout
        return [int(line) for line in text.split()]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []


class Runner:
    def __init__(self, service, folder, options):
        self.service, self.folder, self.options = service, folder, options
        self.program = "nsa-worker-cuda" if options.device == "cuda" else "nsa-worker"

    def write(self, name, ranks, batch, steps, save_every=0, accumulate=2, graphs=True, hang_timeout=60,
              resume="auto", apart=False, runtime="", train="", context=1, seq_len=None, checkpointing=False):
        """Writes the job file. The job's output goes to the folder with its name. `apart`: each micro-batch is a pass of its own. `runtime`,
        `train`: further settings of these sections, "key: value"."""
        job = self.folder / f"{name}.yaml"
        shape = SHAPES[self.options.shape] | ({"seq_len": seq_len} if seq_len else {})
        job.write_text(JOB.format(name=name, ranks=ranks, batch=batch, steps=steps, save_every=save_every or steps, accumulate=accumulate,
                                  hang_timeout=hang_timeout, resume=resume, merge=", merge_micro_batches: 1" if apart else "", graphs=str(graphs).lower(), out_dir=self.folder / name,
                                  device=self.options.device, context=context, checkpointing=str(checkpointing).lower(), runtime=", " * bool(runtime) + runtime, train=", " * bool(train) + train,
                                  precision="bf16" if self.options.device == "cuda" else "fp32", **shape))
        return job

    def submit(self, name, *arguments, **more):
        done = self.service.ctl("submit", "-q", self.write(name, *arguments, **more))
        assert done.returncode == 0, done.stdout + done.stderr
        return self.folder / name

    def wait_for_step(self, out_dir, step):
        """Waits until rank 0 has reported more than `step` steps."""
        self.service.wait_until(lambda: steps_done(out_dir) > step, 120, f"step {step} of {out_dir.name}")

    def watch(self, name):
        done = self.service.ctl("watch", name, timeout=300)
        if done.returncode != 0:
            print(done.stdout, done.stderr, self.service.ctl("events", name).stdout, self.service.ctl("logs", name).stdout[-6000:])
            raise AssertionError(f"{name}: nsactl watch ended with {done.returncode}")

    def run(self, name, *arguments, **more):
        out_dir = self.submit(name, *arguments, **more)
        self.watch(name)
        return Outcome(out_dir)


class Outcome:
    def __init__(self, out_dir):
        self.out_dir = out_dir
        self.lines = {}  # by rank: step → the last line of that step
        for path in sorted(out_dir.glob("heartbeat_rank*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.lines[path.name] = {line["step"]: line for line in lines if line["msg"] == "progress"}

    def losses(self, rank=0):
        lines = self.lines[f"heartbeat_rank{rank}.jsonl"]
        return [lines[step]["loss"] for step in sorted(lines)]

    def model(self):
        """A digest of the tensors of the final checkpoint."""
        path = self.out_dir / "checkpoints" / "latest.ckpt" / "model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def median(self, column):
        """Median of a column of training.csv over the second half of the steps."""
        with (self.out_dir / "training.csv").open(newline="") as file:
            values = [float(row[column]) for row in csv.DictReader(file)]
        return statistics.median(values[len(values) // 2:])

    def step_seconds(self):
        return self.median("step_seconds")


def check_equal(what, one, other):
    assert one.losses() == other.losses(), f"{what}: losses differ: {[p for p in zip(one.losses(), other.losses()) if p[0] != p[1]][:3]}"
    assert one.model() == other.model(), f"{what}: the final checkpoints differ"
    print(f"ok: {what}: {len(one.losses())} losses and the final checkpoint have the same bits")


def differences(one, other):
    return [abs(a - b) for a, b in zip(one.losses(), other.losses(), strict=True)]


def order_bound(measured=()):
    """How far losses may differ where only the order of sums does. Arithmetic per token is the same for every number of GPUs, but sums over
    tokens are added in another order. That changes a loss by about 1e-6, and the difference grows over the steps as roundings differ.
    `measured`: such differences of two runs of this job, for example with and without micro-batches of their own (`apart`)."""
    return 4 * max([2e-4, *measured])


def steps_done(out_dir):
    try:
        return sum('"progress"' in line for line in (out_dir / "heartbeat_rank0.jsonl").read_text().splitlines())
    except OSError:
        return 0


def main(doc, test, bench, gpus_needed, cpu_ranks=1):
    """Runs such a test with its command line. Without --ranks, options.ranks is the number of GPUs here, or `cpu_ranks` on the CPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--bench", nargs="?", const="", metavar="JOB", help="measure speed instead of testing")
    parser.add_argument("--data", type=pathlib.Path, help="with --bench: what the job reads instead of its own data")
    parser.add_argument("--killed", action="store_true", help="run only the check that kills a rank, and what it needs")
    parser.add_argument("--gradients", action="store_true", help="run only the checks of runtime.shard: gradients, and what they need")
    parser.add_argument("--parameters", action="store_true", help="run only the checks of runtime.shard: parameters, and what they need")
    parser.add_argument("--ranks", type=int, help="how many GPUs to use; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="m7c")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for all output")
    options = parser.parse_args()
    options.ranks = options.ranks or (len(gpus()) if options.device == "cuda" else cpu_ranks)
    if options.device == "cuda" and len(gpus()) < gpus_needed:
        print(f"skipped: {len(gpus())} GPUs here ({gpus_needed} needed)")
        return 77
    with tempfile.TemporaryDirectory(prefix="nsa-gpu-") as name:
        folder = options.keep or pathlib.Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with Service(options.bin_dir, folder) as service:
            (test if options.bench is None else bench)(Runner(service, folder, options))
    return 0
