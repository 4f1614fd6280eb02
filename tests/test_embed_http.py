"""Embedding servers: each one's contract, and every way they were seen to break."""

import gzip
import logging
import shutil
import threading
import time
from email.utils import formatdate

import pytest
from doubles.embed_servers import (
    BAD_GATEWAY,
    BYE,
    DRIP,
    EXTRA,
    HALF,
    HANG,
    HTML,
    LONG_VECTORS,
    NAN,
    NARROW,
    NULL,
    QUOTA,
    RESET,
    SHORT,
    ZEROS,
    Fault,
    OpenAiDouble,
    TeiDouble,
    VoyageDouble,
    certificate,
    cheap_vector,
    local_model,
    status,
    tunnel,
)

from merlin.config import EmbedConfig
from merlin.embed import canary_vector, embed_identity, embedder, same_space
from merlin.embed_http import ServerError
from merlin.embed_remote import BODY
from merlin.errors import ConfigError, FailedError, MerlinError, RefusedError
from merlin.transport import readable
from merlin.vectors import TextRefused, cosine, unit

KEY = 'k-' + '7' * 30
SECTION = 'The pump in the cellar of the old mill failed at midnight'
WORDS = [f'section number {n} of the record' for n in range(70)]


class Clock:
    "Time that passes only by sleeping."

    def __init__(self):
        self.now, self.waits = 1000.0, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def to(server, provider: str, *, query: bool = False, clock: Clock | None = None, **settings):
    "An embedder on a double, for which waiting costs nothing."
    clock = clock or Clock()
    config = EmbedConfig(provider=provider, **{'url': server and server.url, **settings})
    return embedder(config, query, sleep=clock.sleep, clock=clock)


def to_openai(server, **settings):
    return to(server, 'openai', **{'model': 'other', 'dim': 16, **settings})


def right(vectors, texts) -> bool:
    "Whether the vectors are those of the texts, in their order."
    return all(cosine(v, unit(cheap_vector(t))) > 0.99999 for v, t in zip(vectors, texts, strict=True))


# the three contracts


@pytest.mark.parametrize('version', ['1.9.3', '1.8.3'])
def test_tei_gives_the_vectors_of_the_model_it_serves(version):
    texts = [SECTION, 'restart the agent', 'word ' * 400]
    with TeiDouble(version, real=True) as server:
        remote = to(server, 'tei')
        assert remote.identity == 'tei:sentence-transformers/all-MiniLM-L6-v2:384'
        vectors = remote.embed_documents(texts)
        due = local_model().embed_documents(texts)
        assert all(cosine(a, b) > 0.9999 for a, b in zip(vectors[:2], due[:2], strict=True))
        assert cosine(vectors[2], due[2]) > 0.99
        assert (remote.windowed, remote.truncated) == (1, 0)
        assert same_space(canary_vector(remote), canary_vector(local_model()))
        assert cosine(remote.embed_query(SECTION), due[0]) > 0.9999
        assert all(r.json['truncate'] is False for r in server.posts)


def test_openai_gets_numbers_dimensions_and_key():
    with OpenAiDouble(key=KEY) as server:
        remote = to(server, 'openai', api_key=KEY, dim=64)
        assert remote.identity == 'openai:text-embedding-3-small:64' == embed_identity(EmbedConfig('openai', dim=64))
        assert len(remote.embed_documents([SECTION])[0]) == 64
        sent = server.posts[0]
        assert sent.path == '/v1/embeddings' and sent.headers['authorization'] == f'Bearer {KEY}'
        assert sent.json == {
            'model': 'text-embedding-3-small',
            'input': [SECTION],
            'encoding_format': 'float',
            'dimensions': 64,
        }


def test_a_compatible_server_is_asked_for_the_dimension_and_not_told_one():
    with OpenAiDouble() as server:
        remote = to_openai(server, dim=None)
        assert remote.identity == 'openai:other:16'
        assert right(remote.embed_documents(WORDS[:3]), WORDS[:3])
        assert not any('dimensions' in r.json or 'authorization' in r.headers for r in server.posts)


def test_openai_vectors_may_come_in_any_order_and_in_base64():
    with OpenAiDouble() as server:
        server.shuffle, server.base64 = True, True
        assert right(to_openai(server).embed_documents(WORDS[:9]), WORDS[:9])


