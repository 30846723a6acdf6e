#!/usr/bin/env python3
"""Chooses from what tests/fuzz/run.sh found for a target a few small inputs that together reach the most, and puts them into its kept corpus.

    tests/fuzz/keep.py NAME…
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[2]
FILES = 24  # in the folder of a target
BYTES = 14_000  # of those that are added
LONGEST = 4_000  # of one of them


def features(name, folders):
    """What each file reaches: a set of numbers, by path."""
    with tempfile.TemporaryDirectory() as place:
        control = pathlib.Path(place) / "control"
        subprocess.run([TREE / "build/fuzz/fuzz" / f"{name}_fuzz", "-merge=1", f"-merge_control_file={control}", place, *folders], check=True,
                       capture_output=True)
        lines = control.read_text().splitlines()
    count = int(lines[0])
    paths = [pathlib.Path(line) for line in lines[2:2 + count]]
    reached = {path: set() for path in paths}
    for line in lines[2 + count:]:
        word, _, rest = line.partition(" ")
        if word in ("FT", "COV"):
            number, *found = rest.split()
            reached[paths[int(number)]] |= {(word, feature) for feature in found}
    return reached


def keep(name):
    kept = TREE / "tests/fuzz/corpus" / name
    reached = features(name, [kept, TREE / "build/fuzz/corpus" / name])
    have = set().union(*(found for path, found in reached.items() if path.parent == kept))
    left = {path: found for path, found in reached.items() if path.parent != kept and path.stat().st_size <= LONGEST}
    bytes_left, files = BYTES, sum(1 for _ in kept.iterdir())
    while left and files < FILES:
        best = max(left, key=lambda path: len(left[path] - have) / (64 + path.stat().st_size))
        new = left.pop(best) - have
        if not new or best.stat().st_size > bytes_left:
            continue
        shutil.copyfile(best, kept / hashlib.sha1(best.read_bytes()).hexdigest()[:12])
        have |= new
        bytes_left -= best.stat().st_size
        files += 1
    print(f"{name}: {files} inputs, {sum(path.stat().st_size for path in kept.iterdir())} bytes")


for target in sys.argv[1:]:
    keep(target)
