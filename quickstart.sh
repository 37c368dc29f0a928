#!/usr/bin/env bash
# From a fresh clone to an answer: installs what the build needs (Debian 12, Ubuntu 24.04), builds `baltoro`, serves the
# pocket model on a free port of this machine, asks it something, and shows how to go on.
#
#   ./quickstart.sh            build, serve, ask one question, stop
#   ./quickstart.sh --serve    the same, but keep serving (Ctrl-C ends it): a page for browsers, and the API
set -euo pipefail
cd "$(dirname "$0")"
keep=0
case "${1:-}" in
  "") ;;
  --serve) keep=1 ;;
  *) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac

step() { printf '\n== %s\n' "$*"; }

step "1/4 packages"
tools/install.sh build

step "2/4 build (the first one takes some minutes)"
[ -e build/release/build.ninja ] || cmake --preset release -DBT_TESTS=OFF -DBT_BENCH=OFF >build-configure.log 2>&1 || {
  cat build-configure.log >&2
  exit 1
}
rm -f build-configure.log
ninja -C build/release baltoro
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  if ninja -C build/release -t query baltoro_cuda_module >/dev/null 2>&1; then
    ninja -C build/release baltoro_cuda_module
  else
    echo "there is a GPU, but no CUDA compiler (nvcc): the CPU will compute"
  fi
fi
program=$PWD/build/release/apps/baltoro

step "3/4 serve the pocket model"
log=$(mktemp)
server=""
stop() {
  [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true
  rm -f "$log"
}
trap stop EXIT
start=$(date +%s%N)
"$program" serve --host 127.0.0.1 --port 0 2>"$log" &
server=$!
url=""
for _ in $(seq 1 1200); do
  url=$(sed -n 's/.*Ready: \(http[^ ]*\).*/\1/p' "$log" | head -n 1)
  [ -n "$url" ] && break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.025
done
if [ -z "$url" ]; then
  cat "$log" >&2
  echo "the server did not start" >&2
  exit 1
fi
echo "ready at $url, $((($(date +%s%N) - start) / 1000000)) ms after the process was started"

step "4/4 ask it something"
question="Hello! Who are you, and what is 27 + 58?"
echo "> $question"
"$program" chat --url "$url" "$question"

cat <<END

It works, also by the name $(dirname "$program")/vllm, which takes vLLM's command lines. Next:
  $([ $keep = 1 ] && echo "$url in a browser" || echo "./quickstart.sh --serve           stays up, with a page for browsers")
                                    a chat, the memory plan, live metrics, code to copy
  $program serve                      serves the pocket model on port 8000
  $program chat                       a conversation in the terminal
  $program serve /path/to/model       a Kimi K2 or DeepSeek V3 style directory
  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
END
if [ $keep = 1 ]; then
  echo
  echo "still serving; the page is at $url/ and Ctrl-C ends it"
  wait "$server"
fi
