"""Rows about what is done to text before it is stored: redaction and host tags."""

import re
import secrets
from hashlib import sha256
from random import Random
from statistics import median
from typing import Any

from bench_lab import Lab
from bench_record import Pages
from bench_rounds import Side, Times, Trial

from merlin.hosts import HostIndex, HostRecord
from merlin.redact import Redactor
from merlin.secrets import hash_file

NAIVE = tuple(
    re.compile(pattern)
    for pattern in (
        r'-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----',
        r'[a-z][a-z0-9+.-]*://[^\s:/@]+:([^\s@]+)@',
        r'\bsk-[A-Za-z0-9_-]{20,}',
        r'\b(?:gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{20})',
        r'\beyJ[\w-]+\.[\w-]+\.[\w-]+',
        r'(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}',
        r'''(?i)[\w.-]*(?:password|passwd|secret|token|api[_-]?key)[\w.-]*["']?\s*[:=]\s*["']?([^\s"',;]{6,})''',
        r'\b[0-9a-fA-F]{32,}\b',
    )
)
LIVE = 50  # hashes of secrets


def spoiled_pages(size: int) -> list[str]:
    "Pages of at least so many bytes together; every 20th holds something to take out."
    pages, rnd, texts, left = Pages(11), Random(11), [], size
    while left > 0:
        text = pages.page(len(texts))[1]
        if len(texts) % 20 == 0:
            text += f'\npassword = {rnd.randbytes(12).hex()}x\n\ncurl -H "Authorization: Bearer {rnd.randbytes(24).hex()}"\n'
        texts.append(text)
        left -= len(text)
    return texts


class Redaction:
    "A redactor as a run begins with it, without anything remembered, and 50 live secrets."

    def __init__(self, lab: Lab) -> None:
        self.salt = secrets.token_hex(16)
        self.path = lab.folder / f'hashes-{self.salt}'
        self.path.write_text(hash_file([(f'secret-{n}', secrets.token_urlsafe(18)) for n in range(LIVE)], self.salt))
        self.path.chmod(0o600)
        lab.stack.callback(self.path.unlink)  # a folder that is kept would fill up
        self.ready()

    def ready(self) -> None:
        self.redactor = Redactor(secret_hashes=self.path)

    def side(self, texts: list[str]) -> Side:
        "All of the texts."
        return Side(lambda: [self.redactor.redact(text) for text in texts], self.ready)


def speed(size: int, ours: Times) -> dict[str, float]:
    "Megabytes in a second of the clock, and of the processor, which other work on the machine does not slow."
    return {
        'MB_per_s': round(size / median(ours.wall) / 1e6, 2),
        'MB_per_cpu_s': round(size / median(ours.cpu) / 1e6, 2),
    }


def redaction(lab: Lab, kilobytes: int) -> Trial:
    "All families and 50 live secrets, against eight passes of `re` and a hash for each word."
    texts, redaction = spoiled_pages(1000 * kilobytes), Redaction(lab)
    digests = frozenset(secrets.token_bytes(32) for _ in range(LIVE))

    def naive() -> None:
        for text in texts:
            for pattern in NAIVE:
                text = pattern.sub('[REDACTED]', text)
            for token in re.findall(r'[^\s"\'`=:,()<>]+', text):
                if sha256((redaction.salt + token).encode()).digest() in digests:
                    raise SystemExit('a random secret was found in a made-up page')

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'pages': len(texts), **speed(sum(map(len, texts)), ours)}

    return Trial(redaction.side(texts), Side(naive), counters)


STARTS = (
    'a', 'A-', '{', 'x.', 'password', 'password=', 'token: "', 'Bearer ', '://a:', 'eyJ', '-----BEGIN ', '=', '-----',
    "'", '0a', 'sk-', '$(', '@',
)  # fmt: skip


def hostile_lines(size: int) -> list[str]:
    "One line of so many bytes for each beginning that a pattern might try again at every byte."
    return [(start * (size // len(start) + 1))[:size] for start in STARTS]


def hostile(lab: Lab, kilobytes: int) -> Trial:
    "Lines made to be slow, against ordinary pages of the same size."
    lines, redaction = hostile_lines(1000 * kilobytes), Redaction(lab)
    pages = spoiled_pages(1000 * kilobytes * len(lines))
    size = sum(map(len, lines))
    return Trial(redaction.side(lines), redaction.side(pages), lambda ours, floor: speed(size, ours))


TOKEN = re.compile(r'[\w.-]+')


def host_tags(lab: Lab, names: int) -> Trial:
    "Which hosts a page mentions, against cutting the page into words."
    pages = Pages(13)
    texts = [pages.page(n)[1] for n in range(200)]
    words = [f'{pages.words[500 + n % 5000]}{n // 5000:02}' for n in range(names)]
    index = HostIndex(HostRecord(w, (f'{w}.lan',), (), f'hosts/{w}.md') for w in words)

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'pages': len(texts), 'tags': sum(len(index.find(text)) for text in texts)}

    ours = Side(lambda: [index.find(text) for text in texts])
    return Trial(ours, Side(lambda: [TOKEN.findall(text) for text in texts]), counters)
