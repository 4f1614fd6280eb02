"""Secrets: eighty vendors' shapes in twenty-eight contexts, and two hundred texts that only look like secrets.

The shapes are written down here a second time, from what the vendors and the scanners say, and not derived from
`merlin.shapes`: a shape that is missing or wrong there is missed here. `python tests/test_trust_secrets.py [SEEDS]`
prints the counts.
"""

import base64
import hashlib
import html
import json
import random
import re
import string
import sys
import tempfile
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from merlin.hashes import HashFile, LiveSecrets, secret_hash
from merlin.redact import FAMILIES, Redacted, Redactor
from merlin.secrets import forms
from merlin.secrets import main as secrets_main

PLAIN = Redactor(disable=('hex32',))

LETTERS = {
    'A': string.ascii_letters + string.digits,
    'U': string.ascii_letters + string.digits + '_-',
    'W': string.ascii_letters + string.digits + '_~.-',
    'B': string.ascii_letters + string.digits + '+/',
    'N': string.ascii_uppercase + string.digits,
    'n': string.ascii_lowercase + string.digits,
    'h': '0123456789abcdef',
    'd': string.digits,
    'k': string.ascii_uppercase + '234567',
    'z': 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L',
}
# name, then one or more shapes: {A36} is 36 characters of the alphabet A, {uuid} a UUID, {jwt} the three parts of a
# JSON web token. What stands before a `>` has to be there and may stay; [a|b] is a choice that is tried in full.
VENDORS = """
github-classic        gh[p|o|u|s|r]_{A36} ghr_{A76} ghr_{A250}
github-fine           github_pat_{A22}_{A59}
gitlab-pat            glpat-{U20}
gitlab-pat-routable   [glpat-|glrt-t1_]{U27}.{n9} glpat-{U120}.{n9} glpat-{U44}.{n2}.{n7} glpat-{U44}.{n2}.{n9}
gitlab-deploy         [gldt|glrt|glft|glsoat|glcbt|glffct]-{U20} glimt-{U25}
gitlab-trigger        glptt-{h40}
gitlab-agent          glagent-{U50} glagent-{U64} gloas-{U64} GR1348941{U20}
slack-bot             xoxb-{d10}-{d10}-{A24} xox[b|a|r|o|s]-{d12}-{d13}-{A24}
slack-user            xox[p|e]-{d12}-{d12}-{d13}-{A28} xoxp-{d11}-{d11}-{d12}-{A34}
slack-app             xapp-{d1}-{N11}-{d13}-{h64}
slack-config          xoxe.xoxp-1-{A163}
slack-webhook         hooks.slack.com/services/>T{N8}/B{N8}/{A24} hooks.slack.com/services/>T{N10}/B{N10}/{A24} \
                      hooks.slack.com/workflows/>T{N8}/A{N8}/{d18}/{A24} hooks.slack.com/triggers/>T{N8}/{d13}/{h32}
aws-key-id            [AKIA|ASIA|ABIA|ACCA]{k16} A3T{N1}{k16}
aws-bedrock           ABSK{B109} ABSK{B130}== ABSK{B269}
gcp-api-key           AIza{U35}
google-oauth-secret   GOCSPX-{U28}
google-access         ya29.{U24} ya29.{U180}
azure-ad-secret       {A3}{d1}Q~{W31} {A3}{d1}Q~{W34}
stripe-live           [sk|rk]_[live|test|prod]_{A24} sk_live_{A10} rk_live_{A99}
stripe-webhook        whsec_{A32} whsec_{A48}
npm                   npm_{A36}
pypi                  [pypi-AgEIcHlwaS5vcmc|pypi-AgENdGVzdC5weXBpLm9yZw]{U60} pypi-AgEIcHlwaS5vcmc{U150}
huggingface           [hf_|api_org_]{A34}
docker-pat            dckr_pat_{U27} dckr_oat_{U32}
digitalocean          do[p|o|r]_v1_{h64}
tailscale-auth        tskey-[auth|api|client|scim]-{A17}-{A32}
grafana-sa            glsa_{A32}_{h8}
grafana-cloud         glc_{B32} glc_{B150}= glc_{B90}== glc_{B400} eyJrIjoi{A70} eyJrIjoi{A92}==
vault-service         hv[s|b|r].{U24} hvs.{U95} hvb.{U300}
terraform-cloud       {A14}.atlasv1.{U60} {A14}.atlasv1.{U70}
doppler-service       dp.[pt|ct|sa|scim|audit].{A43} dp.st.{A40} dp.st.dev.{A43} dp.st.prd_main.{A44}
sendgrid              SG.{U22}.{U43}
mailgun               key-{h32} {h32}-{h8}-{h8}
telegram              {d8}:{U35} {d10}:AA{U33} https://api.telegram.org/bot>{d10}:AA{U33}
discord-bot           [M|N|O]{U23}.{U6}.{U27} M{U25}.{U6}.{U38}
discord-webhook       https://discord.com/api/webhooks/{d18}/>{U68} https://discord.com/api/webhooks/{d19}/>{U60}
twilio-key            SK{h32}
notion                ntn_{d11}{A35} secret_{A43}
linear                lin_api_{A40}
airtable              pat{A14}.{h64}
figma                 figd_{U40}
shopify               [shpat|shpca|shppa|shpss]_{h32}
square                sq0atp-{U22} EAAA{U60}
postman               PMAK-{h24}-{h34}
databricks            dapi{h32} dapi{h32}-{d1}
pulumi                pul-{h40}
flyio                 fo1_{U43} [fm1a_|fm1r_|fm2_]{B120}
netlify               nfp_{A36} nfp_{A40}
supabase-pat          sbp_{h40} sb_secret_{U31}
sentry-user           sntryu_{h64} sntrys_eyJ{B80}_{B43} sntrys_eyJ{B150}=_{B43}
newrelic              NRAK-{N27}
1password-sa          ops_eyJ{B250} ops_eyJ{B700}==
1password-secret-key  A3-{N6}-{N6}-{N5}-{N5}-{N5}-{N5}
age                   AGE-SECRET-KEY-1{z58}
rubygems              rubygems_{h48}
atlassian             ATATT3{U186}={h8} ATATT3{U200}={N8}
groq                  gsk_{A52}
xai                   xai-{A80}
replicate             r8_{A37}
perplexity            pplx-{A48}
cloudflare-user       [cfut|cfat|cfk]_{A40}{h8} v1.0-{h24}-{h146}
proxmox               PVEAPIToken=root@pam!backup=>{uuid} PVEAPIToken=ann@pve!ci-1=>{uuid}
openshift             sha256~{U43}
portainer             ptr_{B20} ptr_{B44}= ptr_{B60}
planetscale           [pscale_tkn_|pscale_pw_|pscale_oauth_]{U43} pscale_tkn_{U32} pscale_pw_{U64}
render                rnd_{A28}
nvidia                nvapi-{U64} nvapi-{U60} nvapi-{U70}
plaid                 access-production-{uuid}
mapbox                sk.eyJ{U60}.{U22}
heroku                HRKU-AA{U58}
pinecone              pcsk_{A5}_{A63} pcsk_{A6}_{A63}
openai-legacy         sk-{A20}T3BlbkFJ{A20}
openai-proj           [sk-proj-|sk-svcacct-|sk-admin-]{U58}T3BlbkFJ{U58} sk-proj-{U74}T3BlbkFJ{U74}
anthropic-api         [sk-ant-api03-|sk-ant-admin01-]{U93}AA
anthropic-oauth       sk-ant-oat01-{U93}AA
openrouter            sk-or-v1-{h64}
deepseek              sk-{h32}
litellm               sk-{U22} sk-{A32} sk-{A48}
langfuse              sk-lf-{uuid}
jwt                   {jwt} {jwe}
""".replace('\\\n', ' ').strip().splitlines()  # fmt: skip
MADE = re.compile(r'\{(uuid|jwt|jwe|md5|sha1|sha256|sha512|[A-Za-z][0-9]+)\}')
JWT_HEADER = '{"alg":"HS256","typ":"JWT"}'
DIGESTS = ('md5', 'sha1', 'sha256', 'sha512')
FAMILY = dict.fromkeys('openai-legacy openai-proj anthropic-api anthropic-oauth openrouter'.split(), 'sk_key')
FAMILY |= {'deepseek': 'sk_key', 'litellm': 'sk_key', 'langfuse': 'sk_key', 'jwt': 'jwt', 'age': 'private_key'}


