#!/usr/bin/env python3
"""Usage: bench_browser.py PAGE.html BROWSER [FOLDER]. A reader's look at the page of gdx bench: no screen needs scrolling
sideways, and on paper no column is lost. FOLDER: for pictures of it, in light and dark, and a PDF."""
import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

from bench_page import Page, numbers

PATIENCE_S = 400  # only ends a hang
PAPER_PX = round((297 - 20) / 25.4 * 96)  # A4 landscape, within its margins


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

    def screen(self, width, height, scheme="light", media="screen"):
        self.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.wait(f"innerWidth === {width}", f"the page does not follow a screen of {width} px")

    def picture(self, file):
        shown = self.call("Page.captureScreenshot")["data"]
        pathlib.Path(file).write_bytes(base64.b64decode(shown))

    def end(self):
        self.process.kill()
        self.process.wait()


def check_screens(browser, folder):
    for width, scheme in ((1400, "light"), (800, "dark"), (390, "light"), (390, "dark"), (1400, "dark")):
        browser.screen(width, 900, scheme)
        wide, shown = browser.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= shown, f"a page of {wide} px on a screen of {width}, which shows {shown}"
        chart = browser.value("document.querySelector('svg').getBoundingClientRect().width")
        assert min(300, width / 4) < chart <= width, f"a chart of {chart} px on a screen of {width}"
        if folder:
            height = browser.value("document.documentElement.scrollHeight")
            browser.screen(width, height, scheme)
            browser.picture(pathlib.Path(folder, f"{width}-{scheme}.png"))
    print("no screen needs scrolling sideways")


def check_paper(browser, page, folder):
    browser.screen(PAPER_PX, 700, media="print")
    lost = browser.value("[...document.querySelectorAll('.wide')].map((one) => [one.scrollWidth, one.clientWidth])"
                         ".filter(([wide, shown]) => wide > shown)")
    assert not lost, f"tables wider than their paper: {lost}"
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    file = pathlib.Path(folder, "page.pdf")
    file.write_bytes(pdf)
    if not shutil.which("pdftotext"):
        print("not tried: the text of the PDF; install Debian's poppler-utils")
        return
    text = subprocess.run(["pdftotext", "-layout", file, "-"], check=True, capture_output=True, text=True).stdout
    figures = numbers(" ".join(value for _, value in page.figures))
    on_page = figures | numbers(" ".join(page.text)) | numbers(" ".join(page.ticks))
    assert not numbers(text) - on_page, f"numbers of the PDF alone: {numbers(text) - on_page}"
    assert not figures - numbers(text), f"the PDF lacks {figures - numbers(text)}"
    print(f"{len(figures)} numbers of the PDF are the page's")


def main():
    page_file, program, *folder = sys.argv[1:]
    page = Page(pathlib.Path(page_file).read_text())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = Browser(program, home)
        try:
            browser.attach()
            browser.open(page_file)
            check_screens(browser, folder[0] if folder else None)
            check_paper(browser, page, folder[0] if folder else home)
        finally:
            browser.end()


if __name__ == "__main__":
    main()
