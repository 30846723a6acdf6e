#!/usr/bin/env python3
"""State, gradients and weights divided over GPUs (runtime.shard) and gradients that travel in bf16 (runtime.gradient_precision): memory, bits and speed
with and without them, and checkpoints that continue with the other setting.

    tests/faults/gpu/shares_gpu_test.py BIN_DIR                           the test, with all GPUs; skips (77) with fewer than two
    tests/faults/gpu/shares_gpu_test.py BIN_DIR --ranks 2                 the same with two of them
    tests/faults/gpu/shares_gpu_test.py BIN_DIR --gradients               only divided gradients, with AdamW; also with --bench
    tests/faults/gpu/shares_gpu_test.py BIN_DIR --parameters              only divided weights, and what they need; with --bench all levels
    tests/faults/gpu/shares_gpu_test.py BIN_DIR --bench                   speed and memory of each setting, with the model m7c
    tests/faults/gpu/shares_gpu_test.py BIN_DIR --device cpu --shape tiny tests this script with two CPU ranks
"""
import os
import pathlib
import signal
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from gpu_jobs import SHAPES, Outcome, check_equal, differences, main, order_bound, steps_done  # noqa: E402

WHOLE, SHARD, GRADIENTS, BF16 = "shard: none", "shard: optimizer", "shard: gradients", "gradient_precision: bf16"
PARAMETERS = "shard: parameters"
WHOLE_BF16, SHARD_BF16, GRADIENTS_BF16, PARAMETERS_BF16 = (f"{shard}, {BF16}" for shard in (WHOLE, SHARD, GRADIENTS, PARAMETERS))
MUON = "optimizer: muon"
STEPS, SAVE_EVERY = 40, 20
MIB = 1 << 20
# Losses of gradients in bf16 against those in fp32: each gradient is rounded by 2^-9 of itself, independently. A wide bound, which a wrong sum
# would break; the test prints the difference.
BF16_ROUNDING = 2e-2


def last_line(outcome, rank):
    return outcome.lines[f"heartbeat_rank{rank}.jsonl"][STEPS]


def allocated(outcome, ranks):
    """Bytes of weights, gradients, moments and activations, the largest of the ranks."""
    return max(last_line(outcome, rank)["mem_allocated_mib"] for rank in range(ranks)) * MIB


def parameters(outcome):
    model = outcome.out_dir / "checkpoints" / "latest.ckpt" / "model.safetensors"
    return model.stat().st_size // 4


def compare(what, one, other, same_bits, rounding):
    if same_bits:
        return check_equal(what, one, other)
    across = differences(one, other)
    print(f"{what}: losses differ by at most {max(across):.2g}, in the first step by {across[0]:.2g}")
    assert across[0] <= 2e-5 and max(across) <= rounding, f"{what}: more than the order of summation"


def check_memory(runner, whole, divided, ranks):
    if runner.options.device != "cuda":
        return
    saved = allocated(whole, ranks) - allocated(divided, ranks)
    want = 12 * parameters(whole) * (1 - 1 / ranks)  # fp32 weights and two moments
    print(f"memory of a rank, MiB: {allocated(whole, ranks) / MIB:.0f} whole, {allocated(divided, ranks) / MIB:.0f} divided; "
          f"{saved / MIB:.0f} less ({want / MIB:.0f} expected)")
    assert 0.9 * want <= saved <= 1.1 * want, "another saving than that of the state of the other ranks"


def check_continues(runner, what, start, ranks, batch, whole, runtime, train, same_bits, rounding):
    run = runner.run(what, ranks, batch, STEPS, save_every=SAVE_EVERY, resume=start, runtime=runtime, train=train)
    across = [abs(a - b) for a, b in zip(run.losses(), whole.losses()[SAVE_EVERY:], strict=True)]
    print(f"{what}: losses differ from the unbroken run by at most {max(across):.2g}")
    if same_bits:
        assert max(across) == 0 and run.model() == whole.model(), f"{what}: other bits"
    assert max(across) <= rounding, f"{what}: more than the order of summation"


