#!/usr/bin/python3
"""How soon the page of a long job appears, how smoothly it moves while the job trains, what an open page costs the job and the coordinator, and the same of a list of
1,000 jobs and of a job with 60 warnings a second.

    tests/server/web/speed_test.py BIN_DIR [--points 4500] [--seconds 6] [--rounds 2] [--jobs 1000] [--slack 6]      skips (77) without Chromium

Trains a tiny model until the curve has so many points, then measures in headless Chromium: first paint and the first curve, both medians of seven loads; frames
a second, and the processor time of the page's thread, while the curves move; and, in turns of so many seconds with and without the open page, the
coordinator's processor time and the time of a step. The job trains with one thread, so that on a machine of two cores the browser and the coordinator have the
other. The aims: 200 ms to the first paint, 300 ms to the first curve, 55 frames a second, 12 % of a core and 15 kB a second for a job that trains; the list is there in
a second and takes 5 % of a core; a job with 60 warnings a second, whose events are made up, takes what a healthy one takes. A busy machine is slower, so the test fails only
when times are `slack` times as long, or frames `slack` times as few; `--slack 1.1` on a quiet machine checks the aims.
"""
import argparse
import csv
import json
import pathlib
import statistics
import sys
import tempfile
import time

from page_test import Page  # noqa: E402  (skips without a browser)
import trust_checks  # noqa: E402
from browser import JOB as SMALL_JOB, Browser  # noqa: E402
from trust_checks import event, row  # noqa: E402

from processes import processor_seconds  # noqa: E402  (from testing/, which page_test has made known)

FIRST_PAINT, FIRST_CURVE, FRAMES = 0.2, 0.3, 55
THREAD_SHARE = 0.12  # of a core, of the page of a job that trains
BYTES = 15_000  # a second, of the same
DRAWN_ROWS = 200  # of a list, until more are asked for
LIST_READY, LIST_SHARE = 1.0, 0.05  # seconds until all rows are there, share of a core while a job of them trains
COORDINATOR_SHARE = 0.05  # of a core, for one open page
PATIENCE = 3600

# As many steps a second as the service can take.
JOB = """
name: long
model: {{dim: 16, n_layers: 1, n_heads: 1, n_kv_groups: 1, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 16, n_sel: 3, w: 16, audit_every: 0}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test, EVAL_OFF: a test, THROUGHPUT_GUARD_OFF: a test, LOST_WORK: a test}}}}
train: {{steps: {steps}, seq_len: 32, batch_size: 1, lr: 1e-4, log_every: 1, eval_every: {rare}, eval_batches: 1, save_every: {rare}, seed: 7, out_dir: {out_dir}}}
"""

# Notes when the first chart is on the screen.
DRAWN = """new MutationObserver((_, observer) => {
  if (!document.querySelector('.chart canvas')) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.drawnAt = performance.now(); }));
}).observe(document, {childList: true, subtree: true});"""

# Counts what the page receives: replies as they are on the wire, and the texts of streams.
RECEIVED = """window.received = 0;
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.received += one.transferSize; }).observe({type: 'resource', buffered: true});
const Real = EventSource;
window.EventSource = class extends Real {
  constructor(...given) {
    super(...given);
    for (const kind of ['event', 'rows', 'list', 'verdict', 'job', 'nodes', 'beat']) super.addEventListener(kind, (one) => { window.received += one.data.length + kind.length + 40; });
  }
};"""

# Notes when a list has drawn so many rows.
LISTED = """const wanted = arguments[0], done = arguments[1];
(function look() {
  if (document.querySelectorAll('.jobs tr[data-id]').length >= wanted) requestAnimationFrame(() => setTimeout(() => done(performance.now())));
  else setTimeout(look, 10);
})();"""

FRAME_GAPS = """const [seconds, done] = arguments, gaps = [], begin = performance.now();
let last = begin;
function frame(now) {
  gaps.push(now - last);
  last = now;
  if (now - begin < 1000 * seconds) requestAnimationFrame(frame); else done(gaps.slice(1));
}
requestAnimationFrame(frame);"""


