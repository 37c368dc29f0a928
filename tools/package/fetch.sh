#!/usr/bin/env bash
# Fetches from Debian, without root, what the packed program is linked with and this machine does not have installed:
#   build/package/glibc    libc6 and libc6-dev of Debian 11 (glibc 2.31), unpacked
#   build/package/source   sources of the libraries that Debian 12 has no static archives of
# apt checks the signatures. What is already there is neither fetched nor built again: `rm -r build/package` brings newer ones.
# The server is the one that apt has its own packages from; DEBIAN_MIRROR and, for Debian 11, DEBIAN_11_MIRROR name others (the
# part of the address before /debian).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/package
[ -e "$work/.fetched" ] && exit 0
rm -rf "$work/apt" "$work/glibc" "$work/source"
mkdir -p "$work"/apt/{lists,cache/archives}/partial "$work/glibc" "$work/source"

key=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=${DEBIAN_MIRROR:-$(tools/package/mirror.sh)}
cat >"$work/apt/sources.list" <<END
deb [signed-by=$key arch=amd64] ${DEBIAN_11_MIRROR:-$mirror}/debian bullseye main
deb-src [signed-by=$key] $mirror/debian bookworm main
deb-src [signed-by=$key] $mirror/debian-security bookworm-security main
END
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=)
"${apt[@]}" update
cd "$work/apt"
"${apt[@]}" download libc6/bullseye libc6-dev/bullseye
for package in libc6_*.deb libc6-dev_*.deb; do dpkg-deb --extract "$package" "$work/glibc"; done
# Its links lead to the root of a system; here they lead to the folder.
find "$work/glibc" -type l -lname '/*' | while read -r link; do ln -snf -r "$work/glibc$(readlink "$link")" "$link"; done
cd "$work/source"
"${apt[@]}" source curl fmtlib spdlog prometheus-cpp >"$work/apt/source.log"
touch "$work/.fetched"
