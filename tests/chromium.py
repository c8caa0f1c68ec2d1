"""Headless Chromium, driven as a person would use it.

Debian's `chromium` and `chromium-driver` are built from one source, so browser and driver always
fit; Selenium speaks the standard WebDriver protocol with them and downloads nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

_PR_SET_PDEATHSIG = 1


def missing() -> str | None:
    """What a test with a browser lacks here; `None` if nothing."""
    if importlib.util.find_spec("selenium") is None:
        return "needs the package selenium (pip install 'arise[dev]')"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"needs the program {program} (tools/ci_browser.sh installs it)"
    return None


def _end_with_the_parent() -> None:
    """Of a test run that is killed, driver and browser must not stay behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _mortal_browser(folder: Path) -> str:
    """A program that is Chromium and ends with its driver."""
    program = folder / "chromium"
    program.write_text(
        f'#!/bin/sh\nexec setpriv --pdeathsig KILL {shutil.which("chromium")} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


class ReportBrowser:
    """One browser window.

    Args:
        width: Of the page, in CSS pixels.
        height: Of the page.
        scheme: What the system prefers: `"light"` or `"dark"`.
    """

    def __init__(self, *, width: int = 1400, height: int = 950, scheme: str = "light") -> None:
        from selenium.webdriver import Chrome
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        self._scratch = tempfile.TemporaryDirectory()
        options.binary_location = _mortal_browser(Path(self._scratch.name))
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            # Chromium's own sandbox refuses root.
            arguments.append("--no-sandbox")
        for argument in arguments:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(
            shutil.which("chromedriver"), popen_kw={"preexec_fn": _end_with_the_parent}
        )
        self.driver = Chrome(options=options, service=service)
        self.resize(width, height)
        self.prefer(scheme)

    def __enter__(self) -> ReportBrowser:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()
        self._scratch.cleanup()

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, path: Path) -> float:
        """Open a file; the seconds until the first view is drawn and the page answers."""
        started = time.perf_counter()
        self.driver.get(path.resolve().as_uri())
        self.wait("document.documentElement.hasAttribute('data-ready')")
        self.run("return new Promise(requestAnimationFrame)")
        return time.perf_counter() - started

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, timeout_s: float = 60.0) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.run(f"return {condition}")
            if value:
                return value
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def go(self, address: str) -> None:
        """Follow a link inside the page."""
        self.run("location.hash = arguments[0]", address)
        name = address.partition("?")[0]
        self.wait(f"!document.getElementById('view-{name}').hidden")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """The first element's text, shown or not."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def press(self, *names: str) -> None:
        """Keys by Selenium's names (`"ARROW_DOWN"`), or characters, to what has the focus."""
        from selenium.webdriver.common.keys import Keys

        for name in names:
            key = getattr(Keys, name, name) if len(name) > 1 else name
            self.driver.switch_to.active_element.send_keys(key)

    def messages(self) -> list[str]:
        """What the console said, policy violations included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


def shown(page: ReportBrowser) -> int:
    """Trajectories that fit the filters, as the page counts them."""
    return int(page.text(".counter").partition(" of ")[0].replace(",", ""))
