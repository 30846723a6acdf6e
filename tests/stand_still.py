#!/usr/bin/env python3
"""Runs unit test programs as on a machine that stands still again and again: finds tests that expect an answer within a second.

    tests/stand_still.py PROGRAM... [--seed N]      e.g. tests/stand_still.py build/asan/tests/*_tests

Each program is stopped (SIGSTOP) for 0.6 to 1.2 s after 20 to 300 ms, until it ends; processes that it starts run on. Prints a line for each, and the
output of those that fail. Exit code 1 if one fails. Ten programs at a time, because they mostly stand still.
"""
import argparse
import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

# As in tests/run.sh and as the tests' properties say.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def run(program, seed):
    """Returns the exit code, how often the program stood still, and its output."""
    moments = random.Random(seed)
    stops = 0
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen([program], stdout=output, stderr=output, env={**os.environ, **ENVIRONMENT}) as process:
            while process.poll() is None:
                time.sleep(moments.uniform(0.02, 0.3))
                if process.poll() is not None:
                    break
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(moments.uniform(0.6, 1.2))
                os.kill(process.pid, signal.SIGCONT)
                stops += 1
        output.seek(0)
        return process.returncode, stops, output.read().decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        runs = {pool.submit(run, program, options.seed): program for program in options.programs}
        for ended in concurrent.futures.as_completed(runs):
            code, stops, output = ended.result()
            print(f"{runs[ended]}: exit {code}, stood still {stops} times", flush=True)
            if code != 0:
                failed += 1
                print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
