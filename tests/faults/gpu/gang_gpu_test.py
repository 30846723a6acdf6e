#!/usr/bin/env python3
"""A gang of GPUs through the whole service: the losses equal those of fewer GPUs except for the order of summation; two runs give the same
bits; so does a run in which a rank is killed in the middle of a step. A checkpoint continues with another number of ranks.

    tests/faults/gpu/gang_gpu_test.py BIN_DIR                           the test, with all GPUs; skips (77) with fewer than two
    tests/faults/gpu/gang_gpu_test.py BIN_DIR --ranks 4                 the same with four of them
    tests/faults/gpu/gang_gpu_test.py BIN_DIR --bench                   speed of 1, 2, 4, … GPUs, with the model m7c and 2 and 16 sequences per GPU
    tests/faults/gpu/gang_gpu_test.py BIN_DIR --device cpu --shape tiny tests this script with two CPU ranks
"""
import gzip
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from gpu_jobs import SHAPES, Outcome, check_equal, differences, gpus, main, order_bound, steps_done  # noqa: E402
from processes import running  # noqa: E402


def sizes(ranks):
    """The numbers of ranks to compare: 1, 2, 4, … and `ranks` itself."""
    powers = [1 << i for i in range(ranks.bit_length()) if 1 << i < ranks]
    return [*powers, ranks]


def check_fewer_ranks(runner, whole, ranks, steps, batch):
    one = runner.run("one-rank", 1, batch, steps)
    assert one.losses()[-1] < one.losses()[0], "it does not learn"
    order = differences(one, runner.run("other-order", 1, batch, steps, apart=True))
    print(f"one rank: loss {one.losses()[0]:.6f} to {one.losses()[-1]:.6f}; another order of summation differs by {max(order):.2g}, "
          f"in the first step by {order[0]:.2g}")
    for size in sizes(ranks)[1:]:
        other = whole if size == ranks else runner.run(f"ranks-{size}", size, batch, steps)
        across = differences(one, other)
        print(f"{size} ranks, same global batch: largest difference {max(across):.2g}, in the first step {across[0]:.2g}")
        assert across[0] <= 2e-5 and max(across) <= order_bound(order), f"{size} ranks differ by more than the order of summation"


def check_other_sizes(runner, whole, ranks, steps, batch, save_every):
    """Continues from a checkpoint in the middle with other numbers of ranks; with the same number the bits are those of the unbroken run."""
    checkpoints = sorted(whole.out_dir.glob("checkpoints/step-*"))
    start = checkpoints[0]
    first = int(json.loads((start / "state.json").read_text())["step"])
    assert 0 < first < steps, f"{start} is not in the middle of the run"
    for size in sizes(ranks):
        run = runner.run(f"from-{ranks}-to-{size}", size, batch, steps, save_every=save_every, resume=start)
        across = [abs(a - b) for a, b in zip(run.losses(), whole.losses()[-len(run.losses()):], strict=True)]
        assert len(run.losses()) == steps - first, f"{len(run.losses())} steps after a checkpoint of step {first}"
        print(f"ok: from step {first} of {ranks} ranks with {size}: largest difference {max(across):.2g}")
        if size == ranks:
            assert max(across) == 0 and run.model() == whole.model(), "the same number of ranks gives other bits"
        else:
            assert across[0] <= 2e-5 and max(across) <= order_bound(), "another number of ranks differs by more than the order of summation"


def stop_in_a_sum(runner, ranks, victim):
    """Stops a rank such that dump-stack shows another rank waiting in the reduction of gradients. The rank stays stopped."""
    for attempt in range(40):
        os.kill(ranks[victim], signal.SIGSTOP)
        time.sleep(0.3)
        dump = runner.service.ctl("dump-stack", "killed").stdout
        waiting = [line for line in dump.splitlines() if f"/{len(ranks)}" in line and "all_reduce_gradients" in line]
        waiting = [line for line in waiting if f"rank {victim}/" not in line]
        if waiting:
            print(f"dump-stack: {waiting[0].strip()}")
            return
        os.kill(ranks[victim], signal.SIGCONT)
        time.sleep(0.003 * (1 + attempt % 8))  # the rank continues at the beginning of a step, and should be stopped while it enqueues kernels
    raise AssertionError(f"dump-stack never shows a rank in a reduction:\n{dump[:3000]}")


