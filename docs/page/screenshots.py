#!/usr/bin/env python3
"""Makes the pictures of this folder in Chromium, from a server with the pocket model.

    baltoro serve --host 127.0.0.1 --port 8000 &
    .venv/bin/python docs/page/screenshots.py http://127.0.0.1:8000
"""
import base64
import pathlib
import shutil
import sys
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

FOLDER, URL = pathlib.Path(__file__).parent, sys.argv[1]
options = webdriver.ChromeOptions()
options.binary_location = shutil.which("chromium")
for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
    options.add_argument(flag)
driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def show(width, height, scheme, view):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    driver.get("about:blank")
    driver.get(URL + "/" + view)


def ask(text, count):
    driver.find_element(By.ID, "draft").send_keys(text, Keys.ENTER)
    WebDriverWait(driver, 60).until(lambda d: len(d.find_elements(By.CSS_SELECTOR, "article .meta")) >= count and not d.find_element(By.ID, "stop").is_displayed())


def take(name):
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 50})
    (FOLDER / name).write_bytes(base64.b64decode(shot["data"]))


show(1000, 640, "light", "#chat")
driver.execute_script("document.getElementById('temperature').value = 0")
ask("Hello! Who are you, and what is 27 + 58?", 1)
driver.find_element(By.CSS_SELECTOR, "details.thinking summary").click()
ask("Thank you! What can you do?", 2)
take("chat.webp")
show(1000, 640, "dark", "#chat")
driver.execute_script("document.getElementById('temperature').value = 0; document.getElementById('parameters').open = true")
driver.find_element(By.ID, "example").click()
ask("What is the weather like in Paris?", 1)
take("tools.webp")
show(360, 640, "light", "#chat")
driver.execute_script("document.getElementById('temperature').value = 0")
ask("What can you do?", 1)
take("phone.webp")
show(1000, 640, "light", "#server")
time.sleep(4)
take("server.webp")
driver.quit()
