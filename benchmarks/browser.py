"""Headless Chromium, for programs and tests that open a page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1400,900",
)  # fmt: skip


def is_installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """Start Chromium with a new profile in a folder, and yield its driver, which also logs the messages of pages."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"user-data-dir={folder}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def set_width(driver: Any, width: int) -> None:
    """Give the window this width, in pixels."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def messages(driver: Any) -> list[str]:
    """Return what pages wrote to the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]
