"""Checks of the live page for page_test.py: what is shown can be trusted at night. The page's files come from a small server whose replies are made up, so that
a run that diverges, a coordinator that hangs or thousands of events need no training.
By itself: tests/server/web/trust_checks.py"""
import http.server
import json
import pathlib
import queue
import threading
import time
import urllib.parse

TOP = pathlib.Path(__file__).resolve().parents[3]
# The names that the page has from the coordinator; quantities_test.cc holds them to the table.
QUANTITIES = json.loads((TOP / "tests/server/web/quantities.golden").read_text())
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
NOW = int(time.time() * 1000)
# As StateTitle() of common/estimate/state_title.h has them.
TITLES = {"QUEUED": "waiting", "PREFLIGHT": "waiting", "STARTING": "starting", "RUNNING": "training", "RESTARTING": "restarting", "STOPPING": "stopping", "SUCCEEDED": "finished", "FAILED": "failed",
          "STOPPED": "stopped"}


def row(name, state="RUNNING", level="good", said=("training, 37 %", ""), **changes):
    """A row of the list, as RowJson() of server/web/json.cc makes it."""
    doing, why = said
    job = {"id": f"j-{name}", "name": name, "state": state, "title": TITLES[state], "reason": "", "message": "", "step": 1000, "steps": 60000, "eta_seconds": None, "loss": 2.4594, "nonfinite": False,
           "val_loss": 1.7136, "val_nonfinite": False, "val_step": 900, "tokens_per_second": 4900.0, "total_tokens": 1000000, "submitted": NOW - 3600000, "started": NOW - 3500000,
           "ended": None, "run_seconds": 100.0, "running_since": None, "next_start": None, "restarts": 0, "generation": 1, "queue_position": 0, "ranks": 1, "device": "cpu",
           "checkpoint_step": 399, "owner": "operator", "sweep": None, "stop": None, "labels": {}, "spark": [5.5, 4.0, 3.0, 2.5],
           "health": {"level": level, "state": doing, "why": why, "words": f"{doing}; {why}" if why else doing}}
    return {**job, **changes}


def whole(job, **changes):
    """The job in full, as JobJson() makes it."""
    more = {"rank_status": [], "waivers": {}, "warnings": [], "learning_rate": 1e-3, "grad_norm": 1.0, "checkpoint_time": None, "checkpoint_error": "", "productive_seconds": 1.0,
            "sources": [], "val_sets": [], "null_rows": 0, "state_since": NOW, "config": {"data": {"source": "DATA_SOURCE_TEXT"}}, "config_text": "name: a", "config_hash": "0",
            "out_dir": "/out", "flops_per_token": 1.0, "peak_flops": 0, "parent": None, "cursor": 10, "now": NOW, "token_file": "/token"}
    return {**more, **job, **changes}


def event(sequence, reason="GATE_COLLAPSE", severity="warning", text="share of collapsed gates", job="j-a"):
    return {"sequence": sequence, "job": job, "name": "a", "time": NOW - 1000000 + sequence, "reason": reason, "text": text, "severity": severity, "state": "RUNNING", "generation": 1, "rank": 0}


def curves(count=100, time=None, **values):
    """Curves of one step a bucket; `values` are columns of their own, `time` has the moments of the steps."""
    names = [one["name"] for one in QUANTITIES["quantities"] if one["kind"] == "step" and one["curve"]]
    columns = {name: values.get(name, [0.0 if name == "skipped_nonfinite" else 1.0 + i / count for i in range(count)]) for name in names}
    return {"width": 1, "step": list(range(1, count + 1)), "time": time or [NOW - 1000 * (count - i) for i in range(count)], "tokens": [100 * i for i in range(count)],
            "values": {name: {"mean": column, "min": [None] * count, "max": [None] * count} for name, column in columns.items()},
            "evals": {"validation": {"step": [50, 90], "time": [NOW - 50000, NOW - 10000], "loss": [2.0, 1.8]}}, "val_sets": {}, "marks": []}


