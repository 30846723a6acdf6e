"""Checks of the live page, with the made-up replies of trust_checks.py: what one does with a job and with a sweep, and how one comes back to it.
By itself: tests/server/web/work_checks.py"""
import trust_checks
from trust_checks import NOW, READY, event, row, show


def with_token(stub, browser, job, **parts):
    browser.open("#/")
    browser.run("sessionStorage.setItem('token', 'x')")
    show(stub, browser, job, **parts)


def check_views(stub, browser):
    """What is chosen on a job's page stands in its address; a view is kept under a name, opened again and forgotten."""
    browser.run("for (const one of ['axis', 'smooth', 'views']) localStorage.removeItem(one)")
    show(stub, browser, row("a"))
    assert browser.run("return location.hash") == "#/job/j-a"
    browser.keys("2")
    browser.click("label.inline", "Log loss")
    chart = "document.querySelector('.chart[data-of=loss]').chart"
    browser.run(f"{chart}.group.zoomTo(2000, 6000)")
    browser.until("location.hash === '#/job/j-a?x=tokens&y=log&zoom=2000..6000'", "the address")
    assert browser.text("[data-act=zoom]") == "2k–6k ×"
    browser.keys("v")
    browser.type("dialog input", "the bend")
    browser.keys("\r")
    browser.until("document.querySelector('dialog li a')?.textContent === 'the bend'", "the kept view")
    browser.click("dialog button", "Close")
    browser.run("localStorage.setItem('axis', 'step')")
    browser.open("#/")
    browser.click("[data-act=views]")
    browser.click("dialog a", "the bend")
    browser.until(f"location.hash.includes('zoom=2000..6000') && {chart}.plot && {chart}.mode === 'tokens' && {chart}.log && {chart}.plot.scales.x.min === 2000 && !document.querySelector('dialog')", "the same view")
    browser.click("[data-act=zoom]")
    browser.until("location.hash === '#/job/j-a?x=tokens&y=log'", "all of the curve")
    browser.click("[data-act=views]")
    browser.click("dialog li button")
    browser.until("document.querySelector('dialog').textContent.includes('No saved views yet')", "that it is forgotten")
    browser.click("dialog button", "Close")
    browser.run("localStorage.removeItem('axis')")
    print("ok: views")


def check_undo(stub, browser):
    """A change of labels can be taken back for some seconds: what was removed or changed has its value again."""
    with_token(stub, browser, row("a", labels={"team": "lm", "phase": "one"}))
    browser.click("button", "Labels…")
    browser.until("document.querySelector('dialog textarea')", "the labels")
    browser.run("document.querySelector('dialog textarea').value = 'phase=two\\nnew=yes'")
    browser.click("dialog button", "Change the labels")
    browser.until("!document.querySelector('dialog')", "the change")
    assert {key: stub.posts[-1][1][key] for key in ("set", "remove")} == {"set": {"phase": "two", "new": "yes"}, "remove": ["team"]}, stub.posts[-1]
    first = stub.posts[-1][1]["request_id"]
    browser.click("#toast button", "Undo")
    browser.until("document.getElementById('toast').textContent.includes('Change undone')", "that it is done")
    assert {key: stub.posts[-1][1][key] for key in ("set", "remove")} == {"set": {"team": "lm", "phase": "one"}, "remove": ["new"]}, stub.posts[-1]
    assert stub.posts[-1][1]["request_id"] not in ("", first)
    print("ok: undo")


def check_log(stub, browser):
    """The log of a rank or of all by their times, with search; it follows, and the whole of it is a file."""
    texts = {"0": "2026-11-29T05:00:01.000Z I worker: step 1\n2026-11-29T05:00:03.000Z E worker: broken\n  at line 3\n", "1": "2026-11-29T05:00:02.000Z W worker: slow\n"}
    job = row("a", ranks=2)
    stub.replies["jobs/j-a/log"] = lambda query: {"rank": int(query["rank"]), "text": texts[query["rank"]]}
    show(stub, browser, job)
    lines = "[...document.querySelectorAll('.log[role=log] div')].map((one) => [one.className, one.textContent].join('|'))"
    browser.click("summary", "Log")
    browser.until(f"{lines}.length === 3", "the log of rank 0")
    assert browser.run(f"return {lines}")[1] == "bad|2026-11-29T05:00:03.000Z E worker: broken"
    link = "document.querySelector('[data-act=log-file]')"
    assert browser.run(f"return [{link}.getAttribute('href'), {link}.download]") == ["api/v1/jobs/j-a/log?rank=0&file=1", "a.rank-0.log"]
    browser.run("const one = document.querySelector('select[aria-label=Rank]'); one.value = 'all'; one.dispatchEvent(new Event('change'))")
    browser.until(f"{lines}.length === 4", "the logs of both")
    assert browser.run(f"return {lines}.map((one) => one.split('|')[1].slice(0, 6))") == ["rank 0", "rank 1", "rank 0", "rank 0"], browser.run(f"return {lines}")
    assert browser.run(f"return {link}.hidden")
    browser.type("input[aria-label='Search the log']", "SLOW")
    browser.until(f"{lines}.length === 1 && document.querySelector('.log mark').textContent === 'slow'", "the line with the word")
    assert browser.text("details output") == "1 of 4 lines"
    browser.run("const one = document.querySelector(\"input[aria-label='Search the log']\"); one.value = ''; one.dispatchEvent(new Event('input'))")
    texts["1"] += "2026-11-29T05:00:09.000Z I worker: newest\n"
    browser.until(f"{lines}.at(-1)?.endsWith('newest')", "the newest line by itself", 10)
    print("ok: log")


