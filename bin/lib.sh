# Shared by the scripts beside it, which source it with `self` set to their own path, symlinks followed: where the
# checkout is, a Python that works, and a .venv that is whole. Nothing here needs more than the bash 3.2 of macOS.

set -u
unset CDPATH PYTHONHOME PIP_TARGET PIP_PREFIX
ROOT=$(cd "$(dirname "$self")/.." && pwd -P) || exit 1
VENV=$ROOT/.venv
STAMP=$VENV/.merlin-installed # what was installed: the extra, the place, and the files that name the dependencies
BUSY=$VENV/.merlin-installing # there while an install runs: what it leaves behind when it is killed is not trusted
PROG=bin/$(basename "$self")

say() { printf '%s\n' "$*" >&2; }

die() { # CODE MESSAGE...: one line, and the exit code
  local code=$1
  shift
  say "$PROG: $*"
  exit "$code"
}

how_to_install() { # DEBIAN FEDORA MACOS: the command for this system, or for all three
  local sudo='sudo ' like=''
  [ "$(id -u)" = 0 ] && sudo=''
  [ -r /etc/os-release ] && like=$(. /etc/os-release && printf '%s' "${ID:-} ${ID_LIKE:-}")
  case "$(uname -s) $like" in
    Darwin*) say "  macOS:          $3" ;;
    *debian* | *ubuntu*) say "  ${sudo}apt-get install $1" ;;
    *fedora* | *rhel*) say "  ${sudo}dnf install $2" ;;
    *)
      say "  Debian, Ubuntu: ${sudo}apt-get install $1"
      say "  Fedora:         ${sudo}dnf install $2"
      say "  macOS:          $3"
      ;;
  esac
}

