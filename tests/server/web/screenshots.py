#!/usr/bin/python3
"""Takes the screenshots of docs/: the live page of a real coordinator with small jobs that train on this machine's CPU.

    tests/server/web/screenshots.py BIN_DIR OUT_DIR       takes about six minutes on two cores; needs deploy/packages.sh test
    tests/server/web/screenshots.py BIN_DIR OUT_DIR --state FOLDER [--trace FILE]
                                                          pictures of a job that was trained elsewhere, for example on a machine with GPUs and without a
                                                          browser: FOLDER is a copy of its coordinator's state folder, FILE what `nsactl profile` wrote

Jobs train a smaller model than that of configs/jobs/demo.yaml on its licence texts, with different settings. When the pictures are taken two have finished, one has done all its
steps at a learning rate that is far too high, the rank of one was killed and it may not start again, two train (a rank of one of them was killed on the way), and
one waits. Then a sweep of eight smaller jobs runs to its end. A picture has 830 CSS pixels, as many as GitHub shows, at two dots each.
"""
import argparse
import base64
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "tests/testing"))
from browser import JOB, Browser  # noqa: E402
from page_test import Page  # noqa: E402

WIDE, NARROW, TALLEST, DOTS = 830, 390, 1240, 2
PATIENCE = 900


class Fleet(Page):
    """The jobs of the pictures."""

    def start(self, name, steps, *settings, labels="study=attention"):
        """Submits the demo job with other settings; returns its id."""
        self.count += 1
        file = self.folder / f"{name}.yaml"
        text = (TOP / "configs/jobs/demo.yaml").read_text().replace("name: demo", f"name: {name}\nlabels: {{{labels.replace('=', ': ')}}}")
        file.write_text(text)
        wanted = [f"train.steps={steps}", "model.dim=64", "model.d_k=16", "model.d_v=16", "train.seq_len=128", "train.batch_size=4", "train.log_every=1", "train.eval_every=40", "train.save_every=80", "nsa.audit_every=20",
                  "preflight.policy=experiment", f"train.out_dir={self.folder / name}", *settings]
        done = self.service.ctl("submit", file, "-o", "name", *(word for one in wanted for word in ("--set", one)))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def wait(self, job, condition, what):
        return self.service.wait_until(lambda: condition(self.get(f"jobs/{job}")), PATIENCE, f"{job}: {what}")

    def kill(self, job):
        """Kills the job's rank once there is a checkpoint."""
        self.wait(job, lambda seen: seen["checkpoint_step"], "a checkpoint")
        ranks = json.loads(self.service.ctl("describe", job, "-o", "json").stdout)["ranks"]
        os.kill(int(ranks[0]["pid"]), signal.SIGKILL)

    def make(self):
        ended = ("SUCCEEDED", "FAILED", "STOPPED")
        self.base_job = self.start("three-branches", 320)
        self.window = self.start("window-only", 320, "nsa.branches=[win]")
        one_try = self.start("one-try", 1000, "restart.max_restarts=0")
        hot = self.start("too-hot", 240, "train.lr=1", "train.muon_lr=1", "train.grad_clip=0", labels="study=lr")
        self.long = self.start("long-sequences", 4000, "train.seq_len=256", "train.batch_size=2")
        self.mlp = self.start("mlp-phi", 3000, "nsa.phi=mlp", "nsa.gate=sigmoid")
        self.start("eight-heads", 500, "model.n_heads=8")
        self.kill(one_try)
        for job in (self.base_job, self.window, one_try, hot):
            self.wait(job, lambda seen: seen["state"] in ended, "its end")
        self.kill(self.long)
        self.wait(self.long, lambda seen: seen["restarts"] == 1 and seen["state"] == "RUNNING" and seen["step"] > 200, "training after its restart")


def shoot(fleet, out):
    ticked = f"#/?on={fleet.base_job},{fleet.window},{fleet.long}&star={fleet.base_job}&s=0.8"
    pictures = (("workspace", ticked, WIDE, ("light", "dark")), ("job", f"#/job/{fleet.long}?s=0.8", WIDE, ("light",)), ("phone", ticked, NARROW, ("light",)))
    with Browser(fleet.base) as browser:
        for name, path, width, themes in pictures:
            ready = ".heat canvas" if name == "job" else ".ticked .chart canvas"
            for theme in themes:
                browser.resize(width, 900, DOTS)
                browser.open(path, theme)
                # Room for the scroll bar, which the pictures do not have.
                browser.run("document.documentElement.style.scrollbarGutter = 'auto'")
                browser.until(f"document.querySelector('{ready}')", f"{name} {theme}")
                browser.until("document.fonts.status === 'loaded'", "the fonts")
                browser.shoot(out / f"page_{name}_{theme}.png", width, height=TALLEST)
                print(f"{out}/page_{name}_{theme}.png: {(out / f'page_{name}_{theme}.png').stat().st_size} bytes", flush=True)
        wrong = browser.log()
        assert wrong == [], wrong


