#!/usr/bin/env python3
"""Job files that `nsactl init` writes train as they stand: of a text with CRLF, twice in folders of their own, of Parquet files, and of the Hub.

    tests/e2e/init_test.py BIN_DIR
"""
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


def texts(seed, count):
    source = random.Random(seed)
    words = "alpha beta gamma delta epsilon zeta eta theta ä —".split(" ")
    return [" ".join(source.choices(words, k=source.randrange(20, 80))) for _ in range(count)]


def write_data(folder):
    (folder / "my text.txt").write_bytes("\r\n\r\n".join(texts(1, 800)).encode())
    (folder / "rows").mkdir()
    hub = folder / "hub" / "ada" / "books" / "data"
    hub.mkdir(parents=True)
    for part in range(3):
        rows = {"url": ["https://example.com/"] * 400, "text": texts(part, 400)}
        parquet_file.write(folder / "rows" / f"part-{part}.parquet", rows)
        parquet_file.write(hub / f"part-{part}.parquet", rows)


def train(service, job, steps=3):
    """Submits the file as it stands, stops the job after some steps, and returns it."""
    name = service.ctl("submit", job, "-o", "name", check=True).stdout.strip()
    service.ctl("stop", name, "--at-step", steps, check=True)
    watched = service.ctl("watch", name)
    done = json.loads(service.ctl("describe", name, "-o", "json", check=True).stdout)
    assert done["state"] == "STATE_STOPPED" and int(done["progress"]["step"]) == steps, (watched, done, service.ctl("logs", name).stdout)
    out_dir = pathlib.Path(done["spec"]["train"]["out_dir"])
    assert (out_dir / "checkpoints" / f"step-{steps:08}").is_dir(), list(out_dir.rglob("*"))
    return done


def init(service, folder, name, *data):
    job = folder / f"{name}.yaml"
    done = service.ctl("init", *data, "-o", job, check=True)
    assert f"nsactl submit {job} --watch" in done.stderr, done
    checked = service.ctl("validate", job)
    assert checked.returncode == 0 and "accepted" in checked.stdout and "warning" not in checked.stdout, checked
    return job


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="nsa-init-") as name:
        folder = pathlib.Path(name)
        write_data(folder)
        os.chdir(folder)
        with DataServer(folder) as server:
            os.environ.update(HF_TOKEN="hf_x", HF_ENDPOINT=server.url, XDG_CACHE_HOME=str(folder / "cache"))
            (folder / "urls.yaml").write_text(f'allowed_urls: ["hf://", "{server.url}/", "{server.url.replace("127.0.0.1", "localhost")}/blob/"]\n')
            with Service(sys.argv[1], folder, arguments=["--config", folder / "urls.yaml"]) as service:
                text = init(service, folder, "text", "my text.txt")
                folders = [train(service, text)["spec"]["train"]["out_dir"] for _ in range(2)]
                assert folders == [str(folder / "out" / f"my-text-{n}") for n in (1, 2)], folders
                rows = train(service, init(service, folder, "rows", "rows"))
                assert rows["spec"]["data"]["source"] == "DATA_SOURCE_PARQUET", rows
                hub = train(service, init(service, folder, "hub", "hf://datasets/ada/books/data/*.parquet"))
                assert hub["spec"]["data"]["stream"] is True, hub
                refused = service.ctl("init", "text.yaml", "my text.txt", "-o", text)
                assert refused.returncode != 0 and "is there already" in refused.stderr, refused
                print("four jobs trained on files of init;", " ".join(folders))


main()