class Stub:
    """Serves the page's files and the JSON in `replies`, by path after api/v1/, or what a function there makes of the query (bytes as they are); notes the bodies of POST requests. `hangs`: streams say nothing more, and no new one begins."""

    def __init__(self):
        self.replies, self.posts, self.asked, self.streams, self.hangs = {"quantities": QUANTITIES}, [], [], [], False
        self.refusals = {}  # errors of POST requests, by path
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                stub.answer(self)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                stub.posts.append((self.path, json.loads(body or b"{}")))
                wrong = stub.refusals.get(self.path)
                stub.send(self, "application/json", json.dumps({"error": wrong} if wrong else {}).encode(), 400 if wrong else 200)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # the browser closes connections as it likes
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.hangs = False
        for stream in list(self.streams):
            stream.put(None)
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def send(handler, kind, body, status=200):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Cache-Control", "no-store")
        handler.end_headers()
        handler.wfile.write(body)

    def answer(self, handler):
        path = urllib.parse.urlsplit(handler.path).path.lstrip("/") or "index.html"
        path = "icon.svg" if path == "favicon.ico" else path
        if path.startswith("api/v1/"):
            self.asked.append(handler.path)
            if path == "api/v1/stream":
                return self.stream(handler)
            reply = self.replies.get(path[7:])
            if callable(reply):
                reply = reply(dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(handler.path).query)))
            if isinstance(reply, bytes):
                return self.send(handler, "application/octet-stream", reply)
            return self.send(handler, "application/json", json.dumps({"error": "none"} if reply is None else reply).encode(), 404 if reply is None else 200)
        file = next((one for one in (TOP / "server/web/page" / path, TOP / "third_party/uplot" / path) if one.is_file()), None)
        if file is None:
            return self.send(handler, "text/plain", b"", 404)
        return self.send(handler, TYPES.get(file.suffix, "text/plain"), file.read_bytes())

    def stream(self, handler):
        while self.hangs:
            time.sleep(0.05)
        messages = queue.Queue()
        self.streams.append(messages)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        try:
            while True:
                try:
                    message = messages.get(timeout=0.5)
                    if message is None:
                        return
                except queue.Empty:
                    message = "" if self.hangs else "event: beat\ndata: {}\n\n"
                handler.wfile.write(message.encode())
                handler.wfile.flush()
        except OSError:
            pass
        finally:
            self.streams.remove(messages)

    def tell(self, *messages):
        """Sends (kind, data, sequence) to every open stream, all at once."""
        text = "".join(f"id: {sequence}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data, sequence in messages)
        for stream in list(self.streams):
            stream.put(text)

    def fleet(self, *jobs, look=0, **changes):
        states = [job["state"] for job in jobs]
        self.replies["fleet"] = {"cursor": 10, "now": NOW, "version": "1", "revision": "1", "token_file": "/token", "jobs": list(jobs), "matching": len(jobs), "look": look,
                                 "counts": {state: states.count(state) for state in set(states)}, "titles": TITLES, "nodes": [], "events": [], **changes}

    def job(self, job, curve=None, events=None, layers=None, **changes):
        path = f"jobs/{job['id']}"
        self.replies[path] = whole(job, **changes)
        self.replies[f"{path}/events"] = {"events": [event(1, "SUBMITTED", "info", "by operator")] if events is None else list(events)}
        self.replies[f"{path}/curves"] = curve or curves()
        self.replies[f"{path}/layers"] = layers or {"width": 1, "layers": 0, "step": [], "values": {}}
        self.replies[f"{path}/gpus"] = {}
        self.replies[f"{path}/checkpoints"] = {"checkpoints": []}
        self.replies[f"{path}/stacks"] = {"stacks": []}
        self.replies[f"{path}/traces"] = {"traces": [], "recording": None}


READY = "document.querySelectorAll('.chart canvas').length >= 5 && document.querySelector('.events li')"


def show(stub, browser, job, *more, **parts):
    """Opens the page of a job that is made up, and waits until it is drawn."""
    stub.job(job, *more, **parts)
    browser.open("#/")
    browser.open(f"#/job/{job['id']}")
    browser.until(READY, f"the page of {job['name']}")


def check_stop(stub, browser):
    """A step that is typed is the step at which the job stops, whatever else was clicked; the button says what it does."""
    show(stub, browser, row("a", checkpoint_step=399))
    browser.run("sessionStorage.setItem('token', 'x')")
    browser.open("#/")
    browser.run("sessionStorage.setItem('token', 'x')")
    browser.open("#/job/j-a")
    browser.until(READY, "the job")
    agree = "document.querySelector('dialog button[type=submit]').textContent"
    browser.click("[data-act=stop]")
    browser.until("document.querySelector('dialog [name=at_step]')", "the question")
    assert browser.run(f"return {agree}") == "Stop the job"
    browser.type("dialog [name=at_step]", "50000")
    assert browser.run(f"return {agree}") == "Stop after step 50,000"
    browser.click("dialog button[type=submit]")
    browser.until("!document.querySelector('dialog')", "that it is done")
    assert stub.posts[-1] == ("/api/v1/jobs/j-a/stop", {"mode": "at_step", "at_step": 50000}), stub.posts
    browser.click("[data-act=stop]")
    browser.click("dialog [value=now]")
    browser.until(f"{agree} === 'Stop now, lose 601 steps'", "what is lost")
    browser.click("dialog button", "Cancel")
    browser.until("!document.querySelector('dialog')", "that nothing is asked")
    print("ok: stop")


def check_flood(stub, browser):
    """Thousands of warnings of one cause are one entry and one mark, and what happened before them stays; the page answers all the while."""
    old = [event(1, "SUBMITTED", "info", "by operator"), event(2, "LAUNCHED", "info", "1 rank"), *(event(i) for i in range(3, 200))]
    show(stub, browser, row("a"), events=old)
    browser.run("""window.waits = [];
        let last = performance.now();
        setInterval(() => { const now = performance.now(); window.waits.push(now - last); last = now; }, 20);""")
    for part in range(20):
        stub.tell(*(("event", event(i), i) for i in range(200 + 150 * part, 350 + 150 * part)))
    stub.tell(("event", event(3200, "NOTE", "info", "looks bad"), 3200))
    browser.until("document.querySelector('.events li').textContent.includes('looks bad')", "the newest event", 20)
    told = browser.run("return [...document.querySelectorAll('.events li')].map((one) => one.textContent)")
    assert len(told) == 4, told[:9]
    assert "GATE_COLLAPSE×3,197 since " in told[1] and "LAUNCHED" in told[2] and "SUBMITTED" in told[3], told
    assert browser.run("return Math.max(...window.waits)") < 2000, "the page stands still"
    print("ok: flood")


FORMATS = """const [done] = arguments;
(async () => {
  const { short, number, bytes, seconds, rate, middle } = await import('./format.js');
  return [short(7.82e33), short(1.5e18), short(2.5e17), short(999950), short(1234567), short(1e-9), short(0), bytes(1023 * 1024), bytes(1536), seconds(0.9998), seconds(0.25), number(3.5),
    rate(2.94e-3), rate(1e-3), rate(0), rate(0.02), rate(10), rate(7.5), middle('pretrain-text-only-with-long-name-s17x')];
})().then(done, (error) => done({ error: String(error) }));"""


def check_numbers(browser):
    """No number has both an exponent and a unit; learning rates have three digits."""
    browser.open("#/")
    wanted = ["7.8e33", "1.5e18", "250P", "1M", "1.23M", "1e-9", "0", "1023 KiB", "1.5 KiB", "1 s", "250 ms", "3.5000", "2.94e-3", "1e-3", "0", "0.02", "10", "7.5", "pretrain-text-o…ame-s17x"]
    told = browser.driver.execute_async_script(FORMATS.replace("'./format.js'", "document.querySelector('script[type=module]').src.replace('app.js', 'format.js')"))
    assert told == wanted, told
    print("ok: numbers")


ZOOM = """const [done] = arguments;
(async () => {
  const { Chart, Group } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'chart.js'));
  const group = new Group();
  const chart = new Chart(group, { title: 'zoomed' });
  document.body.prepend(chart.element);
  const draw = (step) => {
    const x = Array.from({ length: 6000 / step }, (_, i) => i * step);
    chart.show({ curves: [{ name: 'a', color: '--c1', x, y: x }], mode: 'step' });
    chart.draw();
    return new Promise((ready) => setTimeout(ready, 60));
  };
  await draw(40);
  group.zoomTo(3200, 5400);
  await new Promise((ready) => setTimeout(ready, 60));
  const left = chart.plot.valToPos(4300, 'x');
  chart.plot.setCursor({ left, top: 20 });
  await draw(20);
  const told = chart.values.querySelector('.at')?.textContent;
  chart.close();
  chart.element.remove();
  return told;
})().then(done, (error) => done({ error: String(error) }));"""


def check_zoom(browser):
    """After a zoom, which reads finer buckets, the values are those below the cursor."""
    told = browser.driver.execute_async_script(ZOOM)
    assert isinstance(told, str) and abs(int(told.replace("step ", "").replace(",", "")) - 4300) <= 20, told
    print("ok: zoom")


def check_shortcuts(stub, browser):
    """Letters do what they do after a box was ticked or the slider moved."""
    show(stub, browser, row("a"))
    pressed = "document.querySelector('.chips [aria-pressed=true]').textContent"
    for selector, key, axis in (("input[type=checkbox]", "2", "Tokens"), ("input[type=range]", "3", "Time"), ("input[type=checkbox]", "1", "Step")):
        browser.run("document.querySelector(arguments[0]).focus()", selector)
        browser.keys(key)
        browser.until(f"{pressed} === '{axis}'", f"{axis} after {selector}", 5)
    print("ok: shortcuts")


def compared(stub, browser, count, change=lambda i, job, curve: None, data=lambda i: {"source": "DATA_SOURCE_TEXT"}):
    """Opens the comparison of `count` jobs."""
    for i in range(count):
        job, curve = row(f"pretrain-text-only-wide-run-s{i}", loss=2 + i / 10, val_loss=1.7 + i / 10), curves()
        change(i, job, curve)
        stub.job(job, curve, config={"data": data(i), "name": job["name"]})
    stub.fleet()
    browser.open("#/")
    browser.open(f"#/?on={','.join(f'j-pretrain-text-only-wide-run-s{i}' for i in range(count))}")
    browser.until("document.querySelectorAll('.chart canvas').length >= 4", "the comparison")


def check_legends(stub, browser):
    """Each of eight jobs is in the legend of each chart, nothing of which is cut off; a click hides one, a double-click leaves it alone."""
    for width in (1400, 390):
        browser.resize(width, 900)
        compared(stub, browser, 8)
        browser.until("[...document.querySelectorAll('.chart .values')].every((one) => one.querySelectorAll('[data-name]').length === 8)", "eight names")
        cut = browser.run("return [...document.querySelectorAll('.chart .values')].filter((one) => one.scrollHeight > one.clientHeight + 1).length")
        assert cut == 0, f"{cut} legends are cut at {width}"
        assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.resize(1400, 900)
    shown = "[...document.querySelector('.ticked .chart .values').querySelectorAll('[data-name]:not(.off)')].map((one) => one.dataset.name.slice(-2)).join()"
    click = "document.querySelector(`.chart .values [data-name$='${arguments[0]}']`).dispatchEvent(new MouseEvent('click', {bubbles: true, detail: arguments[1]}))"
    browser.run(click, "s3", 1)
    browser.until(f"{shown} === 's0,s1,s2,s4,s5,s6,s7'", "seven curves")
    browser.run(click, "s3", 1)
    browser.run(click, "s5", 1)
    browser.run(click, "s5", 2)
    browser.until(f"{shown} === 's5'", "one curve alone")
    print("ok: legends")


def check_widths(stub, browser):
    """At 1024 pixels the losses are in the window; on a phone they are in the row. Long names make nothing wider."""
    long = "a-name-of-sixty-three-characters-that-goes-on-and-on-and-on-x"
    labels = {"team": "a-long-team-name-of-someone", "purpose": "a-rather-long-purpose-of-it"}
    stub.fleet(row(long, labels=labels, eta_seconds=3000.0), row("b"), events=[{**event(1), "name": long}])
    browser.open("#/")
    browser.until("document.querySelectorAll('.jobs tr[data-id]').length === 2", "the list")
    for width in (1400, 1024, 820, 390):
        browser.resize(width, 900)
        assert browser.run("return document.documentElement.scrollWidth") <= width, f"wider than {width}"
        seen = browser.run("""const box = document.querySelector('.jobs').closest('.scroll').getBoundingClientRect();
            return [...document.querySelectorAll('.jobs tr[data-id]:nth-child(2) .num, .jobs .brief')].filter((one) => one.checkVisibility() && one.getBoundingClientRect().right <= box.right + 1)
              .map((one) => one.textContent).join(' ')""")
        assert "1.7136" in seen and "2.4594" in seen and "4.9k" in seen, (width, seen)
    assert " · ends " in seen, seen
    browser.resize(1400, 900)
    print("ok: widths")


def check_failures(stub, browser):
    """Failures are said, red until somebody has looked at them; nobody says that all is healthy."""
    failed = row("broken", "FAILED", "bad", ("failed at step 7 of 10", "rank 0 was killed by signal 9"), ended=NOW - 60000, message="rank 0 was killed by signal 9")
    stub.fleet(failed, row("a"), row("b", "QUEUED", "waiting", ("waiting at position 1", "needs 2 CPU slots on one machine")), look=1)
    stub.job(failed, events=[event(1, "FAILED", "error", "rank 0 was killed by signal 9")])
    browser.open("#/")
    browser.run("localStorage.removeItem('seen')")
    browser.open("#/?")
    dot = "document.querySelector('.sentence .dot').className"
    browser.until(f"{dot} === 'dot bad'", "the red dot")
    head = browser.text(".sentence")
    assert head.startswith("1 needs you. The one that runs is fine.") and "healthy" not in head, head
    browser.click("[data-act=look]")
    browser.until("document.querySelector('.chips [aria-pressed=true]').textContent.startsWith('needs you')", "the filter")
    assert any("state=look" in path for path in stub.asked), stub.asked[-4:]
    assert browser.text(".jobs .words.bad") == "rank 0 was killed by signal 9"
    browser.open("#/")
    browser.open("#/job/j-broken")
    browser.until("document.querySelector('.sentence')?.textContent === 'Rank 0 was killed by signal 9'", "the cause first")
    browser.until(READY, "the job")
    assert browser.text(".second") == "Failed at step 7 of 10" and not browser.all(".latest"), "the cause is said once"
    browser.run("location.hash = '#/'")
    browser.until(f"document.querySelectorAll('.jobs tr[data-id]').length === 3 && {dot} === 'dot good'", "that it was seen")
    print("ok: failures")


def check_diverged(stub, browser):
    """A run that has diverged is never green, and what is wrong is the first thing that is said of it."""
    why = "the run has diverged: loss 8.07 (a uniform guess has 5.55)"
    ended = row("ended", "SUCCEEDED", "warning", ("finished all 2000 steps", "the run had diverged, from step 11 to 160"), ended=NOW, step=60000)
    stub.fleet(row("a", level="bad", said=("training, 65 %, ends in 6 min", why), eta_seconds=360.0), ended, look=2)
    browser.open("#/")
    browser.until("document.querySelectorAll('.jobs tr[data-id]').length === 2", "the list")
    assert browser.run("return [...document.querySelectorAll('.jobs .badge')].map((one) => one.className)") == ["badge bad running", "badge warning"]
    assert browser.run("return [...document.querySelectorAll('.jobs .wide .progress')].map((one) => one.className)") == ["progress bad", "progress warning"]
    norm = [1.0] * 98 + [7.82e33, 3e30]
    show(stub, browser, stub.replies["fleet"]["jobs"][0], curves(grad_norm=norm))
    assert browser.text(".sentence") == "The run has diverged: loss 8.07 (a uniform guess has 5.55)", browser.text(".sentence")
    assert browser.text(".second").startswith("Training, 65 %, ends in 6 minat "), browser.text(".second")
    chart = "document.querySelector('.chart[data-of=grad_norm]').chart"
    browser.until(f"{chart}.plot && {chart}.plot.scales.y.distr === 3", "the logarithmic axis of a gradient norm without bounds")
    print("ok: diverged")


def check_nan(stub, browser):
    """A loss that is no number is written as NaN in red, in the list, the figures and the chart; stripes show since when."""
    losses, skipped = [2.7950 if i < 17 else None for i in range(100)], [0.0 if i < 17 else 1.0 for i in range(100)]
    job = row("a", level="bad", said=("training, 37 %", "its loss is not finite"), loss=None, nonfinite=True, val_loss=None, val_nonfinite=True)
    stub.fleet(job, look=1)
    browser.open("#/")
    browser.until("[...document.querySelectorAll('.jobs .num .bad')].map((one) => one.textContent).join() === 'NaN,NaN'", "NaN in the list")
    show(stub, browser, job, curves(loss=losses, skipped_nonfinite=skipped))
    browser.until("[...document.querySelectorAll('.figures .bad')].map((one) => one.textContent).join() === 'NaN,NaN'", "NaN among the figures")
    browser.until("document.querySelector('.chart[data-of=loss] .values .bad').textContent === 'NaN since step 18'", "since when")
    assert browser.run("return document.querySelector('.chart[data-of=loss]').chart.broken.map((one) => [one.from, one.to, one.open])") == [[17, 100, True]]
    before = browser.run("return location.hash")
    browser.run("document.querySelector('.skip').click()")
    assert browser.run("return [location.hash, document.activeElement.id]") == [before, "main"], "the skip link leaves the page"
    show(stub, browser, job, curves(loss=[None] * 100, skipped_nonfinite=[1.0] * 100))
    browser.until("document.querySelector('.chart[data-of=loss] .values .bad').textContent === 'NaN since step 1'", "that it never was one")
    print("ok: NaN")


def check_spark(stub, browser):
    """A step that differs does not change the curve of a row, which shows means."""
    job = row("a")
    stub.fleet(job)
    browser.open("#/")
    path = "document.querySelector('.spark .line').getAttribute('d')"
    before = browser.until(f"document.getElementById('live').textContent === 'live' && {path}", "the curve")
    stub.tell(("rows", [{**{key: value for key, value in job.items() if key != "spark"}, "step": 1001, "loss": 99.5}], 11))
    browser.until("document.querySelector('.jobs tbody').textContent.includes('99.50')", "the new loss")
    assert browser.run(f"return {path}") == before
    print("ok: spark")


def check_silence(stub, browser):
    """When the coordinator hangs, the page says for how long and greys what is old, until there is news."""
    stub.fleet(row("a"))
    browser.open("#/")
    browser.until("document.getElementById('live').textContent === 'live' && document.querySelector('.jobs tr[data-id]')", "the list")
    assert browser.run("return document.getElementById('stale').hidden")
    stub.hangs = True
    time.sleep(0.7)  # a beat may be on its way
    browser.run("const real = Date.now; window.ahead = 34000; Date.now = () => real.call(Date) + window.ahead")
    browser.until("!document.getElementById('stale').hidden", "that it says so", 10)
    assert browser.text("#stale").startswith("No news for 3"), browser.text("#stale")
    assert "showing figures from " in browser.text("#stale") and browser.run("return getComputedStyle(document.getElementById('main')).opacity") == "0.6"
    stub.hangs = False
    browser.until("document.getElementById('stale').hidden && document.getElementById('live').textContent === 'live'", "news", 10)
    print("ok: silence")


def check_heat(stub, browser):
    """A value of 0 is drawn, what is not measured is hatched, and the row of a layer that lacks the branch is blank; what is bad is red at both ends of the scales."""
    steps = list(range(1, 11))
    values = {"share_sel": [[0.5] * 10, [0.0] * 10, [None] * 10], "gate_collapse": [[0.0] * 10, [1.0] * 10, [None] * 5 + [1.0] * 5], "gate_entropy": [[0.0] * 10, [1.0986] * 10, [1.0] * 10]}
    show(stub, browser, row("a"), layers={"width": 1, "layers": 3, "step": steps, "values": values})
    browser.until("document.querySelectorAll('.heat canvas').length === 3", "the heat maps")
    pixels = browser.run("""const of = (name) => {
          const source = [...document.querySelectorAll('.heat')].find((one) => one.textContent.includes(name)).querySelector('canvas'), copy = document.createElement('canvas');
          [copy.width, copy.height] = [source.width, source.height];
          const context = copy.getContext('2d', {willReadFrequently: true});
          context.drawImage(source, 0, 0);
          return context;
        };
        return [['Share of selected', 0, 1], ['Share of selected', 0, 2], ['Collapsed', 0, 1], ['Collapsed', 0, 2], ['Gate entropy', 0, 0], ['Gate entropy', 0, 1]]
          .map(([name, x, y]) => [...of(name).getImageData(x, y, 1, 1).data])""")
    zero, none, all_collapsed, before, no_entropy, full_entropy = pixels
    assert zero[3] == 255 and zero[0] < 230, zero
    assert before[3] == 0, before
    assert none[3] == 255 and "#{:02x}{:02x}{:02x}".format(*none[:3]) == browser.run("return getComputedStyle(document.documentElement).getPropertyValue('--panel')").strip(), none
    shares = "[...document.querySelectorAll('.heat')].find((one) => one.textContent.includes('Share of selected'))"
    browser.run(f"{shares}.querySelector('[aria-expanded]').click()")
    cells = browser.run(f"return [...{shares}.querySelectorAll('.values-table tbody tr')].map((one) => one.cells[1].textContent)")
    assert cells[2] == "this layer has no such branch" and "no such" not in cells[1], cells
    values["share_sel"] = [[None] * 10] * 3
    show(stub, browser, row("a"), layers={"width": 1, "layers": 3, "step": steps, "values": values})
    browser.until("document.querySelectorAll('.heat canvas').length === 3", "the heat maps")
    browser.run(f"{shares}.querySelector('[aria-expanded]').click()")
    assert browser.run(f"return {shares}.querySelector('.values-table tbody td').textContent") == "not measured yet", "before the first audit nobody knows what a layer lacks"
    for bad in (all_collapsed, no_entropy):
        assert bad[0] > 150 > 60 > bad[1], bad
    assert full_entropy[1] > 150, full_entropy
    assert "gradient" in browser.run("return getComputedStyle(document.querySelector('.cells canvas')).backgroundImage")
    print("ok: heat")


def check_tables(stub, browser):
    """Behind each chart and each map is a table of its values, its picture is said in words, and the keyboard leads along it."""
    values = {"gate_collapse": [[0.0] * 10, [0.25] * 10]}
    show(stub, browser, row("a"), layers={"width": 1, "layers": 2, "step": list(range(1, 11)), "values": values})
    loss = "document.querySelector('.chart[data-of=loss]')"
    browser.until("document.querySelector('.heat canvas')", "the map")
    said = browser.run(f"return {loss}.querySelector('canvas').getAttribute('aria-label')")
    assert said == "Training loss from step 1 to step 100: at the end training 1.9900, validation 1.8000", said
    assert browser.run(f"return {loss}.querySelector('.values-table').hidden")
    browser.run(f"{loss}.querySelector('[aria-expanded]').click()")
    rows = browser.run(f"return [...{loss}.querySelectorAll('.values-table tr')].map((one) => [...one.cells].map((cell) => cell.textContent).join(' '))")
    assert rows[0] == "Step training validation" and rows[1] == "1 1 –" and rows[-1] == "100 1.9900 1.8000" and len(rows) == 25, rows
    browser.run("document.querySelector('.heat [aria-expanded]').click()")
    cells = browser.run("return [...document.querySelectorAll('.heat .values-table tr')].map((one) => [...one.cells].map((cell) => cell.textContent).slice(0, 3).join(' '))")
    assert cells == ["Layer step 1 step 2", "0 0.00 % 0.00 %", "1 25.00 % 25.00 %"], cells
    browser.run("document.querySelector('.heat .cells').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
        browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": key})
    browser.until("document.querySelector('.heat .values').textContent === 'layer 1, step 925.00 %'", "the cell that the keys lead to", 5)
    assert not [one for one in browser.barriers() or [] if "table" in one.lower()]
    print("ok: tables")


def check_best(stub, browser):
    """The best is green only among losses of the same data at the same step; one bad run does not press the others flat."""
    best = "[...document.querySelectorAll('.figures-table tbody tr')].filter((row) => row.querySelector('.best')).map((row) => row.cells[0].textContent).join()"
    compared(stub, browser, 3)
    browser.until(f"{best}.includes('Mean loss')", "the best of equal data")
    compared(stub, browser, 3, data=lambda i: {"source": "DATA_SOURCE_TEXT", "val": {"set": f"/val{i}"}})
    told = browser.run(f"return {best}")
    assert "loss" not in told and "alidation" not in told, told
    assert "different data (data.val.set), so their losses are not comparable" in browser.text(".apart")
    compared(stub, browser, 3, lambda i, job, curve: job.update(step=1000 + i))
    assert "Mean loss" not in browser.run(f"return {best}") and not browser.all(".apart")

    def spoil(i, job, curve):
        if i == 2:
            curve["values"]["loss"]["mean"] = [40.0] * 100
    compared(stub, browser, 4, spoil)
    loss = "document.querySelector('.chart[data-of=loss]').chart"
    browser.until(f"{loss}.plot.scales.y.max < 10 && {loss}.above.join().endsWith('s2')", "the axis of the usual runs")
    print("ok: best")


def check_val_sets(stub, browser):
    """Named validation sets have their newest and best loss; a job without the set has none."""
    def change(i, job, curve):
        if i == 0:
            job.update(val_sets=[{"name": "books", "paths": ["/books.txt"], "tokens": 512, "loss": 1.9}])
            curve["val_sets"] = {"books": {"step": [50, 90], "time": [NOW - 50000, NOW - 10000], "loss": [1.75, 1.9]}}
    compared(stub, browser, 2, change)
    rows = "Object.fromEntries([...document.querySelectorAll('.figures-table tbody tr')].map((row) => [row.cells[0].textContent, row.cells[1].textContent + ' ' + row.cells[2].textContent]))"
    told = browser.until(f"{rows}['Validation: books'] && {rows}", "the figures")
    assert told["Validation: books"] == "1.9000 –" and told["Best validation: books"] == "1.7500 –", told
    print("ok: validation sets side by side")


def check_sweep_words(stub, browser):
    """A job of a halved sweep waits for the others, or was dropped."""
    sweep = {"name": "s", "jobs": 8, "index": 0, "halve_at": [100]}
    stub.fleet(row("w", "STOPPED", "waiting", title="waiting", said=("waits at step 100 for the other jobs of its sweep", ""), sweep=sweep, stop={"mode": "at_step", "at_step": 100}),
               row("d", "STOPPED", "waiting", title="dropped", said=("dropped at step 100 of 400", "rank 6 of 8 by validation loss"), sweep=sweep, stop={"mode": "at_step", "at_step": 100}, reason="SWEEP_DROPPED"),
               row("s", "STOPPED", "waiting", ("stopped at step 5 of 10", "")))
    browser.open("#/")
    browser.until("document.querySelector('.jobs .fold .words')?.textContent === '8 jobs · 1 waiting · 1 dropped · best w'", "the sweep in one row")
    assert browser.run("return [...document.querySelectorAll('.jobs .badge')].map((one) => one.textContent)") == ["stopped"]
    browser.click(".jobs .fold button")
    browser.until("[...document.querySelectorAll('.jobs .badge')].map((one) => one.textContent).join() === 'waiting,dropped,stopped'", "the states")
    assert browser.run("return [...document.querySelectorAll('.jobs .words')].map((one) => one.textContent)")[1:3] == [
        "waits at step 100 for the other jobs of its sweep", "dropped at step 100 of 400; rank 6 of 8 by validation loss"]
    print("ok: sweep words")


def with_stub(browser, checks):
    """The checks, with a browser that may have shown another address before."""
    stub, base = Stub(), browser.base
    stub.fleet()
    browser.base = stub.base
    browser.resize(1400, 900)
    browser.driver.set_script_timeout(60)
    try:
        for check in checks:
            check(stub, browser)
    finally:
        browser.base = base
        stub.close()


TIMES = """const [step, seconds, done] = arguments;
(async () => {
  const { clock, setUtc, stamp, timeTicks, zoneName } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'format.js'));
  const told = [];
  for (const utc of [false, true]) {
    setUtc(utc);
    told.push([zoneName(1000 * seconds[0]), stamp(1000 * seconds[0]), clock(1000 * seconds[0]), timeTicks(seconds, step).join('|')]);
  }
  return told;
})().then(done, (error) => done({ error: String(error) }));"""


def check_times(stub, browser):
    """All times are of one zone, which the page names, on a 24-hour clock; an axis that is longer than a day has dates. Reasons and states are named as nsactl names them."""
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    stub.fleet(row("a"))
    browser.open("#/")
    evening = 1764529200  # 2025-11-30 19:00 UTC, 20:00 in Berlin
    told = browser.driver.execute_async_script(TIMES, 3600, [evening, evening + 3600])
    assert told == [["UTC+01:00", "2025-11-30T20:00:00+01:00", "2025-11-30 20:00:00", "20:00|21:00"], ["UTC", "2025-11-30T19:00:00Z", "2025-11-30 19:00:00", "19:00|20:00"]], told
    told = browser.driver.execute_async_script(TIMES, 14400, [evening, evening + 14400])
    assert [one[3] for one in told] == ["20:00\n30 Nov|00:00\n1 Dec", "19:00|23:00"], told
    told = browser.driver.execute_async_script(TIMES, 86400, [evening, evening + 86400])
    assert told[1][3] == "30 Nov\n2025|1 Dec", told
    browser.run("localStorage.removeItem('zone')")
    long = curves(time=[NOW - 3 * 86400000 + 2592000 * i for i in range(100)])
    stub.job(row("a"), long, events=[event(1, "SUBMITTED", "info", "by operator")])
    browser.open("#/job/j-a")
    browser.until(READY, "the job")
    browser.keys("3")
    ticks = "document.querySelector('.chart[data-of=loss]').chart.plot.axes[0]._values"
    browser.until(f"{ticks}.some((one) => /[0-9]+ [A-Z][a-z][a-z]/.test(one)) && !/[ap]m/.test({ticks}.join())", "dates below the axis")
    assert browser.text(".event b") == "SUBMITTED" and browser.run("return document.querySelector('.badge').title") == "RUNNING"
    title = "document.querySelector('.event time').title"
    assert browser.run(f"return {title}").endswith(("+01:00", "+02:00")), browser.run(f"return {title}")
    browser.click("#zone")
    browser.until(f"{title}.endsWith('Z') && document.getElementById('zone').textContent === 'UTC'", "times in UTC")
    browser.keys("1")
    browser.run("localStorage.removeItem('zone')")
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    print("ok: times")


CHECKS = (check_stop, check_flood, check_shortcuts, check_legends, check_widths, check_failures, check_diverged, check_nan, check_spark, check_silence, check_heat, check_best, check_val_sets, check_sweep_words, check_times, check_tables,
          lambda _, browser: check_numbers(browser), lambda _, browser: check_zoom(browser))


def check_trust(browser):
    with_stub(browser, CHECKS)


if __name__ == "__main__":
    from browser import Browser
    with Browser("") as window:
        check_trust(window)
        assert window.log() == [], window.log()
