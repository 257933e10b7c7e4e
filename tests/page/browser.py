"""A headless Chromium, driven over the DevTools protocol: no more than the page's tests need."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import pytest

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
_WINDOW: Final = {"width": 1400, "height": 1000, "newWindow": True}
_WAIT_S: Final = 20.0
_START_S: Final = 60.0


class Connection:
    """A WebSocket of the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(message)
        result = await asyncio.wait_for(answer, _WAIT_S)
        assert "error" not in result, result["error"]
        found: dict[str, Any] = result["result"]
        return found

    async def close(self) -> None:
        """Close the socket."""
        await self._socket.close()
        await self._reading

    def notice(self, event: dict[str, Any]) -> None:
        """Take an event."""

    async def _read(self) -> None:
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" not in data:
                self.notice(data)
            elif answer := self._answers.pop(data["id"], None):
                answer.set_result(data)


class Browser(Connection):
    """One tab, which shares cookies and storage with no other."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__(socket)
        self.complaints: list[str] = []
        """What the page threw, and what the console or the security policy complained about."""

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return what an expression comes to, awaited if it is a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true; while it cannot be had, it is not."""
        script = f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"
        try:
            async with asyncio.timeout(_WAIT_S):
                while not await self.run(script):  # noqa: ASYNC110 - it is elsewhere
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            pytest.fail(f"never true: {script}\n{self.complaints}\nthe page says:\n{text}")

    async def text(self, selector: str = "body") -> str:
        """Return the text that a person sees in an element."""
        found: str = await self.run(
            f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        )
        return found

    async def says(self, text: str, selector: str = "body") -> None:
        """Wait until an element contains a text."""
        where = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"({where}?.innerText ?? '').includes({json.dumps(text)})")

    async def click(self, selector: str) -> None:
        """Wait for an element, and click in its middle as a mouse does."""
        name = json.dumps(selector)
        await self.until(f"document.querySelector({name})?.checkVisibility()")
        x, y = await self.run(
            f"(() => {{ const e = document.querySelector({name});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        await self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            await self.mouse(kind, x, y, button="left", clickCount=1)

    async def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse."""
        await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def press(self, key: str) -> None:
        """Press a key by its name: `Enter`, `Tab`, `ArrowDown`."""
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40}.get(key, 0)
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more
            )

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of what is in view, or of the whole page."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    def notice(self, event: dict[str, Any]) -> None:
        """Keep a complaint."""
        if event["method"] == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.complaints.append(f"{details['text']} {thrown}")
        elif event["method"] == "Log.entryAdded":
            entry = event["params"]["entry"]
            own = "willReadFrequently" in entry["text"]  # a test's looking at the pixels
            if entry["level"] in {"warning", "error"} and not own:
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


class Chromium:
    """A Chromium process, which tests share: it takes a second to start."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._address = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [find_chromium(), *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_S
        while len(lines := _lines(self._profile / "DevToolsActivePort")) < 2:
            if time.monotonic() > deadline:
                self.__exit__()
                pytest.fail("Chromium did not start")
            time.sleep(0.05)  # it lies in another process: there is nothing to await
        port, self._path = lines
        self._address = f"ws://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @contextlib.asynccontextmanager
    async def browse(self) -> AsyncIterator[Browser]:
        """Open a tab in a context of its own, and close both behind the block."""
        async with aiohttp.ClientSession() as session:
            whole = Connection(await session.ws_connect(f"{self._address}{self._path}"))
            made = await whole.call("Target.createBrowserContext")
            target = await whole.call("Target.createTarget", url="about:blank", **_WINDOW, **made)
            page = f"{self._address}/devtools/page/{target['targetId']}"
            browser = Browser(await session.ws_connect(page, max_msg_size=0))
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await browser.call(f"{domain}.enable")
                yield browser
                await browser.open("about:blank")  # amid loading, contexts were left undisposed
            finally:
                await browser.close()
                await whole.call("Target.disposeBrowserContext", **made)
                await whole.close()


def find_chromium() -> str:
    """Return the path of Chromium; fail with how to get it if there is none."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    pytest.fail(
        "the tests of the page drive a headless Chromium, and none is on the PATH; get it with "
        "`apt-get update && apt-get install -y chromium`, or put a Chrome there"
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