def test_voyage_is_told_what_is_a_query_and_what_a_document():
    with VoyageDouble(key=KEY, real=True) as server:
        remote = to(server, 'voyage', api_key=KEY, dim=512)
        assert remote.identity == 'voyage:voyage-4:512'
        document, question = remote.embed_documents([SECTION])[0], remote.embed_query(SECTION)
        assert 0.3 < cosine(document, question) < 0.99
        sent = [r.json for r in server.posts]
        assert [r['input_type'] for r in sent] == ['document', 'query']
        assert all(r['truncation'] is False and r['output_dimension'] == 512 for r in sent)


def test_voyage_without_a_choice_gets_no_dimension():
    with VoyageDouble() as server:
        remote = to(server, 'voyage', model='voyage-law-2')
        assert remote.identity == 'voyage:voyage-law-2:1024' and len(remote.embed_query('a')) == 1024
        assert 'output_dimension' not in server.posts[0].json


@pytest.mark.parametrize('end', ['', '/', '/v1', '/v1/', '/v1/embeddings'])
def test_an_address_may_end_as_it_was_copied(end):
    with OpenAiDouble() as server:
        to_openai(server, url=server.url + end).embed_documents(['a'])
        assert [r.path for r in server.posts] == ['/v1/embeddings']
    if 'embeddings' not in end:
        with TeiDouble() as server:
            to(server, 'tei', url=server.url + end).embed_documents(['a'])
            assert {r.path for r in server.requests} == {'/info', '/embed'}


def test_queries_go_to_the_query_server_documents_to_the_other():
    with OpenAiDouble() as bulk, OpenAiDouble() as near:
        for query in (False, True):
            remote = to(bulk, 'openai', query=query, model='other', dim=16, url_query=near.url)
            remote.embed_query('a') if query else remote.embed_documents(['a'])
        assert len(bulk.posts) == len(near.posts) == 1


def test_without_an_address_openai_and_voyage_have_their_own():
    for provider, key, home in (
        ('openai', KEY, 'https://api.openai.com'),
        ('voyage', KEY, 'https://api.voyageai.com'),
        ('voyage', 'al-' + KEY, 'https://ai.mongodb.com'),
    ):
        assert embedder(EmbedConfig(provider, api_key=key))._http.base == home


# identity


def test_tei_with_another_model_is_refused_for_safety():
    with TeiDouble(model='BAAI/bge-m3') as server, pytest.raises(RefusedError) as caught:
        to(server, 'tei', model='sentence-transformers/all-MiniLM-L6-v2')
    assert caught.value.exit_code == 3
    assert 'BAAI/bge-m3' in str(caught.value) and 'all-MiniLM-L6-v2' in str(caught.value)


def test_tei_may_be_named_by_what_it_is_served_as():
    with TeiDouble(model='/data/minilm') as server:
        server.info['served_model_name'] = 'minilm'
        assert to(server, 'tei', model='minilm').identity == 'tei:minilm:16'
        assert to(server, 'tei').identity == 'tei:/data/minilm:16'


def test_tei_that_is_none_or_embeds_nothing_is_said_so():
    with OpenAiDouble() as server, pytest.raises(ConfigError, match='EMBED_PROVIDER=openai'):
        to(server, 'tei')
    with TeiDouble() as server:
        server.info['model_type'] = {'reranker': {'id2label': {}}}
        with pytest.raises(ConfigError, match='reranker'):
            to(server, 'tei')


def test_a_model_that_changes_between_two_batches_is_refused():
    with TeiDouble() as server:
        remote = to(server, 'tei')

        def swap(texts):
            if len(server.posts) == 3:
                server.info = {**server.info, 'model_id': 'BAAI/bge-m3'}

        server.refuse = swap
        with pytest.raises(RefusedError, match='changed its model'):
            remote.embed_documents(WORDS)
    with OpenAiDouble() as server:
        remote = to_openai(server, batch=10)
        server.refuse = lambda texts: setattr(server, 'served', 'newer' if len(server.posts) > 2 else None)
        with pytest.raises(RefusedError, match="from 'other' to 'newer'"):
            remote.embed_documents(WORDS)


def test_a_query_server_that_lives_long_is_asked_again_which_model_it_serves():
    clock = Clock()
    with TeiDouble() as server:
        remote = to(server, 'tei', query=True, clock=clock)
        remote.embed_query('a')
        server.info = {**server.info, 'model_id': 'BAAI/bge-m3'}
        remote.embed_query('a')
        clock.now += 61
        with pytest.raises(RefusedError, match='changed its model'):
            remote.embed_query('a')


