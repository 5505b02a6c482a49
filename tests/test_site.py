"""The built book in a browser: every page, light and dark, on a wide screen and on a phone."""

import io
import json
import re
import urllib.error
import urllib.request
import zipfile

import numpy as np
import pytest
from browser import ROOT, SITE, View, open_browser, pages, serve_book

import rltokens

pytestmark = pytest.mark.slow

SHOTS = ROOT / "build" / "screenshots"
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}

# Everything about a page that can be seen without doing anything on it.
OFFENDERS = r"""() => {
  const found = [];
  const name = (e) => e.outerHTML.slice(0, 120);
  const shown = (e) => e.getClientRects().length > 0;
  for (const e of document.querySelectorAll('.math'))
    if (!e.querySelector('mjx-container')) found.push('equation not typeset: ' + name(e));
  for (const e of document.querySelectorAll('mjx-merror, [data-mjx-error]'))
    found.push('error in an equation: ' + e.textContent);
  for (const e of document.querySelectorAll('.mermaid')) {
    const box = e.querySelector('svg')?.getBoundingClientRect();
    if (shown(e) && !(box?.width > 20 && box?.height > 20)) found.push('diagram not drawn: ' + name(e));
    if (!e.getAttribute('aria-label')) found.push('diagram without text alternative: ' + name(e));
  }
  for (const e of document.images) {
    if (!e.naturalWidth) found.push('image not loaded: ' + name(e));
    if (!e.alt.trim()) found.push('image without alt: ' + name(e));
  }
  const page = document.documentElement;
  const sideways = page.scrollWidth - page.clientWidth;
  if (sideways > 0) found.push(`scrolls sideways by ${sideways} px`);
  // What is wide may scroll in a box of its own; nothing else may stick out (a phone's drawer waits outside).
  const scrolls = (e) => { for (; e && e !== document.body; e = e.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true; };
  for (const e of document.querySelectorAll('main *')) {
    const box = e.getBoundingClientRect();
    const hidden = !box.width || e.closest('svg *, mjx-assistive-mml, .bd-sidebar-secondary');
    if (!hidden && (box.right > innerWidth + 1 || box.left < -1) && !scrolls(e.parentElement))
      found.push('sticks out: ' + name(e));
  }
  return found;
}"""

# Hints, answers, hidden outputs, and every reply of every quiz: as many as were opened.
OPEN_EVERYTHING = """() => {
  const folds = document.querySelectorAll('main details');
  const replies = document.querySelectorAll('.quiz-choice input');
  for (const fold of folds) fold.open = true;
  // Each in a group of its own, so that all can be checked.
  replies.forEach((radio, i) => { radio.name = `alone-${i}`; radio.checked = true; });
  return folds.length + replies.length;
}"""


@pytest.fixture(scope="module")
def address():
    if not (SITE / "index.html").is_file():
        pytest.fail("the book is not built: run `make book` first")
    with serve_book() as found:
        yield found


@pytest.fixture(scope="module")
def browser(address):
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def views(browser, address):
    """The view of a mode and a size, opened once and used by all tests."""
    opened = {}

    def view(mode="light", size=WIDE):
        key = (mode, size["width"])
        if key not in opened:
            context = browser.new_context(viewport=size, color_scheme=mode, reduced_motion="reduce")
            opened[key] = View(context, address)
        return opened[key]

    return view


def fail_on(problems, where):
    assert not problems, f"{where}:\n  " + "\n  ".join(problems)


def take_shot(view, name):
    """For people to look at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    view.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read()


def first_page_with(selector):
    """The first page whose source holds `selector`'s class, so that tests follow the book as it grows."""
    marked = f'class="{selector}'
    found = [path for path in pages() if marked in (SITE / path).read_text("utf-8")]
    assert found, f"no page of the book has an element of class {selector}"
    return found[0]


def parameters():
    # Found when pytest collects; without a book one test fails and says why.
    return pages() or ["index.html"]


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("path", parameters())
def test_page_is_whole_and_accessible(views, path, mode, size):
    view = views(mode, size)
    view.open(path)
    kind = "wide" if size is WIDE else "phone"
    shot = f"{path.removesuffix('.html').replace('/', '_')}-{mode}-{kind}"
    assert view.page.evaluate("document.documentElement.dataset.theme") == mode
    problems = view.page.evaluate(OFFENDERS)
    take_shot(view, shot)
    if size is PHONE and view.page.evaluate(OPEN_EVERYTHING):
        view.settle()
        problems += view.page.evaluate(OFFENDERS)
        take_shot(view, f"{shot}-opened")
    fail_on([*view.problems, *problems, *view.axe()], f"{path}, {mode}, {kind}")


