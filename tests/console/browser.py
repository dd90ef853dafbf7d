"""Headless Chromium, controlled over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 180.0  # test machines are busy
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "--ignore-certificate-errors",  # the console's certificates are self-signed
    # A mouse, which a headless browser lacks: the page shows keys only with one.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)


class Page:
    """One browser page; every call fails when the browser reports an error."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self._place = {"x": 0.0, "y": 0.0}
        self.said: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol; return its result."""
        self._count += 1
        number = self._count
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(self._answers[number], LIMIT_S)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer.get("result", {})
        return result

    async def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression; return its value."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, limit_s: float = LIMIT_S) -> None:
        """Wait until a JavaScript expression is true; in a page being loaded it may raise."""
        deadline_s = asyncio.get_running_loop().time() + limit_s
        raised = ""
        while True:
            try:
                if await self.run(script):
                    return
            except AssertionError as error:
                raised = f"; it last raised {error}"
            if asyncio.get_running_loop().time() > deadline_s:
                body = await self.run("document.body.innerText")
                found = f"{raised}\n{body}\n{self.said}"
                raise AssertionError(f"not within {limit_s} s: {script}{found}")
            await asyncio.sleep(0.05)

    async def open(self, url: str) -> None:
        """Open a URL and wait until the page is loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def text(self, identifier: str) -> str:
        """Return the text of an element."""
        return str(await self.run(f"document.getElementById('{identifier}').textContent"))

    async def reads(self, identifier: str, text: str) -> None:
        """Wait until an element contains the text."""
        await self.until(f"document.getElementById('{identifier}').textContent.includes({text!r})")

    async def says(self, who: str, limit_s: float = LIMIT_S) -> None:
        """Wait until the headline of the page names this active controller."""
        await self.until(f"document.getElementById('who').textContent === '{who}'", limit_s)

    async def drive(self, code: str) -> None:
        """Hold a key until the operator drives; press it again if the actor missed the press.

        A key that is down before the actor's first look at the page does not take over.
        """
        await self.key(code)
        try:
            await self.says("You drive", 20.0)
        except AssertionError:
            await self.key(code, "keyUp")
            await asyncio.sleep(0.5)
            await self.key(code)
            await self.says("You drive")

    async def hand_back(self, code: str) -> None:
        """Release a key until the policy drives; drive once more if the actor holds.

        A page that is late for `stale_s` leaves the control with the operator.
        """
        await self.key(code, "keyUp")
        try:
            await self.says("The policy drives", 4.0)
        except AssertionError:
            await self.key(code)
            await asyncio.sleep(0.5)
            await self.key(code, "keyUp")
            await self.says("The policy drives")

    async def unlock(self, word: str) -> None:
        """Type the token, or a pairing code, into the login form."""
        await self.run(f"document.getElementById('token').value = '{word}'")
        await self.run("document.getElementById('door').requestSubmit()")

    async def take(self) -> None:
        """Take the controls."""
        await self.hit("KeyT")
        await self.until("document.getElementById('lease').textContent.startsWith('Give')")

    async def click(self, identifier: str) -> None:
        """Press a button."""
        await self.run(f"document.getElementById('{identifier}').click()")

    async def click_on(self, selector: str) -> None:
        """Click the element that a selector finds, with the mouse."""
        await self.press_on(selector)
        await self.release()

    async def press_on(self, selector: str, button: str = "left") -> None:
        """Press the mouse button on the element that a selector finds."""
        place = await self.run(
            f"(() => {{ const each = document.querySelector('{selector}');"
            "each.scrollIntoView({block: 'center'});"
            "const box = each.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self._place = {"x": place[0], "y": place[1]}
        await self._mouse("mousePressed", button)

    async def release(self) -> None:
        """Release the mouse button."""
        await self._mouse("mouseReleased")

    async def drag(
        self, selector: str, start: tuple[float, float], end: tuple[float, float]
    ) -> None:
        """Drag the mouse between two points, given as fractions of the element's box."""
        left, top, width, height = await self.run(
            f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
            "return [box.x, box.y, box.width, box.height]; })()"
        )
        for (x, y), kind in ((start, "mousePressed"), (end, "mouseMoved"), (end, "mouseReleased")):
            self._place = {"x": left + x * width, "y": top + y * height}
            await self._mouse(kind)

    async def _mouse(self, kind: str, button: str = "left") -> None:
        more = {"button": button, "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type=kind, **self._place, **more)

    async def key(
        self, code: str, kind: str = "keyDown", key: str = "", modifiers: int = 0
    ) -> None:
        """Press or release a key; the modifiers are 1 for Alt, 2 for Ctrl."""
        more = {"key": key or code, "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type=kind, code=code, **more)

    async def hit(self, code: str) -> None:
        """Press and release a key."""
        await self.key(code)
        await self.key(code, "keyUp")

    async def drawn(self) -> None:
        """Wait until the page is drawn again."""
        await self.run(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    async def show(self, dark: bool) -> None:
        """Show the page in dark or light colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.drawn()

    async def shoot(self, path: Path, dark: bool) -> None:
        """Save a screenshot of the page in dark or light colours."""
        await self.show(dark)
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            heard = json.loads(message.data)
            if (answer := self._answers.pop(heard.get("id", -1), None)) is not None:
                answer.set_result(heard)
            if heard.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.said.append(json.dumps(heard["params"])[:500])
            if heard.get("method") == "Network.requestWillBeSent":
                self.requests.append(heard["params"]["request"]["url"])

    def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """Run Chromium with a profile folder during the block; yield its DevTools address."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        port, deadline_s = folder / "DevToolsActivePort", time.monotonic() + LIMIT_S
        while not (port.exists() and port.read_text()):
            assert time.monotonic() < deadline_s, "Chromium does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def tab(address: str) -> AsyncIterator[Page]:
    """Open a new page in a running Chromium; close it after the block."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{address}/json/new?about:blank") as answer:
            target = await answer.json()
        url = target["webSocketDebuggerUrl"]
        async with session.ws_connect(url, max_msg_size=1 << 26) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            yield page
            page.close()
        async with session.get(f"{address}/json/close/{target['id']}"):
            pass


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """Open a page in a new Chromium; end both after the block."""
    with chromium(folder) as address:
        async with tab(address) as page:
            yield page
