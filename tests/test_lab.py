"""bin/lab serves the notebooks on this machine alone, with a kernel that is this checkout's Python.

The part in a browser speaks the WebDriver protocol to a chromedriver, where a Chromium and its driver are found.
"""

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
DRIVER = shutil.which('chromedriver')
ADDRESS = re.compile(r'http://127\.0\.0\.1:\S+token=\w+')
PLOT = """import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(4, 2))
axes.bar(['alpha', 'beta'], [3, 5]);"""


def made_by_bin_test() -> bool:
    "Whether bin/lab would find the .venv ready, so that it installs nothing."
    script = 'self=$PWD/bin/lab; . bin/lib.sh; installed dev'
    return subprocess.run(['bash', '-c', script], cwd=ROOT, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not made_by_bin_test(), reason='the .venv of this checkout was not made by bin/test')


def ask(url: str, data: object = None, method: str | None = None, token: str = '') -> dict:
    "One request to a server on this machine; its answer as JSON."
    body = None if data is None else json.dumps(data).encode()
    headers = {'Content-Type': 'application/json'} | ({'Authorization': f'token {token}'} if token else {})
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b'{}')


def free_port() -> int:
    "A port that nobody listens on."
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def wait(what, seconds: float, why: str):
    "What `what` gives as soon as it is true."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f'{why} within {seconds} s')


def alive(mark: str) -> list[str]:
    "The processes whose command line holds this."
    out = subprocess.run(['ps', '-eo', 'pid=,args='], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if mark in line]


def as_text(source: object) -> str:
    "A cell's source, which a file may hold as lines."
    return ''.join(source)


@pytest.fixture
def lab(tmp_path) -> Iterator[tuple[str, str]]:
    "bin/lab, called through a symlink from elsewhere, on a copy of two notebooks: its address and token."
    nbs = tmp_path / 'root/nbs'
    nbs.mkdir(parents=True)
    shutil.copy(ROOT / 'nbs/41_rank.ipynb', nbs)
    kernel = {'kernelspec': {'display_name': 'python3', 'language': 'python', 'name': 'python3'}}
    cell = {'cell_type': 'code', 'id': 'a', 'metadata': {}, 'execution_count': None, 'outputs': [], 'source': PLOT}
    plot = {'cells': [cell], 'metadata': kernel, 'nbformat': 4, 'nbformat_minor': 5}
    (nbs / 'plot.ipynb').write_text(json.dumps(plot))
    (tmp_path / 'link').symlink_to(ROOT / 'bin/lab')
    places = ('JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR', 'IPYTHONDIR', 'MPLCONFIGDIR')
    env = {**os.environ, **{name: str(tmp_path / name.lower()) for name in places}}
    port = free_port()
    given = ['--no-browser', f'--port={port}', '--ServerApp.port_retries=0', f'--ServerApp.root_dir={tmp_path}/root']
    log = tmp_path / 'log'
    with log.open('wb') as out:
        proc = subprocess.Popen(
            [tmp_path / 'link', *given], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        found = wait(lambda: ADDRESS.search(log.read_text()) or proc.poll() is not None, 30, 'no address')
        assert proc.poll() is None, log.read_text()
        yield found[0], str(port)
    finally:
        proc.send_signal(signal.SIGTERM)
        try:
            proc.wait(15)
        finally:
            if proc.poll() is None:
                os.killpg(proc.pid, signal.SIGKILL)
        wait(lambda: not alive(str(tmp_path)), 10, 'a kernel was left')


def listening(port: str) -> list[str]:
    "The addresses that somebody listens on at this port, as Linux writes them."
    rows = [line.split() for line in Path('/proc/net/tcp').read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == '0A' and row[1].endswith(f':{int(port):04X}')]


def run_cells(base: str, token: str, kernel: str, sources: list[str]) -> list[dict]:
    "What the cells show, drawn pictures included; an exception fails."
    import websocket

    shown = []
    address = f'{base.replace("http", "ws")}/api/kernels/{kernel}/channels?token={token}'
    ws = websocket.create_connection(address, timeout=30)
    try:
        for source in sources:
            asked = uuid.uuid4().hex
            content = {'code': source, 'silent': False, 'store_history': True, 'user_expressions': {}}
            content |= {'allow_stdin': False, 'stop_on_error': True}
            head = {'msg_id': asked, 'msg_type': 'execute_request', 'username': '', 'session': 't', 'version': '5.3'}
            ws.send(
                json.dumps(
                    {'header': head, 'parent_header': {}, 'metadata': {}, 'content': content, 'channel': 'shell'}
                )
            )
            while True:
                said = json.loads(ws.recv())
                if said['parent_header'].get('msg_id') != asked:
                    continue
                if said['msg_type'] == 'error':
                    raise AssertionError('\n'.join(said['content']['traceback']))
                if said['msg_type'] in ('display_data', 'execute_result'):
                    shown.append(said['content']['data'])
                if said['msg_type'] == 'status' and said['content']['execution_state'] == 'idle':
                    break
    finally:
        ws.close()
    return shown


def test_it_serves_this_machine_alone_and_a_notebook_with_a_plot_runs_on_the_kernel_of_this_checkout(lab):
    url, port = lab
    base, token = f'http://127.0.0.1:{port}', parse_qs(urlsplit(url).query)['token'][0]
    assert url.startswith(base) and len(token) >= 32
    with pytest.raises(urllib.error.HTTPError, match='403'):
        ask(f'{base}/api/kernels')
    if Path('/proc/net/tcp').exists():
        assert listening(port) == [f'0100007F:{int(port):04X}']
    specs = ask(f'{base}/api/kernelspecs', token=token)
    assert specs['default'] == 'merlin'
    assert specs['kernelspecs']['merlin']['spec']['argv'][0] == str(ROOT / '.venv/bin/python')
    page = ask(f'{base}/api/contents/nbs/41_rank.ipynb', token=token)['content']
    cells = [as_text(c['source']) for c in page['cells'] if c['cell_type'] == 'code']
    kernel = ask(f'{base}/api/kernels', {'name': 'merlin'}, token=token)['id']
    shown = run_cells(base, token, kernel, ['import merlin; merlin.__file__', *cells, PLOT])
    assert shown[0]['text/plain'] == repr(str(ROOT / 'merlin/__init__.py'))
    assert any(base64.b64decode(data.get('image/png', ''))[:4] == b'\x89PNG' for data in shown)


class Browser:
    "A headless Chromium, by the W3C WebDriver protocol."

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.base = f'http://127.0.0.1:{port}'
        command = [DRIVER, f'--port={port}']
        env = {**os.environ, 'HOME': str(folder)}
        self.proc = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wait(self.ready, 15, 'chromedriver did not start')
        args = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--window-size=1400,1000']
        args += [f'--user-data-dir={folder}/chromium']
        options = {'binary': CHROMIUM, 'args': args}
        wanted = {'capabilities': {'alwaysMatch': {'browserName': 'chrome', 'goog:chromeOptions': options}}}
        self.session = f'{self.base}/session/{ask(f"{self.base}/session", wanted)["value"]["sessionId"]}'

    def ready(self) -> bool:
        try:
            return ask(f'{self.base}/status')['value']['ready']
        except OSError:
            return False

    def open(self, url: str) -> None:
        ask(f'{self.session}/url', {'url': url})

    def js(self, script: str):
        return ask(f'{self.session}/execute/sync', {'script': script, 'args': []})['value']

    def click(self, xpath: str) -> None:
        found = ask(f'{self.session}/element', {'using': 'xpath', 'value': xpath})['value']
        ask(f'{self.session}/element/{next(iter(found.values()))}/click', {})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(ask(f'{self.session}/screenshot')['value']))

    def close(self) -> None:
        try:
            ask(self.session, method='DELETE')
        finally:
            os.killpg(self.proc.pid, signal.SIGTERM)
            self.proc.wait(10)


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    "A browser of this test."
    if not (CHROMIUM and DRIVER):
        pytest.skip('no Chromium with a chromedriver on this machine')
    made = Browser(tmp_path)
    try:
        yield made
    finally:
        made.close()


