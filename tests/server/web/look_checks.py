"""Checks of the live page for page_test.py: marks on the axis of a chart, the page on paper, the keyboard."""


def check_marks(page, browser):
    """Checkpoints, the restart and the stop are marks on the axis of steps and on that of time; pointing at one says what it was."""
    loss = "document.querySelector('.chart[data-of=loss]').chart"
    near = """const plot = document.querySelector('.chart[data-of=loss] .u-over'), box = plot.getBoundingClientRect();
        const { plot: drawn, marks } = document.querySelector('.chart[data-of=loss]').chart;
        return [box.left, box.top + box.height / 2, [...new Set(marks.filter(({ x }) => x !== null).map(({ x }) => Math.round(drawn.valToPos(x, 'x'))))].filter((x) => x > 0 && x < box.width)]"""
    coloured = """const source = document.querySelector('.chart[data-of=loss] canvas'), copy = document.createElement('canvas');
        [copy.width, copy.height] = [source.width, source.height];
        const context = copy.getContext('2d', {willReadFrequently: true}), probe = document.createElement('i');
        context.drawImage(source, 0, 0);
        probe.style.color = `var(${arguments[0]})`;
        document.body.append(probe);
        const wanted = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number), data = context.getImageData(0, 0, copy.width, copy.height).data;
        probe.remove();
        let count = 0;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 60 && [0, 1, 2].every((one) => Math.abs(data[i + one] - wanted[one]) < 8)) count += 1;
        return count"""
    browser.run("document.querySelector('.chart[data-of=loss]').scrollIntoView({block: 'center'})")
    for key, axis in (("1", "Step"), ("3", "Time"), ("1", "Step")):
        browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", key)
        browser.until(f"document.querySelector('.chips [aria-pressed=true]').textContent === '{axis}'", f"the axis {axis}")
        # Charts are drawn one a frame. Until then the marks are where they were on the axis before.
        browser.until(f"{loss}.mode === '{axis.lower()}' && {loss}.current", f"the chart over the axis {axis}")
        left, middle, places = browser.run(near)
        told = set()
        for x in places:
            browser.point(left + x, middle)
            told.add(tuple(browser.run("return [...document.querySelectorAll('.chart[data-of=loss] .value.mark')].map((one) => one.textContent)")))
        # On the axis of time the pause between the two may be wide.
        assert axis == "Time" or any(len(one) > 1 for one in told), (axis, "the restart is at the stop: both are shown", told)
        told = {mark for one in told for mark in one}
        for words in ("checkpoint at step", "continued from", "STOP"):
            assert any(words in one for one in told), (axis, words, told)
        browser.point(1, 1)
        # Their lines are on the picture, in the colours of restarts and of stops; nothing else is in the colour of restarts.
        for colour in ("--warning", "--c4"):
            browser.until(lambda: browser.run(coloured, colour) > 20, f"the marks in {colour} on the axis {axis}")
    print("ok: marks")


def check_print(page, browser):
    """On paper there is everything that can be read and nothing that can be pressed, in light colours, and nothing is cut at the edge of A4."""
    browser.open(f"#/job/{page.job}", "dark")
    browser.until("document.querySelectorAll('.chart canvas').length >= 5 && document.querySelector('.event')", "the job in dark colours")
    browser.run("""addEventListener('beforeprint', () => {
        window.printed = document.documentElement.dataset.theme;
        window.undrawn = [...document.querySelectorAll('.chart')].filter((one) => one.querySelector('canvas') && !one.chart.current).length;
    })""")
    pages = browser.pdf().count(b"/Type /Page\n")
    assert pages >= 2, f"{pages} pages of a job with charts, events and configuration"
    assert browser.run("return [window.printed, window.undrawn]") == ["light", 0], "a chart out of view is in the other colours on paper"
    browser.until("document.documentElement.dataset.theme === 'dark'", "the dark colours after the print")
    for name, path, ready in (("job", f"#/job/{page.job}", ".chart canvas"), ("fleet", "#/", ".jobs tr[data-id]")):
        browser.open(path)
        browser.until(f"document.querySelector('{ready}')", name)
        browser.resize(794, 1123)  # A4 at 96 dots an inch
        browser.medium("print")
        seen = browser.run("""return [...document.querySelectorAll('button, .bar, .filters, .actions, dialog, #toast')].filter((one) => one.checkVisibility())
            .map((one) => one.outerHTML.slice(0, 80))""")
        assert seen == [], seen
        assert browser.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.run("return document.documentElement.scrollWidth") <= 794, f"{name} is wider than the paper"
        assert browser.run("return document.querySelector('.sentence').checkVisibility() && document.querySelector('.event').checkVisibility()")
        cut = browser.run("return [...document.querySelectorAll('.events, .log')].filter((one) => one.scrollHeight > one.clientHeight + 1).length")
        assert cut == 0, f"{name}: a list is cut"
        browser.medium("")
        browser.resize(1400, 900)
    print("ok: print")


