#!/usr/bin/env python3
"""The commands of docs/tutorial.md, one after another in one shell, as they stand but for ports and what they may touch on a machine that has other services.

    tests/e2e/tutorial_test.py BIN_DIR
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))

from ports import HeldPorts  # noqa: E402

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"

# The state folder is the test's own, and the port of the live page is free.
COORDINATOR = """#!/bin/sh
exec "{bin}/nsa-coordinator" --metrics 127.0.0.1:0 "$@"
"""
# Ends the programs of this test only: the coordinator has its state folder from the environment, agent and workers among their arguments.
PKILL = """#!/bin/bash
[ "$1" = -x ] || exit 2
found=1
for folder in /proc/[0-9]*; do
  [ "$(readlink "$folder/exe")" = "{bin}/$2" ] && cat "$folder/environ" "$folder/cmdline" 2>/dev/null | grep -qaF "$NSA_STATE_DIR" || continue
  kill "${{folder#/proc/}}" && found=0
done
exit $found
"""


def script_of(page):
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 9, blocks
    return "set -eux\n" + "\n".join(blocks)


def programs(bin_dir, folder):
    own = folder / "programs"
    own.mkdir()
    for name, text in (("nsa-coordinator", COORDINATOR), ("pkill", PKILL)):
        (own / name).write_text(text.format(bin=bin_dir))
        (own / name).chmod(0o755)
    return f"{own}:{bin_dir}:{os.environ['PATH']}"


def check(work, said):
    job = (work / "job.yaml").read_text()
    assert "out_dir: \"out/{name}-{n}\"  #" in job, job
    folders = sorted(path.name for path in (work / "out").iterdir())
    assert folders == ["my-text-1", "second-1"], folders
    assert "RANK_KILLED" in said, "the events name the worker that was killed"
    assert (work / "report.html").stat().st_size > 10_000
    assert '"text_completion"' in said, "the server has answered"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="nsa-tutorial-") as name:
        folder = pathlib.Path(name).resolve()
        work = folder / "work"
        work.mkdir()
        ports = HeldPorts()
        script = script_of(PAGE.read_text()).replace("127.0.0.1:8000", f"127.0.0.1:{ports.first}")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NSACTL_")}
        environment.update(PATH=programs(bin_dir, folder), NSA_STATE_DIR=str(folder / "state"), NSACTL_CONFIG="/dev/null", NSACTL_TIMEOUT="60s")
        began = time.time()
        try:
            done = subprocess.run(["bash", "-c", script], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=900)
        except subprocess.TimeoutExpired as late:
            sys.exit(f"not done within {late.timeout:.0f} s:\n{(late.stdout or b'').decode(errors='replace')}")
        finally:
            for program in ("nsa-coordinator", "nsa-agent", "nsa-worker"):
                subprocess.run(["pkill", "-x", program], env=environment, check=False)
        log = work / "coordinator.log"
        assert done.returncode == 0, f"{done.stdout}\n{log.read_text() if log.exists() else ''}"
        check(work, done.stdout)
        first = min(path.stat().st_mtime for path in work.glob("out/my-text-1/checkpoints/step-*"))
        print(f"first checkpoint {first - began:.0f} s after the first command, all of the tutorial in {time.time() - began:.0f} s")


main()
