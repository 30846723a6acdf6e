"""Checks of the workspace of the live page, with the made-up replies of trust_checks.py: what needs somebody and the buttons that mend it, the filter, the ticked runs, and the address.
By itself: tests/server/web/tonight_checks.py"""
import itertools
import re

import trust_checks
from trust_checks import NOW, READY, TOP, curves, event, row

ROWS = "[...document.querySelectorAll('.jobs tr[data-id]')]"
NAMES = f"{ROWS}.map((one) => one.dataset.id.slice(2)).join()"
LOSS = "document.querySelector('.ticked .chart[data-of=loss]').chart"


def night(stub):
    """A failed job, one that diverges, two that are fine, a finished baseline and one of other data."""
    wrong = {"word": "KILLED", "level": "bad", "cause": "Rank 0 was killed", "evidence": "signal 9 at step 813; restart.max_restarts 0", "since_step": 813, "since": NOW - 3600000, "muted": False,
             "actions": [{"action": "resume", "text": "Resume from step 800", "command": "nsactl resume j-lost"}, {"action": "log", "text": "Last 20 lines of the log of rank 0", "command": "nsactl logs j-lost", "rank": 0},
                         {"action": "mute", "text": "Mark as seen", "command": "nsactl mute j-lost KILLED"}]}
    hot = {"word": "DIVERGED", "level": "bad", "cause": "The run has diverged", "evidence": "loss 8.07 (a uniform guess has 5.55); train.lr 10", "since_step": 4, "since": None, "muted": False,
           "actions": [{"action": "clone", "text": "Clone with train.lr 0.001, guard.max_grad_norm 5", "command": "nsactl fork j-hot", "set": {"train.lr": "0.001", "guard.max_grad_norm": "5"}},
                       {"action": "clone", "text": "Fork from step 3 with train.lr 0.001", "command": "nsactl fork j-hot --at-step 3", "set": {"train.lr": "0.001", "restart.resume": "/hot/checkpoints/step-00000003"}},
                       {"action": "mute", "text": "Mute until it ends", "command": "nsactl mute j-hot DIVERGED"}]}
    jobs = [row("hot", level="bad", said=("training, 65 %", "the run has diverged"), loss=8.07, val_loss=7.9, problems=[hot], needs_you=True),
            row("lost", "FAILED", "bad", ("failed at step 813", "rank 0 was killed"), ended=NOW - 3600000, val_loss=2.1, problems=[wrong], needs_you=True),
            row("a", val_loss=1.6, best_val=1.55, eta_seconds=600.0, labels={"team": "lm"}, problems=[], needs_you=False), row("b", val_loss=1.75, eta_seconds=1200.0, labels={"team": "vision"}, problems=[], needs_you=False),
            row("base", "SUCCEEDED", "good", ("finished", ""), ended=NOW - 7200000, val_loss=1.7, problems=[], needs_you=False),
            row("other", "SUCCEEDED", "good", ("finished", ""), ended=NOW - 7200000, val_loss=1.2, problems=[], needs_you=False)]
    for job in jobs:
        name = job["name"]
        stub.job(job, config={"name": name, "data": {"source": "DATA_SOURCE_JSONL" if name == "other" else "DATA_SOURCE_TEXT"}, "train": {"lr": 10 if name == "hot" else 1e-3, "out_dir": f"/{name}"}},
                 config_text="name: hot\ntrain:\n  lr: 10\n  out_dir: /hot\n")
        stub.replies[f"jobs/{job['id']}/log"] = {"rank": 0, "text": "the last line before the signal"}
    cards = [{"id": one["id"], "name": one["name"], "state": one["state"], "step": 813, "steps": 4900, "more": 0, **one["problems"][0]} for one in jobs[:2]]
    stub.fleet(*jobs, look=2, verdict={"words": "2 need you. 2 of 3 are fine.", "need": 2, "fine": 2, "running": 3, "waiting": 0, "muted": 0, "cards": cards, "next_end": {"id": "j-a", "name": "a", "ends": NOW + 600000}}, groups=[])
    return jobs


def opened(browser, address="#/", count=6):
    browser.open("#/")
    browser.open(address)
    browser.until(f"document.getElementById('live').textContent === 'live' && {ROWS}.length === {count}", f"the list at {address}")