def shoot_sweep(page, out):
    file = page.folder / "rates.yaml"
    file.write_text(JOB.format(name="rates", steps=160, lr="1e-3", team="a", out_dir=page.folder / "rates"))
    done = page.service.ctl("submit", file, "--sweep", "train.lr=1e-4,3e-4,1e-3,1e-2", "--sweep", "nsa.gate=softmax,sigmoid", "--halve-at", "40,80")
    assert done.returncode == 0, done.stdout + done.stderr
    with Browser(page.base) as browser:
        browser.resize(WIDE, 900, DOTS)
        browser.open("#/sweep/rates")
        browser.until("document.querySelector('.sentence').textContent.includes('all ended')", "the end of the sweep", PATIENCE)
        browser.until("document.querySelectorAll('.chart canvas').length === 4", "the curves")
        # The lines of all jobs stand below the list and the curves.
        top = browser.run("return document.querySelector('.parallel').getBoundingClientRect().top + scrollY")
        browser.shoot(out / "page_sweep_light.png", WIDE, top=int(top) - 40, height=900)


def shoot_trace(page, out):
    """What the page shows after `Record trace…`."""
    page.traced = page.submit("demo", ranks=2)
    with Browser(page.base) as browser:
        browser.resize(WIDE, 900, DOTS)
        browser.open(f"#/job/{page.traced}")
        browser.until("Number(document.querySelector('.done span').textContent.split(' ')[0]) > 100", "some steps", PATIENCE)
        browser.click("button", "Record trace")
        browser.type("dialog input[type=password]", page.token)
        browser.click("dialog button", "Use this token")
        browser.click("dialog button", "Record")
        browser.until("document.querySelector('.timeline canvas')", "the picture", PATIENCE)
        browser.until("getComputedStyle(document.getElementById('toast')).opacity === '0'", "that the page is at rest")
        top = browser.run("return document.querySelector('.traces').getBoundingClientRect().top + scrollY")
        browser.shoot(out / "page_trace_light.png", WIDE, top=int(top) - 12, height=900)


def shoot_elsewhere(page, out, trace):
    """The newest job of a state folder, and the trace as the page draws one that it has recorded."""
    job = page.get("fleet")["jobs"][0]["id"]
    with Browser(page.base) as browser:
        browser.resize(WIDE, 900, DOTS)
        for theme in ("light", "dark"):
            browser.open(f"#/job/{job}", theme)
            browser.run("document.documentElement.style.scrollbarGutter = 'auto'")
            browser.until("document.querySelector('.heat canvas')", "the maps of the attention")
            # The shares of the branches: the maps from the third on.
            top, end = browser.run("const maps = document.querySelectorAll('.heat'); return [maps[2].getBoundingClientRect().top + scrollY, maps[4].getBoundingClientRect().bottom + scrollY]")
            browser.shoot(out / f"page_gpu_attention_{theme}.png", WIDE, top=int(top) - 12, height=int(end - top) + 24)
        if not trace:
            return
        browser.driver.set_script_timeout(60)
        failed = browser.driver.execute_async_script("""const [text, done] = arguments;
            (async () => {
              const { readTrace } = await import('./trace.js');
              const { Timeline, topTable } = await import('./timeline.js');
              const read = await readTrace(new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]));
              document.querySelector('.traces').hidden = false;
              document.querySelector('.trace-picture').replaceChildren(new Timeline(read).element, topTable(read));
            })().then(() => done(''), (error) => done(String(error)));""", base64.b64encode(trace.read_bytes()).decode())
        assert not failed, failed
        browser.until("document.querySelector('.timeline canvas')", "the picture")
        top = browser.run("return document.querySelector('.traces').getBoundingClientRect().top + scrollY")
        browser.shoot(out / "page_gpu_trace.png", WIDE, top=int(top) - 12, height=1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("--state", type=pathlib.Path)
    parser.add_argument("--trace", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out_dir
    out.mkdir(parents=True, exist_ok=True)
    if options.state:
        with tempfile.TemporaryDirectory(prefix="nsa-screenshots-") as folder:
            shutil.copytree(options.state, pathlib.Path(folder) / "state", ignore=shutil.ignore_patterns("*.sock"))
            page = Page(options.bin_dir, pathlib.Path(folder))
            with page.service:
                shoot_elsewhere(page, out, options.trace)
        return
    with tempfile.TemporaryDirectory(prefix="nsa-screenshots-") as folder:
        fleet = Fleet(options.bin_dir, pathlib.Path(folder))
        with fleet.service:
            fleet.make()
            shoot(fleet, out)
    with tempfile.TemporaryDirectory(prefix="nsa-screenshots-") as folder:
        page = Page(options.bin_dir, pathlib.Path(folder))
        with page.service:
            shoot_sweep(page, out)
            shoot_trace(page, out)


if __name__ == "__main__":
    main()
