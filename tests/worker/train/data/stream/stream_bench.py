#!/usr/bin/env python3
"""Measures data.stream through the loader: speed, waits, memory beside its estimate, and the time to the first batch from a server.

    tests/worker/train/data/stream/stream_bench.py build/release TEXT.jsonl [--gpt2 FOLDER] [--large ROWS]

TEXT.jsonl: documents as JSON lines, a few dozen MB. A data set is this file under several names. --gpt2: a folder with vocab.json and merges.txt.
--large: rows of 2,048 tokens in the large window (default 1,000,000: 2 GB; the files have that many bytes together, but take no room).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[5] / "tests/testing"))
from net.data_server import DataServer  # noqa: E402

JOB = """name: stream-bench
data: {{source: jsonl, path: [{path}], stream: true, shuffle_window: {window}{more}}}
train: {{steps: 1000000, seq_len: 2048, batch_size: 32, eval_every: 0, out_dir: {out}}}
"""
PACE = 600_000  # tokens a second, about one H100 on openstax_best.yaml


def estimate(nsactl, job):
    """MiB of the window and its readers, of one rank, as preflight says."""
    answer = subprocess.run([nsactl, "validate", "--offline", job, "-o", "json"], capture_output=True, text=True)
    try:
        items = json.loads(answer.stdout)["estimates"]
    except (ValueError, KeyError):
        return None
    return next((round(float(item["value"]) / 2**20) for item in items if item["name"] == "memory: corpus"), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--gpt2", type=pathlib.Path)
    parser.add_argument("--large", type=int, default=1_000_000)
    flags = parser.parse_args()
    bench, nsactl = flags.build / "bench/worker_train_data_stream_stream_bench", flags.build / "bin/nsactl"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "web").mkdir()
        size = flags.text.stat().st_size
        first = folder / "web/part-00000.jsonl"
        first.write_bytes(flags.text.read_bytes())
        copies = max(8, (flags.large + 20_000) * 2048 // size + 1)
        for i in range(1, copies):
            os.link(first, folder / f"web/part-{i:05}.jsonl")

        def case(what, path, window, tokens, pace=0, more=""):
            job = folder / "job.yaml"
            paths = ", ".join(f'"{one}"' for one in path)
            job.write_text(JOB.format(path=paths, window=window, out=folder / "out", more=more))
            said = subprocess.run([bench, job, str(tokens), str(pace)], capture_output=True, text=True)
            if said.returncode != 0:
                sys.exit(f"{what}: {said.stderr}")
            row = {"case": what, **json.loads(said.stdout), "estimate_mib": estimate(nsactl, job)}
            print(json.dumps(row), flush=True)
            return row

        local = [folder / "web/*.jsonl"]
        case("bytes, window 8,192", local, 8192, 100_000_000)
        paced = case(f"bytes, window 8,192, a trainer of {PACE} tok/s", local, 8192, 10_000_000, PACE)
        case(f"bytes, window {flags.large}", local, flags.large, flags.large * 2048 * 5 // 4)
        with DataServer(folder, rate=100e6) as server:
            server.etag(first)  # not the server's own time
            served = [f"{server.url}/part-{i:05}.jsonl" for i in range(8)]
            remote = case("bytes, a server of 100 MB/s", served, 8192, 50_000_000)
        if flags.gpt2:
            case("gpt2, window 8,192", local, 8192, 10_000_000, more=f", tokenizer: gpt2, tokenizer_path: {flags.gpt2}")
        problems = []
        if paced["wait_share"] > 0.01:
            problems.append(f"wait at {PACE} tok/s: {paced['wait_share']:.2%} of a step (1 %)")
        if remote["first_batch_s"] > 3:
            problems.append(f"first batch from the server: {remote['first_batch_s']:.1f} s (3 s)")
        sys.exit("; ".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