def check_night(stub, browser):
    """Find the failed job, see why, resume it, compare with a baseline, copy the link and open it elsewhere."""
    night(stub)
    opened(browser)
    browser.run("sessionStorage.setItem('token', 'x')")
    opened(browser)
    assert browser.text(".sentence").startswith("2 need you. 2 of 3 are fine."), browser.text(".sentence")
    assert "next to end: a at " in browser.text(".sentence")
    told = browser.run("return [...document.querySelectorAll('.card')].map((one) => one.textContent)")
    assert len(told) == 2 and "Rank 0 was killed" in told[1] and "restart.max_restarts 0" in told[1] and "since step 813" in told[1], told
    browser.click("[data-act=card-log]")
    browser.until("document.querySelector('dialog pre')?.textContent === 'the last line before the signal'", "the log")
    browser.click("dialog button", "Close")
    browser.click("[data-act=card-clone]", "Clone with")
    browser.until("['  lr: 0.001', 'guard:\\n  max_grad_norm: 5'].every((one) => document.querySelector('dialog textarea').value.includes(one))", "the changed job file")
    assert "begins at step 0" in browser.text("dialog"), browser.text("dialog")
    browser.click("dialog button", "Cancel")
    browser.click("[data-act=card-clone]", "Fork from step 3")
    browser.until("['name: hot-at-3', '  lr: 0.001', 'restart:\\n  resume: \"/hot/checkpoints/step-00000003\"'].every((one) => document.querySelector('dialog textarea').value.includes(one))", "the job file of the fork")
    assert "continues from this checkpoint" in browser.text("dialog") and "begins at step 0" not in browser.text("dialog"), browser.text("dialog")
    browser.click("dialog button", "Cancel")
    browser.click("[data-act=card-mute]", "Mute until it ends")
    assert "until the job ends" in browser.text("dialog"), browser.text("dialog")
    browser.click("dialog button", "Cancel")
    browser.click("[data-act=card-mute]", "Mark as seen")
    assert "until the job ends" not in browser.text("dialog"), browser.text("dialog")
    browser.click("dialog button[type=submit]")
    browser.until("!document.querySelector('dialog')", "the mute")
    assert stub.posts[-1][0] == "/api/v1/jobs/j-lost/mute" and stub.posts[-1][1]["mute"] == ["KILLED"], stub.posts
    stub.replies["jobs/j-lost"]["mutes"] = [{"problem": "KILLED", "who": "mara", "time": NOW}]
    browser.open("#/job/j-lost")
    browser.until(READY, "the job")
    assert browser.text(".sentence") == "Rank 0 was killed", "the same words as in the list"
    card = browser.text(".job .card")
    assert all(one in card for one in ("since step 813", "Signal 9 at step 813; restart.max_restarts 0", "Resume from step 800", "Last 20 lines of the log of rank 0", "Mark as seen")), card
    browser.click(".job [data-act=card-log]")
    browser.until("document.querySelector('dialog pre')?.textContent === 'the last line before the signal'", "the log")
    browser.click("dialog button", "Close")
    browser.click("[data-act=unmute]")
    browser.click("dialog button", "Unmute all of them")
    browser.until("!document.querySelector('dialog')", "the unmute")
    assert stub.posts[-1][0] == "/api/v1/jobs/j-lost/mute" and stub.posts[-1][1]["unmute"] == ["KILLED"], stub.posts[-1]
    browser.run("localStorage.removeItem('seen')")
    opened(browser)
    browser.click("[data-act=card-resume]")
    browser.click("dialog button", "Resume the job")
    browser.until("!document.querySelector('dialog')", "the resume")
    assert stub.posts[-1][0] == "/api/v1/jobs/j-lost/resume" and stub.posts[-1][1]["request_id"], stub.posts
    browser.click("[data-id=j-base] .delta")
    delta = f"Object.fromEntries({ROWS}.map((one) => [one.dataset.id.slice(2), one.querySelector('.delta').textContent]))"
    browser.until(f"({delta}).other === '≠ data'", "that other data is not compared")
    assert browser.run(f"return {delta}") == {"hot": "+6.200", "lost": "+0.400", "a": "−0.150", "b": "+0.050", "base": "★", "other": "≠ data"}
    assert "1.5500" in browser.text("[data-id=j-a]"), "the best validation"
    for job in ("a", "base"):
        browser.click(f"[data-id=j-{job}] input")
    browser.until("document.querySelectorAll('.ticked .chart canvas').length === 4", "the charts of two runs")
    browser.run("Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { window.copied = text; }}})")
    browser.click("[data-act=link]")
    link = browser.until("window.copied", "the copied link")
    assert link.endswith("#/?on=j-a,j-base&star=j-base"), link
    with_all = f"{ROWS}.filter((one) => one.querySelector('input').checked).length === 2 && document.querySelector('.delta[aria-pressed=true]')?.closest('tr').dataset.id === 'j-base'"
    opened(browser, link[link.index("#"):])
    browser.until(f"{with_all} && document.querySelectorAll('.ticked .chart canvas').length === 4", "the same elsewhere")
    print("ok: night")