def test_hints_open_one_by_one(views):
    view = views()
    view.open(first_page_with("hint"))
    box = view.page.locator(".exercise").filter(has=view.page.locator(".hint .hint")).first
    first, second = box.locator("summary", has_text="Hint 1"), box.locator("summary", has_text="Hint 2")
    assert not second.is_visible(), "hint 2 can be seen before hint 1 is opened"
    first.click()
    assert second.is_visible(), "hint 1 does not open the way to hint 2"
    assert not box.locator(".solution .details-body").is_visible(), "the solution lies open"


def test_quiz_by_keyboard(views):
    view = views()
    view.open(first_page_with("quiz"))
    choices = view.page.locator(".quiz").first.locator(".quiz-choice input")
    replies = view.page.locator(".quiz").first.locator(".quiz-reply")

    def seen():
        return [reply.is_visible() for reply in replies.all()]

    assert not any(seen()), "a reply is shown before anything is chosen"
    choices.first.focus()
    view.page.keyboard.press("ArrowDown")
    assert not any(seen()), "an arrow key answered: it should only move"
    view.page.keyboard.press("Space")
    assert seen() == [False, True] + [False] * (choices.count() - 2), "the space bar shows the one reply"
    assert replies.nth(1).inner_text().startswith(("Right.", "Not quite.")), "the verdict is said in words"
    view.page.keyboard.press("ArrowUp")
    view.page.keyboard.press("Space")
    assert seen() == [True] + [False] * (choices.count() - 1), (
        "a new answer must show its reply and hide the first"
    )
    fail_on([*view.problems, *view.axe()], "answered quiz")