def start(page, points):
    file = page.folder / "long.yaml"
    file.write_text(JOB.format(steps=400 * points, rare=200 * points, out_dir=page.folder / "long"))
    done = page.service.ctl("submit", file, "-o", "name")
    assert done.returncode == 0, done.stdout + done.stderr
    job = done.stdout.strip()
    begin = time.monotonic()
    page.service.wait_until(lambda: page.get(f"jobs/{job}")["step"] >= points, PATIENCE, f"{points} steps")
    print(f"{points} steps in {time.monotonic() - begin:.0f} s")
    return job


def loads(browser, job):
    """Seconds to the first paint and to the first curve, medians of seven loads after one that fills the cache."""
    paints, curves = [], []
    for number in range(8):
        browser.open(f"#/job/{job}")
        browser.until("window.drawnAt", "the first curve", 60)
        paint = browser.until("performance.getEntriesByName('first-contentful-paint')[0]?.startTime", "the first paint", 60)
        if number > 0:
            paints.append(paint / 1000)
            curves.append(browser.run("return window.drawnAt") / 1000)
    return statistics.median(paints), statistics.median(curves)


def frames(browser, seconds):
    """Frames a second, the 99th percentile of the time between two, and the share of a core that the page's thread takes."""
    def thread_seconds():
        found = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(one["value"] for one in found if one["name"] == "TaskDuration")

    browser.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.driver.set_script_timeout(seconds + 60)
    before, begin = thread_seconds(), time.monotonic()
    gaps = sorted(browser.driver.execute_async_script(FRAME_GAPS, seconds))
    share = (thread_seconds() - before) / (time.monotonic() - begin)
    return 1000 * len(gaps) / sum(gaps), gaps[int(0.99 * len(gaps))] / 1000, share


def quiet(browser, seconds, act=lambda: time.sleep(0.5)):
    """The share of a core of the page's thread, and bytes a second, without a script of ours that asks for frames; `act` is done twice a second."""
    browser.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def now():
        found = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(one["value"] for one in found if one["name"] == "TaskDuration"), browser.run("return window.received"), time.monotonic()
    before = now()
    while time.monotonic() < before[2] + seconds:
        act()
    used, received, span = (after - first for after, first in zip(now(), before))
    return used / span, received / span


def listed(page, browser, job, count, seconds):
    """Seconds until a list of so many jobs is there, the median of three, and the share of a core while one of them trains."""
    for number in range(count - 1):
        text = SMALL_JOB.format(name=f"many-{number:04}", steps=4900, lr="1e-3", team="a", out_dir=page.folder / f"many{number}")
        status, _, body = page.ask(f"/api/v1/jobs/{job}/clone", "POST", {"Authorization": f"Bearer {page.token}"}, json.dumps({"text": text}))
        assert status == 200, (status, body)
    times = []
    for _ in range(4):
        browser.open("#/?q=steps%3E0&open=waiting/each%20needs%201%20CPU%20slot")
        times.append(browser.driver.execute_async_script(LISTED, min(count, DRAWN_ROWS)) / 1000)
    return statistics.median(times[1:]), *quiet(browser, seconds)


