"""Traces on the live page, for page_test.py: who may have them, the picture, the file."""
import gzip
import json
import re

READ = """const [text, done] = arguments;
(async () => {
  const { readTrace } = await import('/trace.js');
  const packed = await new Response(new Blob([text]).stream().pipeThrough(new CompressionStream('gzip'))).blob();
  const read = await readTrace(packed);
  done({ lanes: read.lanes.map((one) => [one.rank, one.title, [...one.begin]]), top: read.top.map((one) => [one.kind, one.name, one.calls, one.time, one.share]), left: read.left });
})().catch((error) => done(error.message));"""


def check_reader(browser):
    """What a CPU's trace does not have: lanes of a GPU, whose events come in any order and hide those of the host in the table; and damage."""
    events = [{"ph": "X", "pid": 7, "cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in (
        ("step", "step 5", 0, 100), ("phase", "forward", 0, 60), ("kernel", "matmul", 0, 50), ("gpu_kernel", "b", 30, 10), ("gpu_kernel", "a", 10, 30),
        ("gpu_collective", "ncclAllReduce", 50, 20), ("gpu_copy", "copy", 70, 2), ("gpu_set", "set", 60, 1), ("memory", "GPU", 1, 1))]
    head = json.dumps({"displayTimeUnit": "ms", "otherData": {"first_step": 5, "last_step": 5, "ranks": 1, "notes": []}, "traceEvents": []})[:-2]
    text = head + "\n" + ",\n".join(json.dumps(event) for event in events) + "\n]}\n"
    read = browser.driver.execute_async_script(READ, text)
    assert read["lanes"] == [[7, "steps", [0]], [7, "phases", [0]], [7, "kernels", [0]], [7, "GPU kernels", [10, 30]], [7, "GPU collectives", [50]], [7, "GPU copies", [60, 70]]], read
    assert read["top"] == [["phase", "forward", 1, 60, 0.6], ["GPU kernel", "a", 1, 30, 0.3], ["GPU collective", "ncclAllReduce", 1, 20, 0.2], ["GPU kernel", "b", 1, 10, 0.1],
                           ["GPU copy", "copy", 1, 2, 0.02], ["GPU set", "set", 1, 1, 0.01]], read
    for cut in (text[:-4], text[:200], "", head + "\n]}\n"):
        assert browser.driver.execute_async_script(READ, cut) == "the trace is not whole; record another", cut


def check_trace_access(page, job):
    """Only an operator gets a trace recorded, and reads one; neither happens for another site."""
    right = {"Authorization": f"Bearer {page.token}"}
    for headers, expected in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Cookie": f"token={page.token}"}, 401),
                              ({**right, "Origin": "http://evil.example"}, 403), ({**right, "Sec-Fetch-Site": "cross-site"}, 403)):
        assert page.ask(f"/api/v1/jobs/{job}/profile", "POST", headers, '{"steps": 1}')[0] == expected, headers
        assert page.ask(f"/api/v1/jobs/{job}/traces/1", headers=headers)[0] == expected, headers
    viewer = {"Authorization": f"Bearer {page.service.ctl('token', 'create', 'vera', '--role', 'viewer', check=True).stdout.strip()}"}
    assert page.ask(f"/api/v1/jobs/{job}/profile", "POST", viewer, '{"steps": 1}')[0] == page.ask(f"/api/v1/jobs/{job}/traces/1", headers=viewer)[0] == 403
    for body in ('{"steps": 0}', '{"steps": 101}', '{"steps": "3"}', '{"steps": 1e9}', "{}", "no"):
        status, _, said = page.ask(f"/api/v1/jobs/{job}/profile", "POST", right, body)
        assert status == 400 and (b"1 to 100" in said or b"not a JSON object" in said), (body, status, said)
    status, _, said = page.ask(f"/api/v1/jobs/{page.job}/profile", "POST", right, '{"steps": 1}')
    assert status == 409 and b"does not train" in said, said
    assert page.ask("/api/v1/jobs/none/profile", "POST", right, '{"steps": 1}')[0] == 404
    for path in ("traces/1", "traces/x", "traces/"):
        assert page.ask(f"/api/v1/jobs/{job}/{path}", headers=right)[0] == 404, path
    assert page.get(f"jobs/{job}/traces") == {"traces": []}
    noted = page.service.ctl("audit").stdout
    for subject, result in ((job, "UNAUTHENTICATED"), (job, "INVALID_ARGUMENT"), (page.job, "FAILED_PRECONDITION"), ("none", "NOT_FOUND")):
        assert re.search(rf"live page +ProfileJob +{subject} +{result}", noted), noted