def check_folds(stub, browser):
    """Jobs of a sweep, and jobs that wait for the same, are one row each; what is unfolded stands in the address."""
    sweep = [row(f"s{i}", val_loss=1.9 - i / 10, labels={"sweep": "s"}, sweep={"name": "s", "jobs": 8, "index": i, "halve_at": []}) for i in range(3)]
    waiting = [row(f"w{i}", "QUEUED", "waiting", ("waiting", "needs 2 GPUs"), val_step=0, step=0) for i in range(4)]
    held = [row(f"q{i}", "QUEUED", "waiting", ("waiting", "the quota of mara is used"), val_step=0, step=0) for i in range(3)]
    stub.fleet(*sweep, *waiting, *held, groups=[{"kind": "sweep", "name": "s", "ids": [job["id"] for job in sweep], "jobs": 8, "states": {"RUNNING": 8}, "need": 0, "best": {"id": "j-s2", "val_loss": 1.7}},
                                         {"kind": "waiting", "name": "each needs 2 GPUs", "ids": [job["id"] for job in waiting], "jobs": 4, "states": {"QUEUED": 4}, "need": 0, "best": None},
                                         {"kind": "waiting", "name": "held by the quota of mara", "ids": [job["id"] for job in held], "jobs": 3, "states": {"QUEUED": 3}, "need": 0, "best": None}])
    for job in sweep:
        stub.replies[f"jobs/{job['id']}"] = {"config": {}}
    opened(browser, count=0)
    told = browser.run("return [...document.querySelectorAll('.fold .name')].map((one) => one.textContent)")
    assert told == ["s8 jobs · 3 training · best s2", "4 jobs waitingeach needs 2 GPUs", "3 jobs waitingheld by the quota of mara"], told
    before = browser.run("return document.querySelector('.fold [aria-expanded]').ariaExpanded")
    browser.click(".fold .delta")
    browser.until("document.querySelector('.fold .delta').ariaPressed === 'true' || location.hash.includes('star=')", "the baseline")
    assert browser.run("return document.querySelector('.fold [aria-expanded]').ariaExpanded") == before == "false", "☆ unfolds the row"
    opened(browser, count=0)
    browser.click(".fold button", "▸")
    browser.until(f"{NAMES} === 's0,s1,s2' && location.hash === '#/?open=s/operator'", "the jobs of the sweep")
    opened(browser, "#/?open=waiting/held%20by%20the%20quota%20of%20mara", 3)
    assert browser.run(f"return {NAMES}") == "q0,q1,q2", "one group is open, the other is not"
    print("ok: folds")


def check_bulk(stub, browser):
    """Of the ticked jobs those that run are stopped together, after a question; the others are left alone."""
    night(stub)
    opened(browser, "#/?on=j-a,j-b,j-base")
    before = len(stub.posts)
    browser.click("[data-act=bulk-stop]", "Stop 2")
    browser.click("dialog button", "Stop 2 jobs")
    browser.until("!document.querySelector('dialog')", "the stop")
    assert sorted(path for path, _ in stub.posts[before:]) == ["/api/v1/jobs/j-a/stop", "/api/v1/jobs/j-b/stop"], stub.posts[before:]
    assert not browser.all("[data-act=bulk-resume]"), "a finished job can be resumed"
    print("ok: bulk")


