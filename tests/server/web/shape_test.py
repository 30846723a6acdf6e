#!/usr/bin/python3
"""Every view of the live page, with the made-up replies of trust_checks.py, at three widths and in both colours. Nothing is wider than the window, no
text is cut, lies over another or hardly differs from its background, losses are in the window, and axe-core finds no serious barrier.

    tests/server/web/shape_test.py [SHOTS_DIR]     with SHOTS_DIR it also leaves pictures there; skips (77) without Chromium
"""
import base64
import gzip
import json
import math
import pathlib
import random
import sys

try:
    from browser import Browser, axe
except ImportError:
    print("skipped: no python3-selenium; deploy/packages.sh test installs it")
    sys.exit(77)
import trust_checks  # noqa: E402
from tonight_checks import night  # noqa: E402
from trust_checks import NOW, curves, event, row  # noqa: E402

WIDTHS = (1400, 1024, 390)
LONG = "a-name-of-sixty-three-characters-that-goes-on-and-on-and-on-xyz"
STEPS = 400


def noisy(start, end, seed, count=STEPS):
    """A curve as that of a loss, with some noise."""
    dice = random.Random(seed)
    return [end + (start - end) * math.exp(-5 * i / count) + dice.gauss(0, 0.03) * (end + 1) for i in range(count)]