def check_download(page, browser, job):
    """The file that the button gives is the trace of both ranks, under its name."""
    (kept,) = page.get(f"jobs/{job}/traces")["traces"]
    status, headers, body = page.ask(f"/api/v1/jobs/{job}/traces/{kept['id']}", headers={"Authorization": f"Bearer {page.token}"})
    assert page.ask(f"/api/v1/jobs/{job}/traces/{kept['id']}")[0] == 401
    assert status == 200 and headers["Content-Type"] == "application/gzip" and int(headers["Content-Length"]) == kept["bytes"] == len(body), headers
    assert re.fullmatch(r'attachment; filename="traced-steps-\d+-\d+\.json\.gz"', headers["Content-Disposition"]) and kept["name"] in headers["Content-Disposition"], headers
    folder = page.folder / "downloads"
    folder.mkdir()
    browser.download_to(folder)
    browser.click("[data-act=download]")
    file = folder / kept["name"]
    browser.until(file.exists, "the file")
    assert file.read_bytes() == body
    events = [event for event in json.loads(gzip.decompress(body))["traceEvents"] if event["ph"] == "X"]
    for kind in ("step", "phase", "layer", "kernel", "collective"):
        assert {event["pid"] for event in events if event["cat"] == kind} == {0, 1}, kind


def check_picture(browser):
    """Lanes of both ranks, names by mouse and by keyboard, zoom, and the table."""
    lanes = browser.run("return [...document.querySelectorAll('.lane-names > *')].map((one) => one.textContent)")
    rows = ["steps", "phases", "layers", "kernels", "collectives"]
    assert len(lanes) == 12 and lanes[1:6] == lanes[7:] == rows and lanes[0].startswith("rank 0") and lanes[6].startswith("rank 1"), lanes
    look = """const one = document.querySelector('.timeline canvas'), copy = document.createElement('canvas'), seen = new Map();
        copy.width = one.width; copy.height = one.height;
        const ctx = copy.getContext('2d', {willReadFrequently: true});
        ctx.drawImage(one, 0, 0);
        const data = ctx.getImageData(0, 0, one.width, one.height).data;
        for (let i = 0; i < data.length; i += 4) { const key = data.slice(i, i + 3).join(); seen.set(key, (seen.get(key) || 0) + 1); }
        return [...seen].filter(([, count]) => count > 100).map(([key]) => key).sort().join(' ');"""
    # The canvas is on the page a frame before it is drawn.
    whole = browser.until(lambda: len((seen := browser.run(look)).split()) >= 6 and seen, "six colours of the picture")
    said = "document.querySelector('.timeline .values').textContent"
    browser.run("""const box = document.querySelector('.timeline canvas').getBoundingClientRect();
        document.querySelector('.timeline canvas').dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 56, bubbles: true}));""")
    assert re.match(r"step \d+ .* rank 0, steps$", browser.until(said, "the name under the mouse"))
    (canvas,) = browser.all(".timeline canvas")
    canvas.send_keys("\ue015\ue015\ue015\ue014")  # three lanes down, the next event
    assert browser.run(f"return {said}").endswith("rank 0, kernels"), browser.run(f"return {said}")
    canvas.send_keys("+++")
    assert browser.run(look) != whole, "zooming changes nothing"
    canvas.send_keys("0")
    table = browser.run("return [...document.querySelectorAll('.top-times tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert len(table) == 10 and {"forward", "backward", "matmul"} <= {row[0] for row in table} and all(row[4].endswith(" %") for row in table), table
    assert "ui.perfetto.dev" in browser.text(".traces") and browser.run("return document.querySelectorAll('.traces a').length") == 0


def check_trace(page, browser):
    """A trace of both ranks is recorded, shown and downloaded; a recording that is cancelled makes room for the next."""
    # So many rows that a hundred steps take seconds: the recording is cancelled before it is whole.
    job = page.traced = page.submit("traced", ranks=2, rows=128)
    browser.open(f"#/job/{job}")
    browser.until("document.querySelector('.names .badge').textContent === 'training'", "the training", 60)
    check_trace_access(page, job)
    check_reader(browser)
    browser.click("button", "Record trace")
    browser.type("dialog input[name=steps]", "100")
    browser.click("dialog button", "Record")
    browser.until("document.querySelector('.recording').textContent.includes('Recording 100 steps of 2 ranks')", "how far it is")
    status, _, said = page.ask(f"/api/v1/jobs/{job}/profile", "POST", {"Authorization": f"Bearer {page.token}"}, '{"steps": 1}')
    assert status == 409 and b"one at a time" in said, said
    browser.click("[data-act=cancel-trace]")
    browser.until("document.querySelector('.traces').hidden", "that it has ended")

    def recorded():
        """Whether there is a trace. The coordinator may take a moment to notice that the first one was cancelled, and the page says so."""
        browser.click("button", "Record trace")
        browser.click("dialog button", "Record")
        browser.until("!document.querySelector('dialog') || document.querySelector('dialog .problem').textContent", "an answer")
        refused = browser.run("return document.querySelector('dialog .problem')?.textContent")
        if refused:
            assert "one at a time" in refused, refused
            browser.click("dialog button", "Cancel")
            return False
        browser.until("document.querySelector('.timeline canvas') || document.querySelector('.recording p.bad')", "the picture, or why there is none", 60)
        failed = browser.text(".recording p.bad")
        assert not failed, failed
        return True

    browser.until(recorded, "a trace", 90)
    check_picture(browser)
    check_download(page, browser, job)
    browser.until("[...document.querySelectorAll('.event b')].some((one) => one.textContent === 'PROFILED')", "the event")
    assert page.service.ctl("stop", job, "--now").returncode == 0
    browser.until("document.querySelector('.names .badge').textContent === 'stopped'", "the stop", 60)
    print("ok: trace")