def check_filter(stub, browser):
    """The filter takes names, labels, states, keys and figures together; it stands in the address, and so does the order."""
    night(stub)
    opened(browser)
    for text, wanted in (("val<1.7", "a,other"), ("train.lr>1", "hot"), ("train.lr<=1e-3 val<1.65", "a,other"), ("data.source=jsonl", "other"), ("val<1.8 step>=1000 loss!=3", "a,b,base,other"), ("best<1.56", "a,other"), ("owner=operator state!=succeeded state!=fail", "hot,a,b")):
        browser.type("input[aria-label=Filter]", text)
        browser.until(f"{NAMES} === '{wanted}'", f"the rows for {text}")
    for text, part in (("team=lm", "label=team%3Dlm"), ("state=failed", "state=failed"), ("book state=look", "name=book")):
        browser.type("input[aria-label=Filter]", text)
        browser.until(lambda: any("fleet?" in path and part in path for path in stub.asked), f"that the coordinator is asked for {text}")
    opened(browser, "#/?q=val%3C1.7&sort=-val", 2)
    browser.until(f"{NAMES} === 'a,other' && document.querySelector('[aria-sort=descending]')", "the order of the address")
    browser.click("[data-act='sort val']")
    browser.until("!location.hash.includes('sort')", "the order by verdict")
    browser.click("[data-act='sort val']")
    browser.until(f"{NAMES} === 'other,a' && location.hash.includes('sort=val')", "the lowest first")
    opened(browser)
    groups = browser.run("return [...document.querySelectorAll('.jobs .group')].map((one) => one.textContent)")
    assert groups == ["Needs you 2", "Training 2", "Ended in the last 12 hours 2"], groups
    print("ok: filter")


FILES = """const [done] = arguments, chart = document.querySelector('.ticked .chart[data-of=loss]').chart;
import(document.querySelector('script[type=module]').src.replace('app.js', 'chart_files.js')).then(({ csvOf, pictureOf }) => {
  const picture = pictureOf(chart);
  return [csvOf(chart).split('\\n').slice(0, 3), picture.width, picture.height, chart.plot.ctx.canvas.width];
}).then(done, (error) => done({ error: String(error) }));"""


def check_ticked(stub, browser):
    """Charts of the ticked runs: an axis that can be logarithmic, values that were smoothed over pale ones, NaN, lanes, files, the keyboard; all of the view is in the address."""
    night(stub)
    broken = curves(loss=[3.0 - i / 100 if i < 60 else None for i in range(100)], skipped_nonfinite=[0.0 if i < 60 else 1.0 for i in range(100)])
    stub.replies["jobs/j-b/curves"] = broken
    stub.replies["jobs/j-a/events"] = {"events": [event(1, "SUBMITTED", "info", "x"), *(event(900000 + i) for i in range(40))]}
    opened(browser, "#/?on=j-a,j-b&y=log&s=0.9&zoom=20..80")
    browser.until(f"{LOSS}.plot && {LOSS}.plot.scales.x.min === 20 && {LOSS}.plot.scales.x.max === 80", "the zoom of the address")
    assert browser.run(f"return [{LOSS}.plot.scales.y.distr, {LOSS}.plot.scales.y.min > 0.5, {LOSS}.curves.map((one) => [one.name, !!one.pale, one.part || ''].join(' ')).join()]") == [
        3, True, "a true ,a false ,b true ,b false ,a false val,b false val"]
    assert browser.text(".ticked [data-act=zoom]") == "steps 20–80 ×"
    browser.click(".ticked [data-act=zoom]")
    browser.until(f"!location.hash.includes('zoom') && {LOSS}.plot.scales.x.max === 100", "all of the curve")
    browser.until("document.querySelector('.ticked .values .bad').textContent === 'NaN since step 61'", "since when")
    assert browser.run(f"return {LOSS}.lanes.map((one) => one.marks.map((mark) => [mark.kind, !!mark.to].join()).join())") == ["alert,true", ""]
    head, width, height, plotted = browser.driver.execute_async_script(FILES)
    assert head[0] == "step,a not smoothed,a,b not smoothed,b,a val,b val" and head[1].startswith("1,1,1,3,3"), head
    assert width == plotted and height > 300
    browser.run("document.querySelector('.ticked .plot').focus()")
    browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": "ArrowRight", "windowsVirtualKeyCode": 39})
    browser.until("/^step 5/.test(document.querySelector('.ticked .values .at').textContent)", "the values in the middle")
    browser.keys("+")
    browser.until("/zoom=/.test(location.hash)", "a closer look")
    browser.keys("\x1b")
    browser.until("!/zoom=/.test(location.hash)", "all again")
    browser.keys("2")
    browser.until("location.hash.includes('x=tokens')", "the axis in the address")
    address = browser.run("return location.hash")
    browser.click(".chosen-job a", "b")
    browser.until("location.hash === '#/job/j-b'", "the page of the job")
    browser.back()
    browser.until(f"location.hash === '{address}' && {LOSS}.plot && {LOSS}.mode === 'tokens' && {LOSS}.log", "the view before")
    print("ok: ticked")


