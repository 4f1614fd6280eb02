"""The documentation as a site of plain HTML: docs, notebooks and reports in one reading order, made offline.

    bin/docs                  # into _site; open _site/index.html
    bin/docs --out FOLDER     # elsewhere
    bin/docs --run            # notebooks are executed first, in copies, so that their results and pictures are there

A page keeps its place in the tree (docs/tools.md becomes docs/tools.html), so the links that work in the repository
work on the site. A file that a page links to and that is no page, such as a layout or a script, is shown as text.
docs/index.md is the order of the docs. A link that leads nowhere fails the build, and the old site stays.
"""

import argparse
import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from urllib.parse import quote, unquote, urlsplit

import jinja2
import nbformat
from markdown_it import MarkdownIt
from nbconvert.filters.ansi import ansi2html
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]
THEME = ROOT / 'docs/theme'
MARK = '<meta name="generator" content="merlin docs">'
LISTING = 'files.txt'  # of a site: what it holds, so that nothing else is ever removed with it
STYLES = {'light': 'friendly', 'dark': 'github-dark'}  # of Pygments
PICTURES = {'.png', '.svg', '.jpg', '.gif'}
SHOWN = ('image/svg+xml', 'image/png', 'text/html', 'text/plain')  # of what a cell shows, the first that is there
DIRECTIVE = re.compile(r'^#\|.*\n?', re.M)  # a line for nbdev, not for a reader
BANDS = (  # notebooks by number, up to and including
    (15, 'Notebooks: from git to sections'),
    (22, 'Notebooks: models and database'),
    (38, 'Notebooks: the index'),
    (49, 'Notebooks: search'),
    (58, 'Notebooks: serving Claude'),
    (69, 'Notebooks: measuring'),
    (99, 'Notebooks: commands'),
)


class Broken(Exception):
    "The site can't be made; what, where, and what to do."


@dataclass
class Page:
    "One page of the site."

    source: str  # path in the repository
    group: str  # heading in the sidebar; '' for a page that is only linked to
    target: str = ''  # path in the site
    title: str = ''
    about: str = ''  # one line, where the page has one
    body: str = ''
    is_folder: bool = False
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, id, text as HTML


def target_of(source: str) -> str:
    "Where a page stands in the site."
    path = PurePosixPath(source)
    if path.suffix not in ('.md', '.ipynb'):
        return f'{source}.html'
    return str(path.with_name('index.html') if path.stem == 'README' else path.with_suffix('.html'))


def docs_in_order(root: Path) -> list[str]:
    "The pages that docs/index.md links to, in its order; one that it forgets comes last."
    contents = read_page(root / 'docs/index.md')
    linked = [normpath(f'docs/{target}') for target in re.findall(r'\]\(([^)#\s]+\.md)\)', contents)]
    found = sorted(str(p.relative_to(root)) for p in root.glob('docs/*.md'))
    return list(dict.fromkeys(['docs/index.md', *linked, *found]))


def band(name: str) -> str:
    "The sidebar heading of a notebook in nbs/."
    number = re.match(r'\d+', name)
    return next(title for last, title in BANDS if int(number[0]) <= last) if number else BANDS[0][1]


def chapters(root: Path) -> list[Page]:
    "Every page of the sidebar, in reading order."
    docs = [path for path in docs_in_order(root) if path != 'README.md']
    pages = [Page('README.md', 'Start'), *(Page(p, 'Docs') for p in docs)]
    pages += [Page(p, 'Docs') for p in ('ARCHITECTURE.md', 'CONTRIBUTING.md', 'CHANGELOG.md') if p not in docs]
    pages.append(Page('nbs/index.ipynb', 'Start'))
    pages += [Page(f'nbs/{p.name}', band(p.name)) for p in sorted(root.glob('nbs/[0-9]*.ipynb'))]
    for group, pattern in (
        ('Evaluation', 'nbs/eval/*.ipynb'),
        ('Diagnostics', 'nbs/diagnostics/*.ipynb'),
        ('Benchmark', 'nbs/bench/*.ipynb'),
        ('Reports', 'eval_reports/**/*.md'),
    ):
        # A folder's README comes before what it lists.
        found = sorted(root.glob(pattern), key=lambda p: (p.parent, p.stem != 'README', p.name))
        pages += [Page(str(p.relative_to(root)), group) for p in found]
    pages = [page for page in pages if (root / page.source).is_file()]
    groups = list(dict.fromkeys(page.group for page in pages))
    for page in pages:
        page.target = target_of(page.source)
    return sorted(pages, key=lambda page: groups.index(page.group))


def slug(text: str, taken: set[str]) -> str:
    "The anchor of a heading, as GitHub makes it."
    name = re.sub(r'[^\w\- ]', '', text.strip().lower()).replace(' ', '-') or 'section'
    free, n = name, 0
    while free in taken:
        n += 1
        free = f'{name}-{n}'
    taken.add(free)
    return free