find_python() { # sets PYTHON to a Python >= 3.11 that can make a .venv, or says what to install
  local name path found='' bare='' minor
  # The versions that merlin is tested with come first. A version manager leaves stubs of versions that are not
  # installed on the PATH, before the real ones: only running a candidate tells.
  for name in python3.13 python3.12 python3.11 python3.14 python3; do
    while IFS= read -r path; do
      case $path in "$VENV"/*) continue ;; esac # the one that may have to be rebuilt
      minor=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || continue
      case $minor in
        3.1[1-9] | 3.[2-9][0-9]) ;;
        *) found=${found:-"$path is $minor"} && continue ;;
      esac
      if "$path" -c 'import ensurepip, venv' >/dev/null 2>&1 </dev/null; then
        PYTHON=$path
        return 0
      fi
      bare=${bare:-$minor}
    done <<EOT
$(type -aP "$name" 2>/dev/null)
EOT
  done
  if [ -n "$bare" ]; then
    say "$PROG: Python $bare is here, but not its venv and ensurepip modules. Install them, then run this again:"
    how_to_install "python$bare-venv" "python3-libs" "brew install python"
  else
    say "$PROG: merlin needs Python 3.11 or newer${found:+ ($found)}. Install it, then run this again:"
    how_to_install "python3 python3-venv" "python3" "brew install python"
  fi
  exit 2
}

need_git() {
  git --version >/dev/null 2>&1 && return 0
  say "$PROG: merlin reads its record with git, and there is none. Install it, then run this again:"
  how_to_install git git "xcode-select --install"
  exit 2
}

stamp() { # EXTRA: what the stamp says after an install of today's files
  printf '%s\n' "extra: $1" "at: $VENV"
  cat "$ROOT/settings.ini" "$ROOT/setup.py" "$ROOT/requirements/$1.txt"
}

installed() { # EXTRA: whether .venv holds it, from today's files and in this place
  [ -f "$STAMP" ] && [ ! -e "$BUSY" ] && [ "$(cat "$STAMP")" = "$(stamp "$1")" ] &&
    "$VENV/bin/python" -c '' >/dev/null 2>&1 </dev/null
}

need_writable() {
  local path
  for path in "$ROOT" "$VENV" "$ROOT/merlin.egg-info"; do
    [ -e "$path" ] && [ ! -w "$path" ] || continue
    die 2 "cannot write to $path, where merlin is installed; run it once as $(ls -ld "$path" | awk '{print $3}')," \
      "or clone merlin into a folder of your own"
  done
}

lock() { # one install at a time; the kernel lets go of the lock when the last process of an install is gone
  exec 9<"$ROOT/bin/lib.sh"
  "$PYTHON" - "$PROG" <<'EOT'
import fcntl
import sys

try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(f'{sys.argv[1]}: another install into this .venv is running; waiting for it', file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks: go on without one
EOT
}

trusted() { # whether .venv is a whole environment that was made in this place, so that pip can go on from it
  local made
  [ ! -e "$BUSY" ] && made=$(grep '^command = ' "$VENV/pyvenv.cfg" 2>/dev/null) || return 1
  case $made in *" $VENV") ;; *) return 1 ;; esac
  "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null &&
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 </dev/null
}

watch_log() { # LOG: while pip works, one line that shows how long and with what; only on a terminal
  local columns line
  columns=$(tput cols 2>/dev/null) || columns=80
  while kill -0 $$ 2>/dev/null; do
    line=$(tail -n 1 "$1" 2>/dev/null | tr -d '\r' | cut -c "1-$((columns - 9))")
    printf '\r\033[K%4ds  %s' "$SECONDS" "$line" >&2
    sleep 1
  done
}

explain() { # LOG: what pip complained about, and what to do about it
  local errors hint
  if grep -q 'DO NOT MATCH THE HASHES' "$1"; then
    say "$(sed -n '/DO NOT MATCH THE HASHES/,$p' "$1" | grep -E '^ ' | head -n 6)"
    die 3 "refused: a file of the package index is not the one that requirements/ names; do not install it by hand," \
      "find out who serves it (PIP_INDEX_URL, a proxy, pip config list); all that pip said is in $1"
  fi
  errors=$(grep -E '^ *(ERROR|error):' "$1" | tail -n 5)
  say "${errors:-$(tail -n 15 "$1")}"
  if grep -qi 'No space left' "$1"; then
    hint="the disk is full: make room on the one that holds $ROOT and ${TMPDIR:-/tmp}"
  elif grep -qiE 'connection broken|timed out|ProxyError|SSLError|setuptools.*versions: none' "$1"; then
    hint='pip could not reach a package index: check the network; HTTPS_PROXY names a proxy, PIP_INDEX_URL a mirror'
  elif grep -qiE 'No matching distribution|Failed (building|to build)' "$1"; then
    hint="there is no ready-made package for this system ($(uname -sm)) and Python; docs/troubleshooting.md has ways out"
  else
    hint='docs/troubleshooting.md may know it'
  fi
  die 1 "the install failed; $hint; all that pip said is in $1"
}

pip_in_venv() { # ARGUMENT...: install them; nobody's pip settings decide where to
  (cd "$ROOT" && PIP_USER=0 "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input "$@" </dev/null)
}

install_all() { # EXTRA: first the packages, each of which has to be the file that the lock names, then merlin itself
  # Ready-made files only, and merlin is built with what was just installed: tools that pip fetches for a build, nobody
  # has checked.
  pip_in_venv --only-binary :all: --require-hashes -r "requirements/$1.txt" &&
    pip_in_venv --no-deps --no-build-isolation -e .
}

pip_install() { # EXTRA: into .venv, which is there
  local log=$VENV/install.log watcher='' code
  : >"$log"
  [ -t 2 ] && { watch_log "$log" 9<&- & watcher=$!; }
  # The marker stays when this script or pip is interrupted, so the next run starts from an empty .venv.
  trap 'kill $watcher 2>/dev/null; say; die 130 "interrupted; run it again to start over"' INT TERM
  install_all "$1" >"$log" 2>&1
  code=$?
  trap - INT TERM
  if [ -n "$watcher" ]; then
    kill "$watcher" 2>/dev/null && wait "$watcher" 2>/dev/null
    printf '\r\033[K' >&2
  fi
  [ $code -gt 128 ] && die $code 'pip was stopped; run it again to start over'
  rm -f "$BUSY"
  [ $code = 0 ] || explain "$log"
  # Compiled once here: otherwise a user who may not write to the checkout compiles merlin at every start.
  "$VENV/bin/python" -m compileall -q "$ROOT/merlin" >>"$log" 2>&1 || :
}

prepare() { # EXTRA: make .venv right for it; costs nothing when it is
  local extra=$1
  installed dev || installed "$extra" && return 0
  need_writable
  find_python
  lock
  installed dev || installed "$extra" && return 0 # the run we waited for has done it
  grep -qs '^extra: dev$' "$STAMP" && extra=dev # a developer's .venv stays one
  SECONDS=0
  if trusted; then
    say "$PROG: bringing .venv up to date with requirements/$extra.txt"
  else
    [ -e "$VENV" ] && say "$PROG: .venv is not whole or was moved; making it anew"
    say "$PROG: installing merlin into $VENV with $("$PYTHON" --version 2>&1); this takes minutes, once"
    { rm -rf "$VENV" && mkdir "$VENV" && touch "$BUSY"; } || die 1 "cannot make $VENV"
    "$PYTHON" -m venv "$VENV" >"$VENV/install.log" 2>&1 </dev/null || explain "$VENV/install.log"
  fi
  rm -f "$STAMP"
  touch "$BUSY"
  pip_install "$extra"
  stamp "$extra" >"$STAMP"
  say "$PROG: installed in $SECONDS s"
}

run() { # MODULE ARGUMENT...: hand over to Python, with nothing of the working folder on its path
  local module=$1 at=''
  shift
  [ -x "$VENV/bin/python" ] && [ ! -e "$BUSY" ] || die 2 "merlin is not installed yet; run $ROOT/bin/quickstart first"
  if [ ! -f "$STAMP" ] && [ -f "$VENV/install.log" ]; then
    die 2 "the last install failed; run $ROOT/bin/quickstart again"
  elif [ -f "$STAMP" ]; then # none in an environment made by hand, which is not ours to judge
    { read -r at && read -r at; } <"$STAMP"
    [ "$at" = "at: $VENV" ] || die 2 "this checkout was moved or copied; run $ROOT/bin/quickstart once"
    if [ "$ROOT/settings.ini" -nt "$STAMP" ] || [ "$ROOT/requirements/local.txt" -nt "$STAMP" ] &&
      ! installed local && ! installed dev; then
      say "$PROG: warning: what merlin needs has changed since it was installed; run $ROOT/bin/quickstart"
    fi
  fi
  exec "$VENV/bin/python" -P -m "$module" "$@" 9<&-
}
