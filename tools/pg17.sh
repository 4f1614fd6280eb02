#!/bin/bash
# A stand-alone Postgres 17 with pgvector 0.8.0, over TCP: the oldest pair merlin is tested on.
#
#   tools/pg17.sh DIR PORT    unpack it into DIR (once, about 100 MB to fetch), start it, print its DSN
#   tools/pg17.sh DIR stop    stop it; rm -r DIR removes it
#
# Debian 13 packages both; they are fetched with apt from the mirror that this machine's apt uses already, into lists
# of their own, and unpacked below DIR. Nothing of the system is changed, and Debian 12 will do. Needs root: the server
# runs in a chroot, as a user without a name outside. Everything but the DSN goes to stderr.
set -euo pipefail

SUITE=trixie
PACKAGES=(postgresql-17 postgresql-17-pgvector dash)
BIN=/usr/lib/postgresql/17/bin
DATA=/var/lib/pg/data
USER_ID=991

fail() {
    echo "pg17: $*" >&2
    exit 1
}

# The Debian mirror in apt's own settings. `apt-get update` must have run once, or apt lists no target at all.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 -E '/debian/?$' ||
        fail 'no Debian mirror in the settings of apt; run apt-get update once'
}

# An apt that knows nothing but the two suites, keeps its state in $1, and installs nothing.
fetch() {
    local state=$1 source key=/usr/share/keyrings/debian-archive-keyring.gpg suite
    source=$(mirror)
    mkdir -p "$state"/{lists/partial,cache/archives/partial,etc/apt.conf.d,etc/preferences.d,etc/trusted.gpg.d}
    : >"$state/status"
    for suite in "$SUITE" "$SUITE-updates"; do
        echo "deb [signed-by=$key] $source $suite main"
    done >"$state/etc/sources.list"
    local options=(
        -q
        -o "Dir::State=$state" -o "Dir::State::status=$state/status" -o "Dir::State::lists=$state/lists"
        -o "Dir::Cache=$state/cache"
        -o "Dir::Etc=$state/etc" -o "Dir::Etc::sourcelist=$state/etc/sources.list" -o Dir::Etc::sourceparts=-
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o APT::Update::Post-Invoke=true
    )
    apt-get "${options[@]}" update >&2
    apt-get "${options[@]}" install --yes --download-only "${PACKAGES[@]}" >&2
}

# The files of the packages below $2, less documentation, the compiler for queries and scripts in Perl.
unpack() {
    local archives=$1 root=$2 archive name
    for name in bin lib lib64 sbin; do # merged as on Debian 13, before anything is unpacked through it
        mkdir -p "$root/usr/$name"
        ln -sfn "usr/$name" "$root/$name"
    done
    for archive in "$archives"/*.deb; do
        case ${archive##*/} in libllvm* | perl* | libperl*) continue ;; esac
        dpkg-deb --fsys-tarfile "$archive" | tar -xf - -C "$root" --keep-directory-symlink \
            --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*'
    done
    mkdir -p "$root"/{etc,tmp,proc,dev,run} "$root$(dirname "$DATA")"
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0::/:/bin/sh\npg:x:%s:%s::/:/bin/sh\n' $USER_ID $USER_ID >"$root/etc/passwd"
    printf 'pg:x:%s:\n' $USER_ID >"$root/etc/group"
    chown $USER_ID:$USER_ID "$root$(dirname "$DATA")"
    for name in null zero urandom; do
        [ -e "$root/dev/$name" ] || cp -a "/dev/$name" "$root/dev/"
    done
}

# A tool of the server, inside. No file of ours stays open in it, or whoever waits for our output would wait for ever.
inside() {
    local tool=$1
    shift
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot --userspec=$USER_ID:$USER_ID "$root" "$BIN/$tool" "$@" </dev/null
}

running() {
    inside pg_ctl -D "$DATA" status >/dev/null 2>&1
}

[ $# -eq 2 ] || fail 'usage: tools/pg17.sh DIR PORT, or tools/pg17.sh DIR stop'
[ "$(id -u)" = 0 ] || fail 'needs root, for chroot'
root=$(realpath -m -- "$1")

if [ "$2" = stop ]; then
    if [ -x "$root$BIN/pg_ctl" ] && running; then
        inside pg_ctl -D "$DATA" -m fast -w stop >&2
    fi
    exit 0
fi
[[ $2 =~ ^[0-9]+$ ]] || fail "$2 is no port"
port=$2

if [ ! -e "$root/unpacked" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$root"
    fetch "$scratch"
    unpack "$scratch/cache/archives" "$root"
    touch "$root/unpacked" # last: what was interrupted is done again
fi
if [ ! -e "$root$DATA/PG_VERSION" ]; then
    inside initdb -D "$DATA" -U merlin -A trust -E UTF8 --locale-provider=builtin --locale=C.UTF-8 >&2
fi
if ! running; then
    options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c dynamic_shared_memory_type=mmap"
    options+=" -c fsync=off -c jit=off -c max_connections=100"
    inside pg_ctl -D "$DATA" -w -t 120 -l "$(dirname "$DATA")/log" -o "$options" start >/dev/null 2>&1 ||
        fail "the server did not start: $(tail -n 3 "$root$(dirname "$DATA")/log")"
fi
port=$(sed -n 4p "$root$DATA/postmaster.pid") # it may have been started with another one
echo "postgresql://merlin@127.0.0.1:$port/postgres"
