"""A server for a model, as Claude Code starts it, that is asked one question after the other."""

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faults_lab import Lab

CLIENT = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'clientInfo': {'name': 'faults', 'version': '1'}}


class Asker:
    "One server and its only client."

    def __init__(self, lab: 'Lab', clock: float = 0.0):
        self.process = lab.start('merlin.mcp_server', order={'clock': clock} if clock else {})
        self.number = 0
        self.send('initialize', CLIENT)
        self.process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')

    def send(self, method: str, params: dict[str, Any]) -> str:
        "The answer to one request, as it came."
        self.number += 1
        line = json.dumps({'jsonrpc': '2.0', 'id': self.number, 'method': method, 'params': params})
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def ask(self, tool: str, arguments: dict[str, Any]) -> str:
        "What a tool answers, with `isError` told."
        answer = json.loads(
            self.send('tools/call', {'name': tool, 'arguments': arguments}) or '{"error": "it hung up"}'
        )
        result = answer.get('result') or {'isError': True, **answer}
        return json.dumps({'isError': bool(result.get('isError')), **result}, ensure_ascii=False)

    def end(self) -> int:
        "Close its input; how it ended."
        self.process.stdin.close()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()
            self.process.stderr.close()