def choices(shape: str) -> Iterator[str]:
    "A shape for each of its choices."
    found = re.search(r'\[([^]]*\|[^]]*)\]', shape)
    if not found:
        yield shape
        return
    for choice in found[1].split('|'):
        yield from choices(shape[: found.start()] + choice + shape[found.end() :])


SHAPES = [
    (name, one) for name, *shapes in map(str.split, VENDORS) for shape in shapes for one in choices(shape)
]  # (vendor, shape)


def coded(text: str) -> str:
    "base64 as tokens write it."
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')


def drawn(rng: random.Random, letters: str, size: int) -> str:
    "Characters out of a hat, as a machine makes them: no mark at the ends, where marks belong to the page."
    alphabet = LETTERS[letters]
    ends = [c for c in alphabet if c.isalnum()]
    while True:
        text = ''.join(rng.choices(alphabet, k=size))
        if size < 20 or len(set(text)) > 7:
            return rng.choice(ends) + text[1:-1] + rng.choice(ends) if size > 1 else rng.choice(ends)


def filled(found: re.Match, rng: random.Random) -> str:
    "What stands for one `{…}` of a shape."
    kind = found[1]
    if kind == 'uuid':
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if kind in DIGESTS:
        return hashlib.new(kind, rng.randbytes(8)).hexdigest()
    if kind == 'jwt':
        claims = coded(f'{{"sub":"{rng.getrandbits(40)}","exp":1900000000}}')
        return f'{coded(JWT_HEADER)}.{claims}.{drawn(rng, "U", 43)}'
    if kind == 'jwe':
        return '.'.join([coded('{"alg":"dir","enc":"A256GCM"}'), '', *(drawn(rng, 'U', n) for n in (16, 90, 22))])
    return drawn(rng, kind[0], int(kind[1:]))