def check_many_runs(stub, browser):
    """More than ten runs are drawn together, grey but for the one that is pointed at."""
    jobs = [row(f"run{i}", val_loss=1.5 + i / 10) for i in range(24)]
    for i, job in enumerate(jobs):
        stub.job(job, curves(loss=[1.0 + i / 10 + 0.001 * k for k in range(100)]), config={"name": job["name"]})
    stub.fleet(*jobs)
    opened(browser, f"#/?on={','.join(job['id'] for job in jobs)}", 24)
    browser.until(f"{LOSS}.plot && {LOSS}.many && new Set({LOSS}.curves.map((one) => one.name)).size === 24", "24 curves")
    assert browser.text(".ticked .chart .values") == "24 runs; point at one"
    browser.point_until("""const row = document.querySelector('[data-id=j-run7]'); row.scrollIntoView({ block: 'nearest' });
        const box = row.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]""",
                        "document.querySelector('.ticked .chart .values [data-name]')?.dataset.name === 'run7'", "the run of the row")
    browser.point_until(f"const box = {LOSS}.plot.over.getBoundingClientRect(); return [box.left + {LOSS}.plot.valToPos(50, 'x'), box.top + {LOSS}.plot.valToPos(2.25, 'y')]",
                        "document.querySelector('.ticked .chart .values [data-name]')?.dataset.name === 'run12' && document.querySelector('tr.current').dataset.id === 'j-run12'", "the run of the line")
    print("ok: many runs")


def check_phone(stub, browser):
    """On a phone the cards come first, then the list with validation and end, then the charts; nothing is wider than the window."""
    night(stub)
    browser.resize(390, 900)
    opened(browser, "#/?on=j-a,j-b")
    browser.until("document.querySelectorAll('.ticked .chart canvas').length === 4", "the charts")
    tops = browser.run("return ['.card', '.jobs [data-id=j-a] .brief', '.ticked .chart'].map((one) => document.querySelector(one).getBoundingClientRect().top)")
    assert tops == sorted(tops), tops
    assert "val 1.6000" in browser.text("[data-id=j-a] .brief") and " · ends " in browser.text("[data-id=j-a] .brief")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.resize(1400, 900)
    print("ok: phone")


WORDS = """const [done] = arguments;
(async () => {
  const { withKey } = await import('./edit.js');
  const { flatten, parse } = await import('./filter.js');
  const text = 'name: a\\nmodel:\\n  lr: 1\\ntrain:\\n  betas:\\n    lr: 2\\n  lr: 3\\nguard:\\n  x: 4';
  const { asked, tests, keys } = parse('book team=lm state=failed left<60 owner=mara state!=queued val<');
  return [withKey(text, 'train.lr', '0.5'), withKey(text, 'guard.lr', '9'), withKey(text, 'name', 'b'), asked, tests.length, keys,
          flatten({ data: { path: ['p', 'q'], where: { source: { value: ['a', 'b'] } }, val_except: { books: { field: { value: { value: ['c'] } } } } } })];
})().then(done, (error) => done({ error: String(error) }));"""


