#!/usr/bin/env python3
"""Ranks that share sequences (resources.context_parallel) through the whole service: their losses equal those of one rank except for the
order of summation; two runs give the same bits, with CUDA graphs or without; a checkpoint continues with another number of ranks.

    tests/faults/gpu/context_gpu_test.py BIN_DIR                           the test, on two GPUs, or on four if there are; skips (77) with one
    tests/faults/gpu/context_gpu_test.py BIN_DIR --bench                   m7c with one sequence of 131,072 tokens on one GPU and on two: losses of
                                                                       20 steps, speed and memory
    tests/faults/gpu/context_gpu_test.py BIN_DIR --device cpu --shape tiny tests this script with CPU ranks
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from gpu_jobs import check_equal, differences, main, order_bound  # noqa: E402

LONG = 131072


def check_close(what, one, other, order):
    across = differences(one, other)
    print(f"{what}: largest difference {max(across):.2g}, in the first step {across[0]:.2g}; another order of sums {max(order):.2g}")
    print("  step by step: " + " ".join(f"{a:.1g}/{b:.1g}" for a, b in zip(across, order, strict=True)))
    assert across[0] <= 2e-5 and max(across) <= order_bound(order), f"{what}: differs by more than the order of sums"


def check_ranks(name, outcome, ranks):
    assert len(outcome.lines) == ranks, f"{name}: {sorted(outcome.lines)}"
    assert all(outcome.losses(rank) == outcome.losses(0) for rank in range(ranks)), f"{name}: the ranks report different losses"


def test(runner):
    steps, batch, save_every = 40, 2, 10
    one = runner.run("one", 1, batch, steps, save_every=save_every)
    assert one.losses()[-1] < one.losses()[0], "it does not learn"
    # Two measures of what the order of sums does: one rank that takes the sequences one by one, and two that have a sequence each, whose
    # matrix products are as small as those of ranks that share sequences.
    orders = [runner.run("other-order", 1, batch, steps, apart=True), runner.run("a-sequence-each", 2, batch, steps)]
    order = [max(pair) for pair in zip(*(differences(one, other) for other in orders), strict=True)]
    for ranks in (2, 4) if runner.options.ranks >= 4 else (2,):
        name = f"ranks-{ranks}"
        shared = runner.run(name, ranks, batch, steps, save_every=save_every, context=2)
        check_ranks(name, shared, ranks)
        check_close(f"{ranks} ranks in groups of 2", one, shared, order)
        check_equal(f"{name} twice", shared, runner.run(f"{name}-again", ranks, batch, steps, save_every=save_every, context=2))
        check_equal(f"{name} without graphs", shared,
                    runner.run(f"{name}-plain", ranks, batch, steps, save_every=save_every, context=2, graphs=False))
        start = sorted(shared.out_dir.glob("checkpoints/step-*"))[0]
        first = int(json.loads((start / "state.json").read_text())["step"])
        assert 0 < first < steps, f"{start} is not in the middle of the run"
        for size, context in ((ranks, 2), (1, 1)):
            rest = runner.run(f"{name}-to-{size}", size, batch, steps, save_every=save_every, context=context, resume=start)
            assert len(rest.losses()) == steps - first
            across = [abs(a - b) for a, b in zip(rest.losses(), shared.losses()[first:], strict=True)]
            print(f"from step {first} of {ranks} ranks with {size}: largest difference {max(across):.2g}")
            if size == ranks:
                assert max(across) == 0 and rest.model() == shared.model(), "the same ranks give other bits"
            else:
                assert across[0] <= 2e-5 and max(across) <= order_bound(order)


def memory(outcome, rank):
    """The figures of memory in the last line of a rank."""
    lines = outcome.lines[f"heartbeat_rank{rank}.jsonl"]
    return {key: value for key, value in lines[max(lines)].items() if key.startswith("mem_")}


def bench(runner):
    steps = 20
    seq_len = LONG if runner.options.device == "cuda" else 4096
    outcomes = {ranks: runner.run(f"long-{ranks}", ranks, 1, steps, accumulate=1, seq_len=seq_len, context=ranks, checkpointing=True,
                                  hang_timeout=300) for ranks in (1, 2)}
    print(f"one sequence of {seq_len} tokens\nranks      tok/s   s a step   memory of rank 0")
    for ranks, outcome in outcomes.items():
        seconds = outcome.step_seconds()
        print(f"{ranks:5d} {seq_len / seconds:10.0f} {seconds:10.3f}   {memory(outcome, 0)}", flush=True)
    print(" step     one rank    two ranks   difference")
    across = differences(outcomes[1], outcomes[2])
    for step, (a, b) in enumerate(zip(outcomes[1].losses(), outcomes[2].losses(), strict=True), start=1):
        print(f"{step:5d} {a:12.6f} {b:12.6f} {abs(a - b):12.2g}")
    check_ranks("long-2", outcomes[2], 2)
    assert across[0] <= 2e-5, "the first step differs by more than the order of sums"


if __name__ == "__main__":
    sys.exit(main(__doc__, test, bench, gpus_needed=2, cpu_ranks=2))
