#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# browser.py - the page of holdfast serve, in a real browser without a window.
#
# $HOLDFAST is the command, $HOLD holds many locks, $SHOTS a directory for
# screenshots.  Prints TAP.

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    print("1..0 # SKIP python3-selenium is missing")
    sys.exit(0)
if not shutil.which("chromium") or not shutil.which("chromedriver"):
    print("1..0 # SKIP chromium or chromedriver is missing")
    sys.exit(0)

HOLDFAST, HOLD = os.environ["HOLDFAST"], os.environ["HOLD"]
LOCKS = int(os.environ.get("LOCKS", "10000"))
tmp = tempfile.mkdtemp(prefix="holdfast-browser.")
# What Chromium finds of the user's stays out of it.
os.environ.update(HOME=tmp, XDG_RUNTIME_DIR=tmp)
url = "sqlite:%s/locks.db" % tmp
count = failed = 0
running = []


def check(good, name, why=""):
    global count, failed
    count += 1
    failed += not good
    if not good and why:
        print("# %s" % (why,))
    print("%s %d - %s" % ("ok" if good else "not ok", count, name), flush=True)


def start(*words):
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(process)
    return process, process.stdout.readline().strip()


def serve(*words, port="0"):
    process, line = start(HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:" + port, *words)
    return process, line.rsplit(" ", 1)[-1]


def stop(process):
    process.terminate()
    process.wait()
    running.remove(process)


def eventually(test, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if test():
                return True
        except Exception:
            pass
        time.sleep(0.1)
    return False


def browser(width, height):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-dev-shm-usage", "--user-data-dir=%s/chrome" % tmp,
                 "--window-size=%d,%d" % (width, height)):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # On a busy machine a browser may not answer in time when it starts.
    for attempt in range(3):
        try:
            return webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
        except WebDriverException as error:
            print("# the browser did not start: %s" % ascii(str(error).split("\n")[0]))
    print("Bail out! no browser starts here")
    sys.exit(1)


def text(what):
    return page.find_element(By.CSS_SELECTOR, what).text


def rows():
    return page.find_elements(By.CSS_SELECTOR, "#space .lock")


def keys():
    return page.execute_script("return [...document.querySelectorAll('#space .key')].map(e => e.textContent)")


def shot(name):
    if os.environ.get("SHOTS"):
        page.save_screenshot(os.path.join(os.environ["SHOTS"], name))


def looks_right():
    check(eventually(lambda: text("#state") == "live"), "the page is live")
    check(eventually(lambda: "%d locks are held" % (LOCKS + 5) in text("#count")), "all locks are counted",
          text("#count"))
    check(0 < len(rows()) < 100, "only rows that can be seen exist", len(rows()))
    page.execute_script("document.getElementById('list').scrollTop = 1e9")
    check(eventually(lambda: page.find_elements(By.ID, "row%d" % (LOCKS + 4))), "the end of the list can be reached")


def scrolls_smoothly():
    """Through the whole table: the work of a frame, in processor time, which a busy
    machine does not lengthen."""
    def worked():
        metrics = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")
    page.set_script_timeout(300)
    page.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    begin, frames = worked(), 100
    page.execute_script("""
        const list = document.getElementById('list'), step = (list.scrollHeight - list.clientHeight) / arguments[0];
        list.scrollTop = 0;
        for (let i = 0; i < arguments[0]; i++) {
            list.scrollTop += step;
            draw();
            list.getBoundingClientRect();
        }""", frames)
    took = 1000 * (worked() - begin) / frames
    page.execute_cdp_cmd("Performance.disable", {})
    print("# a frame of %d locks takes %.2f ms" % (LOCKS, took))
    check(took < 1000 / 60, "%d locks scroll at 60 frames a second" % LOCKS, took)
    left, right = [page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => Math.round(e.getBoundingClientRect().left))", what)
        for what in (".head > *", "#space .lock:first-child > *")]
    check(left == right, "columns stand below their names", (left, right))


def counts_down():
    def widths():
        return page.execute_script("return [...document.querySelectorAll('#space .fill')].map(e => parseFloat(e.style.width))")
    before = widths()
    check(len(before) > 3 and eventually(lambda: sum(widths()) < sum(before)), "bars count down", before)