def check_samples(stub, browser):
    """What the job wrote after two validations stands beside each other, the earlier one first."""
    def written(query):
        step = int(query.get("step", 300))
        return {"steps": [100, 200, 300], "step": step, "samples": [{"prompt": "The ", "text": f"text of {step}", "tokens": 64, "seconds": 0.045, "time": NOW, "error": ""}]}
    stub.replies["jobs/j-a/samples"] = written
    show(stub, browser, row("a"), config={"data": {"source": "DATA_SOURCE_TEXT"}, "sample": {"prompts": ["The "]}})
    told = "[...document.querySelectorAll('.sample')].map((one) => one.textContent).join('|')"
    browser.until(f"{told} === 'The text of 30064 tokens in 45 ms'", "the newest")
    browser.click("label", "Compare two steps")
    browser.until(f"{told} === 'The text of 100step 100, 64 tokens in 45 ms|The text of 300step 300, 64 tokens in 45 ms'", "the first and the newest")
    browser.run("const one = document.querySelectorAll('.filters input[type=range]'); one[2].value = 1; one[2].dispatchEvent(new Event('input'))")
    browser.until(f"{told}.startsWith('The text of 200')", "the second and the newest")
    print("ok: samples")


def check_fork(stub, browser):
    """A checkpoint's row makes a new job that goes on at it, with a name and a folder of its own."""
    browser.open("#/")
    browser.run("sessionStorage.setItem('token', 'x')")
    job = row("a")
    stub.job(job, config_text="name: a\ntrain:\n  out_dir: /runs/a\n  steps: 9\nrestart:\n  max_restarts: 3\n", out_dir="/runs/a")
    stub.replies["jobs/j-a/checkpoints"] = {"checkpoints": [{"step": 800, "path": "/runs/a/checkpoints/step-00000800", "bytes": 1, "time": NOW, "val_loss": 1.7, "pinned": False, "error": ""}]}
    stub.replies["jobs/j-a/clone"] = {"id": "j-a"}
    browser.open("#/")
    browser.open("#/job/j-a")
    browser.click("[data-act=fork]")
    browser.until("document.querySelector('dialog textarea')", "the job file")
    text = browser.run("return document.querySelector('dialog textarea').value")
    assert text == 'name: a-at-800\ntrain:\n  out_dir: "/runs/a-at-800"\n  steps: 9\nrestart:\n  resume: "/runs/a/checkpoints/step-00000800"\n  max_restarts: 3\n', text
    assert browser.text("dialog .changed").split("\n") == ["− name: a", "− out_dir: /runs/a", "+ name: a-at-800", '+ out_dir: "/runs/a-at-800"', '+ resume: "/runs/a/checkpoints/step-00000800"'], browser.text("dialog .changed")
    stub.refusals["/api/v1/jobs/j-a/clone"] = "job.yaml:4:3: train.steps: 9 (at least 10)"
    browser.click("dialog button", "Submit the new job")
    browser.until("document.querySelector('dialog .problem').textContent.includes('at least 10')", "the refusal")
    assert browser.run("const file = document.querySelector('dialog textarea'); return file.value.slice(file.selectionStart, file.selectionEnd)") == "  steps: 9"
    browser.click("dialog button", "Cancel")
    browser.until("!document.querySelector('dialog')", "that nothing is asked")
    assert any("400" in line for line in browser.log()), "the refusal is all that went wrong"
    print("ok: fork")