def test_a_server_that_ignores_the_dimension_is_refused():
    with OpenAiDouble() as server, pytest.raises(FailedError, match='16 dimensions where 64 are expected'):
        to_openai(server, dim=64).embed_documents(['a'])


def test_tei_cuts_to_the_dimension_that_was_asked_for():
    with TeiDouble() as server:
        remote = to(server, 'tei', dim=8)
        assert remote.identity == 'tei:sentence-transformers/all-MiniLM-L6-v2:8'
        assert len(remote.embed_documents(['a'])[0]) == 8


def test_the_sentence_that_told_the_dimension_is_the_canary_and_is_not_sent_again():
    with TeiDouble() as server:
        remote = to(server, 'tei')
        canary = canary_vector(remote)
        assert len(server.posts) == 1 and same_space(canary, canary_vector(to(server, 'tei')))
        server.vectors = lambda texts: [cheap_vector('other weights' + text) for text in texts]
        assert not same_space(canary, canary_vector(remote))  # it is asked anew when it is wanted again
        assert not same_space(canary, canary_vector(to(server, 'tei')))
        assert len(server.posts) == 4


def test_a_known_dimension_asks_nothing_before_the_canary():
    with OpenAiDouble() as server:
        remote = to_openai(server)
        assert not server.posts
        canary_vector(remote)
        assert len(server.posts) == 1


# answers that must never be stored


@pytest.mark.parametrize('provider', ['tei', 'openai'])
@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (NAN, 'NaN'),
        (NULL, 'not a number'),
        (ZEROS, 'all zeros'),
        (NARROW, '15 dimensions where 16'),
        (SHORT, 'vectors: 2 came, 3 due'),
        (EXTRA, 'vectors: 4 came, 3 due'),
        (status(200, {'object': 'list'}), 'vectors: no list came'),
        (status(200, {'data': [{'index': n % 2, 'embedding': [1.0] * 16} for n in range(3)]}), 'no list came'),
        (status(200, [[1.0] * 16, 'abc', [1.0] * 16]), 'not a list of numbers|no list came'),
        (HTML, 'answered with an HTML page'),
    ],
)
def test_a_bad_answer_is_refused_and_never_half_used(provider, fault, message):
    double = TeiDouble if provider == 'tei' else OpenAiDouble
    with double() as server:
        remote = to(server, provider, model=None if provider == 'tei' else 'other')
        server.always = fault
        if isinstance(fault.reply and fault.reply.body, dict) and provider == 'tei':
            message = 'no list came'
        with pytest.raises(FailedError, match=message):
            remote.embed_documents(['one', 'two', 'three'])


def test_the_text_with_the_bad_vector_is_named_by_its_place():
    with OpenAiDouble() as server:
        server.refuse = lambda texts: ZEROS if texts[-1:] == ['b'] else None
        with pytest.raises(TextRefused) as caught:
            to_openai(server, batch=2).embed_documents(['longest', 'b', 'longer', 'long'])
    assert caught.value.index == 1


def test_vectors_that_are_not_of_length_one_are_scaled():
    with OpenAiDouble() as server:
        server.always = LONG_VECTORS
        assert right(to_openai(server).embed_documents(WORDS[:4]), WORDS[:4])


# patience


@pytest.mark.parametrize('code', [408, 409, 424, 429, 500, 502, 503, 504])
def test_what_passes_is_waited_for(code):
    clock = Clock()
    with OpenAiDouble() as server:
        server.faults = [status(code, {'error': {'message': 'later'}})] * 3
        assert right(to_openai(server, clock=clock).embed_documents(WORDS[:2]), WORDS[:2])
        assert len(server.posts) == 4
    assert all(0.25 <= a <= 0.5 * 2**n for n, a in enumerate(clock.waits)) and len(clock.waits) == 3


@pytest.mark.parametrize('fault', [RESET, HALF, BAD_GATEWAY])
def test_a_line_that_breaks_is_tried_again(fault):
    with OpenAiDouble() as server:
        server.faults = [fault, fault]
        assert right(to_openai(server).embed_documents(WORDS[:2]), WORDS[:2])