def dark_and_light():
    seen = []
    for scheme in ("light", "dark"):
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        seen.append(page.execute_script("const s = getComputedStyle(document.body); return s.color + ' on ' + s.backgroundColor"))
    check(seen == ["rgb(27, 31, 36) on rgb(255, 255, 255)", "rgb(230, 233, 236) on rgb(20, 24, 28)"], "dark and light", seen)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def read_aloud():
    """What a screen reader is given: a role and a name for all that can be used."""
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
    options = [name for role, name in seen if role == "option"]
    check(len(options) > 3 and all(", held by " in name for name in options), "rows say key and holder", options[:3])
    nameless = [role for role, name in seen if role in ("button", "searchbox", "listbox", "img", "list") and not name]
    check(("listbox" in dict(seen)) and not nameless, "everything has a name", nameless)


def hostile_is_text():
    box = page.find_element(By.ID, "filter")
    for word, shown in (("onerror", "<img src=x onerror=document.title='broken'>"),
                        ("</script>", "\"'><script>document.title='broken'</script>"),
                        ("[31m", "line\\x0afeed\\x1b[31m"),
                        ("no text", "\\xff\\xfe no text"),
                        ("to left", "right\\u202e to left")):
        box.clear()
        box.send_keys(word)
        good = eventually(lambda: keys() == [shown], 20)
        check(good, "%s is shown as text" % ascii(word), ascii(keys()[:2]))
    # As cli/out.c: all of the Basic Multilingual Plane and what is invisible above it.
    wrong = page.execute_script(r"""
        const ignorable = /^[\p{Default_Ignorable_Code_Point}\u0000-\u001f\u007f-\u009f\u2028\u2029]$/u, wrong = [];
        for (let code = 0; code < 0xf0000; code++) {
          const c = String.fromCodePoint(code);
          if ((code < 0xd800 || code > 0xdfff) && ignorable.test(c) !== (plain(c) !== c)) wrong.push(code.toString(16));
        }
        return wrong.concat(plain('a\u{e0041}\u00ad\\'));""")
    check(wrong == ["a\\xf3\\xa0\\x81\\x81\\u00ad\\"], "what nobody sees is shown", wrong[:9])
    check(page.title == "holdfast", "no script of a key has run", page.title)
    check(not page.find_elements(By.CSS_SELECTOR, "#space img, #space script, #events img"), "no key became an element")
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE)


def keyboard():
    body = page.find_element(By.TAG_NAME, "body")
    page.find_element(By.ID, "list").send_keys(Keys.HOME)
    check(eventually(lambda: "fence" in text("#details")), "Home chooses a lock and shows its details")
    page.find_element(By.ID, "list").send_keys(Keys.ARROW_DOWN)
    chosen = eventually(lambda: len(page.find_elements(By.CSS_SELECTOR, "[aria-selected=true]")) == 1)
    check(chosen, "an arrow key chooses the next")
    body.send_keys("/")
    check(page.switch_to.active_element.get_attribute("id") == "filter", "/ goes to the filter")


def queue():
    """Who waits for whom, with names that would like to be more than text."""
    hostile = "<img src=x onerror=document.title='broken'>"
    words = [HOLDFAST, "run", "-u", url, "--note"]
    people = [subprocess.Popen(words + ["holder", "line", "--", "sleep", "100"])]
    eventually(lambda: subprocess.run([HOLDFAST, "status", "-u", url, "line"], capture_output=True).returncode == 0)
    box = page.find_element(By.ID, "filter")
    box.clear()
    box.send_keys("line")
    eventually(lambda: "line" in keys())
    page.find_element(By.CSS_SELECTOR, "[aria-label^='line, held by holder']").click()
    for n, note in enumerate((hostile, "second")):
        people.append(subprocess.Popen(words + [note, "line", "--", "sleep", "100"]))
        check(eventually(lambda: len(page.find_elements(By.CSS_SELECTOR, "#details .queue li")) == n + 1),
              "waiter %d appears by itself" % (n + 1), text("#details"))
    # In one step: ages are drawn anew each second.
    names = page.execute_script(
        "return [...document.querySelectorAll('#details .queue li')].map(e => e.innerText.split('\\n')[0])")
    check(names == [hostile, "second"], "the queue has names, in order, as text", names)
    check(page.title == "holdfast" and not page.find_elements(By.CSS_SELECTOR, "#details img"), "and as nothing else")
    people[0].terminate()
    check(eventually(lambda: text("#waittext").startswith("1 waits")), "the histogram has the wait", text("#waittext"))
    check(eventually(lambda: any(e.size["height"] > 0 for e in page.find_elements(By.CSS_SELECTOR, "#wait div"))), "as a bar")
    for process in people:
        process.terminate()
        process.wait()
    check(eventually(lambda: "Nobody holds this lock now." in text("#details")), "the end of it is told")
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE)