def check_killed(runner, name, divided, ranks, batch, runtime):
    out_dir = runner.submit(name, ranks, batch, STEPS, save_every=SAVE_EVERY // 2, runtime=runtime)
    checkpoint = out_dir / "checkpoints" / "latest.ckpt"
    runner.service.wait_until(checkpoint.exists, 120, "the first checkpoint")
    os.kill(runner.service.processes(runner.program)[-1], signal.SIGKILL)
    print(f"a rank was killed after step {steps_done(out_dir)}")
    runner.watch(name)
    assert "RESUMED" in runner.service.ctl("events", name).stdout, "it was not killed before its end"
    check_equal(f"{name} and resumed", Outcome(out_dir), divided)


def is_exact(runner, train, ranks):
    """Two ranks have one order of sums. Muon on a GPU multiplies the matrices of a share in other batches. Otherwise the first loss is the same,
    and the others differ by roundings that grow."""
    return runner.options.device == "cpu" or (ranks == 2 and not train)


def runs_of(runner, name, train, ranks, batch):
    def run(what, runtime, **more):
        outcome = runner.run(f"{name}-{what}", ranks, batch, STEPS, save_every=SAVE_EVERY, runtime=runtime, train=train, **more)
        assert all(outcome.losses(rank) == outcome.losses(0) for rank in range(ranks)), f"{name}-{what}: the ranks report different losses"
        return outcome

    return run


def run_whole(name, run):
    """The run with whole state, and how far another order of sums may be from it."""
    whole = run("whole", WHOLE)
    assert whole.losses()[-1] < whole.losses()[0], "it does not learn"
    order = differences(run("other-order", WHOLE, apart=True), whole)
    print(f"{name}: another order of summation differs by {max(order):.2g}")
    return whole, order_bound(order)


def check_optimizer(runner, name, train, ranks, batch):
    """Returns the runs with divided state, with divided gradients and with divided weights."""
    exact = is_exact(runner, train, ranks)
    run = runs_of(runner, name, train, ranks, batch)
    whole, rounding = run_whole(name, run)
    divided = run("divided", SHARD)
    check_equal(f"{name}: divided state twice", divided, run("divided-again", SHARD))
    compare(f"{name}: divided against whole state", divided, whole, exact, rounding)
    check_memory(runner, whole, divided, ranks)
    middle = f"checkpoints/step-{SAVE_EVERY:08d}"
    check_continues(runner, f"{name}-to-whole", divided.out_dir / middle, ranks, batch, divided, WHOLE, train, exact, rounding)
    check_continues(runner, f"{name}-to-divided", whole.out_dir / middle, ranks, batch, whole, SHARD, train, exact, rounding)
    check_continues(runner, f"{name}-to-one", divided.out_dir / middle, 1, batch, divided, SHARD, train, False, rounding)

    bf16 = run("bf16", WHOLE_BF16)
    check_equal(f"{name}: gradients in bf16 twice", bf16, run("bf16-again", WHOLE_BF16))
    compare(f"{name}: gradients in bf16, divided against whole state", run("bf16-divided", SHARD_BF16), bf16, exact, rounding)
    across = differences(bf16, whole)
    print(f"{name}: gradients in bf16 against fp32: losses differ by at most {max(across):.2g}")
    assert 0 < max(across) <= BF16_ROUNDING and across[0] <= 2e-5, "not the rounding to bf16"
    gradients = check_gradients(runner, name, run, train, ranks, batch, exact, rounding, whole, bf16)
    return divided, gradients, check_parameters(runner, name, run, train, ranks, batch, rounding, gradients)


def check_gradients(runner, name, run, train, ranks, batch, exact, rounding, whole, bf16):
    """Returns the run with divided gradients."""
    one_pass = exact and runner.options.device == "cuda"  # a GPU computes both micro-batches as one pass
    gradients = run("gradients", GRADIENTS)
    check_equal(f"{name}: divided gradients twice", gradients, run("gradients-again", GRADIENTS))
    compare(f"{name}: divided gradients against whole state", gradients, whole, one_pass, rounding)
    compare(f"{name}: divided gradients of two passes against whole state", run("gradients-apart", GRADIENTS, apart=True), whole, False, rounding)
    compare(f"{name}: divided gradients in bf16 against whole ones", run("gradients-bf16", GRADIENTS_BF16), bf16, one_pass,
            rounding if one_pass else BF16_ROUNDING)
    print(f"memory of a rank with divided gradients, MiB: {allocated(gradients, ranks) / MIB:.0f}")
    if runner.options.device == "cuda":
        state = 12 * parameters(whole) * (1 - 1 / ranks)
        assert allocated(gradients, ranks) < allocated(whole, ranks) - state, "divided gradients save nothing beside the state"
    middle = f"checkpoints/step-{SAVE_EVERY:08d}"
    check_continues(runner, f"{name}-gradients-to-whole", gradients.out_dir / middle, ranks, batch, gradients, WHOLE, train, one_pass, rounding)
    check_continues(runner, f"{name}-whole-to-gradients", whole.out_dir / middle, ranks, batch, whole, GRADIENTS, train, one_pass, rounding)
    return gradients


def check_parameters(runner, name, run, train, ranks, batch, rounding, gradients):
    """Returns the run with divided weights: gathers copy, so its bits are those of divided gradients."""
    divided = run("parameters", PARAMETERS)
    check_equal(f"{name}: divided weights against divided gradients", divided, gradients)
    check_equal(f"{name}: divided weights of two passes against divided gradients of two", run("parameters-apart", PARAMETERS, apart=True),
                run("gradients-apart-again", GRADIENTS, apart=True))
    check_equal(f"{name}: divided weights and gradients in bf16", run("parameters-bf16", PARAMETERS_BF16), run("gradients-bf16-again", GRADIENTS_BF16))
    print(f"memory of a rank with divided weights, MiB: {allocated(divided, ranks) / MIB:.0f}")
    middle = f"checkpoints/step-{SAVE_EVERY:08d}"
    check_continues(runner, f"{name}-parameters-to-gradients", divided.out_dir / middle, ranks, batch, divided, GRADIENTS, train, True, rounding)
    check_continues(runner, f"{name}-gradients-to-parameters", gradients.out_dir / middle, ranks, batch, gradients, PARAMETERS, train, True, rounding)
    return divided


def check_shared_sequences(runner, run):
    """Ranks that share sequences exchange heads in backward: sums, exchanges and what follows have one order on one stream."""
    whole, gradients, weights = (run(f"context-{what}", runtime, context=2, accumulate=1)
                                 for what, runtime in (("whole", WHOLE), ("gradients", GRADIENTS), ("parameters", PARAMETERS)))
    if runner.options.ranks == 2:
        check_equal("divided gradients of ranks that share sequences", gradients, whole)
    check_equal("divided weights of ranks that share sequences", weights, gradients)


def test_gradients(runner, ranks, batch):
    run = runs_of(runner, "adamw", "", ranks, batch)
    whole, rounding = run_whole("adamw", run)
    gradients = check_gradients(runner, "adamw", run, "", ranks, batch, is_exact(runner, "", ranks), rounding, whole, run("bf16", WHOLE_BF16))
    check_shared_sequences(runner, run)
    check_killed(runner, "killed-gradients", gradients, ranks, batch, GRADIENTS)


def test_parameters(runner, ranks, batch):
    run = runs_of(runner, "adamw", "", ranks, batch)
    _, rounding = run_whole("adamw", run)
    gradients = run("gradients", GRADIENTS)
    weights = check_parameters(runner, "adamw", run, "", ranks, batch, rounding, gradients)
    check_shared_sequences(runner, run)
    check_killed(runner, "killed-parameters", weights, ranks, batch, PARAMETERS)


def test(runner):
    ranks = runner.options.ranks
    batch = max(4, ranks)
    if runner.options.gradients:
        return test_gradients(runner, ranks, batch)
    if runner.options.parameters:
        return test_parameters(runner, ranks, batch)
    divided, gradients, weights = check_optimizer(runner, "adamw", "", ranks, batch)
    check_optimizer(runner, "muon", MUON, ranks, batch)
    check_shared_sequences(runner, runs_of(runner, "adamw", "", ranks, batch))
    check_killed(runner, "killed", divided, ranks, batch, SHARD)
    check_killed(runner, "killed-gradients", gradients, ranks, batch, GRADIENTS)
    check_killed(runner, "killed-parameters", weights, ranks, batch, PARAMETERS)


def bench(runner):
    """Three rounds of all settings, so that a slow minute of the machine does not count for one of them only. Small steps, which show what is not
    hidden, come first."""
    ranks, seq_len = runner.options.ranks, SHAPES[runner.options.shape]["seq_len"]
    settings = [(optimizer, runtime) for optimizer in ("", MUON)
                for runtime in (WHOLE, SHARD, GRADIENTS, PARAMETERS, WHOLE_BF16, SHARD_BF16, GRADIENTS_BF16, PARAMETERS_BF16)]
    if runner.options.gradients:
        settings = [("", WHOLE), ("", GRADIENTS)]
    if runner.options.parameters:
        settings = [("", WHOLE), ("", SHARD), ("", GRADIENTS), ("", PARAMETERS)]
    for sequences in (2, 16):
        runs = {setting: [] for setting in settings}
        for repeat in range(3):
            for number, (optimizer, runtime) in enumerate(settings):
                runs[optimizer, runtime].append(runner.run(f"bench-{sequences}-{number}-{repeat}", ranks, sequences * ranks, STEPS, accumulate=1,
                                                           runtime=runtime, train=optimizer))
        print(f"\n{ranks} ranks, {sequences} sequences of {seq_len} tokens each\n"
              "     tok/s   ms a step   waiting, ms   optimizer, ms   MiB a rank   settings", flush=True)
        for (optimizer, runtime), outcomes in runs.items():
            step = statistics.median(outcome.step_seconds() for outcome in outcomes)
            parts = [statistics.median(outcome.median(column) for outcome in outcomes) * 1e3
                     for column in ("communication_seconds", "optimizer_seconds")]
            print(f"{sequences * ranks * seq_len / step:10.0f} {1e3 * step:11.2f} {parts[0]:13.2f} {parts[1]:15.2f} "
                  f"{allocated(outcomes[0], ranks) / MIB:12.0f}   {', '.join(filter(None, (optimizer or 'adamw', runtime)))}", flush=True)


if __name__ == "__main__":
    sys.exit(main(__doc__, test, bench, gpus_needed=2, cpu_ranks=2))
