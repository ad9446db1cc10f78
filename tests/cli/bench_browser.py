#!/usr/bin/env python3
"""Usage: bench_browser.py PAGE.html DOCUMENT.json BROWSER [FOLDER]. A reader's look at the page of gdx bench: values read off
the plot are the document's, arrow keys walk over them, and a narrow screen needs no scrolling sideways. FOLDER: for pictures
of it, in light and dark."""
import base64
import fcntl
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

from bench_page import points_of

PATIENCE_S = 400  # only ends a hang
CHOOSE = """(choice) => {
  for (const [id, value] of Object.entries(choice)) document.getElementById(id).value = value;
  for (const id of Object.keys(choice)) draw();
  // By the axes, from the places of the drawn points: what a reader sees, not what was given.
  return chart.data.datasets.map((set, index) => ({ name: set.label, points: chart.getDatasetMeta(index).data.map((at, i) =>
    [chart.scales.x.getValueForPixel(at.x), chart.scales.y.getValueForPixel(at.y), set.data[i].x, set.data[i].y]) }));
}"""


class Browser:
    """A browser without a window, by the DevTools protocol over a pair of pipes."""

    def __init__(self, program, home):
        pipes = os.pipe()[::-1], os.pipe()
        # Not 3 or 4, which the shell is about to set.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for _, end in pipes]
        self.errors = pathlib.Path(home, "errors")
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}', *command],
                                        pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=self.errors.open("wb"))
        # A pipe ends with the browser when nobody else holds the browser's ends.
        for end in [*theirs, *(end for _, end in pipes)]:
            os.close(end)
        self.to, self.since, self.number = os.fdopen(pipes[0][0], "wb", buffering=0), pipes[1][0], 0
        self.text, self.session = b"", None

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def complaints(self):
        return self.errors.read_text(errors="replace")[-2000:]

    def message(self):
        while b"\0" not in self.text:
            ready, _, _ = select.select([self.since], [], [], PATIENCE_S)
            part = os.read(self.since, 1 << 20) if ready else b""
            assert part, ("the browser ended: " if ready else "the browser is silent: ") + self.complaints()
            self.text += part
        line, self.text = self.text.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        try:
            self.to.write(json.dumps(request).encode() + b"\0")
        except BrokenPipeError:
            raise AssertionError("the browser ended: " + self.complaints()) from None
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def value(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def open(self, page):
        self.call("Page.navigate", url=pathlib.Path(page).absolute().as_uri())
        self.wait("location.protocol === 'file:' && performance.getEntriesByType('navigation')[0].loadEventEnd > 0",
                  "the page does not load")

    def wait(self, condition, otherwise):
        until = time.monotonic() + PATIENCE_S
        while not self.value(condition):
            assert time.monotonic() < until, otherwise
            time.sleep(0.05)

    def screen(self, width, height, scheme="light"):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        fits = "typeof chart === 'undefined' || Math.abs(chart.width - chart.canvas.parentNode.clientWidth) <= 1"
        self.wait(f"innerWidth === {width} && ({fits})", f"the page does not follow a screen of {width} px")

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key])

    def picture(self, file):
        shown = self.call("Page.captureScreenshot")["data"]
        pathlib.Path(file).write_bytes(base64.b64decode(shown))

    def end(self):
        self.process.kill()
        self.process.wait()


def options(browser, control):
    return browser.value(f"[...document.getElementById('{control}').options].map((one) => one.value)")


def check_plot(browser, document):
    points = 0
    for test in options(browser, "test"):
        for figure in options(browser, "figure"):
            for model in options(browser, "model"):
                choice = {"test": test, "figure": figure, "model": model}
                lines = browser.value(f"({CHOOSE})({json.dumps({**choice, 'axis': 'bytes'})})")
                drawn = [point for line in lines for point in line["points"]]
                for seen_x, seen_y, x, y in drawn:
                    # A pixel is a few thousandths of a logarithmic axis; a linear one begins at 0.
                    near = all(abs(seen - is_at) <= 0.02 * abs(is_at) + 1e-6 for seen, is_at in ((seen_x, x), (seen_y, y)))
                    assert near, f"{choice}: at {x} the plot shows {seen_y}, the document has {y}"
                wanted = {point[:2] for point in points_of(document, choice)}
                assert {(x, y) for _, _, x, y in drawn} == wanted, f"{choice}: the plot has other points than the document"
                points += len(drawn)
    assert points > 0
    print(f"{points} points were read off the plot as the document has them")


def check_keys(browser, document):
    browser.value(f"({CHOOSE})({json.dumps({'test': options(browser, 'test')[0], 'figure': 'latency_us/median'})})")
    for _ in range(50):
        if browser.value("document.activeElement.id") == "chart":
            break
        browser.press("Tab")
    assert browser.value("document.activeElement.id") == "chart", "no key reaches the chart"
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.press(key)
    at = browser.value("chart.getActiveElements().map((one) => [one.datasetIndex, one.index])[0]")
    line, point = browser.value(f"[chart.data.datasets[{at[0]}].label, chart.data.datasets[{at[0]}].data[{at[1]}]]")
    assert at == [1, 1], at
    spoken = browser.value("document.getElementById('spoken').textContent")
    assert spoken.startswith(f"{line}: {point['y']} ["), (spoken, line, point)
    assert document["rows"][0]["series"] in spoken, spoken
    print("keys walk over the points: " + spoken)


def check_narrow(browser):
    for width in (360, 800):
        browser.screen(width, 740)
        wide, shown = browser.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= shown, f"a page of {wide} px on a screen of {width}, which shows {shown}"
        chart = browser.value("chart.width")
        assert width / 2 < chart <= width, f"a chart of {chart} px on a screen of {width}"
    print("a screen of 360 px needs no scrolling sideways")


def main():
    page, document_file, program, *folder = sys.argv[1:]
    document = json.loads(pathlib.Path(document_file).read_text())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = Browser(program, home)
        try:
            browser.attach()
            browser.screen(1280, 900)
            browser.open(page)
            check_plot(browser, document)
            check_keys(browser, document)
            for name, width, scheme in (("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 360, "dark")):
                browser.screen(width, 900, scheme)
                if folder:
                    browser.picture(pathlib.Path(folder[0], name + ".png"))
            check_narrow(browser)
        finally:
            browser.end()


main()