def breaks():
    # It does not heed TERM: so it is seen broken for as long as its grace, and not
    # merged with its end.
    holder = subprocess.Popen([HOLDFAST, "run", "-u", url, "-t", "30s", "--grace", "5s", b"victim \xff\\", "--",
                               "sh", "-c", "trap '' TERM; sleep 100"], stderr=subprocess.DEVNULL)
    box = page.find_element(By.ID, "filter")
    box.clear()
    box.send_keys("victim")
    check(eventually(lambda: keys() == ["victim \\xff\\"]), "a new lock appears by itself")
    rows()[0].click()
    eventually(lambda: page.find_element(By.ID, "break").is_displayed())
    page.find_element(By.ID, "break").click()
    fence = subprocess.run([HOLDFAST, "status", "-u", url, "--json", b"victim \xff\\"], capture_output=True, text=True).stdout
    asked = text("#askwhat")
    check(asked.split("fence")[1].split()[0] in fence, "it asks again and shows the fence", asked)
    check(holder.poll() is None, "nothing has happened yet")
    page.find_element(By.ID, "askyes").click()
    check(holder.wait(60) == 79, "the lock was taken away from its holder")
    lost = "return [...document.querySelectorAll('#line .x')].some(e => e.getBoundingClientRect().height > 0)"
    check(eventually(lambda: page.execute_script(lost)), "the timeline shows the loss")
    said = page.find_element(By.ID, "line").get_attribute("aria-label")
    check(", and 1 that lapsed or were broken" in said, "and says it", said)
    check(eventually(lambda: keys() == []), "and goes away")
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE)


def breaks_one_of_several():
    """Of those who hold a lock together the one is broken that is named, by its own fence."""
    words = [HOLDFAST, "run", "-u", url, "-s", "--grace", "1s", "--note"]
    people = [start(*words, note, "both", "--", "sh", "-c", "echo; exec sleep 1000")[0] for note in ("left", "middle", "right")]
    stop(people.pop()) # Observers go on to tell its fence.
    box = page.find_element(By.ID, "filter")
    box.clear()
    box.send_keys("both")
    eventually(lambda: keys() == ["both"])
    rows()[0].click()
    def buttons():
        return page.find_elements(By.CSS_SELECTOR, "#grants button")
    check(eventually(lambda: sorted(b.text.split(",")[0] for b in buttons()) == ["Break left", "Break middle"]),
          "each of several holders can be broken", [b.text for b in buttons()])
    check(not page.find_element(By.ID, "break").is_displayed(), "and not whoever the row shows")
    kept = buttons()
    page.execute_script("details.holders.forEach(h => h.left_ms -= 5000); drawDetails()")
    check(buttons() == kept, "a button stays while times run")
    button = next(b for b in buttons() if "Break left," in b.text)
    fence = button.text.split("fence ")[1].rstrip(".")
    button.click()
    asked = text("#askwhat").split("\n")
    check("left" in asked and fence in asked and "both" in asked, "it asks for that one by its fence", asked)
    page.find_element(By.ID, "askyes").click()
    check(eventually(lambda: people[0].poll() == 79), "that one has lost it", people[0].poll())
    check(people[1].poll() is None, "and no other")
    running.remove(people[0])
    stop(people[1])
    box.clear()
    box.send_keys(" ", Keys.BACKSPACE)


def says_what_it_knows():
    """What is being listed, does not answer or is not told is no figure."""
    said = page.execute_script("""
        const was = [services, new Map(locks), details, chosen], ret = [], lock = (service, key) => locks.set(service + ' ' + key,
          {id: 0, service, key, held: true, fence: '1', holders: 1, waiters: null, at: 0});
        const s = (up, listed, waiters) => ({...was[0][0], up, listed, held: 1, waiters});
        const count = list => { services = list; arrange(); drawServices(); return $('count').textContent; };
        document.getElementById('filter').value = '';
        locks.clear();
        services = [s(true, false, 0)];
        ret.push(nothing());
        lock(0, 'a'); lock(0, 'b'); lock(1, 'c');
        ret.push(count([s(true, false, 0), s(true, true, 0)]));
        ret.push(count([s(true, true, 0), s(true, true, 0)]));
        ret.push(count([s(false, true, 0), s(true, true, null)]));
        ret.push([...document.querySelectorAll('#services li')].pop().textContent.split(' ').slice(2).join(' '));
        details = {holders: [], queue: Array.from({length: 1000}, () => ({note: 'w', since_ms: null})), more: 7, at: 0};
        const parts = tree();
        ret.push(parts[0].textContent, parts[1].lastChild.textContent);
        locks.clear();
        was[1].forEach((l, name) => locks.set(name, l));
        [services, , details, chosen] = was;
        arrange(); drawServices();
        return ret;""")
    want = ["The locks are being listed.", "3 locks so far: they are being listed", "3 locks are held",
            "1 lock is held; 1 of 2 services do not answer", "1 held", "Waiting: 1007, the next one first", "and 807 more"]
    for is_, should in zip(said, want):
        check(is_ == should, should, is_)