def flooded(browser, seconds):
    """The share of a core of the page of a job that trains, without and with 60 warnings a second, as the coordinator sends them: twice a second."""
    stub, base = trust_checks.Stub(), browser.base
    stub.fleet()
    browser.base = stub.base
    shares = {}
    try:
        for warnings in (0, 30):
            job = row("a")
            trust_checks.show(stub, browser, job, trust_checks.curves(1024))
            sent = [1000]

            def act():
                fresh = {**job, "step": sent[0] // 10}
                stub.tell(*(("event", event(sent[0] + i), sent[0] + i) for i in range(warnings)), ("job", fresh, sent[0] + 40))
                sent[0] += 50
                time.sleep(0.5)
            shares[warnings] = quiet(browser, seconds, act)[0]
    finally:
        browser.base = base
        stub.close()
    return shares[0], shares[30]


def step_times(page, begin, end):
    with open(page.folder / "long" / "training.csv", newline="", encoding="utf-8") as file:
        return [float(row["step_seconds"]) for row in csv.DictReader(file) if begin <= float(row["unix_seconds"]) < end]


def costs(page, browser, job, seconds, rounds):
    """The coordinator's share of a core and the median time of a step, without and with the open page."""
    shares, spans = {False: [], True: []}, {False: [], True: []}
    for number in range(2 * rounds):
        shown = number % 4 in (1, 2)
        browser.open(f"#/job/{job}" if shown else "icon.svg")
        if shown:
            browser.until("window.drawnAt", "the first curve", 60)
        begin, before = time.time(), processor_seconds(page.service.process.pid)
        time.sleep(seconds)
        shares[shown].append((processor_seconds(page.service.process.pid) - before) / seconds)
        spans[shown].append((begin, time.time()))
    steps = {shown: statistics.median([step for span in spans[shown] for step in step_times(page, *span)]) for shown in (False, True)}
    return {shown: statistics.mean(shares[shown]) for shown in (False, True)}, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--points", type=int, default=4500)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--slack", type=float, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsa-speed-") as folder:
        # The job has one thread. Two would wake each other 100,000 times a second, and a step would take ten times as long without a page, which keeps
        # both cores awake, as with one.
        page = Page(options.bin_dir, pathlib.Path(folder), agent_environment={"OMP_NUM_THREADS": "1"})
        with page.service:
            job = start(page, options.points)
            with Browser(page.base) as browser:
                for script in (DRAWN, RECEIVED):
                    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
                paint, curve = loads(browser, job)
                print(f"first paint {1000 * paint:.0f} ms, first curve {1000 * curve:.0f} ms (medians of 7 loads)")
                shown = page.get(f"jobs/{job}")["step"]
                rate, late, share = frames(browser, options.seconds)
                moved = page.get(f"jobs/{job}")["step"] - shown
                assert moved > 0, "the job stood still"
                print(f"{rate:.1f} frames a second, 99 % within {1000 * late:.0f} ms, while {moved} steps arrive; the page's thread takes {100 * share:.1f} % of a core")
                share, received = quiet(browser, options.seconds)
                print(f"a job that trains: {100 * share:.1f} % of a core without that count, {received / 1000:.1f} kB a second")
                shares, steps = costs(page, browser, job, options.seconds, options.rounds)
                print(f"coordinator {100 * shares[False]:.1f} % of a core without a page, {100 * shares[True]:.1f} % with one; a step {1e6 * steps[False]:.0f} µs and {1e6 * steps[True]:.0f} µs")
                ready, list_share, list_received = listed(page, browser, job, options.jobs, options.seconds)
                print(f"a list of {options.jobs} jobs: there after {ready:.2f} s, {100 * list_share:.1f} % of a core, {list_received / 1000:.1f} kB a second")
                healthy, flood = flooded(browser, options.seconds)
                print(f"a job with 60 warnings a second: {100 * flood:.1f} % of a core, without them {100 * healthy:.1f} %")
    assert paint <= FIRST_PAINT * options.slack, f"first paint: {paint:.3f} s ({FIRST_PAINT} times {options.slack})"
    assert curve <= FIRST_CURVE * options.slack, f"first curve: {curve:.3f} s ({FIRST_CURVE} times {options.slack})"
    assert rate >= FRAMES / options.slack, f"frames a second: {rate:.1f} ({FRAMES} over {options.slack})"
    assert share <= THREAD_SHARE * options.slack, f"share of a core of the page's thread: {share:.2f} ({THREAD_SHARE} times {options.slack})"
    assert received <= BYTES * options.slack, f"bytes a second of a job that trains: {received:.0f} ({BYTES} times {options.slack})"
    assert ready <= LIST_READY * options.slack, f"the list of {options.jobs} jobs: {ready:.2f} s ({LIST_READY} times {options.slack})"
    assert list_share <= LIST_SHARE * options.slack, f"share of a core of the list: {list_share:.3f} ({LIST_SHARE} times {options.slack})"
    assert flood <= healthy + THREAD_SHARE / 2 * options.slack, f"share of a core with 60 warnings a second: {flood:.3f}, without {healthy:.3f}"
    extra = shares[True] - shares[False]
    assert extra <= COORDINATOR_SHARE * options.slack, f"share of a core of the coordinator for one page: {extra:.3f} ({COORDINATOR_SHARE} times {options.slack})"


if __name__ == "__main__":
    main()
