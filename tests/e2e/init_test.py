#!/usr/bin/env python3
"""Job files that `nsactl init` writes are accepted and train as they stand, to the end: of every kind of data that it takes.

    tests/e2e/init_test.py BIN_DIR [--large MIB] [NAME…]     MIB: size of the large text, 96 without it; with NAMEs only these of the job files

`--large 10240` trains on 10 GiB, and needs as much disk for the text and twice as much for its tokens.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))

import parquet_file  # noqa: E402
from net.data_server import DataServer  # noqa: E402
from service import Service  # noqa: E402

# The data of each job file, in the folder that write_data() fills, and what init must have seen of it.
DATA = {
    "crlf": (["my text.txt"], {"source": "DATA_SOURCE_TEXT"}),
    "utf8": (["bücher.md"], {"source": "DATA_SOURCE_TEXT"}),
    "lines": (["lines.jsonl"], {"source": "DATA_SOURCE_JSONL", "text_field": "body"}),
    "packed": (["lines.jsonl.zst"], {"source": "DATA_SOURCE_JSONL", "text_field": "body"}),
    "rows": (["rows"], {"source": "DATA_SOURCE_PARQUET", "text_field": "content"}),
    "small": (["small.txt"], {"source": "DATA_SOURCE_TEXT"}),
    "large": (["large.txt"], {"source": "DATA_SOURCE_TEXT"}),
    "hub": (["hf://datasets/ada/books/data/*.parquet"], {"source": "DATA_SOURCE_PARQUET", "stream": True}),
    "mix": (["my text.txt", "lines.jsonl"], {}),
    "folder": (["notes"], {"source": "DATA_SOURCE_TEXT"}),
    "prepared": (["prepared/books"], {"source": "DATA_SOURCE_TOKENS"}),
}
STEPS = 12


def texts(seed, count, words="alpha beta gamma delta epsilon zeta eta theta ä —"):
    source, words = random.Random(seed), words.split(" ")
    return [" ".join(source.choices(words, k=source.randrange(20, 80))) for _ in range(count)]


def write_large(path, mib):
    """A text of so many MiB in passages of which no two are alike: each begins with the number of its block."""
    passages = "\n\n".join(f"######## {number} {text}" for number, text in enumerate(texts(4, 5000))).encode() + b"\n\n"
    with path.open("wb") as file:
        for block in range((mib << 20) // len(passages) + 1):
            file.write(passages.replace(b"########", b"%08d" % block))


def write_data(folder, large):
    (folder / "my text.txt").write_bytes("\r\n\r\n".join(texts(1, 800)).encode())
    (folder / "bücher.md").write_text("\ufeff" + "\n\n".join(texts(2, 500, "λόγος слово 言葉 ord 😀 שלום e\u0301t\u00e9 naïve")), encoding="utf-8")
    lines = "".join(json.dumps({"id": str(number), "body": text}) + "\n" for number, text in enumerate(texts(3, 1500)))
    (folder / "lines.jsonl").write_text(lines)
    subprocess.run(["zstd", "-q", folder / "lines.jsonl"], check=True)
    (folder / "small.txt").write_text("\n\n".join(texts(5, 100))[:10_000])
    write_large(folder / "large.txt", large)
    for name in ("rows", "notes"):
        (folder / name).mkdir()
    hub = folder / "hub" / "ada" / "books" / "data"
    hub.mkdir(parents=True)
    for part in range(3):
        urls, rows = ["https://example.com/"] * 400, texts(part, 400)
        parquet_file.write(folder / "rows" / f"part-{part}.parquet", {"url": urls, "content": rows})
        parquet_file.write(hub / f"part-{part}.parquet", {"url": urls, "text": rows})
        (folder / "notes" / f"{part}.txt").write_text("\n\n".join(texts(10 + part, 200)))
    (folder / "notes" / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")


def init(service, folder, name, *arguments):
    """Has the job file written, and checked by the coordinator and without it."""
    job = folder / f"{name}.yaml"
    done = service.ctl("init", *arguments, "-o", job)
    assert done.returncode == 0 and f"nsactl submit {job} --watch" in done.stderr, (name, done)
    for offline in ([], ["--offline"]):
        checked = service.ctl("validate", job, *offline)
        assert checked.returncode == 0 and "accepted" in checked.stdout and "warning" not in checked.stdout, (name, checked)
    return job


def submit(service, job):
    return service.ctl("submit", job, "-o", "name", check=True).stdout.strip()


def end(service, name, state, step):
    """Waits for the end of a job, which must be this one, with a checkpoint; returns its description."""
    watched = service.ctl("watch", name)
    done = json.loads(service.ctl("describe", name, "-o", "json", check=True).stdout)
    assert done["state"] == f"STATE_{state}" and int(done["progress"]["step"]) == step, (watched, done, service.ctl("logs", name).stdout)
    out_dir = pathlib.Path(done["spec"]["train"]["out_dir"])
    assert (out_dir / "checkpoints" / f"step-{step:08}").is_dir(), list(out_dir.rglob("*"))
    assert state != "SUCCEEDED" or float(done["progress"]["val_loss"]) > 0, done
    return done


def prepare(service, folder):
    """The folder of tokens of one of the jobs."""
    job = init(service, folder, "books", "bücher.md")
    done = service.ctl("data", "prepare", job, "--out", folder / "prepared" / "books")
    assert done.returncode == 0, done


def check_stop_and_refusal(service, folder):
    """The file as it is without any flag, twice: each has a folder of its own."""
    job = init(service, folder, "text", "my text.txt")
    folders = []
    for _ in range(2):
        name = submit(service, job)
        service.ctl("stop", name, "--at-step", 3, check=True)
        folders.append(end(service, name, "STOPPED", 3)["spec"]["train"]["out_dir"])
    assert folders == [str(folder / "out" / f"my-text-{n}") for n in (1, 2)], folders
    refused = service.ctl("init", "text.yaml", "my text.txt", "-o", job)
    assert refused.returncode != 0 and "is there already" in refused.stderr, refused


def check_all(service, folder, names):
    """Each file is written as it comes and checked; then for a few steps, in which it trains to its end."""
    jobs = {}
    for name in names:
        init(service, folder, f"{name}-whole", *DATA[name][0])
        began = time.monotonic()
        jobs[name] = submit(service, init(service, folder, name, *DATA[name][0], "--set", f"train.steps={STEPS}", "--set", f"name={name}")), began
    for name, (job, began) in jobs.items():
        data = end(service, job, "SUCCEEDED", STEPS)["spec"]["data"]
        for key, value in DATA[name][1].items():
            assert data[key] == value, (name, key, data)
        assert name != "mix" or [one["name"] for one in data["mix"]] == ["mytext", "lines"], data
        print(f"{name}: {data.get('source', 'mix')}, ended {time.monotonic() - began:.1f} s after init began", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=lambda name: pathlib.Path(name).resolve())
    parser.add_argument("--large", type=int, default=96, metavar="MIB")
    parser.add_argument("names", nargs="*", default=list(DATA), metavar="NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsa-init-") as name:
        folder = pathlib.Path(name)
        write_data(folder, options.large)
        os.chdir(folder)
        with DataServer(folder) as server:
            os.environ.update(HF_TOKEN="hf_x", HF_ENDPOINT=server.url, XDG_CACHE_HOME=str(folder / "cache"))
            (folder / "urls.yaml").write_text(f'allowed_urls: ["hf://", "{server.url}/", "{server.url.replace("127.0.0.1", "localhost")}/blob/"]\n')
            with Service(options.bin_dir, folder, arguments=["--config", folder / "urls.yaml"]) as service:
                if "prepared" in options.names:
                    prepare(service, folder)
                check_all(service, folder, options.names)
                check_stop_and_refusal(service, folder)
    print(f"trained on files of init: {', '.join(options.names)}")


main()