def check_parallel(stub, browser):
    """The jobs of a sweep are lines over an axis for each key and one for the loss; a click on a line ticks its job."""
    jobs = [row(f"s{i}", "SUCCEEDED", "good", ("finished", ""), ended=NOW, val_loss=1.5 + i / 10, labels={"sweep": "s", "train.lr": f"{10.0 ** -(i % 3 + 1):g}", "nsa.gate": ("softmax", "sigmoid")[i % 2]},
                sweep={"name": "s", "jobs": 6, "index": i, "halve_at": []}) for i in range(6)]
    for job in jobs:
        stub.job(job)
    stub.fleet(*jobs)
    browser.open("#/")
    browser.open("#/sweep/s?on=j-s0")
    browser.until("document.querySelectorAll('.parallel .job').length === 6", "six lines")
    assert browser.run("return [...document.querySelectorAll('.parallel .middle')].map((one) => one.textContent)") == ["nsa.gate", "train.lr", "validation"]
    assert browser.run("return [...document.querySelectorAll('.parallel .on')].map((one) => one.dataset.id)") == ["j-s0"]
    ends = browser.run("return Object.fromEntries([...document.querySelectorAll('.parallel .job')].map((one) => [one.dataset.id, Number(one.getAttribute('d').split(' ').pop())]))")
    assert ends["j-s0"] == max(ends.values()) and ends["j-s5"] == min(ends.values()), ends
    browser.run("document.querySelector('.parallel [data-id=j-s3]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    browser.until("location.hash.includes('on=j-s0,j-s3') && document.querySelectorAll('.parallel .on').length === 2", "the ticked job")
    assert browser.run("return document.querySelectorAll('.pairs tbody tr').length") == 2, "the map of two keys"
    print("ok: parallel")


def check_hidden(stub, browser):
    """A page that nobody sees has no stream; when it is seen again it reads what it has missed."""
    stub.fleet(row("a"))
    browser.open("#/")
    browser.until("document.getElementById('live').textContent === 'live'", "the stream")
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    browser.run(hide, True)
    browser.until(lambda: not stub.streams, "that the stream is closed", 10)
    assert browser.text("#live") == "paused"
    stub.fleet(row("a"), row("b"))
    browser.run(hide, False)
    browser.until("document.querySelectorAll('.jobs tr[data-id]').length === 2 && document.getElementById('live').textContent === 'live'", "what it has missed")
    browser.until(lambda: len(stub.streams) == 1, "that there is one stream")
    print("ok: hidden")


def check_quiet(stub, browser):
    """A message of the stream has what has changed: a loss asks for no curve, and a validation for one."""
    show(stub, browser, row("a"))
    browser.until("document.getElementById('live').textContent === 'live'", "the stream")
    curves = lambda: sum("/curves" in path for path in stub.asked)  # noqa: E731
    before = None
    for i in range(4):
        stub.tell(("job", {"id": "j-a", "health": {"level": "good", "state": f"look {i}", "why": "", "words": f"look {i}"}}, 21 + i))
        browser.until(f"document.body.textContent.includes('Look {i}')", f"message {i}")
        before = curves() if before is None else before
    assert curves() == before, stub.asked[-20:]
    stub.tell(("job", {"id": "j-a", "val_step": 1000, "val_loss": 1.6}, 30))
    browser.until(lambda: curves() > before, "that a validation asks for the curve")
    print("ok: quiet")


def check_zoom_in_time(stub, browser):
    """A zoom of half a minute on the axis of time is in the address as it is."""
    show(stub, browser, row("a"))
    browser.keys("3")
    browser.run("document.querySelector('.chart[data-of=loss]').chart.group.zoomTo(1795012312.4, 1795012339.9)")
    browser.until("location.hash.includes('zoom=1795012312.4..1795012339.9')", "the address")
    browser.run("localStorage.removeItem('axis')")
    print("ok: zoom in time")


def check_stop_at_the_end(stub, browser):
    """A job that has done its last step can be stopped."""
    with_token(stub, browser, row("a", step=60000, checkpoint_step=60000))
    browser.click("[data-act=stop]")
    browser.until("document.querySelector('dialog [name=at_step]')", "the question")
    browser.click("dialog button[type=submit]")
    browser.until("!document.querySelector('dialog')", "that it is done")
    assert stub.posts[-1] == ("/api/v1/jobs/j-a/stop", {"mode": "graceful"}), stub.posts[-1:]
    print("ok: stop at the end")


def check_long_list(stub, browser):
    """Of a long list 200 rows are drawn, and more on request; a row that changes is written anew in its place, and no other is."""
    jobs = [row(f"n{i:03}") for i in range(450)]
    stub.fleet(*jobs)
    browser.open("#/")
    rows = "document.querySelectorAll('.jobs tr[data-id]').length"
    browser.open("#/?q=step%3E0")
    browser.until(f"{rows} === 200", "200 rows")
    browser.click("button", "250 more")
    browser.until(f"{rows} === 400", "400 rows")
    browser.click("button", "50 more")
    browser.until(f"{rows} === 450 && ![...document.querySelectorAll('button')].some((one) => !one.hidden && / more$/.test(one.textContent))", "all rows")
    browser.run("window.lines = [...document.querySelectorAll('.jobs tr[data-id]')]")
    browser.until("document.getElementById('live').textContent === 'live'", "the stream")
    stub.tell(("rows", [{"id": "j-n007", "loss": 9.75}], 20))
    browser.until("document.querySelector('[data-id=j-n007]').textContent.includes('9.7500')", "the changed row")
    browser.until(lambda: browser.run("return performance.now() > 0 && window.lines.every((one, i) => one === document.querySelectorAll('.jobs tr[data-id]')[i])"), "that all rows are those of before")
    print("ok: long list")


CHECKS = (check_long_list, check_views, check_undo, check_log, check_samples, check_fork, check_parallel, check_hidden, check_quiet, check_zoom_in_time, check_stop_at_the_end)


def check_work(browser):
    trust_checks.with_stub(browser, CHECKS)


if __name__ == "__main__":
    from browser import Browser
    with Browser("") as window:
        check_work(window)
        assert window.log() == [], window.log()