def curve(seed, end=1.7, **values):
    steps = {"loss": noisy(5.5, end, seed), "grad_norm": [abs(one - 0.8) for one in noisy(9, 1.2, seed + 1)], "tokens_per_second": noisy(4800, 4900, seed + 2), "step_seconds": noisy(0.2, 0.17, seed),
             "learning_rate": [1e-3 * min(1, i / 40) * (1 - i / 500) for i in range(STEPS)], "memory_bytes": [3.3e8 + 1e6 * (i // 100) for i in range(STEPS)], "data_seconds": noisy(0.01, 0.002, seed)}
    made = curves(STEPS, **{**steps, **values})
    when = list(range(40, STEPS + 1, 40))
    made["evals"] = {"validation": {"step": when, "time": [NOW - 1000 * (STEPS - one) for one in when], "loss": [made["values"]["loss"]["mean"][one - 1] or 2.0 for one in when]}}
    made["val_sets"] = {name: {**made["evals"]["validation"], "loss": [one + 0.2 * (i + 1) for one in made["evals"]["validation"]["loss"]]} for i, name in enumerate(("books", "code-of-many-languages"))}
    return made


def heat(layers=12, columns=60):
    """Values of all maps, of a model whose layer 3 has the window only, before whose first audit nothing was measured."""
    dice = random.Random(5)
    names = [one["name"] for one in trust_checks.QUANTITIES["quantities"] if one["kind"] == "layer" and one["map"]]
    value = lambda name, layer, i: None if (layer == 3 and "cmp" in name) or (name.startswith("mass") and i < 9) else round((44.5 if name.startswith("keys") else 1) * (layer + 1) / layers * (0.6 + 0.3 * dice.random()), 4)
    return {"width": 10, "layers": layers, "step": [10 * (i + 1) for i in range(columns)], "values": {name: [[value(name, layer, i) for i in range(columns)] for layer in range(layers)] for name in names}}


def trace():
    """Three steps of two ranks, as the coordinator writes a trace."""
    lines = ['{"displayTimeUnit":"ms","otherData":' + json.dumps({"job": "a", "ranks": 2, "first_step": 401, "last_step": 403, "notes": []}) + ',"traceEvents":[']
    events = [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} on node-0{rank + 1}"}} for rank in (0, 1)]
    for rank in (0, 1):
        for step in range(3):
            begin = 210000 * step + 900 * rank
            part = lambda kind, name, at, length: events.append({"ph": "X", "cat": kind, "name": name, "pid": rank, "tid": 1, "ts": begin + at, "dur": length})
            part("step", f"step {401 + step}", 0, 200000)
            for name, at, length in (("data", 0, 4000), ("forward", 4000, 70000), ("backward", 74000, 110000), ("optimizer", 184000, 16000)):
                part("phase", name, at, length)
            for layer in range(4):
                part("layer", f"layer {layer}", 5000 + 17000 * layer, 16000)
                part("kernel", "selected_attention_forward", 6000 + 17000 * layer, 9000)
                part("kernel", "matmul", 15500 + 17000 * layer, 5000)
            part("collective", "all_reduce", 160000, 20000)
    return gzip.compress("\n".join([*lines, *(json.dumps(one) + "," for one in events[:-1]), json.dumps(events[-1]), "]}", ""]).encode())


def at(ago, sequence, *what):
    """An event so many seconds ago, which are steps of the curves, too."""
    return {**event(sequence, *what), "time": NOW - 1000 * ago}


def population(stub):
    """What the review had: the night of tonight_checks.py, and beside it NaN, a long name with long labels, a sweep, jobs that wait, two machines. Returns the jobs."""
    few = night(stub)
    verdict = stub.replies["fleet"]["verdict"]
    nan = {"word": "NONFINITE_LOSS", "level": "bad", "cause": "Its loss is not finite", "evidence": "since step 18 no update was applied; train.lr 10, train.grad_clip 0; preflight had warned of GRAD_CLIP_OFF", "since_step": 18, "since": NOW - 900000, "muted": False,
           "actions": [{"action": "stop", "text": "Stop now", "command": "nsactl stop j-nan --now"}, {"action": "clone", "text": "Clone with train.lr 0.001, train.grad_clip 1", "command": "nsactl fork", "set": {"train.lr": "0.001"}},
                       {"action": "mute", "text": "Mute until it ends", "command": "nsactl mute j-nan"}]}
    jobs = [row("nan", level="bad", said=("training, 37 %, ends in 6 min", "its loss is not finite"), loss=None, nonfinite=True, val_loss=None, val_nonfinite=True, eta_seconds=360.0, problems=[nan], needs_you=True),
            *few[:2], row(LONG, eta_seconds=3000.0, restarts=2, labels={"team": "a-long-team-name-of-someone", "purpose": "a-rather-long-purpose-of-it"}, problems=[], needs_you=False), *few[2:],
            row("dropped-one", "STOPPED", "waiting", ("dropped at step 100 of 400", "rank 6 of 8 by validation loss"), title="dropped", ended=NOW - 7200000, reason="SWEEP_DROPPED", problems=[], needs_you=False)]
    sweep = [row(f"rates-{i}", "SUCCEEDED" if i < 4 else "STOPPED", "good" if i < 4 else "waiting", ("finished", "") if i < 4 else ("dropped at step 100 of 400", f"rank {i + 1} of 8 by validation loss"), title="finished" if i < 4 else "dropped",
                 ended=NOW - 3600000, val_loss=1.6 + i / 20, val_step=400 if i < 4 else 100, step=400 if i < 4 else 100, steps=400, reason="COMPLETED" if i < 4 else "SWEEP_DROPPED", message=f"rank {i + 1} of 8 by validation loss",
                 labels={"sweep": "rates", "train.lr": f"{10.0 ** -(i % 4 + 1):g}", "nsa.gate": ("softmax", "sigmoid")[i % 2], "data.tokenizer": ("/data/tokenizers/a-rather-long-name.json", "byte")[i // 4]},
                 sweep={"name": "rates", "jobs": 8, "index": i, "halve_at": [100]}, problems=[], needs_you=False) for i in range(8)]
    waiting = [row(f"queued-{i}", "QUEUED", "waiting", (f"waiting at position {i + 1}", "needs 2 CPU slots on one machine; node-01 has 1 of 3 free, node-02 1 of 3"), step=0, val_step=0, val_loss=None, loss=None, tokens_per_second=0, spark=[], queue_position=i + 1,
                   started=None, run_seconds=None, checkpoint_step=0, problems=[], needs_you=False) for i in range(5)]
    for i, job in enumerate([*jobs, *sweep, *waiting]):
        lost = {"loss": [3.0 - i / 20 if i < 17 else None for i in range(STEPS)], "skipped_nonfinite": [float(i >= 17) for i in range(STEPS)]} if job["nonfinite"] else {}
        hot = {"loss": [5.5 + i / 50 for i in range(STEPS)], "grad_norm": [1.0 * 10 ** (i / 12) for i in range(STEPS)]} if job["name"] == "hot" else {}
        job["spark"] = [] if job["state"] == "QUEUED" else noisy(5.5, job["val_loss"] or 2, i, 24)
        stub.job(job, {**curves(0), "evals": {}} if job["state"] == "QUEUED" else curve(i, job["val_loss"] or 2, **lost, **hot), layers=None if job["state"] == "QUEUED" else heat(),
                 config={"name": job["name"], "data": {"source": "DATA_SOURCE_TEXT"}, "train": {"lr": 10 if job["name"] in ("hot", "nan") else 1e-3, "out_dir": f"/{job['name']}"}, "nsa": {"gate": ("GATE_SOFTMAX", "GATE_SIGMOID")[i % 2], "phi": "PHI_MLP"}},
                 config_text=f"name: {job['name']}\ntrain:\n  lr: 10\n  out_dir: /{job['name']}\n", events=[at(400, 1, "SUBMITTED", "info", "by operator"), at(399, 2, "LAUNCHED", "info", "1 rank on node-01"), *(at(240 - i, 3 + i) for i in range(40)),
                 at(150, 60, "NOTE", "info", "learning rate looks too high (mara)"), at(50, 61, "RANK_CRASHED", "error", "rank 1 on node-02 was killed by signal 9; the kernel's log has: Out of memory: Killed process 4711 (nsa-worker), and goes on for some while")])
    whole(stub, jobs[3])
    rest = {"kind": "sweep", "name": "rates", "ids": [job["id"] for job in sweep], "jobs": 8, "states": {"SUCCEEDED": 4, "STOPPED": 4}, "need": 0, "best": {"id": "j-rates-0", "val_loss": 1.6}}
    queue = {"kind": "waiting", "name": "each needs 2 CPU slots on one machine", "ids": [job["id"] for job in waiting], "jobs": 5, "states": {"QUEUED": 5}, "need": 0, "best": None}
    cards = [{"id": "j-nan", "name": "nan", "state": "RUNNING", "step": 400, "steps": 60000, "more": 1, **nan}, *verdict["cards"]]
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85899345920, "used_bytes": 61000000000, "use": 0.97, "celsius": 61, "watts": 655}
    node = {"name": "node-01", "state": "READY", "cordon": "", "cordon_text": "", "heartbeat": NOW, "cores": 8, "cpu_slots": 3, "cpu_slots_used": 2, "gpus_used": 0, "memory_bytes": 33500000000, "used_memory_bytes": 8100000000, "gpus": [], "problem": "",
            "jobs": [{"id": job["id"], "name": job["name"]} for job in jobs[:4]]}
    nodes = [node, {**node, "name": "node-02-with-a-longer-name.cluster.example.org", "gpus": [gpu, {**gpu, "use": None, "celsius": None, "watts": None}], "gpus_used": 2, "problem": "NVIDIA H100 80GB HBM3 GPU-1f2e gets no ranks: 3 uncorrectable errors"},
             {**node, "name": "node-03", "state": "LOST", "cordon": "cordoned", "cordon_text": "mara, since 2 h: new power supply", "jobs": []}]
    stub.fleet(*jobs, *sweep, *waiting, look=3, verdict={**verdict, "words": "3 need you. 3 of 5 are fine.", "need": 3, "fine": 3, "running": 5, "waiting": 5, "muted": 1, "cards": cards}, groups=[rest, queue], nodes=nodes,
               events=[{**event(1, "RANK_CRASHED", "error", "rank 1 on node-02 was killed by signal 9"), "name": LONG}, {**event(2, "PREFLIGHT_REFUSED", "warning", "DISK_TOO_SMALL: train.out_dir: 1.0 GiB free on /data (9.2 GiB)"), "name": "b"}, *({**event(3 + i), "name": "hot"} for i in range(30))])
    return jobs


def whole(stub, job):
    """All that the page of a job can show: mixture, named sets, ranks, checkpoints, stacks, samples, findings, a log and a trace."""
    path = f"jobs/{job['id']}"
    rank = {"rank": 0, "node": "node-01", "pid": 1, "state": "RUNNING", "step": 400, "phase": "forward layer 3", "note": "", "error": ""}
    source = {"name": "books", "weight": 3, "paths": ["/data/books/part-00000-of-00128.jsonl.zst", "/data/b"], "rows": 3000, "epoch": 0, "loss": 1.9}
    sample = {"prompt": "The attention of", "text": " a token to what lies far behind it is the sum of three branches, and so it goes on.\nA second line.", "tokens": 64, "seconds": 0.045, "time": NOW, "error": ""}
    stub.replies[path].update(
        rank_status=[rank, {**rank, "rank": 1, "node": "node-02-with-a-longer-name.cluster.example.org", "note": "no progress for 40 s"}], sources=[source, {**source, "name": "code-of-many-languages", "weight": 1, "rows": 1000, "loss": 1.4}],
        val_sets=[{"name": "books", "paths": ["/data/val/books.jsonl"], "tokens": 65536, "loss": 1.9}], null_rows=12, data_warnings=["data.except.source: none of 240,000 records has the value 'openstax/osbooks-astronomi'; check the spelling"], ranks=2, waivers={"GRADIENT_CHECKPOINTING_OFF": "memory is ample"},
        warnings=[{"rule": "EVAL_RARE", "field": "train.eval_every", "problem": "4000 (at most 1000)", "fix": "write eval_every: 1000"}], parent={"id": "j-base", "name": "base", "step": 40}, mutes=[{"problem": "SLOW", "who": "mara", "time": NOW}])
    stub.replies[path]["config"] = {**stub.replies[path]["config"], "sample": {"prompts": ["The attention of"]}}
    stub.replies[f"{path}/checkpoints"] = {"checkpoints": [{"step": step, "path": f"/runs/{LONG}/checkpoints/step-{step:08}", "bytes": 320000000, "time": NOW - 1000 * (400 - step), "val_loss": 1.8, "pinned": step == 200, "error": "disk full: 0 bytes free" if step == 320 else ""} for step in (200, 320, 400)]}
    stub.replies[f"{path}/stacks"] = {"stacks": [{"id": 1, "time": NOW, "why": "asked for on the page"}]}
    stub.replies[f"{path}/samples"] = lambda query: {"steps": [100, 200, 300], "step": int(query.get("step", 300)), "samples": [sample, {**sample, "prompt": "", "text": "x" * 300}]}
    stub.replies[f"{path}/log"] = lambda query: {"rank": int(query["rank"]), "text": "\n".join(f"2026-11-29T05:00:{i:02}.000Z {'IWE'[i % 3]} worker: step {i} of 60000, loss 1.7136, and a text that goes on for some while so that it fills the line" for i in range(30))}
    stub.replies[f"{path}/traces"] = {"traces": [{"id": 1, "name": f"{LONG}-steps-401-403.trace.json.gz", "bytes": len(trace()), "time": NOW}], "recording": None}
    stub.replies[f"{path}/traces/1"] = trace()


def ask(browser, selector, text=""):
    browser.click(selector, text)
    browser.until("document.querySelector('dialog')", f"the dialog of {selector}")


def open_job(browser):
    browser.click("[data-act=show-trace]")
    browser.until("document.querySelector('.timeline canvas')", "the picture of the trace")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true; document.querySelector('.chart [aria-expanded]').click(); document.querySelector('.heat [aria-expanded]').click()")
    browser.until("document.querySelectorAll('.log[role=log] div').length === 30", "the log")


TICKED = "#/?on=j-a,j-b,j-hot,j-nan&star=j-base"
DONE = "document.querySelector('.jobs tr[data-id] .delta') && document.querySelectorAll('.machine').length === 3"
# Name, address, what shows that it is drawn, and what is done there.
VIEWS = (
    ("workspace", "#/", DONE, lambda browser: browser.click(".fold button", "▸")),
    ("ticked", TICKED + "&s=0.8", "document.querySelectorAll('.ticked .chart canvas').length === 4 && document.querySelector('.figures-table td')", None),
    ("job", f"#/job/j-{LONG}", "document.querySelector('.heat canvas') && document.querySelectorAll('.chart canvas').length >= 6 && document.querySelector('.sample') && document.querySelector('.checkpoints td')", open_job),
    ("failed", "#/job/j-lost", "document.querySelector('.job .card') && document.querySelector('.heat canvas')", None),
    ("nan", "#/job/j-nan?y=log", "document.querySelector('.chart[data-of=loss] .values .bad') && document.querySelector('.heat canvas')", None),
    ("waiting", "#/job/j-queued-0", "document.querySelector('.sentence')", None),
    ("sweep", "#/sweep/rates", "document.querySelectorAll('.parallel .job').length === 8 && document.querySelectorAll('.chart canvas').length >= 4", None),
    ("stop", "#/job/j-hot", "document.querySelector('[data-act=stop]')", lambda browser: ask(browser, "[data-act=stop]")),
    ("fork", "#/", DONE, lambda browser: ask(browser, "[data-act=card-clone]", "Fork from")),
    ("log", "#/", DONE, lambda browser: ask(browser, "[data-act=card-log]")),
    ("labels", f"#/job/j-{LONG}", "document.querySelector('[data-act=label]')", lambda browser: ask(browser, "[data-act=label]")),
    ("views", "#/", DONE, lambda browser: ask(browser, "[data-act=views]")),
    ("keys", "#/", DONE, lambda browser: browser.keys("?")),
)

# What is wrong with the shape of what is shown, one text each: what is wider than the window, text that is cut without an ellipsis, text over other text, text that hardly differs from
# its background, and losses of the list outside of the window. With a dialog, of the dialog only.
SHAPE = """const wide = document.documentElement.clientWidth, root = document.querySelector('dialog') || document.body, found = [];
const name = (one) => `${one.tagName.toLowerCase()}${one.className && one.className.baseVal === undefined ? '.' + one.className.trim().replaceAll(/ +/g, '.') : ''}`;
const shown = (one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const boxes = (node) => { const range = document.createRange(); range.selectNodeContents(node); return [...range.getClientRects()].filter((box) => box.width > 1 && box.height > 1); };
if (document.documentElement.scrollWidth > wide) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
// The element that lays the text out: what is in one flows around each other.
const block = (one) => { while (one.parentElement && ['inline', 'contents'].includes(getComputedStyle(one).display)) one = one.parentElement; return one; };
// The part of the box that is seen: elements around it may cut it off.
const seen = (box, one, text) => {
  let { left, right, top, bottom } = box;
  for (let up = one; up && up !== document.body; up = up.parentElement) {
    const style = getComputedStyle(up);
    if (style.display === 'inline' || (style.overflowX === 'visible' && style.overflowY === 'visible')) continue;
    const edge = up.getBoundingClientRect();
    const hides = style.overflowX === 'hidden' || style.overflowX === 'clip';
    const dots = style.textOverflow === 'ellipsis' || Number(style.webkitLineClamp) > 0;
    if (hides && !dots && (right > edge.right + 2 || left < edge.left - 2 || bottom > edge.bottom + 4)) found.push(`cut off by ${name(up)}: ${text}`);
    [left, right, top, bottom] = [Math.max(left, edge.left), Math.min(right, edge.right), Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
  }
  return right - left > 1 && bottom - top > 1 ? { left, right, top, bottom } : null;
};
// A computed colour as [red, green, blue, alpha], 0 to 1.
const parsed = (text) => { const [r, g, b, a = 1] = text.match(/[0-9.e-]+/g).map(Number); return text.startsWith('rgb') ? [r / 255, g / 255, b / 255, a] : [r, g, b, a]; };
const over = ([r, g, b, a], below) => [r, g, b].map((one, i) => one * a + below[i] * (1 - a));
const behind = (one) => {
  const { backgroundColor, backgroundImage } = one ? getComputedStyle(one) : { backgroundColor: 'rgb(255, 255, 255)', backgroundImage: 'none' };
  const colour = parsed(backgroundColor);
  if (backgroundImage !== 'none') return null;
  const below = colour[3] < 1 ? behind(one.parentElement) : [0, 0, 0];
  return below && over(colour, below);
};
const light = (colour) => colour.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)).reduce((sum, one, i) => sum + [0.2126, 0.7152, 0.0722][i] * one, 0);
const judged = new Set();
// WCAG 2.2: 4.5, and 3 for large text.
const contrast = (one, text) => {
  if (judged.has(one) || one.closest(':disabled')) return;
  judged.add(one);
  const style = getComputedStyle(one), back = behind(one), size = parseFloat(style.fontSize);
  if (!back) return;
  const [high, low] = [light(over(parsed(one instanceof SVGElement ? style.fill : style.color), back)), light(back)].sort((a, b) => b - a);
  const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  if ((high + 0.05) / (low + 0.05) < least) found.push(`contrast ${((high + 0.05) / (low + 0.05)).toFixed(2)} of ${name(one)}: ${text}`);
};
const texts = [];
const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
  if (!text || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION', 'TEXTAREA'].includes(one.tagName) || !shown(one) || one.closest('.hidden, .skip, #toast')) continue;
  for (const box of boxes(walker.currentNode)) {
    const part = seen(box, one, text.slice(0, 50));
    if (part) contrast(one, text.slice(0, 50));
    if (part) texts.push({ ...part, of: one instanceof SVGElement ? one : block(one), text: text.slice(0, 50) });
    if (part && part.right > wide + 1) found.push(`right of the window: ${text.slice(0, 50)}`);
  }
}
texts.sort((a, b) => a.top - b.top);
texts.forEach((one, i) => {
  for (let k = i + 1; k < texts.length && texts[k].top < one.bottom - 3; ++k) {
    const other = texts[k];
    if (one.of !== other.of && Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2 && Math.min(one.bottom, other.bottom) - other.top > 3) found.push(`${name(one.of)} '${one.text}' lies over ${name(other.of)} '${other.text}'`);
  }
});
const list = root.querySelector('.jobs')?.closest('.scroll').getBoundingClientRect();
for (const row of list ? document.querySelectorAll('.jobs tr[data-id]') : []) {
  const losses = [...row.querySelectorAll('.num, .brief span')].filter((one) => shown(one) && one.getBoundingClientRect().right <= list.right + 1 && list.right <= wide + 1).map((one) => one.textContent).join(' ');
  if (!/[0-9]\\.[0-9]{4}|NaN/.test(losses) && row.querySelector('.badge').textContent !== 'waiting') found.push(`no loss in the window: ${row.dataset.id}`);
}
return [...new Set(found)];"""


def check_views(stub, browser, shots=None):
    population(stub)
    browser.open("#/")
    browser.run("sessionStorage.setItem('token', 'x'); localStorage.removeItem('seen')")
    wrong = []
    if axe() is None:
        print("not checked for barriers, for want of axe-core; deploy/packages.sh test fetches it from npm")
    for name, path, ready, do in VIEWS:
        for width in WIDTHS:
            browser.resize(width, 900)
            if width == WIDTHS[0] or not browser.all("dialog"):  # a dialog is laid out by the style alone
                browser.run("localStorage.removeItem('seen')")
                browser.open(path)
                browser.until(ready, f"{name} at {width}")
                if do:
                    do(browser)
            for theme in ("light", "dark"):
                if browser.run("return document.documentElement.dataset.theme") != theme:
                    browser.run("document.getElementById('theme').click()")
                browser.until("!document.getAnimations().some((one) => one instanceof CSSTransition) && document.fonts.status === 'loaded'", "that nothing moves")
                wrong += [f"{name} {theme} {width}: {one}" for one in [*browser.run(SHAPE), *((browser.barriers() or []) if (theme, width) in (("light", 1400), ("dark", 390)) else [])]]
                if shots:
                    picture = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
                    (shots / f"{name}-{theme}-{width}.png").write_bytes(base64.b64decode(picture))
    browser.resize(1400, 900)
    assert not wrong, "\n".join(wrong)
    print("ok: shapes")


def main():
    if not all(pathlib.Path("/usr/bin", one).exists() for one in ("chromium", "chromedriver")):
        print("skipped: no chromium; deploy/packages.sh test installs it")
        sys.exit(77)
    shots = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with Browser("") as browser:
        trust_checks.with_stub(browser, [lambda stub, window: check_views(stub, window, shots)])
        assert browser.log() == [], browser.log()


if __name__ == "__main__":
    main()
