#!/usr/bin/env python3
"""A gang of two GPUs through the whole service: the losses equal those of one GPU except for the order of summation; two runs give the
same bits; so does a run in which a rank is killed in the middle of a step.

    tests/faults/two_gpu_test.py BIN_DIR                           the test; skips (77) with fewer than two GPUs
    tests/faults/two_gpu_test.py BIN_DIR --bench                   speed of two GPUs against one, with the model m7c and 16 sequences per GPU
    tests/faults/two_gpu_test.py BIN_DIR --device cpu --shape tiny tests this script with two CPU ranks
"""
import json
import os
import pathlib
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from gpu_jobs import SHAPES, Outcome, check_equal, gpus, main, running, steps_done  # noqa: E402

# Arithmetic per token is the same on one GPU and on two, but sums over tokens are added in another order. That changes a loss by about
# 1e-6, and the difference grows over the steps as roundings differ. The growth is measured on one GPU by splitting the batch into other
# micro-batches, which changes nothing but the order of sums. Two GPUs may differ by at most TIMES times the larger of that difference and
# FLOOR.
FLOOR, TIMES = 2e-4, 4


def check_one_against_two(runner, two, steps, batch):
    one = runner.run("one-gpu", 1, batch, steps)
    order = differences(one, runner.run("other-order", 1, 2 * batch, steps, accumulate=1))
    across = differences(one, two)
    print(f"one GPU, same global batch: loss {one.losses()[0]:.6f} to {one.losses()[-1]:.6f}; largest difference of two GPUs "
          f"{max(across):.2g} (first step {across[0]:.2g}), of another order of summation on one GPU {max(order):.2g} ({order[0]:.2g})")
    assert across[0] <= 2e-5 and max(across) <= TIMES * max(FLOOR, *order), "two GPUs differ by more than the order of summation"
    assert one.losses()[-1] < one.losses()[0], "it does not learn"


def differences(one, other):
    return [abs(a - b) for a, b in zip(one.losses(), other.losses(), strict=True)]


def stop_in_a_sum(runner, ranks):
    """Stops rank 1 such that dump-stack shows rank 0 waiting in the reduction of gradients. Rank 1 stays stopped."""
    for attempt in range(40):
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(0.3)
        dump = runner.service.ctl("dump-stack", "killed").stdout
        waiting = [line for line in dump.splitlines() if "rank 0/2" in line and "all_reduce_gradients" in line]
        if waiting:
            print(f"dump-stack: {waiting[0].strip()}")
            return
        os.kill(ranks[1], signal.SIGCONT)
        time.sleep(0.003 * (1 + attempt % 8))  # the rank continues at the beginning of a step, and should be stopped while it enqueues kernels
    raise AssertionError(f"dump-stack never shows rank 0 in a reduction:\n{dump[:3000]}")


def check_killed_rank(runner, whole, steps, batch, save_every):
    before = gpus()
    # Without CUDA graphs, so that a rank can be stopped before it has enqueued its sums. The bits are the same as with graphs.
    out_dir = runner.submit("killed", 2, batch, steps, save_every=save_every, graphs=False)
    checkpoint = out_dir / "checkpoints" / "latest.ckpt"
    runner.service.wait_until(checkpoint.exists, 120, "the first checkpoint")
    ranks = {rank_of(pid): pid for pid in runner.service.processes(runner.program)}
    stop_in_a_sum(runner, ranks)
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    runner.service.wait_until(lambda: not running(ranks[0]) and not running(ranks[1]), 60, "the gang's end")
    print(f"the gang ended within {time.monotonic() - began:.1f} s of the kill, after step {steps_done(out_dir)}")
    if before:
        runner.service.wait_until(lambda: is_free(before), 3, "GPU memory is free before the restart")
        print(f"GPU memory was free {time.monotonic() - began:.1f} s after the kill")
    runner.watch("killed")
    text = runner.service.ctl("events", "killed").stdout
    print(text)
    assert "rank 1" in text and "signal 9" in text, "the cause is not the killed rank's"
    assert "RESUMED" in text
    check_equal("killed and resumed against unbroken", Outcome(out_dir), whole)
    runner.service.wait_until(lambda: not runner.service.processes(runner.program), 20, "no worker is left")
    if before:
        runner.service.wait_until(lambda: is_free(before), 20, "no GPU memory is left in use")
        print(f"ok: GPU memory in use, MiB: {before} before, {gpus()} after")


def is_free(before):
    return all(now <= then + 64 for now, then in zip(gpus(), before, strict=True))


def rank_of(pid):
    """The number in the name of the run folder, which is the worker's --run-dir."""
    arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    folder = arguments[arguments.index(b"--run-dir") + 1].decode()
    return int("".join(c for c in pathlib.Path(folder).name if c.isdigit()))


def test(runner):
    steps, batch, save_every = 60, 4, 10
    first = runner.run("first", 2, batch, steps, save_every=save_every)
    assert first.losses(0) == first.losses(1), "the ranks report different losses"
    last = first.lines["heartbeat_rank0.jsonl"][steps]
    print(json.loads((first.out_dir / "env.json").read_text())["device"], {k: v for k, v in last.items() if k.startswith("mem_")})
    if not runner.options.killed:
        check_equal("the same job twice", first, runner.run("second", 2, batch, steps, save_every=save_every))
        check_one_against_two(runner, first, steps, batch)
    check_killed_rank(runner, first, steps, batch, save_every)


def bench(runner):
    speeds = {1: [], 2: []}
    for number, ranks in enumerate((1, 2, 1, 2)):
        batch, seq_len = 16 * ranks, SHAPES[runner.options.shape]["seq_len"]
        outcome = runner.run(f"bench-{number}", ranks, batch, 40, accumulate=1)
        speeds[ranks].append(batch * seq_len / outcome.step_seconds())
        rows = (outcome.out_dir / "training.csv").read_text().splitlines()
        print(f"{ranks} GPU: {speeds[ranks][-1]:.0f} tok/s, {1e3 * outcome.step_seconds():.2f} ms a step\n  {rows[0]}\n  {rows[-1]}", flush=True)
    print(f"two GPUs against one: {statistics.mean(speeds[2]) / statistics.mean(speeds[1]):.3f} times")


if __name__ == "__main__":
    sys.exit(main(__doc__, test, bench, gpus_needed=2))
