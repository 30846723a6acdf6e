#!/usr/bin/env python3
"""A job on data from a web server and from the Hub, with every twentieth request failing, trains bit for bit as on the same rows in local files.

    tests/e2e/remote_data_test.py BIN_DIR
"""
import csv
import gzip
import json
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))

import parquet_file  # noqa: E402
from net.data_server import DataServer  # noqa: E402
from service import Service  # noqa: E402

TOKEN = "hf_a-token-that-nobody-may-see"
STEPS = 12
JOB = """
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data:
  val_fraction: 0.05
  loader_timeout_seconds: 20
  mix:
    - {{name: rows, source: {source}, path: "{rows}", weight: 3}}
    - {{name: lines, source: jsonl, path: "{lines}", weight: 1}}
  val: {{named: "{named}"}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 4, lr: 1.0e-3, log_every: 1, eval_every: 4, eval_batches: 2, save_every: 6, out_dir: "{out}"}}
resources: {{gpus: 2}}
"""


def texts(source, count):
    words = "alpha beta gamma delta epsilon zeta eta theta ä — \n".split(" ")
    return [" ".join(source.choices(words, k=source.randrange(1, 80))) for _ in range(count)]


def lines_of(rows):
    return "".join(json.dumps({"text": text}) + "\n" for text in rows)


def write_data(folder):
    """The same rows for the server and as local JSON lines."""
    source = random.Random(1)
    (folder / "web").mkdir()
    shards = folder / "hub" / "ada" / "books" / "data"
    shards.mkdir(parents=True)
    rows = []
    for shard in range(60):
        here = texts(source, 150)
        rows += here
        parquet_file.write(shards / f"part-{shard:03}.parquet", {"url": ["https://example.com/" + "x" * 500] * 150, "text": here})
    (shards / "README.md").write_text("not data")
    lines, named = texts(source, 2000), texts(source, 200)
    (folder / "web" / "lines.jsonl.gz").write_bytes(gzip.compress(lines_of(lines).encode()))
    (folder / "web" / "named.jsonl").write_text(lines_of(named))
    for name, what in (("rows", rows), ("lines", lines), ("named", named)):
        (folder / f"{name}.jsonl").write_text(lines_of(what))


def train(service, folder, name, **places):
    job = folder / f"{name}.yaml"
    job.write_text(JOB.format(name=name, steps=STEPS, out=folder / name, **places))
    done = service.ctl("submit", job, "--watch", timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{service.ctl('logs', name).stdout}\n{service.ctl('events', name).stdout}"
    return done.stdout + done.stderr


def columns(path, unlike):
    """The rows of a CSV file, without the columns that depend on the machine."""
    with open(path, newline="") as file:
        return [{name: value for name, value in row.items() if not any(word in name for word in unlike)} for row in csv.DictReader(file)]


def check_equal(folder):
    for name, rows in (("training.csv", STEPS), ("val.csv", STEPS // 4), ("val_sets.csv", STEPS // 4), ("sources.csv", STEPS)):
        local, remote = (columns(folder / job / name, ("time", "second", "tokens_per", "memory", "mib", "toks", "unix", "utc")) for job in ("local", "remote"))
        assert len(local) >= rows and "loss" in "".join(local[0]), (name, local[:2])
        assert local == remote, f"{name}: {local}\n{remote}"


def check_no_token(service, folder, said):
    for command in (["describe", "remote", "-o", "json"], ["events", "remote", "-o", "json"], ["logs", "remote"], ["metrics", "remote", "-o", "json"]):
        said += service.ctl(*command).stdout
    assert "DATA_NOT_FETCHED" in said, said
    assert TOKEN not in said and "sig=signature" not in said
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert TOKEN.encode() not in path.read_bytes(), path


def check_refused(service, server, folder):
    """What a user sees of data that may not be read, or is not there."""
    def failure(name, rows, lines):
        job = folder / f"{name}.yaml"
        job.write_text(JOB.format(name=name, steps=STEPS, source="parquet", rows=rows, lines=lines, named=folder / "named.jsonl", out=folder / name))
        done = service.ctl("submit", job, "--watch", timeout=120)
        return done.returncode, done.stdout + done.stderr + service.ctl("events", name).stdout

    good = server.url + "/lines.jsonl.gz"
    code, said = failure("elsewhere", "http://127.0.0.1:1/x.parquet", good)
    assert code == 2 and "not among the coordinator's allowed_urls" in said, (code, said)
    code, said = failure("missing", server.url + "/missing.parquet", good)
    assert code == 1 and f"data.mix[0].path[0]: {server.url}/missing.parquet: HTTP 404 (not found)" in said, (code, said)
    code, said = failure("wrong-kind", server.url + "/lines.jsonl.gz?x.parquet", good)
    assert "DATA_KIND_MISMATCH" in said or "is no Parquet file" in said, (code, said)


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-remote-") as name:
        folder = pathlib.Path(name)
        write_data(folder)
        with DataServer(folder, fail_every=20, token=TOKEN) as server:
            os.environ.update(HF_TOKEN=TOKEN, HF_ENDPOINT=server.url, XDG_CACHE_HOME=str(folder / "cache"))
            (folder / "urls.yaml").write_text(f'allowed_urls: ["hf://", "{server.url}/", "{server.url.replace("127.0.0.1", "localhost")}/blob/"]\n')
            with Service(sys.argv[1], folder, arguments=["--config", folder / "urls.yaml"]) as service:
                train(service, folder, "local", source="jsonl", rows=folder / "rows.jsonl", lines=folder / "lines.jsonl", named=folder / "named.jsonl")
                said = train(service, folder, "remote", source="parquet", rows="hf://datasets/ada/books/data/*.parquet",
                             lines=server.url + "/lines.jsonl.gz", named=server.url + "/named.jsonl")
                assert server.failed >= 10, server.failed
                assert not server.leaks, server.leaks
                check_equal(folder)
                check_refused(service, server, folder)
                check_no_token(service, folder, said)
                requests = f"{server.requests} requests, {server.failed} of them failed"
            print(f"equal; {requests}; cache of {sum(1 for _ in (folder / 'cache').rglob('*.block'))} blocks")


main()