def test_quiz_without_javascript(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/{first_page_with('quiz')}")
    page.locator(".quiz-choice label").first.click()
    assert page.locator(".quiz-reply").first.is_visible()
    assert not page.locator(".quiz-reply").nth(1).is_visible()
    context.close()


def test_diagram_reaches_the_accessibility_tree(views):
    view = views()
    path = next(path for path in pages() if 'class="mermaid"' in (SITE / path).read_text("utf-8"))
    view.open(path)
    name = view.page.locator(".mermaid").first.get_attribute("aria-label")
    assert view.page.get_by_role("img", name=name, exact=True).count() == 1


def test_phone_menu(views):
    view = views("light", PHONE)
    view.open("index.html")
    view.page.locator("button.primary-toggle:visible").first.click()
    # The menu is a dialog that the sidebar's content moves into.
    link = view.page.locator("dialog a[href='conventions.html']:visible").first
    link.wait_for(state="visible")
    view.settle()
    fail_on([*view.problems, *view.axe()], "index.html, phone, menu open")
    link.click()
    view.page.wait_for_url("**/conventions.html")


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_search(views, mode):
    view = views(mode)
    view.open("index.html")
    view.page.locator("button.search-button-field:visible, button.search-button:visible").first.click()
    field = view.page.locator("dialog input[type=search]:visible")
    field.wait_for()
    view.settle()
    fail_on([*view.problems, *view.axe()], f"search dialog, {mode}")
    field.fill("padding")
    field.press("Enter")
    view.page.wait_for_url("**/search.html?q=padding*")
    result = view.page.locator("#search-results li a").first
    result.wait_for()
    assert "Conventions" in view.page.locator("#search-results").inner_text()
    view.page.wait_for_function("!document.querySelector('#search-progress')?.textContent.includes('...')")
    view.settle()
    fail_on([*view.problems, *view.axe()], f"search results, {mode}")


def test_theme_switch(browser, address):
    context = browser.new_context(viewport=WIDE, color_scheme="light", reduced_motion="reduce")
    view = View(context, address)
    view.open("index.html")
    seen = set()
    for _ in range(3):
        view.page.locator("button.theme-switch-button:visible").first.click()
        view.settle()
        fail_on([*view.problems, *view.page.evaluate(OFFENDERS)], f"index.html after the switch, {seen}")
        theme = view.page.evaluate("document.documentElement.dataset.theme")
        seen.add((theme, view.page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert len(seen) == 2, f"three clicks pass through light and dark, seen: {seen}"
    context.close()


def test_page_that_is_not_there(views):
    view = views()
    view.open("no/such/page.html")
    problems = [p for p in view.problems if "no/such/page.html" not in p and "status of 404" not in p]
    assert "not found" in view.page.title().lower()
    fail_on([*problems, *view.page.evaluate(OFFENDERS), *view.axe()], "404")


def test_downloads(views, address):
    """The notebooks that pages link to are there, parse, and come with what they import."""
    view = views()
    links = set()
    for path in pages():
        text = (SITE / path).read_text("utf-8")
        if "notebooks/" in text or ".ipynb" in text:
            view.open(path)
            links |= set(view.page.evaluate("[...document.querySelectorAll('a')].map((a) => a.href)"))
    notebooks = sorted(link for link in links if link.endswith(".ipynb"))
    zips = sorted(link for link in links if link.endswith(".zip"))
    assert any("/notebooks/" in link for link in notebooks), "no page links to an exercise notebook"
    assert any("/_sources/" in link for link in notebooks), "no page offers its own run as a notebook"
    for link in notebooks:
        assert json.loads(fetch(link))["cells"], link
    for link in zips:
        chapter = link.rsplit("/", 1)[1].removesuffix(".zip")
        names = zipfile.ZipFile(io.BytesIO(fetch(link))).namelist()
        assert names == [f"{chapter}/{chapter}.ipynb", f"{chapter}/given.py"], link


def test_links_within_the_book(views, address):
    """Every page and every anchor that a page links to is there."""
    view, ids, links = views(), {}, []
    for path in pages():
        view.page.goto(f"{address}/{path}", wait_until="commit")
        view.page.wait_for_load_state("domcontentloaded")
        ids[path] = set(view.page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)"))
        hrefs = view.page.evaluate("[...document.querySelectorAll('main a[href]')].map((a) => a.href)")
        links += [(path, href) for href in hrefs if href.startswith(address)]
    lost = []
    for path, href in links:
        target, _, fragment = href.removeprefix(f"{address}/").partition("#")
        if target in ids:
            if fragment and fragment not in ids[target]:
                lost.append(f"{path}: {href}, no such anchor")
        elif not (SITE / target.partition("?")[0]).is_file():
            lost.append(f"{path}: {href}, no such file")
    fail_on(lost, "links")


def test_widgets_compute_what_the_package_does(views, address):
    view = views()
    view.page.goto(f"{address}/{first_page_with('widget')}")
    rng = np.random.default_rng(0)
    deltas, (logp, reward) = rng.normal(size=5), rng.normal(size=(2, 8))
    logp = rltokens.log_softmax(logp)
    found = view.page.evaluate(
        """async ([deltas, lambda, logp, reward, beta]) => {
          const w = await import(document.querySelector('script[src*="widgets.mjs"]').src);
          const {logp: star, logZ} = w.tilt(logp, reward, beta);
          return {gae: w.gae(deltas, lambda), star, logZ, kl: w.kl(star, logp), mean: w.mean(star, reward)};
        }""",
        [deltas.tolist(), 0.7, logp.tolist(), reward.tolist(), 0.3],
    )
    star, log_z = rltokens.optimal_policy(logp, reward, 0.3)
    advantages, _ = rltokens.gae(deltas[None], np.zeros((1, 5)), np.ones((1, 5)), lam=0.7)
    np.testing.assert_allclose(found["gae"], advantages[0], atol=1e-12)
    np.testing.assert_allclose(found["star"], star, atol=1e-12)
    np.testing.assert_allclose(found["logZ"], log_z, atol=1e-12)
    np.testing.assert_allclose(found["kl"], rltokens.kl_divergence(np.exp(star), np.exp(logp)), atol=1e-12)
    np.testing.assert_allclose(found["mean"], np.exp(star) @ reward, atol=1e-12)


def test_widgets_are_moved_by_keyboard(views, address):
    """Each widget says something else after the first slider was moved, and its drawing says so too."""
    view = views()
    for path in pages():
        if 'class="widget"' not in (SITE / path).read_text("utf-8"):
            continue
        view.page.goto(f"{address}/{path}")
        for widget in view.page.locator(".widget").all():
            said, drawn = widget.locator(".widget-said"), widget.locator("svg").first
            before = said.inner_text(), drawn.get_attribute("aria-label")
            widget.locator("input").first.focus()
            for _ in range(5):
                view.page.keyboard.press("ArrowLeft")
            assert said.inner_text() != before[0]
            assert drawn.get_attribute("aria-label") != before[1]


def test_the_flattered_widget_turns_down(views, address):
    """As the price falls the proxy climbs, and the truth climbs and falls: what the page says of it."""
    view = views()
    view.page.goto(f"{address}/objective.html")
    widget = view.page.locator('[data-widget="flattery"]')
    proxy, truth = [], []
    widget.locator("input").first.focus()
    for _ in range(50):
        numbers = re.findall(r"-?\d+\.\d+", widget.locator(".widget-said").inner_text())
        proxy.append(float(numbers[0]))
        truth.append(float(numbers[1]))
        view.page.keyboard.press("ArrowLeft")
    assert proxy == sorted(proxy) and proxy[-1] > proxy[0]
    assert max(truth) > truth[0] + 0.05 and truth[-1] < truth[0]
