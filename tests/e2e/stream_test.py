#!/usr/bin/env python3
"""Streams of data (data.stream): a data set of Parquet files on a server that fails 5 % of its requests gives the same run as its rows in JSON lines on disk, bit
for bit, with both killed and continued with another number of ranks; and a worker that streams a large file holds little of it.

    tests/e2e/stream_test.py BIN_DIR [--mib 300] [--seq-len 64] [--window 2048]

Prints seconds until the first step and peak memory.
"""
import argparse
import csv
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))

import parquet_file  # noqa: E402
from net.data_server import DataServer  # noqa: E402

STEPS, KILLED_AFTER = 12, 6
MOST_MIB = 200  # that a stream may take beside the model
JOB = """
name: stream
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: {source}, path: "{data}", val_fraction: {val_fraction}, stream: {stream}{window}}}
runtime: {{device: cpu, precision: fp32}}
train:
  {{steps: {steps}, seq_len: {seq_len}, batch_size: 4, lr: 1.0e-3, log_every: 1, eval_every: {eval_every}, eval_batches: 2, save_every: 3, keep_checkpoints: 9,
    out_dir: "{out}"}}
resources: {{gpus: {world}}}
"""


class Run:
    """The ranks of one start of a job."""

    def __init__(self, test, name, world=1, steps=STEPS, **settings):
        self.test, self.out = test, test.folder / name
        job = test.folder / f"{name}.yaml"
        values = {"val_fraction": 0.05, "stream": "true", "window": ", shuffle_window: 40", "seq_len": 64, "eval_every": 4, **settings}
        job.write_text(JOB.format(out=self.out, world=world, steps=steps, **values))
        rendezvous = pathlib.Path(tempfile.mkdtemp(dir=test.folder))
        self.logs = [open(test.folder / f"{name}.{rank}.log", "a+", encoding="utf-8") for rank in range(world)]
        ranks = [[] if world == 1 else ["--rank", str(rank), "--world", str(world), "--rendezvous", rendezvous] for rank in range(world)]
        self.began = time.monotonic()
        self.ranks = [subprocess.Popen([test.bin_dir / "nsa-worker", "--job", job, *arguments], stdout=log, stderr=log)
                      for arguments, log in zip(ranks, self.logs)]

    def said(self):
        return "\n".join(open(log.name, encoding="utf-8").read() for log in self.logs)

    def wait_for(self, path):
        while not path.exists():
            assert all(rank.poll() is None for rank in self.ranks), self.said()
            assert time.monotonic() < self.began + 120, self.said()
            time.sleep(0.01)
        return time.monotonic() - self.began

    def kill(self):
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()

    def end(self):
        for rank in self.ranks:
            rank.wait(200)
        assert all(rank.returncode == 0 for rank in self.ranks), self.said()
        return self

    def peak_mib(self):
        """Runs to the end; the most resident memory of a rank."""
        peak = 0
        while any(rank.poll() is None for rank in self.ranks):
            for rank in self.ranks:
                try:
                    status = dict(line.split(":", 1) for line in open(f"/proc/{rank.pid}/status"))
                    peak = max(peak, int(status["VmHWM"].split()[0]) >> 10)
                except (OSError, KeyError):
                    pass
            time.sleep(0.02)
        self.end()
        return peak


def columns(path):
    """The rows of a CSV file, without the kind of the files and the columns that depend on the machine."""
    unlike = ("data_source", "time", "second", "tokens_per", "memory", "mib", "toks", "unix", "utc")
    with open(path, newline="") as file:
        return [{name: value for name, value in row.items() if not any(word in name for word in unlike)} for row in csv.DictReader(file)]