def made(shape: str, rng: random.Random) -> tuple[str, str]:
    "A token of this shape: (what stands in a page, the secret in it)."
    lead, _, secret = MADE.sub(lambda found: filled(found, rng), shape).rpartition('>')
    return lead + secret, secret


# Twenty-eight contexts, each in several spellings; {} is the token, {2} another one that has to go as well.
CONTEXTS = {
    'alone': ['{}', '{}\n', '\n{}\n', '  {}  '],
    'sentence': ['It was {} until yesterday.', 'use {} for now', 'Schlüssel {} gilt nicht mehr'],
    'trailing punctuation': ['it was {}.', 'it was {}, then', 'it was {};', '{}: old', 'was it {}?', 'it was {}!'],
    'closing brackets': ['(see {})', '[{}]', '<{}>', '{{{}}}', '({}).', 'f({})'],
    'ellipsis and wide punctuation': ['it was {}…', '旧：{}。', '（{}）', '「{}」', '{}，然后'],
    'table cell': ['| nas | {} | old |', '|{}|', '| key |\n|---|\n| {} |', '| `{}` | **{2}** |'],
    'inline code': ['use `{}` here', '``{}``', 'run `login {}` now'],
    'bold and italic': ['**{}**', '*{}*', '***{}***', '~~{}~~', '_{}_', '__{}__'],
    'double quotes': ['it is "{}" now', 'x = "{}"', '\\"{}\\"'],
    'single quotes': ["it is '{}' now", "x='{}';", "f('{}', 1)"],
    'quotes of print': ['the “{}” is old', 'the ‘{}’ is old', 'das „{}“ ist alt', 'le «{}» est vieux', '‹{}›'],
    'link': ['[{}](https://a.example)', '[open](https://a.example/{}?x)', '<https://a.example/{}>'],
    'URL query': ['https://a.example/x?k={}&page=2', 'https://a.example/?page=2&k={}', '/x?k={}#top', '/x?q=%2C{}%26p'],
    'curl header': ['curl -H "X-Token: {}" https://a.example', "curl -H 'X-A:{}' x", 'wget --header="X-A: {}" x'],
    'YAML': ['service:\n  value: {}\n  port: 80\n', 'x: "{}"\n', "- '{}'\n", 'x: [{}, b]\n', 'x: {}  # old\n'],
    'JSON': ['{"a": 1, "b": "{}", "c": 2}', '{"b":"{}"}', '["{}","x"]', '"{\\"b\\":\\"{}\\"}"', '\\u0022{}\\u0022'],
    'TOML': ['name = "{}"\nport = 1\n', "name = '{}'\n", 'x = {b = "{}"}\n'],
    'INI': ['[main]\nvalue = {}\nport = 1\n', 'value={}\n', 'value={} ; old\n'],
    'environment': ['export VALUE={}\n', 'VALUE={} ./run\n', 'VALUE="{}"\n', 'docker run -e VALUE={} x', '$env:V="{}"'],
    'HTML': ['<a data-key="{}">x</a>', "<a data-key='{}'>x</a>", '<td>{}</td>', '<code>{}</code><br>', '{}<br/>'],
    'entities': ['value=&quot;{}&quot;&amp;x=1', '&lt;{}&gt;', '&#39;{}&#39;', '&nbsp;{}&nbsp;'],
    'CJK neighbours': ['密钥{}已停用', 'トークン{}です', '열쇠{}입니다'],
    'emoji neighbours': ['🔑{}🔑', '✅{}❌', '🔑 {} 🔑'],
    'adjacent tokens': ['{} {2}', '{},{2}', '{}|{2}', '{}\n{2}', '{};{2}', '{}\t{2}', '"{}","{2}"'],
    'diff prefixes': ['+{}\n-old\n', '-{}\n+new\n', '@@ -1 +1 @@\n+  value: {}\n', '> {}\n< {2}\n'],
    'quote and list prefixes': ['> {}\n> more', '>{}\n', '>> {}', '- {}\n', '* {}\n', '1. {}\n', '- [ ] {}\n', '# {}\n'],
    'line ends': ['before\r\n{}\r\nafter', 'x: {}\r\ny: 1\r\n', 'a\t{}\tb', 'a\r{}\rb', 'a\u2028{}\u2028b', 'a\\n{}\\nb'],
    'code': ['client = Client("{}")', 'const k = `{}`;', "login(user, '{}')", '$k = "{}";', 'login -t {}'],
}  # fmt: skip

