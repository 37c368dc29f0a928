#!/usr/bin/env bash
# Prints where apt has Debian's packages from, without the /debian at its end.
set -euo pipefail
mirror=$(apt-get indextargets --format '$(REPO_URI)' | sed -n 's,/debian/*$,,p' | head -n 1)
if [ -z "$mirror" ]; then
  echo "apt names no server of Debian (a path that ends in /debian); DEBIAN_MIRROR names one" >&2
  exit 1
fi
echo "$mirror"
