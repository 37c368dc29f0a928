#!/usr/bin/env bash
# Builds static archives of the libraries that Debian 12 has only shared ones of, or with more in them than we use (its libcurl
# brings LDAP and Kerberos along), from Debian's sources, into build/package/static. Their headers are those of the system's
# packages, which are of the same versions; libssl, libcrypto, libz, liburing, libyaml-cpp, libjpeg,
# libpng and libwebp have archives there.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/build/package

# archive NAME FOLDER [cmake options]
archive() {
  local name=$1 folder=$2
  shift 2
  [ -e "$work/static/lib/lib$name.a" ] && return
  echo "building lib$name.a"
  if ! { cmake -G Ninja -S "$work"/source/$folder -B "$work/libraries/$name" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
      -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$work/static" -DCMAKE_INSTALL_LIBDIR=lib "$@" &&
      ninja -C "$work/libraries/$name" install; } >"$work/$name.log" 2>&1; then
    tail -n 20 "$work/$name.log" >&2
    echo "lib$name.a could not be built; the whole log is build/package/$name.log" >&2
    exit 1
  fi
}
archive fmt 'fmtlib-*' -DFMT_TEST=OFF -DFMT_DOC=OFF
archive spdlog 'spdlog-*' -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF -DSPDLOG_BUILD_TESTS=OFF
archive prometheus-cpp-core 'prometheus-cpp-*' -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_COMPRESSION=OFF -DENABLE_TESTING=OFF
# HTTP and HTTPS alone. Certificates: the program names the file that the system has.
archive curl 'curl-*' -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBPSL=OFF -DCURL_USE_LIBSSH2=OFF \
  -DUSE_LIBIDN2=OFF -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DENABLE_MANUAL=OFF