# What only looks like a secret, by kind; {…} is made at run time as above, digests too.
NEGATIVES = {
    'prose about passwords': [
        'Choose a password that you use nowhere else.',
        'The password for the router is on the label below it.',
        'Her password had leaked twice before we noticed.',
        'Nobody remembers the root password of beta any more.',
        'Reset the passphrase with `cryptsetup luksChangeKey`.',
        'A token expires after thirty days unless it is renewed.',
        'Secrets belong into the vault and not into the wiki.',
        'The API key was revoked on 2030-03-04 by the vendor.',
        'Rotate every credential after somebody leaves.',
        'The bearer of the token is whoever holds it.',
        'Passwords: see the sealed envelope in the safe.',
        'My key lesson: never restart both nodes at once.',
        'Basic rules for secrets: short-lived, scoped, rotated.',
        'It asks for a password, then for a second factor.',
        'Password rotation happened without an outage.',
        'Das Passwort steht im Tresor, nicht hier.',
        'Le mot de passe est dans le coffre.',
        '密码在保险柜里。',
        'The secret to a quiet night is a tested backup.',
    ],
    'names of secrets': [
        'secret: grafana-admin-password',
        'secret: `wildcard-example-lan-tls`',
        'secretName: registry-pull-secret',
        'existingSecret: postgres-credentials',
        'secretKeyRef: {name: smtp-credentials, key: password}',
        'the secret `backup-s3-credentials` in the namespace `velero`',
        'kubectl -n monitoring get secret alertmanager-main -o yaml',
        'vault kv get -mount=kv infra/unifi/api-token',
        'passwordSecretRef: ldap-bind',
        'docker secret create db_root_password ./pw.txt',
        'password_key: admin-password',
        'tokenSecretName: ci-runner-registration-token',
        'api_key_id: primary',
        'sops --encrypt --age age1 secrets.yaml',
        'credentials = "prod-deployer"',
        'password_entry: servers/beta/root',
        'token_name: renovate-bot',
        'the variables DB_PASSWORD, SMTP_PASSWORD and JWT_SECRET have to be set',
    ],
    'placeholders': [
        'password: <from the vault>',
        'api_key: "<your key here>"',
        'TOKEN=changeme',
        'TOKEN=CHANGE_ME',
        'token: xxxxxxxxxxxxxxxx',
        'password: ********',
        'secret: "{{ secret }}"',
        'secret_key = "replace-me"',
        'password=…',
        'Authorization: Bearer <access token>',
        'Authorization: Bearer YOUR_ACCESS_TOKEN',
        'export GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',
        'export OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',
        'glpat-XXXXXXXXXXXXXXXXXXXX',
        'xoxb-000000000000-000000000000-xxxxxxxxxxxxxxxxxxxxxxxx',
        'hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',
        'postgresql://user:password@host:5432/name',
        'mysql://root:<password>@db.lan/app',
        'redis://:${REDIS_PASSWORD}@cache.lan:6379/0',
        'amqp://guest:***@mq.lan:5672/',
        'https://<token>@git.lan/ops/x.git',
    ],
    'look-ups in the environment': [
        'password: $DB_PASSWORD',
        'password: ${DB_PASSWORD:?not set}',
        'password: "${SMTP_PASSWORD}"',
        'token = os.environ["HA_TOKEN"]',
        'token = os.environ.get("HA_TOKEN", "")',
        'const token = process.env.HA_TOKEN;',
        'token := os.Getenv("HA_TOKEN")',
        'let key = env::var("API_KEY")?;',
        '$token = getenv("HA_TOKEN");',
        'token: !env_var HA_TOKEN',
        'token: !secret home_assistant_token',
        'password: {{ lookup("env", "DB_PASSWORD") }}',
        'password = var.db_password',
        'password: ${{ secrets.DB_PASSWORD }}',
        'PASSWORD=$(pass show servers/beta)',
        'PGPASSWORD="$(cat /run/secrets/pg)" psql -h db',
        'curl -H "Authorization: Bearer $HA_TOKEN" https://a.example/api/',
        'password = keyring.get_password("merlin", "ann")',
        'password = config["database"]["password"]',
    ],
    'public keys': [
        'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{B43} ann@beta',
        'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ{B340}= ops@gamma',
        'ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABB{B86}= root@alpha',
        'beta.lan ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{B43}',
        'PublicKey = {B43}=',
        'public_key: {B43}=',
        '-----BEGIN PUBLIC KEY-----\n{B64}\n{B60}==\n-----END PUBLIC KEY-----',
        '-----BEGIN CERTIFICATE-----\n{B64}\n{B64}\n{B20}=\n-----END CERTIFICATE-----',
        '-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{B64}\n{B64}\n-----END PGP PUBLIC KEY BLOCK-----',
        'age1{z58}'.lower(),
        'SHA256:{B43} ann@beta (ED25519)',
        'MD5:2f:8a:11:0c:9b:7e:54:d1:aa:03:6f:28:c4:e5:90:17 root@alpha (RSA)',
        '"publicKey": "{B44}"',
        'wg set wg0 peer {B43}= allowed-ips 10.7.0.2/32',
        'pk_test_{A24}',
        'untrusted comment: minisign public key {N16}',
    ],
    'digests': [
        'sha256: {sha256}',
        'sha256:{sha256}',
        'image: app:1.2@sha256:{sha256}',
        '{sha256}  backup-2030-01-12.tar.zst',
        '{md5}  firmware.bin',
        'md5sum: {md5}',
        'etag: "{md5}"',
        'checksum = "{sha256}"',
        'sha512-{B86}==',
        'integrity="sha384-{B64}"',
        'h1:{B43}=',
        'sha1 {sha1}',
        'crc32 8d4f1a2b',
        'content digest {sha512}',
        'blake2b-256 {sha256}',
        'nix sha256-{B43}=',
        'hash of the tree: {sha1}',
    ],
    'UUIDs and other ids': [
        'UUID={uuid} / ext4 defaults 0 1',
        'disk {uuid} was replaced',
        '/dev/disk/by-uuid/{uuid}',
        '/dev/disk/by-id/wwn-0x5000c500a1b2c3d4',
        'request id {uuid}: 503',
        'vm-id: {uuid}',
        'machine-id {md5}',
        'serial WD-WX{N10}',
        'S/N: PHYS{d6}00ABCD',
        'container 3f4e5d6c7b8a',
        'pod web-7f9b4c6d8b-x2k4z restarted',
        'arn:aws:iam::123456789012:role/backup',
        'AC{h32} is the account',
        'span_id={h16} trace_id={h32}',
        'part of RAID {h8}:{h8}:{h8}:{h8}',
        '52:54:00:ab:cd:ef and fe80::5054:ff:feab:cdef/64',
        'EUI-64 00:11:22:ff:fe:33:44:55',
    ],
    'slugs and paths': [
        'docs/how-to-rotate-a-token-without-an-outage.md',
        'https://a.example/blog/2031/05/why-your-secret-is-not-secret-any-more/',
        'task-sk-clean-up-the-cellar-and-label-the-cables',
        'risk-assessment-for-the-third-quarter-of-2031.md',
        'runbooks/password-reset/step-2-verify-identity.md',
        '/etc/ssl/private/wildcard.example.lan.key',
        '/home/ann/.config/sops/age/keys.txt',
        '~/.ssh/id_ed25519_backup',
        '/run/secrets/postgres_password',
        'C:\\Users\\ann\\secrets\\kubeconfig.yaml',
        's3://backups/alpha/2030/01/12/secrets.tar.zst',
        'https://a.example:8443/auth/realms/ops/protocol/openid-connect/token',
        'http://localhost:8123/profile/security?tab=tokens',
        'node_modules/@types/jsonwebtoken/index.d.ts',
        'src/components/password-strength-indicator/index.tsx',
        'ask-the-network-team-about-key-exchange',
        'disk-full-on-alpha-2030-01-12-postmortem',
        'npm_config_cache=/var/cache/npm',
        'hf_hub_enable_hf_transfer=1',
        'whsec_ is how the signing secret begins',
    ],
    'lock files': [
        '      "integrity": "sha512-{B86}==",',
        '      "resolved": "https://packages.example.invalid/jsonwebtoken/-/jsonwebtoken-9.0.2.tgz",',
        '  integrity sha512-{B86}==',
        '  resolved "https://packages.example.invalid/tokenize/-/tokenize-1.0.0.tgz#{sha1}"',
        'github.com/golang-jwt/jwt/v5 v5.2.1 h1:{B43}=',
        'github.com/golang-jwt/jwt/v5 v5.2.1/go.mod h1:{B43}=',
        'checksum = "{sha256}"',
        '    {file = "keyring-25.2.1-py3-none-any.whl", hash = "sha256:{sha256}"},',
        '    --hash=sha256:{sha256} \\',
        'psycopg==3.2.1 --hash=sha256:{sha256}',
        '"shasum": "{sha1}",',
        'content-hash = "{sha256}"',
        '"narHash": "sha256-{B43}=",',
        '"rev": "{sha1}",',
        'source = "git+https://github.com/a/b?rev={sha1}#{sha1}"',
        'PODFILE CHECKSUM: {sha1}',
        '      sha256: "{sha256}"',
        'digest: sha256:{sha256}',
        'h1:{B43}=',
    ],
    'commits': [
        'commit {sha1}',
        'Merge: c50d2de 8c9e4aa',
        'fixed in {sha1} and 8c9e4aa',
        'index c50d2de..8c9e4aa 100644',
        'git revert {sha1}',
        'https://github.com/a/b/commit/{sha1}',
        'https://github.com/a/b/blob/{sha1}/README.md#L10-L20',
        'uses: actions/checkout@{sha1} # v4.1.7',
        'submodule lib at {sha1}',
        'pick 8c9e4aa rotate the token',
        'Signed-off-by: Ann <ann@example.invalid>',
        'Change-Id: I{sha1}',
        'gitleaks:allow {sha1}',
        'deployed {sha1} to alpha, beta and gamma',
        'https://gist.github.com/ann/{md5}',
        'refs/heads/rotate-token-{h8}',
    ],
    'code and configuration': [
        'def login(user: str, password: str) -> Token:',
        'if (password.length < 12) throw new Error("too short")',
        'type Credentials struct { User, Password string }',
        'password: Optional[SecretStr] = None',
        'this.token = token;',
        'const { accessToken, refreshToken } = await login();',
        'max_tokens: 4096',
        'tokenizer: cl100k_base',
        'token_bucket: {rate: 100, burst: 200}',
        'pad_token_id = 0',
        'PasswordAuthentication no',
        'KbdInteractiveAuthentication no',
        'auth_basic "Restricted";',
        'auth_basic_user_file /etc/nginx/htpasswd;',
        'ssl_certificate_key /etc/ssl/private/a.example.key;',
        'primary key (id), unique (token_hash)',
        'select key, value from settings where key = \'password_policy\';',
        'grant select on all tables in schema merlin to merlin_ro;',
        'password_hash = bcrypt(password, rounds=12)',
        'keyboard_layout: de',
        'passthrough: true',
        'session_timeout: 3600',
        'author: Ann Author',
        'authorized_keys: absent',
        'secure: true, httpOnly: true, sameSite: lax',
        'the header `Authorization` is missing',
    ],
}  # fmt: skip