def check_killed_rank(runner, whole, ranks, steps, batch, save_every):
    before = gpus()
    # Without CUDA graphs, so that a rank can be stopped before it has enqueued its sums. The bits are the same as with graphs.
    out_dir = runner.submit("killed", ranks, batch, steps, save_every=save_every, graphs=False)
    checkpoint = out_dir / "checkpoints" / "latest.ckpt"
    runner.service.wait_until(checkpoint.exists, 120, "the first checkpoint")
    pids = {rank_of(pid): pid for pid in runner.service.processes(runner.program)}
    assert sorted(pids) == list(range(ranks)), f"workers: {pids}"
    victim = random.Random(steps_done(out_dir)).randrange(1, ranks)
    stop_in_a_sum(runner, pids, victim)
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    runner.service.wait_until(lambda: not any(running(pid) for pid in pids.values()), 60, "the gang's end")
    print(f"rank {victim} was killed: the gang ended within {time.monotonic() - began:.1f} s, after step {steps_done(out_dir)}")
    if before:
        runner.service.wait_until(lambda: is_free(before), 3, "GPU memory is free before the restart")
        print(f"GPU memory was free {time.monotonic() - began:.1f} s after the kill")
    runner.watch("killed")
    text = runner.service.ctl("events", "killed").stdout
    print(text)
    assert f"rank {victim}" in text and "signal 9" in text, "the cause is not the killed rank's"
    assert "RESUMED" in text
    check_equal("killed and resumed against unbroken", Outcome(out_dir), whole)
    runner.service.wait_until(lambda: not runner.service.processes(runner.program), 120, "no worker is left")
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
    ranks = runner.options.ranks
    steps, batch, save_every = 60, max(4, ranks), 10
    first = runner.run("first", ranks, batch, steps, save_every=save_every)
    assert all(first.losses(rank) == first.losses(0) for rank in range(ranks)), "the ranks report different losses"
    last = first.lines["heartbeat_rank0.jsonl"][steps]
    print(json.loads((first.out_dir / "env.json").read_text())["device"], {k: v for k, v in last.items() if k.startswith("mem_")})
    if not runner.options.killed:
        check_equal("the same job twice", first, runner.run("second", ranks, batch, steps, save_every=save_every))
        check_fewer_ranks(runner, first, ranks, steps, batch)
        check_other_sizes(runner, first, ranks, steps, batch, save_every)
    check_killed_rank(runner, first, ranks, steps, batch, save_every)


def sums_milliseconds(runner, name, size, batch):
    """How long the sums of gradients take in a step of rank 0, hidden behind the backward pass or not, from a trace of three steps."""
    out_dir = runner.submit(name, size, batch, 2_000, accumulate=1)
    runner.wait_for_step(out_dir, 20)
    trace = runner.folder / f"{name}.json.gz"
    done = runner.service.ctl("profile", name, "--steps", "3", "-o", trace, timeout=120)
    runner.service.ctl("stop", name, "--now", check=True)
    runner.service.wait_until(lambda: not runner.service.processes(runner.program), 120, "the profiled ranks have ended")
    if done.returncode != 0:
        print(f"no trace of {name}: {done.stderr.strip()}")
        return None
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    kind = "gpu_collective" if runner.options.device == "cuda" else "collective"
    sums = [one["dur"] for one in events if one.get("cat") == kind and one["pid"] == 0 and (kind == "gpu_collective" or "gradients" in one["name"])]
    return sum(sums) / 3e3 if sums else None


def bench(runner):
    """Twice each number of GPUs, alternating, so that a slow minute of the machine does not count for one of them only. Small steps, which
    show what is not hidden, come first."""
    seq_len = SHAPES[runner.options.shape]["seq_len"]
    for sequences in (2, 16):
        speeds = {size: [] for size in sizes(runner.options.ranks)}
        exposed = {}
        for repeat in range(2):
            for size in speeds:
                outcome = runner.run(f"bench-{sequences}-{size}-{repeat}", size, sequences * size, 40, accumulate=1)
                speeds[size].append(sequences * size * seq_len / outcome.step_seconds())
                exposed[size] = outcome.median("communication_seconds") * 1e3
        one = statistics.mean(speeds[1])
        sums = {size: sums_milliseconds(runner, f"trace-{sequences}-{size}", size, sequences * size) for size in speeds if size > 1}
        print(f"\n{sequences} sequences of {seq_len} tokens per GPU\nGPUs       tok/s   times    ms a step   sums, ms   waiting for sums, ms   hidden", flush=True)
        for size, measured in speeds.items():
            speed = statistics.mean(measured)
            whole = sums.get(size)
            hidden = f"{whole:10.2f} {exposed[size]:22.2f} {max(0, 1 - exposed[size] / whole):8.0%}" if whole else f"{'-':>10} {exposed[size]:22.2f} {'-':>8}"
            print(f"{size:4d} {speed:11.0f} {speed / one:7.3f} {1e3 * sequences * size * seq_len / speed:12.2f} {hidden}", flush=True)


if __name__ == "__main__":
    sys.exit(main(__doc__, test, bench, gpus_needed=2, cpu_ranks=2))
