#!/usr/bin/env python3
"""The bits of a run on every kind of data: nine small jobs have the losses and weights that data_roads.json remembers. A job that chooses records by a
field (data.except, data.val_where) has those of a job on files that were cut by hand.

    tests/e2e/data_roads_test.py BIN_DIR [--only NAME] [--write]

--write remembers those of this build instead; it is for a change that is meant to change bits, or for a new compiler. A job prints its seconds and peak memory.
"""
import argparse
import csv
import gzip
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "testing"))

import parquet_file  # noqa: E402
from net.data_server import DataServer  # noqa: E402

GOLDEN = HERE.with_name("data_roads.json")
STEPS = 24
JOB = """
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2{model}}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{{data}}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 4, lr: 1.0e-3, log_every: 4, eval_every: 12, eval_batches: 2, save_every: {steps}, seed: 5, out_dir: "{out}"}}
"""
# The data of each job; {here} is the folder that write_data() fills.
DATA = {
    "bytes": 'source: text, path: ["{here}/a.txt", "{here}/b.txt.gz"], val_fraction: 0.1',
    "bpe": 'source: jsonl, path: "{here}/lines-*.jsonl", tokenizer: bpe, tokenizer_path: "{here}/bpe.json", val_path: "{here}/val.jsonl"',
    "packed": 'source: jsonl, path: ["{here}/lines-*.jsonl", "{here}/more.jsonl.gz"], document_mask: true, val_fraction: 0.05',
    "parquet": 'source: parquet, path: "{here}/rows.parquet", text_field: body, val_fraction: 0.05',
    "tokens": 'source: tokens, path: "{here}/tokens.bin", separator: 299, val_fraction: 0.1, on_exhausted: stop',
    "prepared": 'source: jsonl, path: "{here}/lines-*.jsonl", tokenizer: bpe, tokenizer_path: "{here}/bpe.json", val_fraction: 0.05',
    "stream": 'source: jsonl, path: "{here}/lines-*.jsonl", stream: true, shuffle_window: 40, val_fraction: 0.1',
    "mixture": 'val_fraction: 0.1, val: {{named: "{here}/val.jsonl"}}, mix: [{{name: lines, source: jsonl, path: "{here}/lines-0.jsonl", weight: 3}}, '
               '{{name: rows, source: parquet, text_field: body, path: "{here}/rows.parquet", weight: 2}}, {{name: text, source: text, path: "{here}/short.txt", weight: 1}}]',
    "remote": 'source: jsonl, path: ["{url}/lines-0.jsonl", "{url}/more.jsonl.gz"], val_fraction: 0.05',
}
# The same records, chosen by a field of one file, and in files of their own.
CHOSEN = {
    "chosen": 'source: jsonl, path: "{here}/books.jsonl", val_fraction: 0.1, except: {{book: [c]}}, val: {{held: "{here}/books.jsonl"}}, val_where: {{held: {{book: c}}}}',
    "cut": 'source: jsonl, path: "{here}/books-ab.jsonl", val_fraction: 0.1, val: {{held: "{here}/books-c.jsonl"}}',
}
MODEL = {"tokens": ", vocab: 300"}


class Numbers:
    """The same numbers in every Python."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit


def texts(seed, count):
    numbers, words = Numbers(seed), ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "ä", "—", "\n"]
    return [" ".join(words[numbers.below(len(words))] for _ in range(numbers.below(60))) for _ in range(count)]


def lines(documents):
    return "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()


def write_bpe(path):
    """A tokenizer.json that splits as GPT-2 does: all bytes, a few merges, the separator as token 299."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    letters.update({byte: chr(256 + i) for i, byte in enumerate(byte for byte in range(256) if byte not in plain)})
    vocab, merges = [letters[byte] for byte in range(256)], []
    for word in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta"):
        left = letters[32]
        for letter in word:
            if left + letter not in vocab:
                merges.append(f"{left} {letter}")
                vocab.append(left + letter)
            left += letter
    vocab += [f"<{i}>" for i in range(299 - len(vocab))]
    separator = {"id": 299, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    path.write_text(json.dumps({
        "added_tokens": [separator], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(vocab)}, "merges": merges}}))


