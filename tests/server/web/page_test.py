#!/usr/bin/python3
"""The live page in a real browser, with a real coordinator and jobs that train on the CPU.

    tests/server/web/page_test.py BIN_DIR     skips (77) without Chromium

Times of waiting are used: what needs no coordinator (trust_checks.py and others) is checked while jobs train that later checks look at.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
try:
    from browser import JOB, Browser
except ImportError:
    print("skipped: no python3-selenium; deploy/packages.sh test installs it")
    sys.exit(77)
from service import Service  # noqa: E402
from look_checks import check_curves, check_keys, check_marks, check_print, check_spikes, unfold  # noqa: E402
from trace_checks import check_trace  # noqa: E402
from tonight_checks import check_tonight  # noqa: E402
from trust_checks import check_trust  # noqa: E402
from work_checks import check_work  # noqa: E402

if not pathlib.Path("/usr/bin/chromium").exists() or not pathlib.Path("/usr/bin/chromedriver").exists():
    print("skipped: no chromium; deploy/packages.sh test installs it")
    sys.exit(77)


class Page:
    """A coordinator with its page."""

    def __init__(self, bin_dir, folder, **service):
        self.folder = folder
        self.service = Service(bin_dir, folder, **service)
        self.address = self.service.address
        self.base = f"http://{self.address}"
        self.token = (folder / "state" / "token").read_text().strip()
        self.count = 0

    def submit(self, name, steps=4900, lr="1e-3", team="a", ranks=1, more="", check=True, rows=8):
        self.count += 1
        job = self.folder / f"job{self.count}.yaml"
        text = JOB.format(name=name, steps=steps, lr=lr, team=team, out_dir=self.folder / f"out{self.count}").replace("batch_size: 8", f"batch_size: {rows}")
        job.write_text(f"{text}resources: {{gpus: {ranks}}}\n{more}")
        done = self.service.ctl("submit", job, "-o", "name")
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout.strip()

    def ask(self, path, method="GET", headers=None, body=None):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def get(self, path):
        status, _, body = self.ask(f"/api/v1/{path}")
        assert status == 200, (path, status, body)
        return json.loads(body)

    def kill(self):
        """Kills the coordinator; workers go on. service.start() starts another on the same port."""
        self.service.process.kill()
        self.service.process.wait()


def check_access(page):
    """Rebinding, cross-site requests and changes without the token are refused; nothing inline and no cookie is used."""
    status, headers, body = page.ask("/")
    assert status == 200 and b"<title>" in body, status
    assert "script-src 'self'" in headers["Content-Security-Policy"] and "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Set-Cookie"] is None and b"<script>" not in body and b" style=" not in body
    status, _, body = page.ask("/", headers={"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b""), status
    status, headers, body = page.ask("/app.js", headers={"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and body[:2] == b"\x1f\x8b"
    for path in ("/", "/api/v1/fleet", "/app.js"):
        assert page.ask(path, headers={"Host": "evil.example"})[0] == 421, path
    assert page.ask("/api/v1/fleet", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert page.ask("/api/v1/fleet", headers={"Origin": "http://evil.example"})[0] == 403
    right = {"Authorization": f"Bearer {page.token}"}
    assert page.ask("/api/v1/token", "POST", right)[0] == 200
    for headers, expected in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Cookie": f"token={page.token}"}, 401),
                              ({**right, "Origin": "http://evil.example"}, 403), ({**right, "Sec-Fetch-Site": "cross-site"}, 403)):
        for path in ("/api/v1/token", "/api/v1/jobs/demo/stop"):
            assert page.ask(path, "POST", headers, "{}")[0] == expected, (headers, path)
    assert page.ask("/api/v1/jobs/demo/stop", "POST", right, '{"mode": "now"}')[0] == 404, "no such job"
    noted = page.service.ctl("audit").stdout
    assert all(words in noted for words in ("live page", "StopJob", "UNAUTHENTICATED", "NOT_FOUND")), noted
    assert page.ask("/api/v1/token", "POST", right, "x" * 20000)[0] == 413
    for path in ("/nothing", "/../server.cc", "/api/v1/", "/api/v1/jobs", "/api/v1/jobs/x/y"):
        assert page.ask(path)[0] == 404, path
    assert page.ask("/api/v1/fleet?offset=-1")[0] == 400
    print("ok: access")


def check_live(page, browser):
    """The list shows a new job by itself; its page follows the training without a reload."""
    browser.open("#/")
    browser.until("document.body.textContent.includes('No job yet')", "the empty list")
    page.job = page.submit("first")
    browser.until("document.querySelector('.jobs tr[data-id]')", "the new job in the list")
    browser.until("document.querySelector('.jobs .badge').textContent === 'training'", "its state", 60)
    browser.until("document.querySelectorAll('.machine').length === 1", "the machine")
    browser.click(".jobs a", "first")
    browser.until("/^Training, /.test(document.querySelector('.sentence').textContent)", "the sentence", 60)
    browser.until("document.querySelectorAll('.chart canvas').length >= 5", "the charts")
    browser.run("window.once = true")
    step = "Number(document.querySelector('.progress').getAttribute('aria-valuenow')) + document.querySelector('.top .done span').textContent"
    before = browser.run(f"return {step}")
    browser.until(lambda: browser.run(f"return {step}") != before, "more steps")
    browser.until("document.querySelectorAll('.heat canvas').length >= 5", "the heat maps", 60)
    browser.until("document.querySelector('.chart figcaption').textContent.includes('validation')", "validations", 60)
    assert browser.run("return window.once"), "the page was loaded again"
    for key, axis in (("2", "Tokens"), ("3", "Time"), ("1", "Step")):
        browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", key)
        browser.until(f"document.querySelector('.chips [aria-pressed=true]').textContent === '{axis}'", f"the axis {axis}")
    print("ok: live")


def check_restart(page, browser):
    """The coordinator is killed: the page says so, comes back, and no step is missing from the curve."""
    page.kill()
    # Before another one is there: the page tries again after two seconds, and a start can take as long.
    browser.until("document.getElementById('live').textContent === 'reconnecting'", "that the page has noticed")
    page.service.start()
    browser.until("document.getElementById('live').textContent === 'live'", "the connection", 60)
    done = page.get(f"jobs/{page.job}")["step"]
    browser.until(lambda: page.get(f"jobs/{page.job}")["step"] > done + 5, "steps after the restart", 60)
    curve = page.get(f"jobs/{page.job}/curves")
    assert curve["width"] == 1 and curve["step"] == list(range(1, len(curve["step"]) + 1)), "steps are missing or doubled"
    shown = "Number(document.querySelector('.lane span:nth-of-type(2)')?.textContent.replace(/[^0-9]/g, '') || 0)"
    browser.until(f"{shown} > {done}", "the later steps on the page", 60)
    assert browser.run("return window.once"), "the page was loaded again"
    print("ok: restart")


def happened(browser, words):
    browser.until(f"[...document.querySelectorAll('.event b')].some((one) => one.textContent === '{words}')", f"the event {words}", 60)


def check_buttons(page, browser):
    """Every button asks, needs the token and leaves an event. At its end the job trains up to the step page.last."""
    browser.click("button", "Dump stacks")
    browser.type("dialog input[type=password]", "wrong")
    browser.click("dialog button", "Use this token")
    browser.until("document.querySelector('dialog .problem').textContent.includes('wrong token')", "the refusal")
    browser.type("dialog input[type=password]", page.token)
    browser.click("dialog button", "Use this token")
    browser.until("document.querySelector('dialog h2')?.textContent.startsWith('Dump')", "the question")
    assert browser.run("return document.cookie") == ""
    browser.click("dialog button", "Dump stacks")
    happened(browser, "STACKS_SAVED")
    browser.until("document.querySelector('.stacks a')", "the saved stacks")
    assert b"rank 0" in page.ask(browser.run("return new URL(document.querySelector('.stacks a').href).pathname"))[2]
    browser.until("document.querySelector('[data-act=pin]')", "a checkpoint", 60)
    browser.click("[data-act=pin]")
    browser.click("dialog button", "Pin it")
    happened(browser, "CHECKPOINT_PINNED")
    browser.until("[...document.querySelectorAll('[data-act=pin]')].some((one) => one.textContent === 'pinned')", "the pin")
    before = page.get(f"jobs/{page.job}")["step"]
    browser.click("button", "Stop…")
    browser.click("dialog button", "Cancel")
    browser.until("!document.querySelector('dialog')", "that nothing is asked")
    assert page.get(f"jobs/{page.job}")["stop"] is None, "a question that was cancelled stops the job"
    # Far enough ahead that the job does not get there while the dialog is open, on a busy machine either.
    now = page.get(f"jobs/{page.job}")["step"]
    page.last = now + 200 + 5 * (now - before)
    browser.click("button", "Stop…")
    browser.click("dialog label", "After step")
    browser.type("dialog input[name=at_step]", str(page.last))
    browser.click("dialog button", f"Stop after step {page.last:,}")
    happened(browser, "STOP_AT_STEP")
    print("ok: buttons")


def check_stopped(page, browser):
    """The job has stopped where it should; it is resumed and stopped again, and has one curve."""
    browser.open(f"#/job/{page.job}")
    browser.until("document.querySelector('.names .badge')?.textContent === 'stopped'", "the stop", 120)
    assert page.get(f"jobs/{page.job}")["step"] == page.last
    browser.click("button", "Resume…")
    browser.click("dialog button", "Resume the job")
    happened(browser, "RESUMED")
    browser.until("document.querySelector('.names .badge').textContent === 'training'", "the training", 60)
    browser.until(lambda: page.get(f"jobs/{page.job}")["step"] > page.last, "steps after the resume", 60)
    browser.click("button", "Stop…")
    browser.click("dialog button", "Stop the job")
    browser.until("document.querySelector('.names .badge').textContent === 'stopped'", "the second stop", 60)
    curve = page.get(f"jobs/{page.job}/curves")
    assert curve["step"] == sorted(set(curve["step"])), "one curve over restarts"
    print("ok: stopped")


def check_labels(page, browser):
    """Labels are changed together, a line each; a line that is none stays in the dialog, and what is not allowed is refused."""
    browser.click("button", "Labels…")
    browser.until("document.querySelector('dialog textarea')", "the labels")
    write = "document.querySelector('dialog textarea').value = arguments[0]"
    browser.run(write, "team=vision\nno label")
    browser.click("dialog button", "Change the labels")
    browser.until("document.querySelector('dialog .problem').textContent.includes(\"'no label' is not a label\")", "the mistake")
    browser.run(write, "team=vision\n note = a = b ")
    browser.click("dialog button", "Change the labels")
    browser.until("[...document.querySelectorAll('.names .label')].some((one) => one.textContent === 'team=vision')", "the label")
    assert page.get(f"jobs/{page.job}")["labels"] == {"team": "vision", "note": "a = b"}
    assert "note=a = b" in page.service.ctl("label", page.job, check=True).stdout
    page.service.ctl("label", page.job, "note-", "team=a", check=True)
    browser.until("[...document.querySelectorAll('.names .label')].map((one) => one.textContent).join() === 'team=a'", "what nsactl changed")
    told = page.service.ctl("events", page.job, check=True).stdout
    assert "note=a = b, team=vision (was a) (operator)" in told and "team=a (was vision), note removed (" in told, told
    headers = {"Authorization": f"Bearer {page.token}"}
    for body in ({}, {"set": {"k": 1}}, {"set": []}, {"remove": "k"}, {"set": {"k" * 64: "v"}}, {"set": {"a": "1"}, "remove": ["a"]}):
        assert page.ask(f"/api/v1/jobs/{page.job}/label", "POST", headers, json.dumps(body))[0] == 400, body
    assert page.ask(f"/api/v1/jobs/{page.job}/label", "POST", {}, json.dumps({"set": {"a": "1"}}))[0] == 401


def check_note_and_clone(page, browser):
    """A note stays among the events, in the terminal too; a clone is a new job with the changes of the text, or a refusal that names the line."""
    browser.open(f"#/job/{page.job}")
    browser.click("button", "Note…")
    browser.type("dialog textarea", "learning rate looks too high")
    browser.click("dialog button", "Add note")
    browser.until("[...document.querySelectorAll('.event')].some((one) => one.textContent.includes('learning rate looks too high (operator)'))", "the note")
    assert "learning rate looks too high" in page.service.ctl("events", page.job, check=True).stdout
    for text in ("", " ", "x" * 1001):
        assert page.ask(f"/api/v1/jobs/{page.job}/note", "POST", {"Authorization": f"Bearer {page.token}"}, json.dumps({"text": text}))[0] == 400, text
    check_labels(page, browser)
    browser.click("button", "Clone…")
    browser.until("document.querySelector('dialog textarea')", "the job file")
    change = "const text = document.querySelector('dialog textarea'); text.value = text.value.replace(arguments[0], arguments[1])"
    browser.run(change, "warmup_steps: 20", "warmup_stepps: 20")
    browser.click("dialog button", "Submit the new job")
    browser.until("/job.yaml:\\d+:\\d+: .*warmup_stepps.*did you mean/.test(document.querySelector('dialog .problem').textContent)", "the mistake and its line")
    browser.run(change, "warmup_stepps: 20", "warmup_steps: 10")
    browser.run(change, "d_k: 16", "d_k: 17")
    browser.click("dialog button", "Submit the new job")
    browser.until("document.querySelector('dialog .problem').textContent.includes('d_k')", "the refusal")
    browser.run(change, "d_k: 17", "d_k: 16")
    browser.click("dialog button", "Submit the new job")
    browser.until("document.querySelector('.names b')?.textContent === 'first-clone'", "the new job's page")
    new = page.get(f"jobs/{browser.run('return location.hash').split('/')[-1]}")
    old = page.get(f"jobs/{page.job}")
    assert new["out_dir"] == old["out_dir"] + "-clone" and new["owner"] == "operator", new
    assert int(new["config"]["train"]["warmup_steps"]) == 10, new["config"]
    old["config"]["name"] = new["name"]
    old["config"]["train"].update(warmup_steps=new["config"]["train"]["warmup_steps"], out_dir=new["out_dir"])
    assert new["config"] == old["config"]
    page.service.ctl("stop", new["id"], "--now", check=True)
    print("ok: note and clone")


def check_fork(page, browser):
    """A fork goes on where its original parted from it, and shows the curve of the original up to there."""
    done = page.service.ctl("fork", page.job, "--name", "forked", "--set", "train.steps=4900", "-o", "name")
    assert done.returncode == 0, done.stdout + done.stderr
    fork = done.stdout.strip()
    browser.open(f"#/job/{fork}")
    browser.until("document.querySelector('.names .badge')?.textContent === 'training'", "the training", 60)
    parent = page.get(f"jobs/{fork}")["parent"]
    newest = page.get(f"jobs/{page.job}/checkpoints")["checkpoints"][-1]
    assert parent == {"id": page.job, "name": "first", "step": newest["step"]}, parent
    shown = "document.querySelector('.chart[data-of=loss] .values').textContent"
    browser.until(f"{shown}.includes('first to step')", "the curve of the original", 60)
    page.service.ctl("stop", fork, "--now", check=True)
    assert page.get(f"jobs/{page.job}")["parent"] is None
    print("ok: fork")


def check_night(page, browser):
    """A rank was killed in the night, and its job may not start again. Somebody finds the job by its card, sees why and what it wrote last, resumes it with the card's button, compares it with a
    baseline, and copies the link to that; another browser shows the same."""
    page.lost = page.submit("lost", more="restart: {max_restarts: 0}\n")
    browser.until(lambda: page.get(f"jobs/{page.lost}")["checkpoint_step"], "a checkpoint", 120)
    os.kill(page.get(f"jobs/{page.lost}")["rank_status"][0]["pid"], signal.SIGKILL)
    browser.open("#/")
    card = f"[...document.querySelectorAll('.card')].find((one) => one.querySelector('header a')?.hash === '#/job/{page.lost}')"
    # Until the job has failed, the card tells of the killed rank alone.
    told = browser.until(f"{card}?.textContent.includes('may not start again') && {card}.textContent", "the card of the failed job", 60)
    assert all(one in told for one in ("signal 9", "restart.max_restarts: 0", "Resume from step")), told
    assert browser.run("return document.querySelector('.sentence .dot').className") == "dot bad" and " you." in browser.text(".sentence"), browser.text(".sentence")
    browser.run(f"{card}.querySelector('[data-act=card-log]').click()")
    log = browser.until("document.querySelector('dialog pre')?.textContent", "the last lines of its log")
    assert len(log.splitlines()) <= 20 and page.service.ctl("logs", page.lost, "--tail", "1", check=True).stdout.strip()[-40:] in log, log
    browser.click("dialog button", "Close")
    browser.run(f"{card}.querySelector('[data-act=card-resume]').click()")
    browser.click("dialog button", "Resume the job")
    browser.until(f"document.querySelector('[data-id={page.lost}] .badge').textContent === 'training' && !{card}", "the training, and no card", 60)
    browser.click(f"[data-id={page.second}] .delta")
    for job in (page.lost, page.second):
        browser.click(f"[data-id={job}] input")
    same = f"""document.querySelector('.delta[aria-pressed=true]')?.closest('tr').dataset.id === '{page.second}'
        && /^[+−]\\d\\.\\d{{3}}$/.test(document.querySelector('[data-id={page.lost}] .delta').textContent)
        && [...document.querySelectorAll('.jobs tr[data-id] input:checked')].map((one) => one.closest('tr').dataset.id).sort().join() === '{','.join(sorted((page.lost, page.second)))}'
        && [...document.querySelectorAll('.ticked .chart[data-of=loss] [data-name]')].map((one) => one.dataset.name).join() === 'lost,second'"""
    browser.until(same, "both curves, and how much higher the loss is than the baseline's", 60)
    browser.allow_clipboard()
    browser.click("[data-act=link]")
    browser.until("document.getElementById('toast').textContent.includes('copied')", "that the link is copied")
    link = browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))")
    assert link == f"{page.base}/#/?on={page.lost},{page.second}&star={page.second}", link
    with Browser(page.base) as other:
        other.open(link[len(page.base) + 1:])
        other.until(same, "the same elsewhere", 60)
        assert other.log() == [], other.log()
    page.service.ctl("stop", page.lost, "--now", check=True)
    browser.open("#/")
    print("ok: night")


def begin(page):
    """Submits what later checks look at: a mixture with a named validation set, a job to compare with, and a sweep that is halved. They train beside the checks without a coordinator."""
    for name, count in (("books", 400), ("code", 400), ("val", 40)):
        (page.folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name} {number} " * 9}) + "\n" for number in range(count)))
    mix = "".join(f"{{name: {name}, source: jsonl, path: [{page.folder / name}.jsonl], weight: {weight}}}, " for name, weight in (("books", 3), ("code", 1)))
    job = JOB.format(name="mixed", steps=40, lr="1e-3", team="a", out_dir=page.folder / "mixed").replace(
        "source: synthetic, tokenizer: byte", f"tokenizer: byte, val_fraction: 0.1, mix: [{mix}], val: {{set: {page.folder / 'val'}.jsonl}}")
    (page.folder / "mixed.yaml").write_text(job)
    page.mixed = page.service.ctl("submit", page.folder / "mixed.yaml", "-o", "name", check=True).stdout.strip()
    page.second = page.submit("second", steps=60, lr="3e-3")
    (page.folder / "rates.yaml").write_text(JOB.format(name="rates", steps=80, lr="1e-3", team="a", out_dir=page.folder / "rates"))
    page.service.ctl("submit", page.folder / "rates.yaml", "--sweep", "train.lr=1e-4,1e-3,1e-2", "--sweep", "train.warmup_steps=10,20", "--halve-at", "40", check=True)


def check_data(page, browser):
    """A job that trains on a mixture shows its sources with their shares and losses, and its named validation sets."""
    assert page.service.ctl("watch", page.mixed).returncode == 0
    browser.open(f"#/job/{page.mixed}")
    cells = "[...document.querySelectorAll('{} tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    sources = browser.until(cells.format(".sources") + ".slice(0, 2)", "the sources")
    assert [row[:3] for row in sources] == [["books", "3", "75.0 %"], ["code", "1", "25.0 %"]], sources
    assert all(0 < float(row[4]) < 6 and row[5].endswith(".jsonl") for row in sources), sources
    (val,) = browser.run("return " + cells.format(".sets"))
    browser.until("document.querySelector('.chart[aria-label=\"Validation sets\"] .values').textContent.startsWith('set ')", "the curve of the named set")
    assert val[0] == "set" and 0 < float(val[1]) < 6 and val[2] != "–", val
    told = page.service.ctl("describe", page.mixed, check=True).stdout
    assert "books       3  75.0 %" in told and "Validation sets:" in told, told
    print("ok: data")


def check_compare(page, browser):
    """Two jobs over each other, and what differs between them."""
    assert page.service.ctl("watch", page.second).returncode == 0
    best = browser.until(lambda: next(job for job in page.get("fleet")["jobs"] if job["id"] == page.second).get("best_val"), "the best validation in the list")
    assert abs(best - min(page.get(f"jobs/{page.second}/curves")["evals"]["validation"]["loss"])) < 1e-6, best
    browser.open(f"#/compare?jobs={page.job},{page.second}")  # the address of earlier versions
    browser.until("document.querySelectorAll('.ticked .chart canvas').length >= 3", "the curves")
    keys = browser.until("[...document.querySelectorAll('.differences tbody th')].map((one) => one.textContent).join(' ')", "the differences")
    assert "train.lr" in keys and "model.dim" not in keys, keys
    assert "Best validation" in browser.text(".figures-table")
    browser.click("label.inline", " keys")
    rows = "Object.fromEntries([...document.querySelectorAll('.differences tbody tr')].map((row) => [row.cells[0].textContent, row.cells[1].textContent]))"
    words = browser.until(f"document.querySelectorAll('.differences tbody tr').length > 20 && {rows}", "all keys")
    assert words["runtime.device"] == "cpu" and words["data.source"] == "synthetic" and words["preflight.policy"] == "experiment" and words["model.dim"] == "64", words
    browser.click(".chosen-job button")
    browser.until("document.querySelectorAll('.chosen-job').length === 1 && location.hash.endsWith(`on=${document.querySelector('.chosen-job a').hash.slice(6)}`)", "one job")
    print("ok: compare")


def check_sweep(page, browser):
    """The page of a sweep has the order of `nsactl sweep`, the curves of its jobs and the loss by each key; lists lead to it."""
    browser.open("#/?label=sweep=rates")
    browser.click(".jobs .fold a", "rates")
    browser.until("document.querySelectorAll('.sweep .jobs tr[data-id]').length === 6", "six jobs")
    browser.until("document.querySelector('.sentence').textContent.includes('all ended')", "the end of the sweep", 180)
    order = page.service.ctl("sweep", "rates", "-o", "name", check=True).stdout.split()
    # The figures of the last rows may come after the sentence.
    browser.until(f"[...document.querySelectorAll('.sweep .jobs tr[data-id]')].map((row) => row.dataset.id).join() === '{','.join(order)}'", f"the order {order}")
    states = ",".join(["finished"] * 3 + ["dropped"] * 3)
    browser.until(f"[...document.querySelectorAll('.sweep .jobs .badge')].map((one) => one.textContent).join() === '{states}'", states)
    best = page.get(f"jobs/{order[0]}")
    told = browser.text(".best-job")
    assert best["name"] in told and f"train.lr={best['labels']['train.lr']}" in told, told
    browser.until("document.querySelectorAll('.sweep .chart canvas').length === 4 && document.querySelectorAll('.chosen-job').length === 6", "the curves of all")
    assert browser.run("return [...document.querySelectorAll('.dots code')].map((one) => one.textContent)") == ["train.lr", "train.warmup_steps"]
    assert browser.run("return [...document.querySelectorAll('.dots')].map((one) => one.querySelectorAll('circle').length)") == [6, 6]
    assert browser.run("return document.querySelectorAll('.dots circle.early').length") == 6, "three jobs stopped earlier, in two pictures"
    assert browser.run("return [...document.querySelectorAll('.pairs tbody tr')].map((row) => row.querySelectorAll('td a').length)") == [2, 2, 2], "the loss by both keys"
    browser.open("#/sweep/none")
    browser.until("document.body.textContent.includes('There is no sweep none')", "that there is no such sweep")
    print("ok: sweep")


def check_many(page, browser):
    """With 200 jobs the list is filtered at once, and every control has a name."""
    # Over HTTP: 200 starts of nsactl would take most of this test's time.
    def submit(number):
        job = JOB.format(name=f"many-{number:03}", steps=4900, lr="1e-3", team="b" if number % 2 else "a", out_dir=page.folder / f"many{number}")
        status, _, body = page.ask(f"/api/v1/jobs/{page.job}/clone", "POST", {"Authorization": f"Bearer {page.token}"}, json.dumps({"text": job}))
        assert status == 200, (status, body)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(submit, range(200)))
    browser.open("#/")
    browser.until(lambda: unfold(browser) == 200, "200 rows")
    browser.until("document.body.textContent.includes('13 more')", "that there are more: the jobs of the checks before")
    browser.type("input[aria-label=Filter]", "many-07")
    browser.until(lambda: unfold(browser) == 10, "ten rows", 10)
    browser.type("input[aria-label=Filter]", "many-07 team=b")
    browser.until(lambda: unfold(browser) == 5, "five rows", 10)
    check_keys(browser)
    waiting = browser.until("[...document.querySelectorAll('.jobs tr[data-id]')].find((row) => row.querySelector('.badge').textContent === 'waiting').querySelector('.words').textContent", "one that waits")
    assert waiting.startswith("waiting at position"), waiting
    nameless = browser.run("""return [...document.querySelectorAll('button, input, select, a, canvas, svg[role=img]')].filter((one) =>
        !one.hidden && !(one.getAttribute('aria-label') || one.textContent.trim() || one.closest('label'))).map((one) => one.outerHTML.slice(0, 100))""")
    assert nameless == [], nameless
    print("ok: 200 jobs")


def main():
    with tempfile.TemporaryDirectory() as folder:
        page = Page(sys.argv[1], pathlib.Path(folder))
        with page.service:
            check_access(page)
            with Browser(page.base) as browser:
                check_live(page, browser)
                check_restart(page, browser)
                check_curves(page, browser)
                check_spikes(browser)
                # While the coordinator was away, requests failed; nothing else may.
                wrong = [line for line in browser.log() if "ERR_" not in line and "401" not in line]
                check_buttons(page, browser)
                begin(page)
                check_trust(browser)
                check_tonight(browser)
                check_work(browser)
                check_stopped(page, browser)
                check_marks(page, browser)
                check_note_and_clone(page, browser)
                check_fork(page, browser)
                check_trace(page, browser)
                check_compare(page, browser)
                check_night(page, browser)
                check_data(page, browser)
                check_sweep(page, browser)
                check_print(page, browser)
                check_many(page, browser)
                wrong += [line for line in browser.log() if "401" not in line and not ("/profile" in line and "409" in line) and not ("/clone" in line and "400" in line)]
                assert wrong == [], wrong


if __name__ == "__main__":
    main()