@cache
def formatter() -> HtmlFormatter:
    "What marks up code; the colours stand in the style sheet."
    return HtmlFormatter(cssclass='highlight')


def code_html(text: str, language: str = '') -> str:
    "A code block with its words marked up."
    try:
        lexer = get_lexer_by_name(language) if language else TextLexer()
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, formatter())


def output_html(output: nbformat.NotebookNode) -> str:
    "What a cell printed, showed, drew or raised."
    if output.output_type == 'stream':
        return f'<div class="output {output.name}"><pre>{ansi2html(output.text)}</pre></div>\n'
    if output.output_type == 'error':
        return f'<div class="output stderr"><pre>{ansi2html(chr(10).join(output.traceback))}</pre></div>\n'
    data = {kind: ''.join(text) for kind, text in output.data.items() if kind in SHOWN}
    kind = next((kind for kind in SHOWN if kind in data), '')
    said = escape(''.join(output.data.get('text/plain', '')))
    if kind == 'image/svg+xml':
        encoded = base64.b64encode(data[kind].encode()).decode()
        return f'<div class="output picture"><img src="data:{kind};base64,{encoded}" alt="{said}"></div>\n'
    if kind == 'image/png':
        encoded = escape(data[kind].replace('\n', ''), quote=True)
        return f'<div class="output picture"><img src="data:{kind};base64,{encoded}" alt="{said}"></div>\n'
    if kind == 'text/html':
        return f'<div class="output">{data[kind]}</div>\n'
    return f'<div class="output"><pre>{ansi2html(data.get(kind, ""))}</pre></div>\n' if kind else ''


def read_page(path: Path) -> str:
    "The text of a page. Raises Broken where it is no UTF-8."
    try:
        return path.read_text(encoding='utf-8')
    except UnicodeDecodeError:
        raise Broken(f'{path} is not UTF-8') from None


