"""A headless Chromium for tests of the live page, and a small job to look at."""
import base64
import functools
import itertools
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

    def resize(self, width, height, scale=1):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False})

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
        """Clicks the first element that matches and contains the text. A dialog that this closes is gone afterwards: the page removes it a moment after the
        click, and until then it would be found instead of the next one."""
        self.until(lambda: self.run("""
            const one = [...document.querySelectorAll(arguments[0])].find((element) => element.textContent.includes(arguments[1]) && element.offsetParent);
            if (one) one.click();
            return !!one;""", selector, what), f"{selector} with '{what}'")
        self.until("!document.querySelector('dialog:not([open])')", "that the closed dialog is gone")

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

    def point_until(self, place, condition, what):
        """Points where the script `place` says, until the condition holds. While the page still moves, something else may come under the mouse; a person would
        follow it, too. Every second time it is a pixel further, because a mouse that does not move points at nothing new."""
        turn = itertools.count()

        def reached():
            x, y = self.run(place)
            self.point(x + next(turn) % 2, y)
            return self.run(f"return ({condition})")
        self.until(reached, what)

    def back(self):
        self.driver.back()

    def medium(self, medium):
        """Shows the page as on "print" or, with "", on the screen again."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium})

    def pdf(self):
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"])

    def download_to(self, folder):
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def allow_clipboard(self):
        """Lets the page write to the clipboard, and read it."""
        self.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})

    def barriers(self):
        """What axe-core finds serious or worse, one text each; None where it is not installed. With a dialog, of the dialog only."""
        script = axe()
        if script is None:
            return None
        if not self.run("return !!window.axe"):
            self.run(script)
        found = self.driver.execute_async_script("axe.run(document.querySelector('dialog') || document, { resultTypes: ['violations'] }).then((done) => arguments[0](done.violations))")
        return [f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:4]]}" for one in found if one["impact"] in ("serious", "critical")]

    def log(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def shoot(self, path, width, top=0, height=None):
        """The whole page as a PNG of at most 256 colours, or `height` pixels of it from `top`."""
        height = min(height or sys.maxsize, self.run("return document.documentElement.scrollHeight") - top)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "format": "png", "captureBeyondViewport": True, "clip": {"x": 0, "y": top, "width": width, "height": height, "scale": 1}})
        self.driver.set_script_timeout(600)  # a busy machine
        found = self.driver.execute_async_script(PALETTE, picture["data"])
        path.write_bytes(indexed_png(found[0], found[1], *(base64.b64decode(one) for one in found[2:])))


# The picture in 256 colours: the set of all colours is cut in two at its median, the widest and most used part again and again, and a colour becomes the mean of its part.
PALETTE = """const [text, done] = arguments;
(async () => {
  const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]));
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
  context.drawImage(bitmap, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, bitmap.width, bitmap.height).data.buffer);
  const count = new Map();
  for (let i = 0, run = 1; i < pixels.length; ++i, ++run) {  // most neighbours are alike
    if (pixels[i] === pixels[i + 1]) continue;
    count.set(pixels[i], (count.get(pixels[i]) || 0) + run);
    run = 0;
  }
  const part = (colours) => {
    const ranges = [0, 8, 16].map((shift) => { const all = colours.map((one) => (one >> shift) & 255); return [Math.max(...all) - Math.min(...all), shift]; });
    const [range, shift] = ranges.sort((a, b) => b[0] - a[0])[0];
    return { colours, shift, weight: range * Math.sqrt(colours.reduce((sum, one) => sum + count.get(one), 0)) };
  };
  const parts = [part([...count.keys()])];
  while (parts.length < 256) {
    const widest = parts.reduce((best, one, i) => (one.weight > parts[best].weight ? i : best), 0);
    const { colours, shift, weight } = parts[widest];
    if (!(weight > 0)) break;
    const value = (one) => (one >> shift) & 255;
    colours.sort((a, b) => value(a) - value(b));
    const half = colours.reduce((sum, one) => sum + count.get(one), 0) / 2;
    let cut = 0;
    for (let sum = 0; cut < colours.length - 1 && sum < half; ++cut) sum += count.get(colours[cut]);
    cut = Math.max(cut, 1);
    parts.splice(widest, 1, part(colours.slice(0, cut)), part(colours.slice(cut)));
  }
  const palette = [];
  const index = new Map();
  parts.forEach(({ colours }, i) => {
    const all = colours.reduce((sum, one) => sum + count.get(one), 0);
    for (const shift of [0, 8, 16]) palette.push(Math.round(colours.reduce((sum, one) => sum + count.get(one) * ((one >> shift) & 255), 0) / all));
    for (const one of colours) index.set(one, i);
  });
  const indices = new Uint8Array(pixels.length);
  for (let i = 0; i < pixels.length; ++i) indices[i] = i > 0 && pixels[i] === pixels[i - 1] ? indices[i - 1] : index.get(pixels[i]);
  const base64 = (bytes) => { let text = ''; for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768)); return btoa(text); };
  return [bitmap.width, bitmap.height, base64(Uint8Array.from(palette)), base64(indices)];
})().then(done, (error) => done({ error: String(error) }));"""


def indexed_png(width, height, palette, pixels):
    rows = b"".join(b"\0" + pixels[width * row:width * (row + 1)] for row in range(height))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
