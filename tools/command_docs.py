"""docs/commands.md: every command and every flag, from the parsers that read them.

    python tools/command_docs.py            # print it
    python tools/command_docs.py --write    # write docs/commands.md

Each command of merlin.cli is called up to the point where it would read its arguments, so a new command, or a new flag,
is on the page the next time that it is made. tests/test_docs.py fails where the page in the tree is another.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from merlin.cli import COMMANDS
from merlin.cli import main as merlin

PAGE = Path(__file__).resolve().parents[1] / 'docs/commands.md'
SCRIPTS = {'quickstart': 'bin/quickstart', 'ingest': 'bin/ingest', 'mcp': 'bin/mcp'}  # the same, as a script of its own
HEAD = """# Commands

`bin/merlin COMMAND` in a checkout, `merlin COMMAND` where the package is installed. Every command tells the same with `--help`. This page is made by `python tools/command_docs.py --write`, and a test holds it to the code.

Exit codes: 0 done; 1 it failed, or found what it was asked to look for; 2 wrong use or configuration; 3 refused, because going on would be unsafe. `bin/merlin --version` prints the version.

| command | what it does |
|---|---|
"""


class Found(BaseException):
    "Carries a parser out of the command that made it; no command may catch it."


def parser_of(*args: str) -> argparse.ArgumentParser:
    "The parser that a command reads its arguments with."

    def stop(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise Found(self)

    with patch.object(argparse.ArgumentParser, 'parse_known_args', stop):
        try:
            merlin(args)
        except Found as found:
            return found.args[0]
    raise SystemExit(
        f'merlin {" ".join(args)} reads its arguments without argparse; tools/command_docs.py must learn how'
    )


def subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    "The parsers of a command's own commands."
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from dict.fromkeys(action.choices.values())


def parsers() -> list[tuple[str, argparse.ArgumentParser]]:
    "Every command with its parser, `mcp install` and the like included."
    out = []
    for name in COMMANDS:
        parser = parser_of(name)
        out.append((name, parser))
        out += [(sub.prog.removeprefix('merlin '), sub) for sub in subparsers(parser)]
        # A command that looks at its first word itself makes another parser for it.
        words = set(re.findall(rf'\bmerlin {name} ([a-z]+)', f'{parser.epilog or ""} {COMMANDS[name][1]}'))
        for word in sorted(words):
            other = parser_of(name, word)
            if other.prog == f'merlin {name} {word}':
                out.append((f'{name} {word}', other))
    return out


def named(action: argparse.Action) -> str:
    "An argument as it is typed."
    if action.option_strings:
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else '')
        value = '|'.join(map(str, action.choices)) if action.choices and action.nargs != 0 else value
        return ', '.join(f'`{option}{f" {value}" if value else ""}`' for option in action.option_strings)
    shown = '|'.join(map(str, action.choices)) if action.choices else action.metavar or action.dest
    return f'`{shown}`' + {'?': ', optional', '*': ', any number', '+': ', one or more'}.get(
        str(action.nargs or ''), ''
    )


def told(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    "What an argument does."
    text = (action.help or '') % {'prog': parser.prog, 'default': action.default}
    text += '' if not action.required or not action.option_strings else (' ' if text else '') + '(required)'
    return text.replace('|', '\\|').replace('<', '&lt;')


def section(name: str, parser: argparse.ArgumentParser) -> str:
    "One command."
    out = [f'## merlin {name}', parser.description or COMMANDS[name][1]]
    script = SCRIPTS.get(name)
    if script:
        out.append(f'Also as `{script}`.')
    rows = [
        f'| {named(a).replace("|", chr(92) + "|")} | {told(a, parser)} |'
        for a in parser._actions
        if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction) and a.help != argparse.SUPPRESS
    ]
    if rows:
        out.append('\n'.join(['| argument | what it does |', '|---|---|', *rows]))
    if parser.epilog:
        out.append('```text\n' + (parser.epilog % {'prog': parser.prog}).strip() + '\n```')
    return '\n\n'.join(out) + '\n'


def page() -> str:
    "The page."
    rows = ''.join(f'| [`merlin {name}`](#merlin-{name}) | {text} |\n' for name, (_, text) in COMMANDS.items())
    return '\n'.join([HEAD + rows, *(section(name, parser) for name, parser in parsers())])


if __name__ == '__main__':
    if sys.argv[1:] == ['--write']:
        PAGE.write_text(page(), encoding='utf-8')
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        print(page(), end='')
