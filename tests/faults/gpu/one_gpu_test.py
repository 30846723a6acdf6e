#!/usr/bin/env python3
"""A job on one GPU through the whole service: preflight with the machine, the same bits after a kill, a kernel that never ends, its curve on the page.

    tests/faults/gpu/one_gpu_test.py BIN_DIR                           the test; skips (77) without a GPU
    tests/faults/gpu/one_gpu_test.py BIN_DIR --bench JOB --data FILE   speed of a job file as it is, and with batch 32 without gradient checkpointing
    tests/faults/gpu/one_gpu_test.py BIN_DIR --device cpu --shape tiny tests this script: the parts that need no GPU
"""
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from gpu_jobs import Outcome, Runner, check_equal, gpus, main  # noqa: E402
from processes import running  # noqa: E402
from service import Service  # noqa: E402

STEPS, BATCH, SAVE_EVERY = 40, 4, 10


def check_preflight(runner):
    """`nsactl validate` shows what the machine has and what the job needs. A job that does not fit is refused, with advice what would fit."""
    job = runner.write("fits", 1, BATCH, STEPS)
    done = runner.service.ctl("validate", job)
    print(done.stdout + done.stderr)
    assert done.returncode == 0, "the job is refused"
    for words in ("memory per rank", "GPU memory, ", "free memory now"):
        assert words in done.stdout, f"does not say '{words}'"
    # A sequence of this model takes about 800 MiB, and 200 with checkpointing: together, twice what the GPU has.
    job = runner.write("too-large", 1, 2 * (gpus("memory.total")[0] // 800), STEPS)
    done = runner.service.ctl("validate", job)
    text = done.stdout + done.stderr
    print(text)
    assert done.returncode == 2, f"exit {done.returncode}, not refused"
    for setting in ("batch_size", "gradient_checkpointing", "seq_len"):
        assert setting in text, f"does not name {setting}"


def check_killed(runner, whole):
    before = gpus()
    out_dir = runner.submit("killed", 1, BATCH, STEPS, save_every=SAVE_EVERY)
    # Writing a checkpoint takes longer than the steps to the next one, which waits for it. So the job is killed somewhere in between.
    checkpoint = out_dir / "checkpoints" / "latest.ckpt"
    runner.service.wait_until(checkpoint.exists, 120, "the first checkpoint")
    (pid,) = runner.service.processes(runner.program)
    os.kill(pid, signal.SIGKILL)
    runner.service.wait_until(lambda: not running(pid), 120, "the worker's end")
    runner.watch("killed")
    text = runner.service.ctl("events", "killed").stdout
    assert "signal 9" in text and "RESUMED" in text, text
    check_equal("killed and resumed against unbroken", Outcome(out_dir), whole)
    runner.service.wait_until(lambda: not runner.service.processes(runner.program), 120, "no worker is left")
    if before:
        runner.service.wait_until(lambda: gpus()[0] <= before[0] + 64, 20, "no GPU memory is left in use")
        print(f"ok: GPU memory in use, MiB: {before[0]} before, {gpus()[0]} after")


def check_gpu_curve(runner, name):
    """The page has a curve of what was measured of the job's GPU; a job on the CPU has none."""
    curve = json.loads(runner.service.get(f"/api/v1/jobs/{name}/gpus"))
    if runner.options.device != "cuda":
        assert curve == {}, curve
        return
    print(curve)
    assert curve["step"] == sorted(set(curve["step"])) and 1 <= curve["step"][0] <= curve["step"][-1] <= STEPS, curve
    for value, least, most in (("use", 0, 1), ("watts", 10, 1500), ("celsius", 10, 110)):
        means = [mean for mean in curve["values"][value]["mean"] if mean is not None]
        assert means and all(least <= mean <= most for mean in means), (value, means)


def check_spinning_kernel(runner, whole):
    """A kernel of the first start never ends: the stack dump names it, the hang policy restarts the job, and the result has the same bits."""
    out_dir = runner.submit("spins", 1, BATCH, STEPS, save_every=SAVE_EVERY, hang_timeout=20)
    # Step SAVE_EVERY + 5 never ends, and a step is reported only while the next one runs.
    runner.wait_for_step(out_dir, SAVE_EVERY + 2)
    time.sleep(3)
    began = time.monotonic()
    dump = runner.service.ctl("dump-stack", "spins")
    took = time.monotonic() - began
    print(dump.stdout[:6000])
    assert dump.returncode == 0 and took < 5, f"dump-stack: exit {dump.returncode} after {took:.1f} s: {dump.stderr}"
    page = [line.split(": ", 1)[1] for line in dump.stdout.splitlines() if line.startswith("rank 0/1 ")]
    assert len(page) == 1 and "spin" in page[0], f"the status page does not name the kernel: {page}"
    assert "nsa::train::Trainer::" in dump.stdout, "no stack of the trainer"
    print(f"ok: dump-stack of a GPU that spins took {took:.2f} s")
    runner.watch("spins")
    text = runner.service.ctl("events", "spins").stdout
    print(text)
    assert "HANG" in text and "kernel spin" in text and "RESUMED" in text
    check_equal("hung, restarted and resumed against unbroken", Outcome(out_dir), whole)


def test(runner):
    whole = runner.run("whole", 1, BATCH, STEPS, save_every=SAVE_EVERY)
    check_gpu_curve(runner, "whole")
    check_killed(runner, whole)
    if runner.options.killed:
        return
    check_equal("the same job twice", whole, runner.run("again", 1, BATCH, STEPS, save_every=SAVE_EVERY))
    if runner.options.device == "cuda":
        check_preflight(runner)
        folder = runner.folder / "spinning"
        folder.mkdir()
        with Service(runner.options.bin_dir, folder, {"NSA_TEST_SPIN_AT_STEP": str(SAVE_EVERY + 5)}) as service:
            check_spinning_kernel(Runner(service, folder, runner.options), whole)


def bench(runner):
    """The job file for 60 steps, on --data where that is given."""
    job = runner.options.bench
    common = ["train.steps=60", "train.warmup_steps=10", "train.eval_every=0", "train.save_every=60", "preflight.policy=experiment"]
    if runner.options.data:
        common.append(f"data.path=[{runner.options.data}]")
    for name, more in (("as-it-is", []), ("batch-32", ["train.batch_size=32", "train.accumulate_grad_batches=1",
                                                        "runtime.gradient_checkpointing=false"])):
        out_dir = runner.folder / name
        settings = [argument for setting in [*common, *more, f"name={name}", f"train.out_dir={out_dir}"] for argument in ("--set", setting)]
        done = runner.service.ctl("submit", "-q", job, *settings)
        assert done.returncode == 0, done.stdout + done.stderr
        runner.watch(name)
        outcome = Outcome(out_dir)
        row = outcome.lines["heartbeat_rank0.jsonl"][60]
        print(f"{name}: {1e3 * outcome.step_seconds():.2f} ms a step (median of the later half); last step {row}", flush=True)
        print((out_dir / "fallback_counters.csv").read_text().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main(__doc__, test, bench, gpus_needed=1))