class Site:
    "The pages, and everything that must be made so that no link leads nowhere."

    def __init__(self, root: Path, notebooks: Path) -> None:
        self.root, self.notebooks = root, notebooks  # the notebooks may be executed copies
        self.pages = chapters(root)
        self.by_source = {page.source: page for page in self.pages}
        self.extra: dict[str, Page] = {}  # by source: files and folders that pages link to
        self.files: set[str] = set()  # pictures, copied as they are
        self.fragments: list[tuple[Page, Page, str]] = []  # links into a page, checked at the end
        self.markdown = MarkdownIt('gfm-like', {'linkify': False, 'html': False, 'highlight': self.highlighted})
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(THEME), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
        )

    @staticmethod
    def highlighted(text: str, language: str, attributes: str) -> str:
        "For markdown-it, which takes what begins with <pre as it is."
        inner = code_html(text, language)
        return re.sub(
            r'^<div class="highlight"><pre>(.*)</pre></div>\n?$', r'<pre class="highlight">\1</pre>', inner, flags=re.S
        )

    def link(self, page: Page, href: str) -> str:
        "A link of a page, as it must be on the site."
        parts = urlsplit(href)
        if parts.scheme or parts.netloc:
            return href
        base = page.source if page.is_folder else PurePosixPath(page.source).parent
        path = normpath(f'{base}/{unquote(parts.path)}') if parts.path else page.source
        goal = self.goal(page, path, href)
        if parts.fragment and isinstance(goal, Page):
            self.fragments.append((page, goal, unquote(parts.fragment)))
        target = goal.target if isinstance(goal, Page) else goal
        here = relpath(target, PurePosixPath(page.target).parent)
        fragment = f'#{parts.fragment}' if parts.fragment else ''
        return fragment if goal is page and fragment else quote(here) + fragment

    def goal(self, page: Page, path: str, href: str) -> Page | str:
        "What a path of the repository is on the site."
        path = next((p for p in (path, f'{path}/README.md', f'{path}/index.ipynb') if p in self.by_source), path)
        if path in self.by_source:
            return self.by_source[path]
        file = self.root / path
        if path.startswith('..') or not file.exists():
            raise Broken(f'{page.source}: the link to {href} leads nowhere; correct it')
        if any(part.startswith('.') and part != '.' for part in PurePosixPath(path).parts):
            why = 'leads to a hidden file, and those are no part of the site'
            raise Broken(f'{page.source}: the link to {href} {why}; name the path without a link')
        if file.suffix in PICTURES:
            self.files.add(path)
            return path
        if path not in self.extra:
            target = f'{path}/index.html' if file.is_dir() else f'{path}.html'
            self.extra[path] = Page(path, '', target, path, is_folder=file.is_dir())
        return self.extra[path]

    def render(self, page: Page, text: str, taken: set[str]) -> str:
        "Markdown as HTML, with the links of the site; headings are noted in the page."
        tokens = self.markdown.parse(text)
        for n, token in enumerate(tokens):
            for child in token.children or ():
                for name in ('href', 'src'):
                    if name in child.attrs:
                        child.attrs[name] = self.link(page, str(child.attrs[name]))
            if token.type == 'heading_open':
                inline = tokens[n + 1]
                plain = ''.join(c.content for c in inline.children or () if c.type in ('text', 'code_inline'))
                token.attrs['id'] = slug(plain, taken)
                words = [c for c in inline.children or () if not c.type.startswith('link')]
                shown = self.markdown.renderer.render(words, self.markdown.options, {})
                page.headings.append((int(token.tag[1]), token.attrs['id'], shown))
        return self.markdown.renderer.render(tokens, self.markdown.options, {})

    def notebook(self, page: Page) -> str:
        "A notebook as HTML: words, code without the lines that nbdev reads, and what was printed or drawn."
        try:
            nb = nbformat.read(self.notebooks / PurePosixPath(page.source).relative_to('nbs'), as_version=4)
        except ValueError as error:
            raise Broken(f'{page.source} is no notebook: {str(error)[:100]}') from None
        out, taken = [], set()
        for cell in nb.cells:
            source = DIRECTIVE.sub('', cell.source).strip('\n') if cell.cell_type == 'code' else cell.source
            if not source.strip() or cell.cell_type == 'raw':
                continue
            if cell.cell_type == 'markdown':
                out.append(self.render(page, source, taken))
                continue
            exported = ' exported' if re.search(r'^#\|\s*export', cell.source, re.M) else ''
            out.append(f'<div class="cell{exported}">\n{code_html(source, "python")}</div>\n')
            out += [output_html(output) for output in cell.outputs]
        return ''.join(out)

    def folder(self, page: Page) -> str:
        "A folder that has no page of its own: the pages in it."
        inside = [p for p in self.pages if p.source.startswith(f'{page.source}/')]
        files = sorted(
            p.name for p in (self.root / page.source).iterdir() if p.is_file() and not p.name.startswith('.')
        )
        listed = [f'- [{p.title}]({relpath(p.source, page.source)}) – {p.about}' for p in inside] or [
            f'- [{name}]({quote(name)})' for name in files
        ]
        return self.render(page, f'# {page.title}\n\n' + '\n'.join(listed), set())

    def text(self, page: Page) -> str:
        "A file that is no page, as text."
        text = (self.root / page.source).read_text(encoding='utf-8', errors='replace')
        try:
            lexer = get_lexer_for_filename(page.source, text)
        except ClassNotFound:
            lexer = get_lexer_by_name('bash') if text.startswith('#!') else TextLexer()
        return f'<h1>{escape(page.source)}</h1>\n{highlight(text, lexer, formatter())}'

    def read(self) -> None:
        "Render every page, then whatever they link to."
        for page in self.pages:
            if page.source.endswith('.ipynb'):
                page.body = self.notebook(page)
            else:
                page.body = self.render(page, read_page(self.root / page.source), set())
            page.title = next((text for level, _, text in page.headings if level == 1), page.source)
            about = re.search(r'<blockquote>\s*<p>(.*?)</p>', page.body, re.S)
            page.about = unescape(re.sub(r'<[^>]+>', '', about[1])) if about and page.source.endswith('.ipynb') else ''
        while waiting := [page for page in self.extra.values() if not page.body]:
            for page in waiting:
                page.body = self.folder(page) if page.is_folder else self.text(page)
        for page, goal, fragment in self.fragments:
            if fragment not in {name for _, name, _ in goal.headings}:
                raise Broken(f'{page.source}: {goal.source} has no heading #{fragment}; correct the link')

    def write(self, out: Path) -> int:
        "Write the site; the number of pages."
        template = self.environment.get_template('page.html')
        groups: dict[str, list[Page]] = {}
        for page in self.pages:
            groups.setdefault(page.group, []).append(page)
        made = [*self.pages, *self.extra.values()]
        for page in made:
            n = self.pages.index(page) if page.group else None
            around = (
                self.pages[n - 1] if n else None,
                self.pages[n + 1] if n is not None and n + 1 < len(self.pages) else None,
            )
            here = PurePosixPath(page.target).parent
            html = template.render(
                page=page, groups=groups, before=around[0], after=around[1], mark=MARK,
                to=lambda target, here=here: quote(relpath(target, here)),
            )  # fmt: skip
            file = out / page.target
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(html, encoding='utf-8')
        for path in sorted(self.files):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, out / path)
        (out / 'site.css').write_text(style(), encoding='utf-8')
        return len(made)


