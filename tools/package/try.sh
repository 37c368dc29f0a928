#!/usr/bin/env bash
# Tries what ./package.sh has put into dist in bare systems, which it makes by debootstrap under /var/tmp/baltoro-try and keeps.
# Needs root, debootstrap and python3; all that is asked is on this machine.
#
#   try.sh archive SYSTEM    bullseye (Debian 11), jammy (Ubuntu 22.04, UBUNTU_MIRROR is where from) or bookworm: without rights
#   try.sh deb               installed by apt in Debian 12, served by its flags, and purged
#   try.sh wheel             installed by pip in a fresh environment of this machine
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD trials=/var/tmp/baltoro-try server=
root=

bare() {
  root=$trials/$1
  if [ ! -e "$root/.ready" ]; then
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    case $1 in
      # Debian does not have the keys of Ubuntu; what is unpacked here is thrown away.
      jammy) debootstrap --variant=minbase --no-check-gpg jammy "$root" "$UBUNTU_MIRROR" ;;
      *) debootstrap --variant=minbase "$1" "$root" "${DEBIAN_MIRROR:-$(tools/package/mirror.sh)}/debian" ;;
    esac >"$trials/$1.log"
    touch "$root/.ready"
  fi
  mount -t proc proc "$root/proc"
}
leave() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  [ -z "$root" ] || umount "$root/proc" 2>/dev/null || true
}
trap leave EXIT

# As nobody in the bare system, with as little of an environment as a service has.
inside() {
  chroot --userspec=65534:65534 "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp/home "$@"
}

# ask NAME COMMAND...: COMMAND serves the pocket model; one question by HTTP.
ask() {
  local log=$trials/serve.log url answer
  "$@" --host 127.0.0.1 --port 0 >"$log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    url=$(sed -n 's/.*Ready: \(http[^ ]*\).*/\1/p' "$log")
    [ -z "$url" ] || break
    kill -0 $server 2>/dev/null || break
    sleep 0.2
  done
  [ -n "$url" ] || { cat "$log" >&2; echo "the server did not start" >&2; exit 1; }
  answer=$(curl -sS --max-time 60 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "What is 27 + 58?"}], "temperature": 0}')
  grep -q '27 + 58 = 85' <<<"$answer" || { echo "not the answer that was expected: $answer" >&2; exit 1; }
  pkill -TERM -P $server || true
  kill $server 2>/dev/null || true
  wait $server || true
  server=
  echo "  serve: the pocket model answered"
}