CURVES = """const [job, done] = arguments;
(async () => {
  const { Curves } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'curves.js'));
  const curves = new Curves(job, 16);
  await curves.refresh(true);
  const { width, step } = curves.data;
  const count = step.length;
  while (curves.data.width === width && curves.data.step.length < count + 3) await curves.refresh();
  const grown = { width: curves.data.width, step: curves.data.step.slice(0, -1), loss: curves.data.values.loss.mean.slice(0, -1), min: curves.data.values.loss.min.slice(0, -1) };
  await curves.refine();
  return { count, grown, finer: curves.data.width };
})().then(done, (error) => done({ error: String(error) }));"""


SPIKES = """const [done] = arguments;
(async () => {
  const { Chart, Group } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'chart.js'));
  const chart = new Chart(new Group(), { title: 'test', zero: true, spikes: true });
  document.body.append(chart.element);
  const top = async (y) => {
    chart.show({ curves: [{ name: 'a', color: '--c1', x: y.map((_, i) => i), y }], mode: 'step' });
    chart.draw();
    await new Promise((ready) => setTimeout(ready, 50));
    return [chart.plot.scales.y.max, chart.beyond];
  };
  const ones = Array(100).fill(1);
  const tops = { one: await top([50, ...ones]), rising: await top(ones.map((_, i) => i + 1)), often: await top(ones.map((_, i) => (i % 10 ? 1 : 50))) };
  chart.close();
  chart.element.remove();
  return tops;
})().then(done, (error) => done({ error: String(error) }));"""


def check_spikes(browser):
    """One value 50 times as high as the others does not set the axis, and its height is written there; many high values do."""
    tops = browser.driver.execute_async_script(SPIKES)
    assert "error" not in tops, tops
    assert tops["one"][0] < 2 and tops["one"][1] == 50, tops
    assert tops["rising"][0] >= 100 and tops["rising"][1] is None and tops["often"][0] >= 50 and tops["often"][1] is None, tops
    print("ok: spikes")


def check_curves(page, browser):
    """Of a job that trains: wide buckets hold all steps, and what a page has read piece by piece is what it would read at once."""
    path = f"jobs/{page.job}/curves"
    browser.until(lambda: page.get(f"jobs/{page.job}")["step"] > 100, "a hundred steps", 60)
    whole, wide = page.get(f"{path}"), page.get(f"{path}?width=5")
    assert whole["width"] == 1 and wide["width"] == 8, (whole["width"], wide["width"])
    assert wide["step"][:-1] == list(range(8, wide["step"][-2] + 1, 8)), wide["step"]
    for i in range(12):
        part = whole["values"]["loss"]["mean"][8 * i:8 * i + 8]
        assert abs(wide["values"]["loss"]["mean"][i] - sum(part) / 8) < 1e-4 and wide["values"]["loss"]["max"][i] == max(part), (i, part)
    later = page.get(f"{path}?width=8&from=17")
    assert later["step"][:10] == wide["step"][2:12] and later["values"]["loss"]["mean"][:10] == wide["values"]["loss"]["mean"][2:12]
    assert len(page.get(f"{path}?points=10")["step"]) <= 10 and page.ask(f"/api/v1/{path}?width=-1")[0] == 400
    browser.driver.set_script_timeout(120)
    read = browser.driver.execute_async_script(CURVES, page.job)
    assert "error" not in read, read
    grown = read["grown"]
    at_once = page.get(f"{path}?width={grown['width']}")
    count = len(grown["step"])
    assert grown["width"] > 1 and count >= read["count"] + 2 and read["finer"] == 1, read
    assert grown["step"] == at_once["step"][:count] and grown["loss"] == at_once["values"]["loss"]["mean"][:count]
    assert grown["min"] == at_once["values"]["loss"]["min"][:count]
    print("ok: curves")


