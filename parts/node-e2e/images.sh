# shellcheck shell=bash disable=SC2154
# The images that Kubernetes' node e2e suite names, made from Debian packages and our own small
# programs. Read by ../images/build, whose functions and variables it uses.

# deb PACKAGE…: unpack packages (not install them) and print the folder.
deb() {
  local out; out=$(mktemp -d "$work/deb.XXXX")
  (cd "$out" && apt-get -o APT::Sandbox::User=root download -qq "$@" >&2)
  for package in "$out"/*.deb; do dpkg -x "$package" "$out/root"; done
  echo "$out/root"
}

# program TREE FILE [NAME]: a dynamically linked program and the libraries it needs.
program() {
  local tree=$1 file=$2 name=${3:-} lib
  name=${name:-/usr/bin/$(basename "$file")}
  install -D -m 755 "$(readlink -f "$file")" "$tree$name.new"
  mv "$tree$name.new" "$tree$name"
  for lib in $(ldd "$file" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p'); do
    [ -e "$tree$lib" ] || install -D "$(readlink -f "$lib")" "$tree$lib"
  done
}

users() {
  printf 'user-defined-in-image:x:1000:1000::/home:/bin/sh\n' >>"$1/etc/passwd"
  printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >>"$1/etc/group"
}

# What agnhost's fake registry serves: one image, in the layout that it reads.
fake_registry() {
  local out=$1/var/registry/pause url=http://127.0.0.1:$port/v2/${PAUSE_IMAGE%:*} manifest digest
  manifest=$(mktemp "$work/manifest.XXXX")
  curl -fsS -H 'Accept: application/vnd.docker.distribution.manifest.v2+json' "$url/manifests/${PAUSE_IMAGE#*:}" >"$manifest"
  mkdir -p "$out/manifests" "$out/blobs"
  digest=$(sha256sum <"$manifest" | cut -d' ' -f1)
  install -D -m 644 "$manifest" "$out/manifests/sha256/${digest:0:2}/$digest/data"
  echo "sha256:$digest" >"$out/manifests/testing"
  for digest in $(jq -r '.config.digest, .layers[].digest' "$manifest" | cut -d: -f2); do
    mkdir -p "$out/blobs/sha256/${digest:0:2}/$digest"
    curl -fsS -o "$out/blobs/sha256/${digest:0:2}/$digest/data" "$url/blobs/sha256:$digest"
  done
}

make_e2e() {
  local e2e=e2e-test-images tree
  make_base

  tree=$work/agnhost
  busybox_tree "$tree"
  gcc -static -Os -s -Wall -Wextra -o "$tree/bin/sh" "$here/../node-e2e/sh.c"
  users "$tree"
  mkdir -p "$tree/uploads"
  cp "$bin/agnhost" "$tree/agnhost"
  ln -s agnhost "$tree/agnhost-2"
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' \
    -keyout "$tree/localhost.key" -out "$tree/localhost.crt" 2>/dev/null
  chmod 644 "$tree/localhost.key"
  rm -f "$tree"/bin/{ip,nc,bash}
  program "$tree" "$(command -v bash)" /bin/bash
  program "$tree" "$(command -v curl)"
  program "$tree" "$(command -v ip)" /sbin/ip
  program "$tree" "$(deb netcat-openbsd)/bin/nc.openbsd" /usr/bin/nc
  fake_registry "$tree"
  local entry='"Entrypoint":["/agnhost"],"Cmd":["pause"]'
  image "$tree" "$AGNHOST_IMAGE" "{$path,$entry}"
  echo 'an earlier image' >"$tree/etc/older"
  image "$tree" "$AGNHOST_OLD_IMAGE" "{$path,$entry}"

  tree=$work/busybox
  program "$tree" "$(command -v ipcs)"
  rm -f "$tree/bin/ipcs"
  image "$tree" $e2e/ipc-utils:1.4 "{$path,\"Cmd\":[\"sh\"]}"

  tree=$work/nonroot
  busybox_tree "$tree"
  image "$tree" $e2e/nonroot:1.5 "{$path,\"Cmd\":[\"sh\"],\"User\":\"1234\"}"

  mkdir -p "$tree/usr/local/bin"
  gcc -static -Os -s -Wall -Wextra -o "$tree/usr/local/bin/nnp" "$here/../node-e2e/nnp.c"
  chmod 4755 "$tree/usr/local/bin/nnp"
  image "$tree" $e2e/nonewprivs:1.4 "{$path,\"Cmd\":[\"nnp\"]}"

  tree=$work/glibc
  busybox_tree "$tree"
  rm -f "$tree"/bin/{sh,bash,hostname}
  program "$tree" "$(command -v bash)" /bin/bash
  ln -s bash "$tree/bin/sh"
  program "$tree" "$(command -v hostname)" /bin/hostname
  image "$tree" $e2e/glibc-dns-testing:2.0.0 "{$path,\"Cmd\":[\"bash\"]}"

  program "$tree" "$(command -v perl)"
  mkdir -p "$tree/usr/lib/$(gcc -print-multiarch)"
  cp -a "/usr/lib/$(gcc -print-multiarch)/perl-base" "$tree/usr/lib/$(gcc -print-multiarch)/"
  image "$tree" $e2e/perl:5.26 "{$path,\"Cmd\":[\"perl\"]}"

  for name in kitten nautilus; do
    cp -al "$work/agnhost" "$work/$name"
    printf '{"image":"%s.jpg"}\n' "$name" >"$work/$name/data.json"
    # The specs of image volumes read these two files and know what is in the real image.
    echo 'NAME="Alpine Linux"' >"$work/$name/etc/os-release"
    image "$work/$name" $e2e/$name:1.8 "{$path,\"Entrypoint\":[\"/agnhost\"],\"Cmd\":[\"test-webserver\"]}"
  done

  tree=$work/sample-device-plugin
  busybox_tree "$tree"
  cp "$bin/sample-device-plugin" "$tree/sampledeviceplugin"
  image "$tree" $e2e/sample-device-plugin:1.7 "{$path,\"Entrypoint\":[\"/sampledeviceplugin\",\"-alsologtostderr\"]}"

  tree=$work/nginx
  busybox_tree "$tree"
  program "$tree" "$(deb nginx)/usr/sbin/nginx" /usr/sbin/nginx
  mkdir -p "$tree"/var/{log/nginx,lib/nginx,run} "$tree/etc/nginx" "$tree/usr/share/nginx/html"
  echo 'it works' >"$tree/usr/share/nginx/html/index.html"
  printf 'error_log stderr;\npid /var/run/nginx.pid;\nevents {}\nhttp { access_log off; server { listen 80; root /usr/share/nginx/html; } }\n' \
    >"$tree/etc/nginx/nginx.conf"
  image "$tree" $e2e/nginx:1.15-4 "{$path,\"Cmd\":[\"nginx\",\"-g\",\"daemon off;\"]}"
  echo 'a later image' >"$tree/etc/newer"
  image "$tree" $e2e/nginx:1.27-0 "{$path,\"Cmd\":[\"nginx\",\"-g\",\"daemon off;\"]}"
}