# A run of all cells stops at an error, so the number of the last cell tells that all went well.
LAST = """const cells = document.querySelectorAll(
  '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .jp-InputPrompt');
return cells.length ? cells[cells.length - 1].textContent.trim() : '';"""
DRAWN = "return [...document.querySelectorAll('.jp-OutputArea img')].filter(i => i.naturalWidth > 100).length;"
ASKED = "return document.querySelectorAll('.Toastify__toast, .jp-Dialog').length;"


def run_all(browser: Browser, url: str, name: str, count: int, plots: int) -> None:
    "Open a notebook in Lab and run all of its cells from the menu."
    base, token = url.split('/lab/')[0], url.split('?')[1]
    browser.open(f'{base}/lab/tree/nbs/{name}?reset&{token}')
    wait(lambda: browser.js(LAST), 40, f'{name} did not open')
    wait(lambda: browser.js("return document.body.textContent.includes('| Idle')"), 40, 'no kernel')
    browser.click('//div[contains(@class, "lm-MenuBar-itemLabel") and text()="Run"]')
    browser.click('//li[@data-command="runmenu:run-all"]')
    wait(lambda: browser.js(LAST) == f'[{count}]:', 40, f'{name} did not run to its end')
    wait(lambda: browser.js(DRAWN) == plots, 20, f'not {plots} plots')
    if folder := os.environ.get('MERLIN_TEST_SHOTS'):  # for whoever wants to look
        time.sleep(1)
        browser.picture(Path(folder) / f'lab-{name}.png')


def test_in_a_browser_a_notebook_opens_runs_to_its_end_and_shows_its_plot(lab, browser):
    url, _ = lab
    rank = json.loads((ROOT / 'nbs/41_rank.ipynb').read_text(encoding='utf-8'))
    run_all(browser, url, '41_rank.ipynb', sum(c['cell_type'] == 'code' for c in rank['cells']), 0)
    run_all(browser, url, 'plot.ipynb', 1, 1)
    assert browser.js(ASKED) == 0, 'a newcomer is asked something'
