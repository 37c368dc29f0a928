#!/usr/bin/env bash
# Installs what a task needs from the distribution's packages: install.sh build|package|test|long. Root or sudo. Installs nothing
# that is already there, so a second call is quick and needs no network.
set -euo pipefail
case "${1:-build}" in
  build) groups="build" ;;
  package) groups="build package" ;;
  test) groups="build test" ;;
  long) groups="build test long" ;;
  *) echo "usage: install.sh build|package|test|long" >&2; exit 2 ;;
esac

build="g++ cmake ninja-build ccache mold pkg-config libssl-dev libcurl4-openssl-dev nlohmann-json3-dev libfmt-dev libspdlog-dev
  libyaml-cpp-dev prometheus-cpp-dev liburing-dev libedit-dev zlib1g-dev libjpeg-dev libpng-dev
  libwebp-dev ca-certificates"
package="dpkg-dev debian-archive-keyring python3"
test="libgtest-dev libgmock-dev libbenchmark-dev libicu-dev python3 python3-venv curl iproute2 procps clang-format-14 slurm-wlm munge valgrind
  chromium chromium-driver"  # these two with what they need: 127 MiB to load, 420 MiB installed
long="clang-19 clang-tidy-14 libclang-rt-19-dev slowhttptest wrk hey faketime haproxy nginx"

missing=""
for group in $groups; do
  for package in ${!group}; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
done
promtool=""
case " $groups " in *" long "*) command -v promtool >/dev/null || promtool=promtool ;; esac
[ -z "$missing$promtool" ] && exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "these packages are missing and neither root nor sudo is at hand:$missing $promtool" >&2; exit 1; }
  as_root=sudo
fi
command -v apt-get >/dev/null || { echo "not a Debian or Ubuntu system; install the equivalents of:$missing $promtool" >&2; exit 1; }
echo "installing:$missing $promtool"

# The one program out of the package of Prometheus: the whole would bring a dozen packages for its pages, and start a server.
install_promtool() {
  local here
  here=$(mktemp -d)
  (cd "$here" && apt-get download -qq prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool) &&
    $as_root install "$here/usr/bin/promtool" /usr/local/bin/promtool
  local result=$?
  rm -rf "$here"
  return $result
}

log=$(mktemp)
if ! { $as_root apt-get update -qq && { [ -z "$missing" ] || $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } &&
       { [ -z "$promtool" ] || install_promtool; }; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "the packages could not be installed; the whole log is in $log" >&2
  exit 1
fi
rm -f "$log"