class Test:
    def __init__(self, bin_dir, folder):
        self.bin_dir, self.folder = bin_dir.resolve(), folder

    def write_rows(self):
        """The same rows as Parquet files of a data set of the Hub and as JSON lines; 9 files; some rows have no text."""
        source = random.Random(1)
        words = "alpha beta gamma delta epsilon zeta eta theta ä — \n".split(" ")
        shards, lines = self.folder / "hub" / "ada" / "books" / "data", self.folder / "lines"
        shards.mkdir(parents=True)
        lines.mkdir()
        for shard in range(9):
            texts = [" ".join(source.choices(words, k=source.randrange(0, 60))) for _ in range(120)]
            parquet_file.write(shards / f"part-{shard}.parquet", {"url": ["https://example.com/" + "x" * 200] * 120, "text": texts}, 30, 12)
            (lines / f"part-{shard}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def interrupted(self, name, first, second, **settings):
        """Killed after step 6 and continued there with another number of ranks."""
        run = Run(self, name, world=first, **settings)
        checkpoints = run.out / "checkpoints"
        run.wait_for(checkpoints / f"step-{KILLED_AFTER:08}" / "state.json")
        run.kill()
        for newer in checkpoints.glob("step-*"):
            if int(newer.name[5:13]) > KILLED_AFTER:  # also one that was being written
                shutil.rmtree(newer)
        said = Run(self, name, world=second, **settings).end().said()
        assert f"step {KILLED_AFTER}" in said, said

    def same(self, left, right):
        for name, rows in (("training.csv", STEPS), ("val.csv", STEPS // 4)):
            one, other = (columns(self.folder / run / name) for run in (left, right))
            assert len(one) >= rows and "loss" in "".join(one[0]), (name, one[:2])
            assert one == other, f"{name}: {one}\n{other}"
        one, other = ((self.folder / run / f"checkpoints/step-{STEPS:08}/model.safetensors").read_bytes() for run in (left, right))
        assert one == other

    def equal(self):
        self.write_rows()
        local = {"source": "jsonl", "data": self.folder / "lines" / "part-*.jsonl"}
        with DataServer(self.folder, fail_every=20) as server:
            os.environ.update(HF_ENDPOINT=server.url, NSA_DATA_CACHE_DIR=str(self.folder / "cache"))
            remote = {"source": "parquet", "data": "hf://datasets/ada/books/data/*.parquet"}
            for first, second in ((1, 2), (4, 1)):
                for name, data in (("disk", local), ("web", remote)):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                    shutil.rmtree(self.folder / "cache", ignore_errors=True)
                    self.interrupted(name, first, second, **data)
                self.same("disk", "web")
                print(f"equal, {first} ranks and then {second}; {server.requests} requests, {server.failed} of them failed", flush=True)
            assert server.failed >= 4, server.failed

    def counts(self):
        """`nsactl validate --data` counts what a run without a stream counts, but for what is held out."""
        counted = []
        for stream, window in (("true", ", shuffle_window: 40"), ("false", "")):
            job = self.folder / f"count-{stream}.yaml"
            job.write_text(JOB.format(source="jsonl", data=self.folder / "lines" / "part-*.jsonl", val_fraction=0.05, stream=stream, window=window, seq_len=64,
                                      eval_every=4, out=self.folder / "count", world=1, steps=STEPS))
            done = subprocess.run([self.bin_dir / "nsa-worker", "count", job], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            counted.append({key: int(value) for key, value in json.loads(done.stdout).items()})
        assert counted[0]["documents"] == counted[1]["documents"] > 900, counted
        assert counted[0]["tokens"] == counted[1]["tokens"] and counted[0]["rows"] == counted[1]["rows"], counted
        assert 0 < counted[0]["valDocuments"] <= counted[1]["valDocuments"], counted

    def small(self, mib, seq_len, window):
        """Peak memory of a worker on a large file, beside that of the same model on a small one."""
        def start(name, **settings):
            run = Run(self, name, steps=30, source="jsonl", val_fraction=0.01, eval_every=30, seq_len=seq_len, **settings)
            first = run.wait_for(run.out / "training.csv")
            return first, run.peak_mib()

        large = self.folder / "large.jsonl"
        source = random.Random(2)
        words = ["".join(source.choices("abcdefghij", k=source.randrange(1, 9))) for _ in range(500)]
        with open(large, "w", encoding="utf-8") as file:
            left, number = mib << 20, 0
            while left > 0:
                left -= file.write(json.dumps({"text": f"{number} {' '.join(source.choices(words, k=60))} " * 8}) + "\n")
                number += 1
        tiny = self.folder / "tiny.jsonl"
        with open(large, encoding="utf-8") as file:
            tiny.write_text("".join(next(file) for _ in range(200)))
        _, without = start("tiny", data=tiny, stream="false", window="")
        seconds, peak = start("large", data=large, window=f", shuffle_window: {window}")
        print(f"{mib} MiB of JSON lines, window of {window} sequences of {seq_len}: first step after {seconds:.1f} s, {peak} MiB at the peak, "
              f"{peak - without} MiB more than a job on a small file ({without} MiB)", flush=True)
        assert peak - without < MOST_MIB, (peak, without)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=300)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--window", type=int, default=8192)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsa-stream-") as folder:
        test = Test(options.bin_dir, pathlib.Path(folder))
        test.equal()
        test.counts()
        test.small(options.mib, options.seq_len, options.window)
    return 0


sys.exit(main())
