#!/usr/bin/env python3
"""Checks which folders include which.

usage: tests/layering_test.py BUILD_FOLDER | --self-test

A library has a folder, and may include headers of the libraries that it links (DEPS of nsa_library, in BUILD_FOLDER/rooms.txt), directly or through
others. Here is what the build cannot see: headers of the distribution, which every target finds, and headers that are included without linking. Also, no
file includes itself through others.
"""
import pathlib
import re
import sys
import tempfile

# Folder: beginnings of headers that it must not include, besides those of the folder around it. What server/decide computes depends on its arguments only:
# it has no gRPC, databases, logs, threads, files or clocks. Time is passed to it as a value.
NEVER = {
    "common": "cuda nccl grpcpp sqlite prometheus kernels/ server/ worker/ client/",
    "common/base": "google/protobuf yaml",
    "common/nsa": "google/protobuf yaml spdlog",
    "common/estimate": "yaml spdlog",
    "common/http": "google/protobuf yaml spdlog",
    "kernels": "grpcpp nccl google/protobuf yaml sqlite prometheus server/ worker/ client/",
    "kernels/cuda": "kernels/nn/ kernels/nsa/ kernels/optimizer/ common/nsa/",
    "worker": "sqlite prometheus server/ client/",
    "worker/train": "grpcpp",
    "worker/train/data": "cuda",
    "worker/train/data/read": "curl",
    "worker/agent": "cuda nccl cublas",
    "server": "cuda nccl cublas kernels/ worker/ client/",
    "server/decide": """grpcpp sqlite spdlog prometheus civetweb thread mutex shared_mutex condition_variable atomic future fstream filesystem iostream
        chrono ctime random unistd.h fcntl.h sys/ absl/synchronization absl/time/clock.h absl/random common/base/clock.h common/base/mutex.h
        common/base/log.h common/base/durable_folder.h common/base/beneath.h common/base/thread_name.h""",
    "server/store": "grpcpp prometheus",
    "server/backup": "grpcpp prometheus",
    "server/watch": "sqlite",
    "server/act": "grpcpp sqlite prometheus",
    "server/notice": "grpcpp sqlite prometheus civetweb Civet",
    "server/provision": "grpcpp sqlite prometheus civetweb Civet",
    "server/web": "grpcpp sqlite prometheus civetweb Civet",
    "server/rpc": "sqlite prometheus",
    "client": "cuda nccl cublas sqlite prometheus kernels/ server/ worker/",
    "client/show": "grpcpp",
    "client/admin": "grpcpp",
    "client/commands": "grpcpp",
}
# What the folders around these may not include, and they may.
MAY = {"common/rpc": "grpcpp", "worker/train/serve": "prometheus"}
# Headers, or folders of headers, that a folder includes without linking their library.
UNLINKED = {
    "client/show": "client/exit_code.h",
    "client/commands": "client/cli.h",
    "client/admin": "client/cli.h",
    "kernels": "common/estimate/muon_plan.h",
    "worker/train/comm": "kernels worker/train/model",
    "worker/train/model": "worker/train/gpu",
}


def within(path, folder):
    return path == folder or path.startswith(folder + "/")


