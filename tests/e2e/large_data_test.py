#!/usr/bin/env python3
"""Large data is tokenized once for a machine, mapped by every rank and every later start, and trained on with the same bits as when it is held in memory.

    tests/e2e/large_data_test.py BIN_DIR [--mib 80] [--text FILE.jsonl]

Prints seconds and peak memory of each start. --text repeats the documents of a file, each with a number in front, in place of made-up ones.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

JOB = """
name: large
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: jsonl, path: "{data}", val_fraction: 0.01}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: 4, seq_len: 64, batch_size: 4, lr: 1.0e-3, log_every: 1, eval_every: 2, eval_batches: 2, save_every: 2, out_dir: "{out}"}}
resources: {{gpus: {world}}}
"""


def write_data(path, mib, text):
    """JSON lines of so many MiB, no two of them alike."""
    if text:
        documents = [json.loads(line)["text"] for line in open(text, encoding="utf-8")]
    else:
        words = "alpha beta gamma delta epsilon zeta eta theta ä —".split()
        documents = [" ".join(words[(i * k + k * k // 7) % len(words)] for k in range(20 + i * 37 % 400)) for i in range(1000)]
    ends = [json.dumps(" " + document)[1:] for document in documents]
    left, number = mib << 20, 0
    with open(path, "w", encoding="utf-8") as file:
        while left > 0:
            left -= file.write(f'{{"text": "{number}{ends[number % len(ends)]}}}\n')
            number += 1


def memory(pid):
    """Peak of all resident pages and pages of its own now, in MiB."""
    try:
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
        return int(status["VmHWM"].split()[0]) >> 10, int(status["RssAnon"].split()[0]) >> 10
    except (OSError, KeyError):
        return 0, 0


class Start:
    """A worker of one rank."""

    def __init__(self, test, name, rank=0, world=1, cache_bytes=None):
        self.out = test.folder / name
        job = test.folder / f"{name}.yaml"
        job.write_text(JOB.format(data=test.data, out=self.out, world=world))
        arguments = [test.bin_dir / "nsa-worker", "--job", job]
        if world > 1:
            arguments += ["--rank", str(rank), "--world", str(world), "--rendezvous", test.folder / f"{name}.rendezvous"]
        environment = dict(os.environ, NSA_DATA_CACHE_DIR=str(test.cache))
        if cache_bytes is not None:
            environment["NSA_DATA_CACHE_BYTES"] = str(cache_bytes)
        self.log = open(test.folder / f"{name}.{rank}.log", "w+", encoding="utf-8")
        self.began = time.monotonic()
        self.process = subprocess.Popen(arguments, env=environment, stdout=self.log, stderr=self.log)

    def said(self):
        self.log.flush()
        return open(self.log.name, encoding="utf-8").read()

    def end(self):
        """Waits for it; seconds, MiB at the peak, and MiB of its own memory at the peak."""
        peak = own = 0
        while self.process.poll() is None:
            now = memory(self.process.pid)
            peak, own = max(peak, now[0]), max(own, now[1])
            time.sleep(0.02)
        seconds = time.monotonic() - self.began
        assert self.process.returncode == 0, self.said()
        return seconds, peak, own


class Test:
    def __init__(self, bin_dir, folder, mib, text):
        self.bin_dir, self.folder = bin_dir.resolve(), folder
        self.cache, self.data = folder / "cache", folder / "data.jsonl"
        write_data(self.data, mib, text)

    def folders(self, ending):
        return sorted(self.cache.glob(f"tokens/*{ending}"))

    def show(self, what, figures):
        print(f"{what}: {figures[0]:.1f} s, {figures[1]} MiB at the peak, {figures[2]} MiB of its own", flush=True)

    def same(self, *names):
        """All runs have the losses of the first, and the same weights."""
        def losses(name, file):
            with open(self.folder / name / file, newline="") as rows:
                return [{key: value for key, value in row.items() if "loss" in key} for row in csv.DictReader(rows)]

        for file in ("training.csv", "val.csv"):
            wanted = losses(names[0], file)
            assert len(wanted) >= 2 and wanted[0], wanted
            for name in names[1:]:
                assert losses(name, file) == wanted, (name, file, losses(name, file), wanted)
        weights = [(self.folder / name / "checkpoints/step-00000004/model.safetensors").read_bytes() for name in names]
        assert all(one == weights[0] for one in weights)

    def run(self):
        held = Start(self, "held", cache_bytes=0)
        self.show("held in memory", held.end())
        assert "tokenized once" not in held.said() and not self.folders("")

        killed = Start(self, "killed")
        while not self.folders(".partial"):
            assert killed.process.poll() is None, killed.said()
            time.sleep(0.005)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        assert len(self.folders(".partial")) == 1 and not self.folders(".tokens")

        first = Start(self, "first")
        self.show("first start", first.end())
        assert first.said().count("tokenized once") == 1 and "are mapped from" in first.said(), first.said()
        assert len(self.folders(".tokens")) == 1 and not self.folders(".partial")

        second = Start(self, "second")
        self.show("second start", second.end())
        assert "tokenized once" not in second.said() and "are mapped from" in second.said(), second.said()
        self.same("held", "first", "second")

        self.ranks()

    def ranks(self):
        """Two ranks at once, without a cache: one of them makes the tokens."""
        shutil.rmtree(self.cache)
        (self.folder / "both.rendezvous").mkdir()
        ranks = [Start(self, "both", rank, 2) for rank in range(2)]
        with concurrent.futures.ThreadPoolExecutor() as watchers:
            figures = list(watchers.map(Start.end, ranks))
        for rank, figure in enumerate(figures):
            self.show(f"rank {rank} of two", figure)
        said = [rank.said() for rank in ranks]
        assert sum("tokenized once" in one for one in said) == 1, said
        assert all("are mapped from" in one for one in said), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=80)
    parser.add_argument("--text", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsa-large-") as folder:
        Test(options.bin_dir, pathlib.Path(folder), options.mib, options.text).run()
    return 0


sys.exit(main())