def unfold(browser):
    """Shows the jobs of all rows that stand for several; returns how many jobs are shown."""
    return browser.run("""for (const one of document.querySelectorAll('.fold button[aria-expanded=false]')) one.click();
        return document.querySelectorAll('.jobs tr[data-id]').length""")


def check_keys(browser):
    """In a list of five jobs: / goes to the filter, j and k move, x ticks and unticks, Enter opens, b sets the baseline; typing does none of this. Back shows what was chosen."""
    rows = "[...document.querySelectorAll('.jobs tr[data-id]')]"
    here = f"{rows}.findIndex((row) => row.classList.contains('current'))"
    chosen = f"{rows}.filter((row) => row.querySelector('input').checked).map((row) => row.dataset.id)"
    hash = "location.hash.replace(/&open=[^&]*/, '')"
    ids = browser.run(f"return {rows}.map((row) => row.dataset.id)")
    field = "document.querySelector('input[aria-label=Filter]')"
    browser.keys("j")  # the filter has the focus
    browser.until(f"{field}.value === 'many-07 team=bj'", "the letter in the field")
    assert browser.run(f"return {here}") == -1, "a letter that is typed moves in the list"
    browser.keys("\b", "\x1b")
    browser.until(f"{field}.value === 'many-07 team=b' && document.activeElement === document.body && {rows}.length === 5", "the list again")
    for keys, row in (("jjj", 2), ("k", 1), ("kkk", 0), ("jjjjjjjj", 4), ("kkk", 1)):
        browser.keys(*keys)
        browser.until(f"{here} === {row}", f"row {row} after {keys}")
    browser.keys("c")
    assert browser.run(f"return {hash}") == "#/?q=many-07+team=b", "c does something although no job is ticked"
    browser.keys("x")
    browser.until(f"({chosen}).join() === '{ids[1]}' && {here} === 1", "one job ticked")
    browser.keys("j", "j", "x", "j", "x", "x")
    browser.until(f"({chosen}).join() === '{ids[1]},{ids[3]}' && document.querySelectorAll('.chosen-job').length === 2", "two jobs ticked")
    address = f"#/?q=many-07+team=b&on={ids[1]},{ids[3]}"
    assert browser.run(f"return {hash}") == address, browser.run("return location.hash")
    browser.keys("b")
    browser.until("document.querySelectorAll('.delta[aria-pressed=true]').length === 1 && location.hash.includes('&star=')", "the baseline")
    browser.keys("b")
    browser.until(f"{hash} === '{address}'", "no baseline")
    browser.keys("/")
    browser.until(f"document.activeElement === {field}", "the focus")
    browser.keys("\x1b", "j", "\r")
    browser.until("/^#\\/job\\//.test(location.hash)", "the job's page")
    browser.back()
    browser.until(f"{rows}.length === 5 && ({chosen}).join() === '{ids[1]},{ids[3]}' && {hash} === '{address}'", "the list as it was")
    browser.open("#/")
    browser.until(lambda: unfold(browser) == 200, "the list")
    browser.type("input[aria-label=Filter]", "many-07 team=b")
    browser.until(lambda: unfold(browser) == 5, "five rows", 10)