def check_words(_, browser):
    """A clone changes the key that is meant and no other, and adds one that is not there; of the filter, names, states and one label go to the coordinator."""
    browser.open("#/")
    source = WORDS.replace("'./edit.js'", "document.querySelector('script[type=module]').src.replace('app.js', 'edit.js')").replace("'./filter.js'", "document.querySelector('script[type=module]').src.replace('app.js', 'filter.js')")
    changed, added, renamed, asked, tests, keys, flat = browser.driver.execute_async_script(source)
    assert changed == "name: a\nmodel:\n  lr: 1\ntrain:\n  betas:\n    lr: 2\n  lr: 0.5\nguard:\n  x: 4", changed
    assert added.endswith("guard:\n  lr: 9\n  x: 4") and renamed.startswith("name: b\n"), (added, renamed)
    assert asked == {"state": "failed", "name": "book", "label": "team=lm"} and tests == 3 and not keys, (asked, tests, keys)
    assert flat == {"data.path": "p, q", "data.where.source": "a, b", "data.val_except.books.value": "c"}, flat
    print("ok: words")


CURVES = """const [done] = arguments;
import(document.querySelector('script[type=module]').src.replace('app.js', 'curves.js')).then(({ Curves }) => {
  const of = (data) => Object.assign(Object.create(Curves.prototype), { data });
  const seconds = (width, time, step, each) => of({ width, time, step, values: { step_seconds: { mean: step.map(() => each) } } }).elapsed();
  const lost = of({ width: 64, time: [1, 2, 3], step: [6336, 6400, 6405], values: { loss: { mean: [3, 3, null] }, skipped_nonfinite: { max: [0, 0, 1] } } });
  return [seconds(32, [0, 640e3, 1280e3], [32, 64, 96], 20), seconds(128, [0, 3 * 86400e3], [128, 256], 2), seconds(1, [0, 1e3, 9e6], [1, 2, 3], 1), lost.broken('step').map((one) => one.step)];
}).then(done, (error) => done({ error: String(error) }));"""


def check_buckets(_, browser):
    """Of buckets of many steps: slow steps are no break, a break of days is none of the training, and what is not finite began in its own bucket."""
    browser.open("#/")
    slow, days, single, lost = browser.driver.execute_async_script(CURVES)
    assert slow == [0, 640, 1280] and days == [0, 256] and single == [0, 1, 2], (slow, days, single)
    assert lost == [6401], lost
    print("ok: buckets")


# How eyes with all cones, and without those for green or red, see linear RGB (Machado 2009).
SIGHTS = {"all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)), "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
          "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))}
LEAST_DIFFERENCE = 9.5  # ΔE76; of the colours before it was 2.0


def seen(colour, sight):
    """A colour as L*a*b*."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))]
    red, green, blue = (min(max(sum(part * one for part, one in zip(line, linear)), 0), 1) for line in SIGHTS[sight])
    x, y, z = ((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505, 0.2126 * red + 0.7152 * green + 0.0722 * blue, (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089)
    x, y, z = (one ** (1 / 3) if one > 0.008856 else 7.787 * one + 16 / 116 for one in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def check_colours(*_):
    """The colours of curves differ for every eye, in both themes."""
    schemes = re.findall(r"--c1: .*--c8: #[0-9a-f]{6}", (TOP / "server/web/page/style.css").read_text())
    assert len(schemes) == 2, schemes
    for scheme, sight in itertools.product(schemes, SIGHTS):
        for one, other in itertools.combinations(re.findall("#[0-9a-f]{6}", scheme), 2):
            apart = sum((a - b) ** 2 for a, b in zip(seen(one, sight), seen(other, sight))) ** 0.5
            assert apart >= LEAST_DIFFERENCE, (sight, one, other, apart)
    print("ok: colours")


CHECKS = (check_colours, check_night, check_folds, check_bulk, check_filter, check_ticked, check_many_runs, check_phone, check_words, check_buckets)


def check_tonight(browser):
    trust_checks.with_stub(browser, CHECKS)


if __name__ == "__main__":
    from browser import Browser
    with Browser("") as window:
        check_tonight(window)
        assert window.log() == [], window.log()