def write_data(folder):
    web = folder / "web"  # what the server serves, and all jobs but one read as files
    web.mkdir()
    (web / "a.txt").write_text("\n\n".join(texts(1, 400)))
    (web / "b.txt.gz").write_bytes(gzip.compress("\n\n".join(texts(2, 100)).encode(), mtime=0))
    (web / "short.txt").write_text("\n\n".join(texts(3, 6)))
    for i in range(3):
        (web / f"lines-{i}.jsonl").write_bytes(lines(texts(4 + i, 150)))
    copies = texts(4, 20) + texts(9, 100)  # documents that lines-0 has too
    (web / "more.jsonl.gz").write_bytes(gzip.compress(lines(copies), mtime=0))
    books = [json.dumps({"book": "abc"[i % 3], "text": text}) + "\n" for i, text in enumerate(texts(13, 300))]
    (web / "books.jsonl").write_text("".join(books))
    (web / "books-ab.jsonl").write_text("".join(line for i, line in enumerate(books) if i % 3 < 2))
    (web / "books-c.jsonl").write_text("".join(books[2::3]))
    (web / "val.jsonl").write_bytes(lines(texts(5, 12) + texts(10, 60)))
    parquet_file.write(web / "rows.parquet", {"url": ["https://example.com/"] * 300, "body": texts(11, 300)}, 60, 12)
    numbers, tokens = Numbers(12), b""
    for _ in range(300):
        tokens += (299).to_bytes(2, "little") + b"".join(numbers.below(299).to_bytes(2, "little") for _ in range(numbers.below(90)))
    (web / "tokens.bin").write_bytes(tokens)
    write_bpe(web / "bpe.json")
    return web


class Test:
    def __init__(self, bin_dir, folder):
        self.worker, self.folder = bin_dir.resolve() / "nsa-worker", folder
        self.here = write_data(folder)

    def start(self, name, *arguments):
        """Seconds and peak MiB of a worker that ends well."""
        peak, began = 0, time.monotonic()
        # Every processor that the programs run on has the instructions of Haswell; with kernels for a newer one, sums have other last bits.
        environment = dict(os.environ, NSA_DATA_CACHE_DIR=str(self.folder / "cache"), OPENBLAS_CORETYPE="Haswell")
        with open(self.folder / f"{name}.log", "w+", encoding="utf-8") as log:
            process = subprocess.Popen([self.worker, *arguments], env=environment, stdout=log, stderr=log, cwd=self.folder)
            timer = threading.Timer(120, process.kill)
            timer.start()
            while process.poll() is None:
                try:
                    status = dict(line.split(":", 1) for line in open(f"/proc/{process.pid}/status"))
                    peak = max(peak, int(status["VmHWM"].split()[0]) >> 10)
                except (OSError, KeyError):
                    pass
                time.sleep(0.01)
            timer.cancel()
            log.seek(0)
            assert process.returncode == 0, f"{name}: {process.returncode}\n{log.read()}"
        return time.monotonic() - began, peak

    def run(self, name, url):
        """What a job has made: losses of every step, validation and source, and hashes of its weights and its place in the data."""
        out, job = self.folder / name, self.folder / f"{name}.yaml"
        job.write_text(JOB.format(name=name, model=MODEL.get(name, ""), steps=STEPS, out=out, data=(DATA | CHOSEN)[name].format(here=self.here, url=url)))
        if name == "prepared":
            self.start("prepare", "prepare", job, self.folder / "prepared.tokens")
            job = self.folder / "prepared.tokens" / "job.yaml"
        seconds, peak = self.start(name, "--job", job, "--threads", "1", "--out-dir", out)
        print(f"{name}: {seconds:.2f} s, {peak} MiB at the peak", flush=True)
        made = {}
        for file in ("training.csv", "val.csv", "val_sets.csv", "sources.csv"):
            if not (out / file).exists():
                continue
            with open(out / file, newline="") as rows:
                made[file] = [" ".join(row[key] for key in row if key in ("step", "set", "source", "rows", "epoch") or "loss" in key) for row in csv.DictReader(rows)]
        checkpoint = out / f"checkpoints/step-{STEPS:08}"
        made["weights"] = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
        made["data"] = json.loads((checkpoint / "state.json").read_text())["data"]
        assert len(made["training.csv"]) >= STEPS // 4 and len(made["val.csv"]) >= 2, made
        return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--only", choices=DATA)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = [options.only] if options.only else list(DATA)
    with tempfile.TemporaryDirectory(prefix="nsa-roads-") as folder:
        test = Test(options.bin_dir, pathlib.Path(folder))
        with DataServer(folder) as server:
            made = {name: test.run(name, server.url) for name in names}
            chosen, cut = (test.run(name, server.url) for name in CHOSEN)
    for what in cut.keys() - {"data"}:  # the place in the data names its files
        assert chosen[what] == cut[what], (what, chosen[what], cut[what])
    if options.write:
        GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
        return 0
    golden = json.loads(GOLDEN.read_text())
    wrong = [f"{name}: {what}: {made[name].get(what)} (must be {golden[name].get(what)})"
             for name in names for what in {**golden[name], **made[name]} if made[name].get(what) != golden[name].get(what)]
    return "\n".join(wrong) or 0


if __name__ == "__main__":
    sys.exit(main())
