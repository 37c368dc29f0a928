#!/usr/bin/env bash
# deb.sh VERSION: build/package/stage as a Debian package in dist.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1
parts=tools/package/deb
root=build/package/deb
rm -rf $root
mkdir -p $root/DEBIAN $root/etc/default $root/usr/{lib/systemd/system,share/doc/baltoro,share/man/man1,share/bash-completion/completions}
cp -r build/package/stage/. $root/usr/
ln -s baltoro $root/usr/bin/vllm
rmdir --ignore-fail-on-non-empty $root/usr/lib/*
install -m 0644 $parts/baltoro.service $root/usr/lib/systemd/system/
install -m 0644 $parts/default $root/etc/default/baltoro
python3 tools/package/manual.py build/package/stage/bin/baltoro $root/usr/share/man/man1/baltoro.1 $root/usr/share/bash-completion/completions/baltoro
gzip -n9 $root/usr/share/man/man1/baltoro.1
ln -s baltoro.1.gz $root/usr/share/man/man1/vllm.1.gz
ln -s baltoro $root/usr/share/bash-completion/completions/vllm
cat >$root/usr/share/doc/baltoro/copyright <<END
Copyright: the authors of Baltoro

Baltoro is under the Apache License, Version 2.0 (/usr/share/common-licenses/Apache-2.0). It has parts of other libraries in it,
whose licences are in /usr/share/baltoro/licences.
END
install -m 0644 README.md $root/usr/share/doc/baltoro/
gzip -n9c CHANGELOG.md >$root/usr/share/doc/baltoro/CHANGELOG.md.gz

install -m 0755 $parts/{postinst,prerm,postrm} $root/DEBIAN/
echo /etc/default/baltoro >$root/DEBIAN/conffiles
cat >$root/DEBIAN/control <<END
Package: baltoro
Version: $version
Architecture: amd64
Maintainer: The authors of Baltoro <baltoro@localhost>
Installed-Size: $(du -sk --apparent-size $root/usr | cut -f 1)
Depends: libc6 (>= 2.31), adduser
Recommends: ca-certificates
Suggests: bash-completion
Section: net
Priority: optional
Description: inference server for the Kimi K2 family of language models
 It serves the models behind the OpenAI and Anthropic APIs and takes the
 command lines of vLLM, on CPUs and on Hopper GPUs. The service is neither
 enabled nor started: say in /etc/default/baltoro what it serves.
END
(cd $root && find usr etc -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
chmod -R u+rwX,go+rX,go-w $root
dpkg-deb --root-owner-group -Zgzip --build $root "dist/baltoro_${version}_amd64.deb"