def stale_question():
    """A question that was asked of one run of the server is not answered by another."""
    second = "sqlite:%s/b.db" % tmp
    holders = [start(HOLDFAST, "run", "-u", which, "same", "--", "sh", "-c", "echo; cat")[0] for which in (url, second)]
    first, address = serve("-u", second, "--allow-break")
    page.get(address)
    page.find_element(By.ID, "filter").send_keys("same")
    check(eventually(lambda: len(rows()) == 2), "two services have the same key", keys())
    row = next(row for row in rows() if "locks.db" in row.text)
    row.click()
    eventually(lambda: page.find_element(By.ID, "break").is_displayed())
    page.find_element(By.ID, "break").click()
    check("/locks.db" in text("#askwhat"), "it asks of the first", text("#askwhat"))
    port = address.rstrip("/").rsplit(":", 1)[-1]
    stop(first)
    other, _ = start(HOLDFAST, "serve", "-u", second, "-u", url, "-l", "127.0.0.1:" + port, "--allow-break")
    check(eventually(lambda: text("#state") == "live" and "started again" in text("#asksaid")), "a new run is told", text("#asksaid"))
    check(not page.find_element(By.ID, "askyes").is_enabled(), "and the question has no yes")
    page.execute_script("const yes = document.getElementById('askyes'); yes.disabled = false; yes.click()")
    check(eventually(lambda: "not the service that was shown" in text("#asksaid")), "nor is a yes heard", text("#asksaid"))
    for which in (url, second):
        said = subprocess.run([HOLDFAST, "status", "-u", which, "--json", "same"], capture_output=True, text=True).stdout
        check('"broken": false' in said and '"held": true' in said, "what has the number of what was shown is not broken", said)
    page.find_element(By.ID, "askno").click()
    check(text("#what") == "Details", "and nothing is chosen", text("#what"))
    stop(other)
    for holder in holders:
        stop(holder)


def leases():
    """What has run off since the service was asked is no alarm; what had run off then is."""
    for left, seen, kept, cls in ((7000, 14000, False, "fill"), (7000, 0, False, "fill bad"), (14000, 0, False, "fill warn"),
                                  (0, 40000, False, "fill bad"), (7000, 0, True, "fill")):
        shown = page.execute_script("""
            const e = makeRow('x');
            fillRow(e, {id: 0, service: 0, key: 'x', held: true, fence: '1', left_ms: arguments[0], seen_ms: arguments[1],
                        kept: arguments[2], at: performance.now(), full: 30000}, 0, 0);
            return [e.querySelector('.fill').className, e.querySelector('.left').textContent];""", left, seen, kept)
        check(shown[0] == cls and (kept or shown[1].startswith("\u2265 ")),
              "%d ms of 30 s, asked %d ms ago%s" % (left, seen, ", kept" if kept else ""), ascii(shown))
    first = page.execute_script("""
        const e = makeRow('x');
        fillRow(e, {id: 0, service: 0, key: 'x', held: true, fence: '1', left_ms: 4000, seen_ms: 0, lease_ms: 30000,
                    at: performance.now()}, 0, 0);
        return e.querySelector('.fill').className;""")
    check(first == "fill bad", "a lock that is first seen dying is red", first)
    words = page.execute_script("""
        const l = {service: 0, key: 'x', held: true, left_ms: null, at: 0}, was = services;
        const ret = [false, true].map(lasts => { services = [{...was[0], lasts}]; return leaseText(l); });
        services = was;
        return ret;""")
    check(words == ["unknown", "does not lapse"], "a lease that is not known is not called endless", words)


