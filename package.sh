#!/usr/bin/env bash
# Makes what is given to machines that run the program, on Debian 12. It runs there without root and wants nothing but glibc 2.31
# or later, as Debian 11 and Ubuntu 20.04 have.
#
#   ./package.sh              dist/baltoro-VERSION-linux-x86_64.tar.gz: unpack it anywhere
#   ./package.sh --deb        dist/baltoro_VERSION_amd64.deb: with a systemd service, manual page and completion
#   ./package.sh --wheel      dist/baltoro-VERSION-py3-none-manylinux_2_31_x86_64.whl: for pip
#
# and beside one of these
#   --no-model                without the pocket model
#   --no-cuda                 without the CUDA operations, which are packed where there is nvcc
set -euo pipefail
cd "$(dirname "$0")"
form=archive model=1 cuda=
for word in "$@"; do
  case "$word" in
    --deb) form=deb ;;
    --wheel) form=wheel ;;
    --no-model) model=0 ;;
    --no-cuda) cuda=--no-cuda ;;
    *) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
  esac
done
tools/install.sh package
mkdir -p build/package dist
tools/package/program.sh $cuda
if [ $model = 1 ]; then
  mkdir -p build/package/stage/share/baltoro/pocket
  cp -r pocket/model pocket/draft-*/ pocket/eval pocket/README.md build/package/stage/share/baltoro/pocket/
fi
version=$(sed -n 's/^project(baltoro VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
case $form in
  archive) tools/package/archive.sh "$version" ;;
  deb) tools/package/deb.sh "$version" ;;
  wheel) python3 tools/package/wheel.py "$version" ;;
esac
