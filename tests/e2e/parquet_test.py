#!/usr/bin/env python3
"""Parquet files of two independent writers (DuckDB, hyparquet-writer) give the same documents as their rows as JSON lines.

    tests/e2e/parquet_test.py BIN_DIR              every codec, encoding, page version and kind of null that the writers can make
    tests/e2e/parquet_test.py BIN_DIR --speed      print megabytes of text a second for each codec, beside jsonl and jsonl.zst

Needs Node and the packages of tests/e2e/parquet/package.json (deploy/packages.sh test); skipped (77) without them.
"""
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = TESTS / "e2e" / "parquet"


def modules():
    """The folder with the packages; None without Node or them."""
    found = subprocess.run([TESTS.parent / "deploy" / "node_packages.sh", "--where", PACKAGES], capture_output=True, text=True, check=True).stdout.strip()
    return pathlib.Path(found) if shutil.which("node") and (pathlib.Path(found) / "node_modules").is_dir() else None


class Reader:
    def __init__(self, bin_dir):
        self.program = pathlib.Path(bin_dir) / "print_documents"

    def run(self, *arguments):
        return subprocess.run([self.program, *arguments], capture_output=True, text=True)

    def texts(self, source, path, field="text"):
        done = self.run(source, field, path)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def check_same(reader, folder):
    checked = collections.Counter()
    for kind in ("all", "some"):
        expected = reader.texts("jsonl", folder / f"{kind}.jsonl")
        assert len(expected) > 3000
        for path in sorted(folder.glob(f"{kind}-*.parquet")):
            got = reader.texts("parquet", path)
            if got != expected:
                first = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), min(len(got), len(expected)))
                sys.exit(f"{path.name}: {len(got)} documents (of {len(expected)}), and number {first} differs:\n"
                         f"{got[first:first + 1]}\n{expected[first:first + 1]}")
            checked[path.name.split("-")[1]] += 1
    return checked


def check_nested(reader, folder):
    for field in ("doc.text", "texts", "deep.parts"):
        expected = reader.texts("jsonl", folder / "nested.jsonl", field)
        assert len(expected) > 1000, field
        for version in ("V1", "V2"):
            assert reader.texts("parquet", folder / f"nested-{version}.parquet", field) == expected, (field, version)
        counts = [reader.run("--count", source, field, folder / name).stdout.split()[:3] for source, name in (("jsonl", "nested.jsonl"), ("parquet", "nested-V1.parquet"))]
        assert counts[0] == counts[1], (field, counts)


def check_refused(reader, folder):
    for name, field, message in json.loads((folder / "bad.json").read_text()):
        done = reader.run("parquet", field, folder / name)
        assert done.returncode == 1 and message in done.stderr and name in done.stderr, f"{name}, {field}: {message!r} is not in {done.stderr!r}"
    for name, nulls in (("nulls-duckdb.parquet", 3000), ("empty-duckdb.parquet", 0)):
        done = reader.run("--count", "parquet", "text", folder / name)
        assert done.stdout.split()[:2] == ["0", str(nulls)], name + done.stdout + done.stderr


def print_speed(reader, folder):
    for path in sorted(folder.iterdir()):
        source = "parquet" if path.suffix == ".parquet" else "jsonl"
        best = min((reader.run("--count", source, "text", path).stdout.split() for _ in range(3)), key=lambda words: float(words[3]))
        documents, _, size, seconds = best
        print(f"{path.name:28} {int(documents):8} documents  {int(size) / 1e6:7.1f} MB of text in {path.stat().st_size / 1e6:7.1f} MB  "
              f"{int(size) / 1e6 / float(seconds):8.0f} MB/s")


def main():
    found = modules()
    if found is None:
        print("skipped: no Node, or not the packages of tests/e2e/parquet; deploy/packages.sh test installs them")
        sys.exit(77)
    reader, speed = Reader(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="nsa-parquet-") as place:
        folder = pathlib.Path(place)
        subprocess.run(["node", PACKAGES / "writers.mjs", found, folder, *speed], check=True, timeout=300)
        if speed:
            return print_speed(reader, folder)
        checked = check_same(reader, folder)
        assert checked["hyparquet"] == 64 and checked["duckdb"] == 72, checked
        check_nested(reader, folder)
        check_refused(reader, folder)
        print(f"{sum(checked.values())} files have the rows of their JSON lines")


main()