class Tree:
    """The sources of a tree and its libraries: [(name, folder, names of what it links)]."""

    def __init__(self, root, libraries):
        self.links = {}
        self.libraries_of = {}
        for name, folder, deps in libraries:
            self.links.setdefault(name, set()).update(deps)
            self.libraries_of.setdefault(folder, set()).add(name)
        self.files = {}
        for top in ("common", "kernels", "server", "worker", "client", "tests"):
            for path in sorted((root / top).rglob("*")):
                if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                    text = path.read_text(errors="replace")
                    self.files[str(path.relative_to(root))] = re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', text, re.M)

    def folder_of(self, path):
        """The longest folder of a library that the file lies in."""
        if path.startswith("nsa/v1/"):
            return "proto"
        return max((folder for folder in self.libraries_of if within(path, folder)), key=len, default="")

    def reach(self, folder):
        """The folders whose headers the folder's libraries may include."""
        seen, todo = set(), list(self.libraries_of[folder])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.links.get(name, ())
        return {f for f, names in self.libraries_of.items() if names & seen}

    def complaints(self):
        result = []
        reach = {folder: self.reach(folder) for folder in self.libraries_of}
        for file, included in self.files.items():
            if within(file, "tests"):
                continue
            for path in included:
                for folder, words in NEVER.items():
                    if within(file, folder) and any(path.startswith(w) for w in words.split()):
                        if not any(within(file, f) and any(path.startswith(w) for w in may.split()) for f, may in MAY.items()):
                            result.append(f"{file}: {folder} may not include {path} (NEVER in tests/layering_test.py)")
                own, other = self.folder_of(file), self.folder_of(path)
                if not own or not other or own == other or other in reach[own]:
                    continue
                if any(within(file, f) and any(within(path, w) for w in words.split()) for f, words in UNLINKED.items()):
                    continue
                result.append(f"{file}: includes {path}, but the library of {own} does not link that of {other}")
        return result + self.cycles()

    def cycles(self):
        result, state = [], {}

        def walk(file, trail):
            if state.get(file) == "done":
                return
            if state.get(file) == "open":
                result.append("include cycle: " + " -> ".join(trail[trail.index(file):]))
                return
            state[file] = "open"
            for path in self.files.get(file, ()):
                walk(path, trail + [path])
            state[file] = "done"

        for file in self.files:
            walk(file, [file])
        return result


def libraries(build):
    """What nsa_library() wrote: a line for each library, NAME FOLDER LINKED…"""
    rows = [line.split() for line in (build / "rooms.txt").read_text().splitlines()]
    return [(row[0], row[1], row[2:]) for row in rows]


def self_test():
    made_up = [("proto", "proto", []), ("base", "common/base", []), ("rpc", "common/rpc", ["base"]), ("job", "common/job", ["base"]),
               ("all", "-", ["job"]), ("kernels", "kernels", ["base"]), ("decide", "server/decide", ["all"]), ("store", "server/store", ["decide"]),
               ("show", "client/show", ["base"]), ("commands", "client/commands", ["show", "job"])]
    cases = [  # file, include, allowed
        ("server/decide/a.cc", "server/decide/b.h", True), ("server/decide/a.cc", "common/job/a.h", True), ("server/store/a.cc", "common/base/a.h", True),
        ("server/decide/a.cc", "server/store/a.h", False), ("common/base/a.h", "common/job/a.h", False), ("kernels/nn/a.h", "common/job/a.h", False),
        ("kernels/a.cu", "common/estimate/muon_plan.h", True), ("client/show/a.h", "client/commands/a.h", False), ("client/commands/a.h", "client/cli.h", True),
        ("server/decide/a.cc", "thread", False), ("server/decide/rule/a.cc", "absl/time/clock.h", False), ("server/decide/a.cc", "absl/time/time.h", True),
        ("server/decide/a.cc", "sqlite3.h", False), ("server/store/a.cc", "sqlite3.h", True), ("common/job/a.cc", "grpcpp/grpcpp.h", False),
        ("common/rpc/a.cc", "grpcpp/grpcpp.h", True), ("kernels/a.h", "google/protobuf/message.h", False), ("kernels/cuda/a.h", "kernels/nn/rope.h", False), ("kernels/nn/a.h", "kernels/cuda/a.h", True),
        ("server/store/a.h", "worker/agent/a.h", False), ("client/commands/a.cc", "grpcpp/grpcpp.h", False)]
    with tempfile.TemporaryDirectory() as folder:
        for number, (file, include, allowed) in enumerate(cases):
            root = pathlib.Path(folder) / str(number)
            (root / file).parent.mkdir(parents=True)
            (root / file).write_text(f'#include "{include}"\n')
            found = Tree(root, made_up).complaints()
            if bool(found) == allowed:
                sys.exit(f"self test: {file} including {include} should {'pass' if allowed else 'fail'}; found: {found}")
        root = pathlib.Path(folder) / "cycle"
        (root / "server/store").mkdir(parents=True)
        for name, other in ("ab", "bc", "cb"):
            (root / f"server/store/{name}.h").write_text(f'#include "server/store/{other}.h"\n')
        if len(Tree(root, made_up).complaints()) != 1:
            sys.exit("self test: a cycle of includes is not found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = Tree(pathlib.Path(__file__).resolve().parent.parent, libraries(pathlib.Path(sys.argv[1]))).complaints()
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
