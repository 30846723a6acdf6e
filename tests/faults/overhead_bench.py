#!/usr/bin/env python3
"""What the control plane costs per step: runs the same job alternately by hand and through the service.

    tests/faults/overhead_bench.py BIN_DIR [--rounds 8] [--steps 120] [--limit 0.005]

By hand is `nsa-worker --job`: no coordinator, no agent, no journal. Through the service is the same worker with a journal that the agent
tails and forwards, the store, and a client that watches. Each round runs both, in an order that alternates. A run's step time is the
median over its steps without the first tenth; the cost is the median over rounds of (service / by hand - 1), with the spread of rounds
beside it. Other load on the machine makes this figure noisy, as the spread shows. So the processor time of coordinator and agent, as a
share of the machine, is printed too: it has no such noise, and where threads compete for cores it is an upper bound of the cost.
Exits with 1 when that share, or the median cost less twice its standard error, is over the limit.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from processes import processor_seconds  # noqa: E402
from service import Service  # noqa: E402

JOB = """\
name: overhead
model: {{dim: 128, n_layers: 2, n_heads: 8, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 64}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 128, batch_size: 8, lr: 3.0e-4, log_every: 1, out_dir: {out_dir}}}
preflight: {{policy: experiment}}
"""


def step_time(out_dir):
    lines = [json.loads(line) for line in (out_dir / "heartbeat_rank0.jsonl").read_text().splitlines()]
    times = [line["step_seconds"] for line in lines if line["msg"] == "progress"]
    return statistics.median(times[len(times) // 10:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--limit", type=float, default=0.005)
    options = parser.parse_args()
    bin_dir = options.bin_dir.resolve()

    # The same environment as under an agent, which passes on few variables: $OPENBLAS_CORETYPE, for example, changes the speed of a step by
    # a quarter.
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    with tempfile.TemporaryDirectory(prefix="nsa-overhead-") as name:
        folder = pathlib.Path(name)
        seconds = {"hand": [], "service": []}
        busy = wall = 0.0
        with Service(bin_dir, folder) as service:
            daemons = service.daemons()
            for number in range(options.rounds):
                for way in ("hand", "service") if number % 2 == 0 else ("service", "hand"):
                    out_dir = folder / f"{way}-{number}"
                    job = folder / f"{way}-{number}.yaml"
                    job.write_text(JOB.format(steps=options.steps, out_dir=out_dir))
                    begin, before = time.monotonic(), sum(map(processor_seconds, daemons))
                    if way == "hand":  # in a new session, as under an agent: the kernel shares cores between sessions
                        subprocess.run([bin_dir / "nsa-worker", "--job", job], check=True, capture_output=True, start_new_session=True,
                                       env=environment)
                    else:
                        service.ctl("submit", job, "--watch", check=True)
                        busy += sum(map(processor_seconds, daemons)) - before
                        wall += time.monotonic() - begin
                    seconds[way].append(step_time(out_dir))

    costs = [with_it / without - 1 for with_it, without in zip(seconds["service"], seconds["hand"])]
    resampled = [statistics.median(random.Random(i).choices(costs, k=len(costs))) for i in range(1000)]
    error = statistics.stdev(resampled)
    share = busy / (wall * os.cpu_count())
    print(f"step by hand     {1e3 * statistics.median(seconds['hand']):8.3f} ms  (median of {options.rounds} runs of {options.steps} steps)")
    print(f"step in service  {1e3 * statistics.median(seconds['service']):8.3f} ms")
    print(f"cost             {100 * statistics.median(costs):8.3f} %   standard error {100 * error:.3f} %, rounds "
          f"{100 * min(costs):.2f} … {100 * max(costs):.2f} %")
    print(f"daemons          {100 * share:8.3f} % of {os.cpu_count()} cores while a job runs")
    over = share > options.limit or statistics.median(costs) - 2 * error > options.limit
    print("over the limit" if over else "within the limit", f"of {100 * options.limit} %")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
