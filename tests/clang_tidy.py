#!/usr/bin/env python3
"""Runs clang-tidy on files and remembers those that were clean.

usage: tests/clang_tidy.py BUILD_FOLDER FILE...

Files are compiled several at a time (nsa_unity in cmake/NsaTargets.cmake). Here each is read alone, so one that lacks an #include is
found; more than 50 are read as they are compiled, in a quarter of the time. Files that this machine does not compile, such as CUDA code
without a toolkit, are left out.

A file is checked again only when something that clang-tidy sees has changed: the preprocessed text with its
comments (NOLINT is one), the command line, .clang-tidy or clang-tidy itself. What was clean is remembered by a
hash, as an empty file in $XDG_CACHE_HOME/nsa-clang-tidy (default: ~/.cache), which may be deleted at any time.
Exit code 1 if there is a finding, with clang-tidy's output.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys


def preprocessed(entry):
    """What the compiler sees of a file, comments included; without line markers."""
    words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
    kept, skip = [], False
    for word in words:
        if skip or word in ("-c", "-MD"):
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        else:
            kept.append(word)
    result = subprocess.run(kept + ["-E", "-C", "-P", "-o", "-"], cwd=entry["directory"], capture_output=True)
    return result.stdout if result.returncode == 0 else None


def commands(build, root):
    """The compiler's command for each source file and for each group of files that are compiled together, and the group of a file."""
    entries, group = {}, {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"]) / entry["file"]
        entries[str(source)] = entry = {**entry, "file": str(source)}
        if source.parent.name == "unity":
            for line in source.read_text().splitlines():
                if line.startswith('#include "'):
                    file = str(root / line.split('"')[1])
                    entries[file] = {**entry, "file": file, "command": entry["command"].replace(str(source), file)}
                    group[file] = str(source)
    return entries, group


def check(file, entry, database, seed, folder):
    """Prints the findings of a file; True if there are none."""
    text = preprocessed(entry)
    stamp = None
    if text is not None:
        # Another clone of the tree has the same hashes.
        seen = (entry["command"].encode() + text).replace(os.getcwd().encode(), b"")
        stamp = folder / hashlib.sha256(seed + seen).hexdigest()
        if stamp.exists():
            return True
    result = subprocess.run(["clang-tidy", "-p", database, "--quiet", file], capture_output=True, text=True)
    if result.returncode != 0:
        print(result.stdout, result.stderr, sep="", flush=True)
        return False
    if stamp is not None:
        stamp.touch()
    return True


def main():
    build, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
    root = pathlib.Path.cwd()
    entries, group = commands(build.resolve(), root)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    seed = version + (root / ".clang-tidy").read_bytes()
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "nsa-clang-tidy"
    folder.mkdir(parents=True, exist_ok=True)
    database = build / "each_file"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(entries.values()), indent=1))
    files = [str(root / f) for f in files if str(root / f) in entries]
    if len(files) > 50:
        files = sorted({group.get(f, f) for f in files})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        clean = list(pool.map(lambda f: check(f, entries[f], str(database), seed, folder), files))
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
