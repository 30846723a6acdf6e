"""A headless Chromium for tests of the live page, and a small job to look at."""
import base64
import functools
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import zlib

from selenium import webdriver
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1")

# Twenty to fifty steps a second on one core.
JOB = """
name: {name}
labels: {{team: {team}}}
model: {{dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32, audit_every: 20}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
preflight: {{policy: experiment}}
train: {{steps: {steps}, seq_len: 128, batch_size: 8, lr: {lr}, warmup_steps: 20, log_every: 1, eval_every: 20, eval_batches: 1, save_every: 40, seed: 7, out_dir: {out_dir}}}
"""


@functools.cache
def axe():
    """The source of axe-core, or None: deploy/packages.sh test fetches it from npm."""
    top = pathlib.Path(__file__).resolve().parents[3]
    where = subprocess.run([top / "deploy/node_packages.sh", "--where", top / "tests/server/web/axe"], capture_output=True, text=True, check=True).stdout.strip()
    source = pathlib.Path(where) / "node_modules/axe-core/axe.min.js"
    return source.read_text() if source.exists() else None


class Browser:
    """One window. Every wait has a condition and a limit; nothing sleeps for a fixed time."""

    def __init__(self, base, width=1400, height=900):
        self.base = base
        self.profile = tempfile.TemporaryDirectory()
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={self.profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Driver("/usr/bin/chromedriver"), options=options)

    def close(self):
        self.driver.quit()
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def resize(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def open(self, path, theme="light"):
        self.driver.get(f"{self.base}/icon.svg")
        self.driver.execute_script("localStorage.setItem('theme', arguments[0])", theme)
        self.driver.get(f"{self.base}/{path}")

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        return self.run("const one = document.querySelector(arguments[0]); return one ? one.textContent : ''", selector)

    def until(self, condition, what, seconds=30):
        """Waits until the function or the JavaScript expression is true; returns its value. An expression that fails, e.g. because an element
        is not there yet, is not true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.run(f"return ({condition})") if isinstance(condition, str) else condition()
            except JavascriptException:
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds} s; the page shows:\n{self.text('main')[:2000]}\n{self.log()}")
            time.sleep(0.05)

    def click(self, selector, what=""):
        """Clicks the first element that matches and contains the text."""
        self.until(lambda: self.run("""
            const one = [...document.querySelectorAll(arguments[0])].find((element) => element.textContent.includes(arguments[1]) && element.offsetParent);
            if (one) one.click();
            return !!one;""", selector, what), f"{selector} with '{what}'")

    def type(self, selector, text):
        self.until(lambda: self.all(selector), selector)
        field = self.all(selector)[0]
        field.clear()
        field.send_keys(text)

    def keys(self, *keys):
        """Presses keys, as a person does, wherever the focus is. "\\x1b" is Escape, "\\b" Backspace, "\\r" Enter."""
        names = {"\x1b": ("Escape", 27), "\b": ("Backspace", 8), "\r": ("Enter", 13)}
        for key in keys:
            name, code = names.get(key, (key, ord(key.upper())))
            press = {"key": name, "windowsVirtualKeyCode": code, **({} if key in ("\x1b", "\b") else {"text": key})}
            self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **press})
            self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", "key": name, "windowsVirtualKeyCode": code})

    def point(self, x, y):
        """Moves the mouse there, in pixels of the window."""
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def back(self):
        self.driver.back()

    def medium(self, medium):
        """Shows the page as on "print" or, with "", on the screen again."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium})

    def pdf(self):
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"])

    def download_to(self, folder):
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def barriers(self):
        """What axe-core finds serious or worse, one text each; None where it is not installed."""
        script = axe()
        if script is None:
            return None
        self.run(script)
        found = self.driver.execute_async_script("axe.run(document).then((done) => arguments[0](done.violations))")
        return [f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:4]]}" for one in found if one["impact"] in ("serious", "critical")]

    def log(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def shoot(self, path, width, top=0, height=None):
        """The whole page as a PNG, or `height` pixels of it from `top`."""
        height = min(height or sys.maxsize, self.run("return document.documentElement.scrollHeight") - top)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "format": "png", "captureBeyondViewport": True, "clip": {"x": 0, "y": top, "width": width, "height": height, "scale": 1}})
        path.write_bytes(compressed(base64.b64decode(picture["data"])))


def compressed(png):
    """The same picture in fewer bytes: Chromium compresses in a hurry."""
    chunks, data, at = [], b"", 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IDAT":
            data += png[at + 8:at + 8 + size]
        else:
            chunks.append((kind, png[at + 8:at + 8 + size]))
        at += size + 12
    chunks.insert(-1, (b"IDAT", zlib.compress(zlib.decompress(data), 9)))
    return png[:8] + b"".join(struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