def test_the_server_says_how_long_to_wait():
    for headers, low, high in (
        ({'retry-after': '17'}, 17, 17),
        ({'retry-after-ms': '1700'}, 1.7, 1.7),
        ({'retry-after': formatdate(time.time() + 40, usegmt=True)}, 35, 41),
        ({'retry-after': '86400'}, 120, 120),
        ({'retry-after': 'soon'}, 0.2, 0.5),
    ):
        clock = Clock()
        with OpenAiDouble() as server:
            server.faults = [status(429, headers=headers)]
            to_openai(server, clock=clock).embed_documents(['a'])
        assert low <= clock.waits[0] <= high


def test_busy_is_no_verdict_but_ten_minutes_are_enough():
    clock = Clock()
    with OpenAiDouble() as server:
        server.faults = [status(429)] * 12
        assert right(to_openai(server, clock=clock).embed_documents(['a']), ['a'])
        server.always = status(429, {'error': {'message': 'Rate limit reached'}})
        start = clock.now
        with pytest.raises(FailedError, match='429: Rate limit reached.*EMBED_BATCH'):
            to_openai(server, clock=clock).embed_documents(['a'])
    assert 500 < clock.now - start <= 600


def test_an_empty_account_is_not_waited_for():
    clock = Clock()
    with OpenAiDouble() as server:
        server.always = QUOTA
        with pytest.raises(FailedError, match='exceeded your current quota'):
            to_openai(server, clock=clock).embed_documents(['a'])
        assert len(server.posts) == 1 and not clock.waits


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (status(401), 'answered 401; check EMBED_API_KEY'),
        (status(403, {'detail': 'IP not allowed'}), '403: IP not allowed'),
        (status(404, {'error': {'message': 'no such model'}}), '404: no such model; check EMBED_URL'),
        (status(301, headers={'location': 'http://127.0.0.1:9/elsewhere'}), '301; redirects are not followed'),
        (status(400, {'error': {'message': 'Unrecognized request argument'}}), '400: Unrecognized'),
        (status(422, 'Failed to deserialize the JSON body'), '422: Failed to deserialize'),
    ],
)
def test_what_stays_wrong_is_said_at_once(fault, message):
    with OpenAiDouble() as server:
        server.always = fault
        with pytest.raises(FailedError, match=message):
            to_openai(server).embed_documents(WORDS[:8])
        assert len(server.posts) == 1


def test_nobody_there_fails_cleanly_after_seconds():
    clock = Clock()
    with OpenAiDouble() as server:
        pass
    with pytest.raises(FailedError, match='no answer.*EMBED_URL'):
        to_openai(server, clock=clock).embed_documents(['a'])
    assert len(clock.waits) == 4 and sum(clock.waits) < 10


# the line


def test_one_line_serves_all_requests():
    with OpenAiDouble() as server:
        remote = to_openai(server, batch=5)
        assert right(remote.embed_documents(WORDS[:30]), WORDS[:30])
        server.faults = [status(429), status(400, {'error': 'no'}), None]
        for _ in range(2):
            with pytest.raises(FailedError):
                server.faults = [status(400, {'error': 'no'})]
                remote.embed_documents(['a'])
        assert (len(server.posts), server.lines) == (8, 1)


def test_a_line_that_the_server_closed_meanwhile_is_no_failure():
    clock = Clock()
    with OpenAiDouble() as server:
        remote = to_openai(server, clock=clock)
        server.always = BYE
        for _ in range(3):
            assert right(remote.embed_documents(WORDS[:2]), WORDS[:2])
            deadline = time.monotonic() + 5
            while not readable(remote._http._kept[0]._conn.sock) and time.monotonic() < deadline:
                time.sleep(0.001)
        assert (len(server.posts), server.lines, clock.waits) == (3, 3, [])


def test_two_that_ask_at_once_do_not_mix_their_answers():
    with OpenAiDouble() as server:
        remote, got = to_openai(server), {}

        def ask(n: int) -> None:
            got[n] = [remote.embed_query(f'{n} {k}') for k in range(10)]

        jobs = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert all(right(got[n], [f'{n} {k}' for k in range(10)]) for n in range(4))


def test_a_refusal_that_comes_before_the_body_was_read_is_heard():
    class Hasty(OpenAiDouble):
        def unwelcome(self):
            return status(413, {'error': 'too large'}).reply

    with Hasty() as server:
        handler = server._server.RequestHandlerClass

        def refuse(self):
            self._note('POST', None)
            self._send(server.unwelcome(), bye=True)

        handler.do_POST = refuse
        with pytest.raises(FailedError, match='413|no answer'):
            to_openai(server).embed_documents(['x' * 900_000])


