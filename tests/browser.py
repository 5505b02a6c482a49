"""Serves the built book from this machine and opens it in Chromium, with every other host out of reach."""

import os
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "book" / "_build" / "html"
AXE = ROOT / "build" / "vendor" / "node_modules" / "axe-core" / "axe.min.js"
BROWSERS = ("chromium", "google-chrome", "chromium-browser")

# The page has come to rest: equations set, diagrams drawn, images and fonts loaded.
AT_REST = """async () => {
  const drawn = () => [...document.querySelectorAll('.mermaid')].every(
    (e) => e.querySelector('svg') || !e.getClientRects().length);
  if (document.querySelector('.math')) {
    while (!window.MathJax?.startup?.promise) await new Promise(requestAnimationFrame);
    await MathJax.startup.promise;
  }
  while (!drawn()) await new Promise(requestAnimationFrame);
  document.querySelectorAll('img[loading=lazy]').forEach((image) => { image.loading = 'eager'; });
  await Promise.all([...document.images].map((image) => image.complete || new Promise((done) => {
    image.onload = image.onerror = done;
  })));
  await document.fonts.ready;
  await Promise.allSettled(document.getAnimations().map((a) => a.finished));
}"""


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send_error(self, code, *args, **kwargs):
        # As static hosts do: a page that is not there shows the book's own.
        if code != 404:
            return super().send_error(code, *args, **kwargs)
        body = (SITE / "404.html").read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve_book():
    """The address of the built book, without a slash at its end."""
    with ThreadingHTTPServer(("localhost", 0), partial(Handler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@contextmanager
def open_browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        message = f"no browser: none of {', '.join(BROWSERS)} is installed"
        # On a build server a page that nobody looked at must not pass.
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost"],
        )
        yield browser
        browser.close()


def pages():
    """The paths of all pages, as in the address; the root's redirect and the assets are none."""
    found = (path.relative_to(SITE) for path in SITE.rglob("*.html"))
    return sorted(path.as_posix() for path in found if not path.parts[0].startswith("_"))


class View:
    """One browser page, and what went wrong on it since `problems` was last emptied."""

    def __init__(self, context, address):
        self.page = context.new_page()
        self.address = address
        self.problems = []
        self.page.on("request", self._request)
        self.page.on(
            "requestfailed", lambda r: self.problems.append(f"failed request: {r.url} ({r.failure})")
        )
        self.page.on("response", self._response)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))

    def _request(self, request):
        if not request.url.startswith((self.address + "/", "data:", "blob:")):
            self.problems.append(f"request to another host: {request.url}")

    def _response(self, response):
        if response.status >= 400:
            self.problems.append(f"status {response.status}: {response.url}")

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(f"console {message.type}: {message.text}")

    def open(self, path):
        self.problems.clear()
        self.page.goto(f"{self.address}/{path}")
        self.settle()

    def settle(self):
        self.page.evaluate(AT_REST)

    def axe(self):
        """What axe-core objects to, one line for each element."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"axe {rule['id']}: {' '.join(map(str, node['target']))} {node['html'][:150]!r}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]