WRAPS = ('{}', '- {}\n', '> {}\n', '| a | {} |\n', '+{}\n', 'text\r\n{}\r\ntext')


def pages(shape: str, context: str, seed: int) -> Iterator[tuple[str, list[str], str]]:
    "(page, secrets in it, the page with a NUL for each token) for each spelling of a context."
    rng = random.Random(f'{shape} {context} {seed}')
    for spelling in CONTEXTS[context]:
        if '%2C' in spelling and '=>' in shape:
            continue  # there its own `=` would be encoded
        (one, first), (two, second) = made(shape, rng), made(shape, rng)
        page = spelling.replace('{}', one).replace('{2}', two)
        secrets = [first, second] if '{2}' in spelling else [first]
        yield page, secrets, spelling.replace('{}', '\0').replace('{2}', '\0')


def leaked(text: str, secret: str) -> bool:
    "Whether eight characters in a row of the last two thirds of a secret are left."
    tail = secret[-(len(secret) * 2 // 3) :]
    return any(tail[n : n + 8] in text for n in range(max(1, len(tail) - 7)))


def trouble(redactor: Redactor, page: str, secrets: list[str], bare: str, name: str) -> str:
    "What is wrong with the redaction of this page; empty where nothing is."
    done = redactor.redact(page)
    if any(leaked(done.text, secret) for secret in secrets):
        return 'missed'
    if done.text.count('\n') != page.count('\n'):
        return 'another number of lines'
    if done.counts != {name: bare.count('\0')}:
        return f'counted {done.counts}'
    if redactor.redact(done.text) != Redacted(done.text):
        return 'a second pass changes it'
    parts = [part for part in bare.split('\0') if part.strip()]
    return '' if all(part in done.text for part in parts) else 'took what stands beside it'


@dataclass(frozen=True)
class Tally:
    "How many pages were tried, and what went wrong: (trouble, vendor, shape, page)."

    tried: int
    failed: list[tuple[str, str, str, str]]


def tally(context: str, seeds: int) -> Tally:
    "Every shape in every spelling of a context."
    tried, failed = 0, []
    for vendor, shape in SHAPES:
        family = FAMILY.get(vendor, 'vendor_token')
        for seed in range(seeds):
            for page, secrets, bare in pages(shape, context, seed):
                tried += 1
                if why := trouble(PLAIN, page, secrets, bare, family):
                    failed.append((why, vendor, shape, page))
    return Tally(tried, failed)


def touched(kind: str, seeds: int) -> Tally:
    "The texts of a kind that only look like secrets, alone and wrapped as pages wrap them."
    tried, failed = 0, []
    for line in NEGATIVES[kind]:
        for seed in range(seeds):
            rng = random.Random(f'{line} {seed}')
            text = MADE.sub(lambda found, rng=rng: filled(found, rng), line)
            for wrap in WRAPS:
                page = wrap.replace('{}', text)
                tried += 1
                if PLAIN.redact(page) != Redacted(page):
                    failed.append(('touched', kind, line, page))
    return Tally(tried, failed)


def test_the_list_is_as_long_as_it_says():
    assert len(VENDORS) == len(dict(SHAPES)) == 80 and len(SHAPES) > 150
    assert len(CONTEXTS) == 28
    lines = [line for kind in NEGATIVES.values() for line in kind]
    assert len(set(lines)) >= 200


@pytest.mark.parametrize('context', CONTEXTS)
def test_no_vendors_token_survives_in_this_context_and_nothing_beside_it_goes(context):
    done = tally(context, 1)
    assert done.tried >= len(SHAPES) and done.failed == []


@pytest.mark.parametrize('kind', NEGATIVES)
def test_what_is_no_secret_stays_whatever_stands_around_it(kind):
    done = touched(kind, 1)
    assert done.tried > 90 and done.failed == []


@pytest.mark.slow
def test_of_many_thousand_tokens_none_is_taken_for_words():
    missed = []
    for vendor, shape in SHAPES:
        rng = random.Random(shape)
        for _ in range(40):
            token, secret = made(shape, rng)
            if secret in PLAIN.redact(f'it is {token} now').text:
                missed.append((vendor, token))
    assert missed == []


LIVE = ('Drache-99!', 'correct-horse-battery', 'a=b&c', 'pa:w0rd', 'it"s-me', 'Jäger-2031', 'x(y)z9', '50%-off;')
FORMS: dict[str, Callable[[str], str]] = {
    'as it is': str,
    'percent-encoded': lambda v: quote(v, safe=''),
    'percent-encoded but for slashes': quote,
    'of a form': quote_plus,
    'in JSON': lambda v: json.dumps(v)[1:-1],
    'in HTML': html.escape,
    'base64': lambda v: base64.b64encode(v.encode()).decode(),
    'base64 without padding': lambda v: base64.b64encode(v.encode()).decode().rstrip('='),
    'decomposed letters': lambda v: unicodedata.normalize('NFD', v),
    'percent-encoded twice': lambda v: quote(quote(v, safe=''), safe=''),
    'as JavaScript encodes it': lambda v: quote(v, safe="!'()*~"),
    'in a cell of markdown': lambda v: v.replace('|', '\\|'),
    'escaped for markdown': lambda v: re.sub(r'([\\`*_{}\[\]<>()#+.!|~-])', r'\\\1', v),
    'escaped for a shell': lambda v: re.sub(r'([ "\'\\$`&;()<>|*?!#~\[\]{}^])', r'\\\1', v),
    'with its quotes doubled': lambda v: v.replace('"', '""'),
}


@pytest.fixture(scope='module')
def live() -> Iterator[Redactor]:
    "A redactor that knows the live secrets, through the file that `merlin secrets hash` writes."
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, 'in'), Path(folder, 'out')
        source.write_text(''.join(f'dull-name={value}\n' for value in LIVE), encoding='utf-8')
        assert secrets_main(['hash', str(source), '--out', str(out)]) == 0
        yield Redactor(disable=FAMILIES, secret_hashes=out)


@pytest.mark.parametrize('form', FORMS)
def test_a_live_secret_is_found_in_every_context_in_this_form(live, form):
    failed = []
    for value in LIVE:
        text = FORMS[form](value)
        for context, spellings in CONTEXTS.items():
            for spelling in spellings:
                page = spelling.replace('{}', text).replace('{2}', text)
                done = live.redact(page)
                wanted = 2 if '{2}' in spelling else 1
                if text in done.text or set(done.counts) - {'dull-name'} or done.counts['dull-name'] < wanted:
                    failed.append((context, page, done.text))
                if form == 'as it is' and live.redact(done.text) != Redacted(done.text):
                    failed.append(('again', page, done.text))
    assert failed == []


PHRASES = ('P@ss w0rd', 'to be or not', 'a=b&c/d')  # with a blank or a slash it is found where it stands by itself
BY_ITSELF = (
    'alone', 'sentence', 'trailing punctuation', 'closing brackets', 'ellipsis and wide punctuation', 'table cell',
    'inline code', 'bold and italic', 'double quotes', 'single quotes', 'quotes of print', 'TOML', 'HTML', 'diff prefixes',
    'quote and list prefixes', 'code',
)  # fmt: skip


@pytest.mark.parametrize('value', PHRASES)
def test_a_live_secret_with_a_blank_or_a_slash_is_found_where_it_stands_by_itself(value):
    redactor = knowing(value)
    for context in BY_ITSELF:
        for spelling in CONTEXTS[context]:
            page = spelling.replace('{}', value).replace('{2}', value)
            assert value not in redactor.redact(page).text, page


def knowing(*values: str) -> Redactor:
    "A redactor that knows these values and no shape."
    redactor, salt = Redactor(disable=FAMILIES), '0f' * 16
    redactor._live = LiveSecrets(HashFile(salt, {secret_hash(salt, value): 'dull-name' for value in values}))
    return redactor


# A password of any marks where it meets other marks; {} is the password. Both lists are the findings of an attack.
ODD = (
    'Drache-99!', '&lead&x9', 'a=b&c/d', '$ecret#7', '#hash-lead1', '?q=weiss', '/slash/lead9', 'tail/', 'tail&', 'tail=',
    '~tilde~9', "it's-me9", 'back\\slash9', '100%sure', '50%25', 'a+b+c9', '{curly}9', '[brack]9', '<ang>9', '(par)9', 'a|b|c9',
    '`tick`9', 'x,y,z9', '...lead9', '__und__9', '*st*ar9', '@at@9', 'a@b@c@d9', '9-8-7-6-5-4-3-2-1', 'a.b.c.d.e.f.g.h.i9',
    '===9===', ':colon:9', ';semi;9', 'a:b:c:d:e:f:g9', 'ab/cd/ef/gh9', '&&&&9999', '"quoted9"', '(all)', '-dash-9',
)  # fmt: skip
ODD_PLACES = (
    'postgres://ann:{}@db.example/x', 'redis://:{}@h:6379/0', 'ann:{}@host', 'ann:{}', '//{}@h', 'smb://d;ann:{}@h', '//h/s -U ann%{}',
    '/hooks/{}/x', '/hooks/{}', 'ann/{}', 'ann//{}', '{}/a', '/x/{}?a=1', 'https://a.example/x?k={}&b=2', '/x?k={}#top', 'k={};',
    'k: {}', '"k": "{}",', "k='{}'", 'sshpass -p{} ssh', "-p'{}'", '--password={}', '`mysql -uroot -p{} db`', 'curl -u "ann:{}" x',
    '|{}|', '**{}**', '({})', '[x](http://a:{}@h)', '<http://a:{}@h/>', '<td>{}</td>', '&quot;{}&quot;', '\\"{}\\"', 'Server=x;Pwd={};Db=y',
    'host:5432:db:ann:{}', 'WIFI:T:WPA;S:net;P:{};;', 'otpauth://x?secret={}&i=1', 's/x/{}/', '${X:-{}}', "k=>'{}'",
    '\x1b[31m{}\x1b[0m', 'x@{}@y', '\u200b{}\u200b', 'see {}.', '{},', '「{}」', '<!-- {} -->', 'echo {}|x',
)  # fmt: skip


@pytest.mark.parametrize('value', ODD)
def test_a_live_secret_of_any_marks_is_found_in_any_place(value):
    redactor = knowing(value)
    missed = [place for place in ODD_PLACES if value in redactor.redact(place.replace('{}', value)).text]
    assert missed == []


SPACED = (
    'pa ss:wo@rd',
    'my dog; ate',
    "it's me 9",
    'say "hi" 9',
    '100% sure',
    'a/b & c',
    'Grüße an 7',
    'one two three four five',
)
SPACED_PLACES = (
    'postgres://ann:{}@db.example/x', 'redis://:{}@h:6379/0', '[x](http://a:{}@h)', '//ann:{}@h', 'password: {}', 'pw = {}', 'pw="{}"',
    "--password '{}' x", '| token | {} |', '`pass {}`', '{"password": "{}"}', '\\"pw\\": \\"{}\\"', "identified by '{}' -- pw", 'Pwd={};',
    '- login: {}', '- [ ] pw: {}', 'pw: {}.', '<td>pw</td><td>{}</td>', 'pw „{}“', 'a pw\\n{}\\nb', 'pw \x1b[1m{}\x1b[0m', 'pw="{}"@x',
)  # fmt: skip


@pytest.mark.parametrize('value', SPACED)
def test_a_pass_phrase_of_any_marks_is_found_on_a_line_that_speaks_of_it_also_of_a_long_page(value):
    redactor, page = knowing(value), 'Nothing of that kind stands here, and nobody would look for it.\n' * 20
    texts = [place.replace('{}', value) for place in SPACED_PLACES]
    missed = [
        text for text in texts if value in redactor.redact(text).text + redactor.redact(page + text + '\n' + page).text
    ]
    assert missed == []


def test_what_was_seen_before_hides_nothing():
    used = knowing(*LIVE)
    for value in LIVE:
        for spellings in CONTEXTS.values():
            for spelling in spellings[::2]:
                page = spelling.replace('{}', value).replace('{2}', value)
                assert used.redact(page) == used.redact(page) == knowing(*LIVE).redact(page), page


def test_no_live_secret_is_found_in_ordinary_text(live):
    for kind in NEGATIVES.values():
        for line in kind:
            assert live.redact(line) == Redacted(line)


def main() -> int:
    "Print the counts; 1 where something failed."
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    shapes = [tally(context, seeds) for context in CONTEXTS]
    lines = [touched(kind, seeds) for kind in NEGATIVES]
    failed = [failure for done in (*shapes, *lines) for failure in done.failed]
    for failure in failed[:200]:
        print(*failure, sep=' | ')
    print(
        f'{len(VENDORS)} vendors, {len(SHAPES)} shapes, {len(CONTEXTS)} contexts with '
        f'{sum(map(len, CONTEXTS.values()))} spellings: {sum(d.tried for d in shapes):,} pages, '
        f'{sum(len(d.failed) for d in shapes)} wrong; {sum(map(len, NEGATIVES.values()))} texts that are no secrets: '
        f'{sum(d.tried for d in lines):,} pages, {sum(len(d.failed) for d in lines)} touched'
    )
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())


LONG_PAGE = 'Nothing of that kind stands here, and nobody would look for it.\n' * 20
ALONE = ('{}', '- {}', '| nas | `{}` |', 'a "{}" b', '> {}', '({})')


@pytest.mark.parametrize('place', ALONE)
@pytest.mark.parametrize('words', (4, 6, 12, 24))
def test_a_pass_phrase_that_stands_alone_is_found_on_a_long_page_that_says_nothing_of_it(words, place):
    value = ' '.join(f'{chr(97 + n)}ord{chr(122 - n)}' for n in range(words))
    text = knowing(*forms(value)).redact(f'{LONG_PAGE}\n{place.format(value)}\n\n{LONG_PAGE}').text
    assert not any(word in text for word in value.split())


@pytest.mark.parametrize('line', ('"Herbst-2031"', "'Herbst-2031'", 'Herbst-2031 # of the door', ' Herbst-2031 '))
def test_what_came_along_with_a_value_is_no_part_of_it(line):
    redactor = knowing(*forms(line))
    for text in ('x Herbst-2031 y', 'Herbst-2031¹', 'รหัสHerbst-2031ครับ'):
        assert 'Herbst' not in redactor.redact(text).text