def test_a_reply_in_parts_is_read_and_a_packed_one_is_named():
    class Parts(OpenAiDouble):
        def post(self, path, body, fault):
            reply = super().post(path, body, fault)
            data = reply.data()[0]
            parts = b''.join(b'%x\r\n%b\r\n' % (len(p), p) for p in (data[:50], data[50:]))
            # 'close' so that the length that the double adds is of no matter
            return type(reply)(200, parts + b'0\r\n\r\n', {'transfer-encoding': 'chunked'})

    with Parts() as server:
        assert right(to_openai(server).embed_documents(WORDS[:2]), WORDS[:2])
    with OpenAiDouble() as server:
        server.always = status(200, gzip.compress(b'{}'), {'content-encoding': 'gzip'})
        with pytest.raises(FailedError, match='answered with a packed reply'):
            to_openai(server).embed_documents(['a'])
        assert len(server.posts) == 1


@pytest.fixture(scope='module')
def pem(tmp_path_factory):
    "A certificate that nobody has signed."
    if not shutil.which('openssl'):
        pytest.skip('openssl is not installed')
    return certificate(tmp_path_factory.mktemp('tls'))


@pytest.fixture
def no_proxies(monkeypatch):
    "An environment without proxies, to which a test may add one."
    for name in ('http_proxy', 'https_proxy', 'all_proxy', 'no_proxy'):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_a_certificate_is_checked_and_may_be_named(pem, monkeypatch):
    clock = Clock()
    with OpenAiDouble().tls(pem) as server:
        monkeypatch.delenv('SSL_CERT_FILE', raising=False)
        with pytest.raises(FailedError, match='CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE'):
            to_openai(server, clock=clock).embed_documents(['a'])
        assert not clock.waits and not server.posts
        monkeypatch.setenv('SSL_CERT_FILE', str(pem))
        assert right(to_openai(server).embed_documents(WORDS[:3]), WORDS[:3])
        wrong = server.url.replace('localhost', '127.0.0.1')  # a name that the certificate doesn't have
        with pytest.raises(FailedError, match='CERTIFICATE_VERIFY_FAILED'):
            to_openai(server, url=wrong).embed_documents(['a'])


class AsProxy(OpenAiDouble):
    "A server that is asked as a proxy."

    def post(self, path, body, fault):
        return super().post(path.removeprefix('http://embed.invalid:8080'), body, fault)


@pytest.mark.parametrize('name', ['http_proxy', 'HTTP_PROXY', 'all_proxy', 'ALL_PROXY'])
def test_a_proxy_from_the_environment_is_used_and_told_who_we_are(name, no_proxies):
    with AsProxy() as server:
        no_proxies.setenv(name, server.url.replace('//', '//ann:p%40ss@'))
        remote = to_openai(server, url='http://embed.invalid:8080', api_key=KEY)
        assert right(remote.embed_documents(WORDS[:2]), WORDS[:2])
        [sent] = server.posts
        assert sent.path == 'http://embed.invalid:8080/v1/embeddings' and sent.headers['host'] == 'embed.invalid:8080'
        assert sent.headers['proxy-authorization'] == 'Basic YW5uOnBAc3M='
        assert sent.headers['authorization'] == f'Bearer {KEY}'


def test_https_goes_through_a_proxy_in_a_tunnel_that_does_not_see_the_key(pem, no_proxies):
    no_proxies.setenv('SSL_CERT_FILE', str(pem))
    asked = []
    with OpenAiDouble().tls(pem) as server, tunnel(int(server.url.rpartition(':')[2]), asked) as proxy:
        no_proxies.setenv('HTTPS_PROXY', f'http://ann:pw@{proxy}')
        remote = to_openai(server, url='https://embed.invalid', api_key=KEY, batch=2)
        assert right(remote.embed_documents(WORDS[:4]), WORDS[:4])
        assert {r.headers['authorization'] for r in server.posts} == {f'Bearer {KEY}'}
        remote._http._kept.clear()
    assert len(asked) == 1 and asked[0].startswith('CONNECT embed.invalid:443 ')
    assert 'Proxy-Authorization: Basic YW5uOnB3' in asked[0] and KEY not in asked[0]


def test_no_proxy_is_obeyed_and_a_proxy_that_is_down_is_named_as_one(no_proxies):
    no_proxies.setenv('http_proxy', 'http://ann:secret-word@127.0.0.1:9')
    with pytest.raises(FailedError, match='no answer.*http_proxy') as caught:
        to_openai(None, url='http://embed.invalid').embed_documents(['a'])
    assert 'secret-word' not in str(caught.value)
    no_proxies.setenv('NO_PROXY', '.invalid')
    with pytest.raises(FailedError, match='no answer.*is the server up'):
        to_openai(None, url='http://embed.invalid').embed_documents(['a'])


