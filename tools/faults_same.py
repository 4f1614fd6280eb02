"""Whether two indexes are the same: every row but for its number, the indexes and rights, and the answers to questions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import yaml

from merlin.config import Config
from merlin.errors import MerlinError
from merlin.history import host_history
from merlin.lexical import BLOCK
from merlin.search import search
from merlin.store import read_meta
from merlin.testing import WordEmbedder

ROOT = Path(__file__).resolve().parents[1]
TODAY = date(2030, 2, 1)  # for recency: the answers are those of one day
MORE = (  # besides the cases of the fixture record: filters, exact text, and the history of a host
    {'query': 'disk full', 'host': 'beta'},
    {'query': 'backup', 'type': 'journal'},
    {'query': 'restore the database', 'since': '2030-01-15'},
    {'query': 'certificate', 'until': '2030-01-15'},
    {'query': 'zpool', 'exact': True},
    {'query': 'restore', 'exact': True},
    {'query': 'what changed in round two'},
    {'query': 'the new machine in the cellar', 'host': 'delta'},
    {'query': 'door'},
    {'host': 'alpha'},
    {'host': 'beta', 'topic': 'cable'},
    {'host': 'delta'},
)

DOCUMENTS = "select path, to_jsonb(d) - 'id' from documents d order by path"
CHUNKS = """
select d.path, c.ordinal, to_jsonb(c) - '{id,document_id,vector_id}'::text[], encode(v.text_sha, 'hex')
from chunks c left join documents d on d.id = c.document_id left join vectors v on v.id = c.vector_id order by 1, 2
"""
VECTORS = "select encode(text_sha, 'hex'), embedding::text from vectors order by 1"
POSTINGS = f"""
select p.term, d.path, c.ordinal, e & ((1 << 21) - 1) from lexical_postings p cross join unnest(p.entries) e
left join chunks c on c.id = p.block::bigint * {BLOCK} + (e >> 21) left join documents d on d.id = c.document_id
order by 1, 2, 3, 4
"""
LENGTHS = """
select d.path, c.ordinal, l.length from lexical_chunks l left join chunks c on c.id = l.chunk
left join documents d on d.id = c.document_id order by 1, 2, 3
"""
TOTALS = 'select * from lexical_totals'
KEYS = """
select 'index', indexdef from pg_indexes where schemaname = current_schema()
union all select 'invalid', indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relnamespace = current_schema()::regnamespace and not (indisvalid and indisready)
union all select 'constraint', conrelid::regclass || ' ' || pg_get_constraintdef(oid) from pg_constraint
where connamespace = current_schema()::regnamespace and contype <> 'n'
union all select 'rights', relname || ' ' || coalesce(relacl::text, '') from pg_class
where relnamespace = current_schema()::regnamespace and relkind = 'r'
union all select 'rights', nspacl::text from pg_namespace where nspname = current_schema()
order by 1, 2
"""
TABLES = {
    'documents': DOCUMENTS, 'chunks': CHUNKS, 'vectors': VECTORS, 'lexical_postings': POSTINGS,
    'lexical_chunks': LENGTHS, 'lexical_totals': TOTALS, 'keys': KEYS,
}  # fmt: skip
CLOCK = ('last_started_at', 'last_ingest_at', 'fetched')  # what two good runs may differ in


@dataclass(frozen=True)
class Snapshot:
    "All that an index says, table by table, and its answers."

    tables: Mapping[str, Sequence[Any]]
    answers: Sequence[str]


def meta_rows(conn: psycopg.Connection, folder: str) -> list[Any]:
    "What meta holds, without the time of day and the place of the record."
    meta = {key: value for key, value in read_meta(conn).items() if key not in CLOCK}
    return sorted((key, json.dumps(value, sort_keys=True).replace(folder, 'DIR')) for key, value in meta.items())


def rows(conn: psycopg.Connection, config: Config) -> dict[str, list[Any]]:
    "Every table in an order that no number of a row decides."
    found = {table: conn.execute(statement).fetchall() for table, statement in TABLES.items()}
    schema = f' ON {config.database.schema}.'
    found['keys'] = [(kind, (text or '').replace(schema, ' ON ')) for kind, text in found['keys']]
    return {**found, 'meta': meta_rows(conn, str(config.repos[0].dir))}


def questions() -> list[dict[str, Any]]:
    "What is asked: at least fifty."
    cases = yaml.safe_load((ROOT / 'nbs/eval/cases/fixture.yaml').read_text(encoding='utf-8'))['cases']
    return [{'query': case['q']} for case in cases] + list(MORE)


class Named(WordEmbedder):
    "The words embedder under the name by which the campaign's server of vectors is known."

    identity = 'openai:words:64'


def answer(conn: psycopg.Connection, config: Config, asked: Mapping[str, Any]) -> str:
    "One answer: sections in their order, with all that is said of them; or why there is none."
    ask = search if 'query' in asked else host_history
    try:
        found = ask(conn, **asked, config=config, embed=Named(), today=TODAY)
    except MerlinError as error:
        return str(error)
    return json.dumps([replace(hit, reasons={}).as_json() for hit in found.hits], default=str)


def snapshot(conn: psycopg.Connection, config: Config) -> Snapshot:
    "The index behind this connection."
    answers = [f'{asked}: {answer(conn, config, asked)}' for asked in questions()]
    return Snapshot(rows(conn, config), answers)


def differences(found: Mapping[str, Sequence[Any]], wanted: Mapping[str, Sequence[Any]]) -> list[str]:
    "Where the tables differ, a line each with the first row that does."
    out = []
    for table, rows_wanted in wanted.items():
        have, want = [list(map(repr, side)) for side in (found[table], rows_wanted)]
        if have != want:
            extra, missing = [[r for r in a if r not in set(b)] for a, b in ((have, want), (want, have))]
            shown = '; '.join(
                f'{word} {lines[0][:200]}' for word, lines in (('has', extra), ('lacks', missing)) if lines
            )
            out.append(f'{table}: {len(have)} rows, {len(want)} wanted; {shown or "rows twice, or their order"}')
    return out


def compare(found: Snapshot, wanted: Snapshot) -> list[str]:
    "Where the indexes differ; none: they are the same."
    out = differences(found.tables, wanted.tables)
    wrong = [a for a, b in zip(found.answers, wanted.answers, strict=True) if a != b]
    return out + [f'{len(wrong)} of {len(found.answers)} answers differ, the first to {a[:120]}' for a in wrong[:1]]
