"""The site of the docs is whole, is made without a network, and is replaced in one step or not at all."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'tools'))
import docs_site  # noqa: E402

sys.path.remove(str(ROOT / 'tools'))


class Links:
    "What a page links to, what it loads, and the anchors it has. In shown code a quote is escaped, so nothing else fits."

    def __init__(self, text: str) -> None:
        self.links = [unescape(href) for href in re.findall(r'<a [^>]*?href="([^"]*)"', text)]
        self.loads = re.findall(r'<(?!a )[a-z][^>]*? (?:src|srcset|data|href)="([^"]*)"', text)
        self.anchors = set(re.findall(r' id="([^"]*)"', text))
        self.tags = set(re.findall(r'<(script|iframe|object|embed|base)\b', text))


def notebook(*cells: dict) -> str:
    "A notebook as JSON."
    made = [{'metadata': {}, 'id': f'c{n}', **cell} for n, cell in enumerate(cells)]
    return json.dumps({'cells': made, 'metadata': {}, 'nbformat': 4, 'nbformat_minor': 5})


def words(text: str) -> dict:
    "A cell of prose."
    return {'cell_type': 'markdown', 'source': text}


def code(text: str, *outputs: dict) -> dict:
    "A cell of code with what it printed."
    return {'cell_type': 'code', 'source': text, 'execution_count': None, 'outputs': list(outputs)}


@pytest.fixture
def tree(tmp_path):
    "A small checkout."
    files = {
        'README.md': '# Home\n\n[docs](docs/index.md), [rank](nbs/41_rank.ipynb#the-idea), [eval](nbs/eval), [x](x.toml)\n',
        'x.toml': 'a = 1\n',
        'docs/index.md': '# Docs\n\n- [B](b.md)\n- [A](a.md)\n',
        'docs/a.md': '# A\n\n[back](index.md) [b](b.md#two)\n\n```sh\nls -l\n```\n',
        'docs/b.md': '# B\n\n## Two\n\n<script>alert(1)</script>\n',
        'nbs/index.ipynb': notebook(words('# Tour')),
        'nbs/41_rank.ipynb': notebook(
            words('# rank\n\n> In one line\n\n## The idea\n\n[A](../docs/a.md)'),
            code('#| default_exp rank'),
            code('#| export\nx = 1', {'output_type': 'stream', 'name': 'stdout', 'text': 'a < b\n'}),
            code(
                'x', {'output_type': 'display_data', 'metadata': {}, 'data': {'image/png': 'QUJD\n', 'text/plain': 'F'}}
            ),
        ),
        'nbs/eval/01_boost.ipynb': notebook(words('# Boost\n\n> What it gains')),
        'eval_reports/README.md': '# Reports\n',
        'eval_reports/one/report.md': '# One\n\n![plot](a.svg)\n',
        'eval_reports/one/a.svg': '<svg xmlns="http://www.w3.org/2000/svg"/>',
    }
    for name, text in files.items():
        (tmp_path / 'tree' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'tree' / name).write_text(text, encoding='utf-8')
    return tmp_path / 'tree'


def read_all(site: Path) -> dict[str, bytes]:
    "Every file of a site."
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob('*')) if p.is_file()}


def broken(site: Path) -> list[str]:
    "Links of a site that lead nowhere."
    pages = {p: Links(p.read_text(encoding='utf-8')) for p in site.rglob('*.html')}
    out = []
    for page, found in pages.items():
        for href in found.links + found.loads:
            parts = urlsplit(href)
            if parts.scheme:
                continue
            goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not goal.is_file() or (parts.fragment and unquote(parts.fragment) not in pages[goal].anchors):
                out.append(f'{page.relative_to(site)}: {href}')
    return out


def fetched(site: Path) -> list[str]:
    "What a browser would fetch from elsewhere, or run."
    out = []
    for path in site.rglob('*.html'):
        found = Links(path.read_text(encoding='utf-8'))
        out += [
            f'{path.name}: {x[:80]}' for x in found.loads if urlsplit(x).scheme not in ('', 'data') or x[:2] == '//'
        ]
        out += [f'{path.name}: <{tag}>' for tag in found.tags]
    style = (site / 'site.css').read_text(encoding='utf-8')
    return out + re.findall(r'@import.*|url\(.*', style)


def sidebar(page: Path) -> list[str]:
    "What the sidebar of a page leads to, in its order, as paths in the site."
    nav = page.read_text(encoding='utf-8').partition('<nav')[2]
    return [unquote(link) for link in Links('<nav' + nav).links]


def made_by_bin_test() -> bool:
    "Whether bin/docs would find the .venv ready, so that it installs nothing."
    script = 'self=$PWD/bin/docs; . bin/lib.sh; installed dev'
    return subprocess.run(['bash', '-c', script], cwd=ROOT, capture_output=True).returncode == 0


def test_one_command_makes_the_whole_site_of_this_checkout(tmp_path):
    command = [sys.executable, str(ROOT / 'tools/docs_site.py')]
    if made_by_bin_test():
        (tmp_path / 'link').symlink_to(ROOT / 'bin/docs')
        command = [str(tmp_path / 'link')]
    out = tmp_path / 'site'
    done = subprocess.run([*command, '--out', str(out)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert broken(out) == [] and fetched(out) == []
    named = sidebar(out / 'index.html')
    sources = [p.relative_to(ROOT) for p in (*ROOT.glob('docs/*.md'), *ROOT.rglob('nbs/**/*.ipynb'))]
    sources += [p.relative_to(ROOT) for p in ROOT.glob('eval_reports/**/*.md')]
    shown = [str(p) for p in sources if not any(part.startswith('.') for part in p.parts)]
    assert sorted(s for s in shown if docs_site.target_of(s) not in named) == []
    assert named.index('nbs/00_errors.html') < named.index('nbs/13_chunk.html') < named.index('nbs/70_cli.html')
    assert 'class="highlight"' in (out / 'nbs/41_rank.html').read_text(encoding='utf-8')


def test_the_contents_of_the_docs_name_every_page():
    text = (ROOT / 'docs/index.md').read_text(encoding='utf-8')
    assert sorted(p.name for p in ROOT.glob('docs/*.md') if p.name != 'index.md' and f']({p.name})' not in text) == []


def test_links_between_pages_notebooks_files_and_folders_work(tree, tmp_path):
    docs_site.build(tmp_path / 'site', root=tree)
    home = Links((tmp_path / 'site/index.html').read_text(encoding='utf-8')).links
    assert {'docs/index.html', 'nbs/41_rank.html#the-idea', 'nbs/eval/index.html', 'x.toml.html'} <= set(home)
    assert broken(tmp_path / 'site') == [] and fetched(tmp_path / 'site') == []
    assert 'What it gains' in (tmp_path / 'site/nbs/eval/index.html').read_text(encoding='utf-8')
    assert (tmp_path / 'site/eval_reports/one/a.svg').is_file()


def test_docs_stand_in_the_order_of_their_contents_page(tree, tmp_path):
    docs_site.build(tmp_path / 'site', root=tree)
    named = sidebar(tmp_path / 'site/index.html')
    assert named == [
        'index.html', 'nbs/index.html', 'docs/index.html', 'docs/b.html', 'docs/a.html', 'nbs/41_rank.html',
        'nbs/eval/01_boost.html', 'eval_reports/index.html', 'eval_reports/one/report.html',
    ]  # fmt: skip


def test_a_notebook_shows_its_results_and_marks_what_is_exported(tree, tmp_path):
    docs_site.build(tmp_path / 'site', root=tree)
    text = (tmp_path / 'site/nbs/41_rank.html').read_text(encoding='utf-8')
    assert '<div class="cell exported">' in text and 'default_exp' not in text and '#|' not in text
    assert '<pre>a &lt; b\n</pre>' in text
    assert '<img src="data:image/png;base64,QUJD" alt="F">' in text


def test_two_builds_are_the_same_to_the_byte(tree, tmp_path):
    docs_site.build(tmp_path / 'one', root=tree)
    docs_site.build(tmp_path / 'two', root=tree)
    assert read_all(tmp_path / 'one') == read_all(tmp_path / 'two')


@pytest.mark.parametrize('link', ['gone.md', 'a.md#nothing', '../../outside.md', '../.git/config'])
def test_a_link_that_leads_nowhere_stops_the_build_and_the_old_site_stays(tree, tmp_path, link):
    docs_site.build(tmp_path / 'site', root=tree)
    before = read_all(tmp_path / 'site')
    (tree / 'docs/b.md').write_text(f'# B\n\n## Two\n\n[x]({link})\n', encoding='utf-8')
    with pytest.raises(docs_site.Broken, match='docs/b.md: '):
        docs_site.build(tmp_path / 'site', root=tree)
    assert read_all(tmp_path / 'site') == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ['site', 'tree']


def test_a_link_to_a_hidden_file_says_why_it_cannot_be(tree, tmp_path):
    (tree / '.github').mkdir()
    (tree / '.github/ci.yml').write_text('a: 1\n', encoding='utf-8')
    (tree / 'docs/b.md').write_text('# B\n\n## Two\n\n[x](../.github/ci.yml)\n', encoding='utf-8')
    with pytest.raises(docs_site.Broken, match=r'docs/b.md: the link to ../.github/ci.yml leads to a hidden file'):
        docs_site.build(tmp_path / 'site', root=tree)


@pytest.mark.parametrize('stop', [OSError(28, 'No space left on device'), SystemExit(143), KeyboardInterrupt()])
@pytest.mark.parametrize('late', [False, True])
def test_whatever_stops_the_last_step_leaves_the_old_site(tree, tmp_path, monkeypatch, stop, late):
    docs_site.build(tmp_path / 'site', root=tree)
    before = read_all(tmp_path / 'site')
    rename = Path.rename

    def stopped(self: Path, target: Path) -> Path:
        "The move of the new site fails, or a signal comes just after the old one was moved away."
        if self.name == 'new':
            raise stop
        moved = rename(self, target)
        if late and target.name == 'old':
            raise stop
        return moved

    monkeypatch.setattr(Path, 'rename', stopped)
    (tree / 'docs/a.md').write_text('# Another A\n', encoding='utf-8')
    with pytest.raises(type(stop)):
        docs_site.build(tmp_path / 'site', root=tree)
    assert read_all(tmp_path / 'site') == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ['site', 'tree']


def test_a_page_that_went_is_gone_from_the_next_site(tree, tmp_path):
    docs_site.build(tmp_path / 'site', root=tree)
    (tree / 'eval_reports/one/report.md').unlink()
    docs_site.build(tmp_path / 'site', root=tree)
    assert not (tmp_path / 'site/eval_reports/one').exists()


def test_a_folder_that_is_no_site_of_ours_is_left_alone(tree, tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine/index.html').write_text('<p>mine')
    with pytest.raises(docs_site.Broken, match='is no site of merlin'):
        docs_site.build(tmp_path / 'mine', root=tree)
    assert read_all(tmp_path / 'mine') == {'index.html': b'<p>mine'}


def test_nothing_else_is_removed_with_an_old_site(tree, tmp_path):
    out = tmp_path / 'site'
    docs_site.build(out, root=tree)
    (out / 'mine').mkdir()
    (out / 'mine/thesis.txt').write_text('mine')
    with pytest.raises(docs_site.Broken, match='thesis.txt is not part of the site'):
        docs_site.build(out, root=tree)
    (tmp_path / 'link').symlink_to(out)
    with pytest.raises(docs_site.Broken, match='is a link'):
        docs_site.build(tmp_path / 'link', root=tree)
    with pytest.raises(docs_site.Broken, match='thesis.txt'):
        docs_site.build(tmp_path / 'nowhere/../site', root=tree)
    assert (out / 'mine/thesis.txt').read_text() == 'mine'


def test_a_page_that_cannot_be_read_is_named(tree, tmp_path):
    (tree / 'nbs/99_x.ipynb').write_text('{')
    with pytest.raises(docs_site.Broken, match='99_x.ipynb is no notebook'):
        docs_site.build(tmp_path / 'site', root=tree)
    (tree / 'nbs/99_x.ipynb').unlink()
    (tree / 'docs/index.md').write_bytes(b'\xff')
    with pytest.raises(docs_site.Broken, match='is not UTF-8'):
        docs_site.build(tmp_path / 'site', root=tree)


@pytest.fixture
def small(tmp_path):
    "A checkout with one notebook."
    for name, text in {'README.md': '# Home\n', 'docs/index.md': '# Docs\n', 'nbs/41_rank.ipynb': ''}.items():
        (tmp_path / 'small' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'small' / name).write_text(text, encoding='utf-8')
    return tmp_path / 'small'


def test_with_run_the_results_are_on_the_page_and_the_notebook_stays_as_it_is(small, tmp_path):
    path = small / 'nbs/41_rank.ipynb'
    path.write_text(notebook(words('# rank'), code('print(6 * 7)')), encoding='utf-8')
    before = path.read_bytes()
    docs_site.build(tmp_path / 'site', run=True, root=small)
    assert '<pre>42' in (tmp_path / 'site/nbs/41_rank.html').read_text(encoding='utf-8')
    assert path.read_bytes() == before


def test_with_run_a_notebook_that_fails_is_named(small, tmp_path):
    (small / 'nbs/41_rank.ipynb').write_text(notebook(words('# rank'), code('1 / 0')), encoding='utf-8')
    with pytest.raises(docs_site.Broken, match=r'nbs/41_rank.ipynb failed: .*ZeroDivisionError'):
        docs_site.build(tmp_path / 'site', run=True, root=small)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['small']