# pulls COMMAND...: COMMAND downloads from a hub on this machine, and refuses a TLS server that nobody vouches for.
pulls() {
  PYTHONPATH=$top/tests/e2e python3 - "$trials" "$@" <<'END'
import http.server, pathlib, ssl, subprocess, sys, threading
from hub import Hub
folder, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
files = {"config.json": b'{"a": 1}\n', "model.safetensors": bytes(3_000_000)}
with Hub(files, lfs=["model.safetensors"]) as hub:
    ran = subprocess.run([word.replace("HUB", hub.url) for word in command], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    print("  pull:", ran.stdout.strip())
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.handle_error = lambda *_: None
threading.Thread(target=server.serve_forever, daemon=True).start()
ran = subprocess.run([word.replace("HUB", f"https://localhost:{server.server_port}") for word in command], capture_output=True, text=True)
assert ran.returncode != 0 and "self-signed certificate" in ran.stderr, ran.stderr
print("  pull by TLS:", ran.stderr.strip().splitlines()[-1])
END
}

case "${1:-}" in
  archive)
    bare "$2"
    archive=$(ls -t dist/baltoro-*-linux-x86_64.tar.gz | head -n 1)
    rm -rf "$root/tmp/home"
    mkdir -p "$root/tmp/home"
    tar -C "$root/tmp/home" -xzf "$archive"
    chown -R 65534:65534 "$root/tmp/home"
    folder=/tmp/home/$(basename "$archive" .tar.gz)
    echo "$2, $(inside /usr/bin/ldd --version | head -n 1):"
    echo "  $(inside $folder/bin/baltoro --version); $(inside $folder/bin/vllm --version 2>/dev/null)"
    # An exception that is thrown and caught: by the reader of YAML.
    printf 'port: [1\n' >"$root/tmp/home/wrong.yaml"
    wrong=$(inside $folder/bin/baltoro serve --config /tmp/home/wrong.yaml 2>&1 || true)
    grep -q 'wrong.yaml' <<<"$wrong" || { echo "$wrong" >&2; exit 1; }
    echo "  a wrong file of flags: $(tail -n 1 <<<"$wrong")"
    ask inside $folder/bin/baltoro serve
    pulls chroot --userspec=65534:65534 "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp/home HF_ENDPOINT=HUB \
      $folder/bin/baltoro pull org/name --retries 0
    ;;
  deb)
    bare bookworm
    package=$(ls -t dist/baltoro_*_amd64.deb | head -n 1)
    cp "$package" "$root/tmp/baltoro.deb"
    as_root() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
    as_root apt-get -qq update
    as_root apt-get -qq install -y --no-install-recommends man-db bash-completion adduser >/dev/null 2>&1
    as_root dpkg-query -W -f '${binary:Package}\n' >"$trials/before"
    files() { (cd "$root" && find etc usr var/lib -xdev -not -path 'var/lib/dpkg/*' -not -path 'var/lib/apt/*' | LC_ALL=C sort); }
    files >"$trials/files-before"
    as_root apt-get -qq install -y --no-install-recommends /tmp/baltoro.deb >"$trials/deb.log" 2>&1 || { cat "$trials/deb.log"; exit 1; }
    echo "bookworm, $(as_root dpkg-query -W baltoro):"
    echo "  $(as_root baltoro --version); user $(as_root id baltoro)"
    [ "$(as_root readlink /usr/bin/vllm)" = baltoro ]
    as_root man --warnings -E UTF-8 baltoro 2>"$trials/man.warnings" >"$trials/man.text"
    grep -q -- '--max-model-len' "$trials/man.text" && [ ! -s "$trials/man.warnings" ]
    echo "  man: $(wc -l <"$trials/man.text") lines without warnings"
    as_root bash -c '. /usr/share/bash-completion/completions/baltoro
      COMP_WORDS=(baltoro serve --max-model-l) COMP_CWORD=2; _baltoro; echo "  completion: ${COMPREPLY[*]}"; [ "${COMPREPLY[0]}" = --max-model-len ]'
    ask as_root setpriv --reuid baltoro --regid baltoro --clear-groups baltoro serve
    as_root apt-get -qq purge -y baltoro >"$trials/deb.log" 2>&1 || { cat "$trials/deb.log"; exit 1; }
    as_root dpkg-query -W -f '${binary:Package}\n' | diff "$trials/before" -
    # Those who change the users of a system leave the lists of before there.
    left=$(files | LC_ALL=C comm -13 "$trials/files-before" - | grep -vE '^etc/(passwd|group|shadow|gshadow|subuid|subgid)-$' || true)
    [ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
    if as_root id baltoro 2>/dev/null; then echo "its user is left behind" >&2; exit 1; fi
    echo "  purged: no file, user or package of it is left"
    ;;
  wheel)
    wheel=$(ls -t dist/baltoro-*.whl | head -n 1)
    mkdir -p "$trials"
    rm -rf "$trials/venv"
    python3 -m venv "$trials/venv"
    "$trials/venv/bin/pip" install --quiet --no-index "$wheel"
    echo "pip, $wheel:"
    echo "  $("$trials/venv/bin/baltoro" --version); $("$trials/venv/bin/vllm" --version 2>&1 | tr '\n' ' ')"
    ask "$trials/venv/bin/vllm" serve
    "$trials/venv/bin/pip" uninstall --quiet --yes baltoro
    [ -z "$(find "$trials/venv" -name '*baltoro*')" ] && [ ! -e "$trials/venv/bin/vllm" ]
    echo "  uninstalled: nothing of it is left"
    ;;
  *) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