def style() -> str:
    "The style sheet: ours, and the colours of code by day and by night."
    light, dark = (HtmlFormatter(style=STYLES[name]).get_style_defs('.highlight') for name in ('light', 'dark'))
    ours = (THEME / 'site.css').read_text(encoding='utf-8')
    return f'{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{ours}'


def execute(sources: list[Path], root: Path, into: Path) -> None:
    "Run notebooks as `bin/test` does, away from everybody's index, and keep the results in copies."
    from merlin.postgres import Server

    home = into / 'home'
    tools = Path(sys.executable).parent
    names = ('MERLIN_', 'EMBED_', 'PG', 'DATABASE_URL', 'REPO_DIR', 'SECRET_HASHES', 'OPENAI_', 'VOYAGE_')
    env = {k: v for k, v in os.environ.items() if not k.startswith(names) or k.startswith('MERLIN_PG_')}
    env |= {'MERLIN_HOME': str(home), 'MERLIN_TEST_HOME': str(home), 'PYTHONPATH': str(root), 'IN_TEST': '1'}

    def one(source: Path) -> None:
        dest = into / source.relative_to(root / 'nbs')
        command = [tools / 'exec_nb', source.name, '--dest', dest, '--exc_stop']
        done = subprocess.run(command, cwd=source.parent, env=env, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or 'no output').splitlines()[-1]
            raise Broken(f'{source.relative_to(root)} failed: {last[:200]}; run it with tools/nb.py run')

    pool = ThreadPoolExecutor(2)
    try:
        for done in [pool.submit(one, source) for source in sources]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
        Server(home).stop()


@contextmanager
def notebooks(root: Path, run: bool) -> Iterator[Path]:
    "The folder of notebooks to read: the one in the tree, or a copy with results."
    if not run:
        yield root / 'nbs'
        return
    with tempfile.TemporaryDirectory(prefix='merlin-docs-') as folder:
        os.chmod(folder, 0o755)  # as root the embedded server runs as somebody else
        sources = [root / page.source for page in chapters(root) if page.source.endswith('.ipynb')]
        for source in sources:
            (Path(folder) / source.relative_to(root / 'nbs')).parent.mkdir(parents=True, exist_ok=True)
        execute(sources, root, Path(folder))
        yield Path(folder)


def check_replaceable(out: Path) -> None:
    "Only a site of ours with nothing else in it, or an empty folder, may be replaced."
    if out.is_symlink():
        raise Broken(f'{out} is a link; name the folder itself')
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = set((out / LISTING).read_text(encoding='utf-8').splitlines())
        marked = MARK in (out / 'index.html').read_text(encoding='utf-8', errors='replace')
    except (OSError, UnicodeDecodeError):
        ours, marked = set(), False
    if not marked:
        raise Broken(f'{out} is there and is no site of merlin; name another --out, or move it away')
    held = sorted(p.relative_to(out).as_posix() for p in out.rglob('*') if not p.is_dir() or p.is_symlink())
    if foreign := [name for name in held if name not in ours]:
        raise Broken(f'{out / foreign[0]} is not part of the site; move it elsewhere')


def build(out: Path, run: bool = False, root: Path = ROOT) -> int:
    "Make the site beside its place and move it there in one step; the number of pages."
    out = Path(os.path.abspath(out))  # without `..`: what is checked is what is replaced
    check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with notebooks(root, run) as source, tempfile.TemporaryDirectory(prefix=f'{out.name}.', dir=out.parent) as folder:
        site = Site(root, source)
        site.read()
        new, old = Path(folder) / 'new', Path(folder) / 'old'
        new.mkdir()
        count = site.write(new)
        held = sorted(p.relative_to(new).as_posix() for p in new.rglob('*') if p.is_file())
        (new / LISTING).write_text('\n'.join([*held, LISTING]) + '\n', encoding='utf-8')
        check_replaceable(out)  # again: writing took a while
        put(new, out, old)
    return count


def put(new: Path, out: Path, old: Path) -> None:
    "Move the new site to its place; whatever stops that, SIGTERM too, the old one stands there again."
    try:
        if out.exists():
            out.rename(old)
        new.rename(out)
    finally:
        if old.exists() and not out.exists():
            old.rename(out)


def main(argv: list[str] | None = None) -> int:
    "Build the site; the exit code."
    p = argparse.ArgumentParser(prog='bin/docs', description='Make the documentation as a site of plain HTML.')
    p.add_argument('--out', type=Path, default=ROOT / '_site', help='where (_site in the checkout)')
    p.add_argument('--run', action='store_true', help='execute the notebooks first, in copies; this takes minutes')
    args = p.parse_args(argv)
    out = args.out.absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run that is stopped cleans up
    try:
        count = build(out, args.run)
    except (Broken, OSError) as error:
        print(f'bin/docs: {error}', file=sys.stderr)
        return 1
    print(f'{count} pages; open {out / "index.html"}')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