def logs_in():
    """A token is asked for until the right one is given, with the keyboard alone."""
    with open(tmp + "/token", "w") as out:
        out.write("a-long-and-secret-token\n")
    other, address = serve("--token-file", tmp + "/token")
    page.get(address)
    opened = lambda: page.execute_script("return document.getElementById('login').open")
    check(eventually(opened) and text("#state") == "a token is needed", "a token is asked for", text("#state"))
    for _ in range(3):
        page.switch_to.active_element.send_keys(Keys.ESCAPE)
    check(eventually(opened), "Escape does not end the question")
    page.find_element(By.ID, "token").send_keys("not-the-token-at-all", Keys.ENTER)
    check(eventually(lambda: text("#loginsaid") == "This token is wrong."), "a wrong token is said to be wrong", text("#loginsaid"))
    check("holds a lock" not in page.execute_script("return document.getElementById('empty').textContent"),
          "and nothing is said of locks")
    page.find_element(By.ID, "token").send_keys("a-long-and-secret-token", Keys.ENTER)
    check(eventually(lambda: text("#state") == "live"), "the right one opens the page", text("#state"))
    stop(other)


def two_services():
    """One that is not there, and one that is; a key as long as can be."""
    other, line = start(HOLDFAST, "serve", "-u", "sqlite:%s/no/such/dir.db" % tmp, "-l", "127.0.0.1:0")
    page.get(line.rsplit(" ", 1)[-1])
    check(eventually(lambda: text("#empty") == "Nothing is known: no service answers."), "it does not say what it does not know",
          text("#empty"))
    check(text("#count") == "nothing is known", "nor does it count", text("#count"))
    stop(other)
    long, second = subprocess.Popen([HOLDFAST, "run", "-u", url, "x" * 1024, "--", "sleep", "1000"]), "sqlite:%s/b.db" % tmp
    more = subprocess.Popen([HOLDFAST, "run", "-u", second, "b", "--", "sleep", "1000"])
    running.extend((long, more))
    other, address = serve("-u", second)
    page.get(address)
    box = page.find_element(By.ID, "filter")
    box.send_keys("x" * 100)
    check(eventually(lambda: keys() == ["x" * 1024]), "a long key is shown", len(keys()))
    rows()[0].click()
    check(eventually(lambda: "fence" in text("#details")), "with its details")
    wide = page.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(wide <= 0, "and nothing scrolls sideways", wide)
    tags = page.execute_script("return [0, 1].map(serviceTag)")
    check(tags == [tmp.lstrip("/") + "/locks.db", tmp.lstrip("/") + "/b.db"], "two services of a kind have two tags", tags)
    for process in (long, more):
        stop(process)
    os.kill(other.pid, signal.SIGSTOP)
    check(eventually(lambda: "not connected" in text("#state"), 120), "a server that is silent is not called live", text("#state"))
    os.kill(other.pid, signal.SIGCONT)
    check(eventually(lambda: text("#state") == "live", 120), "until it speaks again", text("#state"))
    stop(other)


try:
    holder, word = start(HOLD, url, str(LOCKS))
    check(word == "ready", "locks are held", word)
    server, address = serve("--allow-break")
    page = browser(1280, 800)
    page.get(address)
    looks_right()
    shot("wide.png")
    scrolls_smoothly()
    counts_down()
    dark_and_light()
    read_aloud()
    hostile_is_text()
    keyboard()
    queue()
    breaks()
    breaks_one_of_several()
    says_what_it_knows()
    page.set_window_size(420, 860)
    check(eventually(lambda: not page.find_element(By.CSS_SELECTOR, ".head").is_displayed()), "a telephone gets two lines a lock")
    wide = page.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(wide <= 0, "and no sideways scrolling", wide)
    shot("narrow.png")
    leases()
    port = address.rstrip("/").rsplit(":", 1)[-1]
    stop(server)
    check(eventually(lambda: "not connected" in text("#state")), "it says when it is cut off")
    server, address = serve(port=port)
    check(eventually(lambda: text("#state") == "live"), "and comes back by itself")
    page.find_element(By.ID, "list").send_keys(Keys.HOME)
    check(eventually(lambda: "fence" in text("#details")) and not page.find_element(By.ID, "break").is_displayed(),
          "without --allow-break it only shows")
    here = page.current_url
    page.set_window_size(1280, 800)
    logs_in()
    stale_question()
    two_services()
    page.get(here)
    holder.stdin.close()
    check(eventually(lambda: "0 locks are held" in text("#count"), 200), "locks that were released are gone", text("#count"))
    bad = [e["message"] for e in page.get_log("browser") if "Content Security" in e["message"] or "Uncaught" in e["message"]]
    check(not bad, "the browser complains of nothing", bad[:2])
    page.quit()
finally:
    for process in running:
        process.kill()
    shutil.rmtree(tmp, ignore_errors=True)
print("1..%d" % count)
sys.exit(failed > 0)