def test_a_socks_proxy_is_refused_with_a_next_step(no_proxies):
    no_proxies.setenv('ALL_PROXY', 'socks5://ann:secret-word@proxy:1080')
    with pytest.raises(ConfigError, match="all_proxy: a proxy of kind 'socks5'.*no_proxy") as caught:
        to_openai(None, url='http://embed.invalid').embed_documents(['a'])
    assert 'secret-word' not in str(caught.value)


@pytest.mark.parametrize('host', ['größe', '[::1]', 'a' * 70, 'a..b'])
def test_any_host_name_is_asked_or_refused_in_words(host, no_proxies):
    clock = Clock()
    with pytest.raises(FailedError, match='no answer'):
        to_openai(None, url=f'http://{host}.invalid:9'.replace('].invalid', ']'), clock=clock).embed_documents(['a'])


def test_a_key_that_fits_into_no_header_is_refused_and_not_shown():
    for key in (KEY + '\n', KEY + '…', '\ufeff' + KEY):
        with pytest.raises(ConfigError, match='EMBED_API_KEY.*copy the key again') as caught:
            to_openai(None, url='http://embed.invalid', api_key=key)
        assert KEY not in str(caught.value)


def test_an_attempt_that_was_given_up_leaves_no_thread_and_sends_nothing_more():
    with OpenAiDouble() as server:
        remote = to_openai(server, query=True, timeout_query=0.2)
        remote.embed_query('a')
        server.always = DRIP
        with pytest.raises(FailedError):
            remote.embed_query('b')
        deadline = time.monotonic() + 5
        while any(t.name == 'merlin-embed' for t in threading.enumerate()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(t.name == 'merlin-embed' for t in threading.enumerate())
        assert len(server.posts) <= 3


# batches


def test_batches_obey_the_limits_of_tei():
    with TeiDouble() as server:
        server.info |= {'max_client_batch_size': 24, 'max_concurrent_requests': 12}
        remote = to(server, 'tei')
        assert remote.batch == 12
        assert right(remote.embed_documents(WORDS), WORDS)
        assert max(len(r.json['inputs']) for r in server.posts) == 12


def test_batches_count_tokens_too():
    big = [f'{n} ' + 'x ' * 20_000 for n in range(8)]  # 20,002 tokens of the double each
    with VoyageDouble() as server:
        remote = to(server, 'voyage')
        assert len(remote.embed_documents(big)) == 8
        assert max(len(r.json['input']) for r in server.posts) <= 9
        assert max(sum(len(t) for t in r.json['input']) for r in server.posts) <= BODY


def test_a_limit_on_tokens_that_we_underestimate_halves_the_batch():
    dense = [f'{n}' + ' y' * 8000 for n in range(30)]  # a token for two bytes, where we think three
    with VoyageDouble() as server:
        remote = to(server, 'voyage')
        vectors = remote.embed_documents(dense)
        assert len(vectors) == 30 and remote.windowed == 0
        sizes = [len(r.json['input']) for r in server.posts]
        assert sizes[0] > sizes[1] and max(sizes) > 4


def test_a_body_never_reaches_two_megabytes():
    with TeiDouble() as server:
        server.info |= {'max_client_batch_size': 512, 'max_input_length': 10**6}
        remote = to(server, 'tei', batch=512)
        texts = [f'{n}\n' + '"quoted"\n' * 3000 for n in range(100)]
        assert len(remote.embed_documents(texts)) == 100
        assert not any(r.json is None for r in server.posts) and len(server.posts) < 10


def test_batch_size_is_a_setting_within_the_services_limit():
    with OpenAiDouble() as server:
        assert to_openai(server, batch=7).batch == 7 and to_openai(server, batch=9999).batch == 2048
        assert to(server, 'voyage', batch=5000).batch == 1000


def test_after_a_time_out_batches_stay_small():
    with OpenAiDouble() as server:
        server.refuse = lambda texts: HANG if len(texts) > 4 else None
        remote = to(server, 'openai', model='other', dim=16, batch=16, timeout=0.15)
        assert right(remote.embed_documents(WORDS[:40]), WORDS[:40])
        sizes = [len(r.json['input']) for r in server.posts]
    assert sizes[:3] == [16, 8, 4] and remote.batch == 4
    assert sizes.count(16) == 1 and max(sizes[5:]) == 4


# one text at fault


@pytest.mark.parametrize('code', [500, 424])
def test_a_text_that_breaks_the_server_is_found_and_its_words_are_not_shown(code):
    with OpenAiDouble() as server:
        boom = status(code, {'error': {'message': f'cannot handle: {SECTION}'}})
        server.refuse = lambda texts: boom if SECTION in texts else None
        texts = [*WORDS[:20], SECTION, *WORDS[20:]]
        with pytest.raises(TextRefused) as caught:
            to_openai(server).embed_documents(texts)
        assert len(server.posts) < 25
    assert caught.value.index == 20
    assert 'pump' not in str(caught.value) and 'not shown' in str(caught.value)
    assert f'a text of {len(SECTION)} characters' in str(caught.value)


def test_a_server_that_is_down_for_every_text_is_not_blamed_on_one():
    with OpenAiDouble() as server:
        server.always = status(500, {'error': {'message': 'out of memory'}})
        with pytest.raises(ServerError, match='500: out of memory'):
            to_openai(server).embed_documents(WORDS[:8])


def test_a_text_too_long_is_embedded_in_pieces_and_counted():
    long = ' '.join(f'word{n}' for n in range(1000))
    with TeiDouble() as server:
        remote = to(server, 'tei')
        alone = remote.embed_documents([long])[0]
        texts = [WORDS[0], long, *WORDS[1:40], long + ' end']
        vectors = remote.embed_documents(texts)
        assert right(
            [v for v, t in zip(vectors, texts, strict=True) if 'word1' not in t], [t for t in texts if 'word1' not in t]
        )
        assert cosine(vectors[1], alone) > 0.999999
        assert (remote.windowed, remote.truncated) == (3, 0)
        answered = [t for r in server.posts for t in r.json['inputs'] if len(t.split()) <= 254]
        assert set(long.split()) <= {word for text in answered for word in text.split()}


@pytest.mark.parametrize('code', [400, 413, 422, 500])
def test_too_long_is_understood_in_whatever_words_and_code(code):
    with OpenAiDouble() as server:
        refusal = status(code, {'error': {'message': 'input is too large to process. increase the batch size'}})
        server.refuse = lambda texts: refusal if sum(map(len, texts)) > 300 else None
        remote = to_openai(server)
        assert len(remote.embed_documents(['a ' * 500, *WORDS[:9]])) == 10
        assert remote.windowed == 1


def test_a_gateways_time_out_is_no_reason_to_cut_a_text():
    with OpenAiDouble() as server:
        server.faults = [status(500, {'error': 'context deadline exceeded'})] * 3
        remote = to_openai(server)
        assert right(remote.embed_documents([SECTION * 9]), [SECTION * 9])
        assert remote.windowed == 0


def test_a_server_that_refuses_every_length_refuses_the_text():
    with OpenAiDouble() as server:
        server.always = status(400, {'error': {'message': 'too many tokens'}})
        with pytest.raises(TextRefused, match='too many tokens') as caught:
            to_openai(server).embed_documents(['a ' * 2000])
        assert caught.value.index == 0 and len(server.posts) < 15


def test_text_without_blanks_is_cut_between_characters():
    with OpenAiDouble() as server:
        server.refuse = lambda texts: status(413, 'too large') if max(map(len, texts)) > 500 else None
        remote = to_openai(server)
        assert len(remote.embed_documents(['ä' * 3000])) == 1
        answered = [t for r in server.posts for t in r.json['input'] if len(t) <= 500]
        assert sum(map(len, answered)) == 3000


# queries


@pytest.mark.parametrize('fault', [HANG, DRIP])
def test_a_query_never_hangs(fault):
    with OpenAiDouble() as server:
        config = EmbedConfig('openai', url=server.url, model='other', dim=16, timeout_query=0.3)
        remote = embedder(config, query=True)
        server.always = fault
        start = time.monotonic()
        with pytest.raises(FailedError, match='no answer within'):
            remote.embed_query('where is the pump?')
        assert time.monotonic() - start < 1.5
        server.always = None
        assert right([remote.embed_query('well again')], ['well again'])


@pytest.mark.parametrize('fault', [RESET, HALF, status(503), status(429), status(429, headers={'retry-after': '1'})])
def test_a_query_is_tried_once_more_and_quickly(fault):
    clock = Clock()
    with OpenAiDouble() as server:
        remote = to_openai(server, query=True, clock=clock)
        server.faults = [fault]
        assert right([remote.embed_query('a')], ['a'])
        assert sum(clock.waits) <= 1
        server.always = fault
        with pytest.raises(FailedError):
            remote.embed_query('a')
        assert len(server.posts) == 4 and clock.now < 1010


def test_a_query_does_not_wait_for_a_server_that_wants_minutes():
    clock = Clock()
    with OpenAiDouble() as server:
        server.always = status(429, headers={'retry-after': '60'})
        with pytest.raises(FailedError, match='429'):
            to_openai(server, query=True, clock=clock).embed_query('a')
        assert len(server.posts) == 1 and not clock.waits


def test_a_query_embedder_is_not_built_for_ever_either():
    with TeiDouble() as server:
        server.get = lambda path: server.closing.wait(5) and None
        start = time.monotonic()
        with pytest.raises(FailedError, match='no answer within 0.2 s'):
            embedder(EmbedConfig('tei', url=server.url, timeout_query=0.2), query=True)
        assert time.monotonic() - start < 1.5


def test_one_limit_holds_for_all_pieces_of_a_query():
    with TeiDouble() as server:
        clock = Clock()
        remote = to(server, 'tei', query=True, clock=clock)

        def slow(texts):
            clock.now += 11

        server.refuse = slow
        with pytest.raises(FailedError, match='no answer within'):
            remote.embed_query('word ' * 1500)


# nothing leaks


@pytest.mark.parametrize(
    'fault',
    [
        status(401, {'error': {'message': f'Incorrect API key provided: {KEY}'}}),
        status(400, {'error': {'message': f'bad header Bearer {KEY}, input {SECTION!r}'}}),
        status(422, {'detail': [{'msg': f'bad value {SECTION[:30]}', 'input': SECTION, 'loc': ['body']}]}),
        status(500, f'Traceback: {SECTION} {KEY}'),
        status(503, f'<html>{SECTION}{KEY}</html>'),
        status(418, {'error': ' '.join([KEY] * 20)}),
        HANG,
        RESET,
        HALF,
    ],
)
def test_no_error_shows_key_password_or_text(fault, caplog):
    caplog.set_level(logging.DEBUG)
    password = 'pw' + '8' * 12
    with OpenAiDouble() as server:
        server.always = fault
        url = server.url.replace('//', f'//ann:{password}@')
        remote = to_openai(server, url=url, api_key=KEY, timeout=0.1)
        with pytest.raises(MerlinError) as caught:
            remote.embed_documents([SECTION])
        shown = f'{caught.value} {caught.value!r} {caught.value.__dict__} {caplog.text} {remote._http.there!r}'
        assert server.posts[0].headers['authorization'].startswith('Basic')
    assert not any(secret in shown for secret in (KEY, password, 'pump', 'cellar'))
    assert len(str(caught.value)) < 500 and '\n' not in str(caught.value)


def test_a_loopback_server_is_reached_past_any_proxy(monkeypatch):
    for name in ('HTTP_PROXY', 'http_proxy', 'ALL_PROXY'):
        monkeypatch.setenv(name, 'http://127.0.0.1:9')
    for name in ('NO_PROXY', 'no_proxy'):
        monkeypatch.delenv(name, raising=False)
    with OpenAiDouble() as server:
        assert len(to_openai(server).embed_documents(['a'])) == 1


def test_half_characters_and_nul_reach_no_server():
    with OpenAiDouble() as server:
        to_openai(server).embed_documents(['half \ud83d', 'a\0b'])
        assert sorted(server.posts[0].json['input']) == ['a b', 'half ?']
        with pytest.raises(ConfigError, match='text 2 of 2 is blank'):
            to_openai(server).embed_documents(['a', ' '])
        assert len(server.posts) == 1


def test_abandoned_requests_leave_only_daemons():
    with OpenAiDouble() as server:
        server.always = HANG
        remote = to_openai(server, query=True, timeout_query=0.05)
        with pytest.raises(FailedError):
            remote.embed_query('a')
        assert all(t.daemon for t in threading.enumerate() if t.name == 'merlin-embed')


def test_a_fault_that_is_none_changes_nothing():
    with TeiDouble() as server:
        server.faults = [None, Fault()]
        assert right(to(server, 'tei').embed_documents(WORDS[:2]), WORDS[:2])
