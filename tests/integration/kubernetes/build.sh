#!/usr/bin/env bash
# Builds a Kubernetes control plane from Debian's source package, once, into a folder:
#   build.sh FOLDER   -> FOLDER/bin/{kube-apiserver,kube-scheduler,kube-controller-manager}
# About 8 minutes and 4 GB while it builds, on 2 idle cores; 400 MB are kept. Needs Debian 12 and root, for the compiler and etcd.
set -euo pipefail
folder=$(realpath -m "$1")
programs=(kube-apiserver kube-scheduler kube-controller-manager)
version=v1.20.2

complete() { for name in "${programs[@]}"; do [ -x "$folder/bin/$name" ] || return 1; done; }
cannot() { echo "test-kubernetes cannot build a control plane here: $1" >&2; exit 3; }

if complete && command -v etcd >/dev/null; then exit 0; fi
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || cannot "it takes root on Debian 12 (packages golang-1.19-go, dpkg-dev, etcd-server)"

# The machine's own package sources, with their source packages, without touching its lists.
apt_home=$folder/apt
mkdir -p "$folder/bin" "$apt_home/parts" "$apt_home/lists/partial"
sources() {
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$file" ] || continue
    case $file in
      *.sources) sed 's/^Types:.*/Types: deb deb-src/' "$file" >"$apt_home/parts/$(basename "$file")" ;;
      *.list) { cat "$file"; sed -n 's/^deb /deb-src /p' "$file"; } >"$apt_home/parts/$(basename "$file")" ;;
    esac
    grep -qi 'debian' "$file" || rm -f "$apt_home/parts/$(basename "$file")"
  done
}
own_apt=(-o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt_home/parts" -o "Dir::State::lists=$apt_home/lists" -o "APT::Sandbox::User=root" -o "DPkg::Lock::Timeout=600")
sources
apt-get "${own_apt[@]}" update -qq || cannot "apt-get update failed"
DEBIAN_FRONTEND=noninteractive apt-get "${own_apt[@]}" install -y -qq --no-install-recommends etcd-server etcd-client openssl iproute2 >/dev/null || cannot "no etcd-server"
if complete; then exit 0; fi
DEBIAN_FRONTEND=noninteractive apt-get "${own_apt[@]}" install -y -qq --no-install-recommends golang-1.19-go dpkg-dev >/dev/null || cannot "no golang-1.19-go"

cd "$folder"
if [ ! -f source/.unpacked ]; then
  rm -rf source
  apt-get "${own_apt[@]}" source --download-only -qq kubernetes/bookworm || cannot "no source package kubernetes"
  dpkg-source --extract kubernetes_1.20*.dsc source >/dev/null
  touch source/.unpacked
fi

# The tree is built in the old way, from a GOPATH, with what it carries in vendor/: nothing is fetched.
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$folder/gopath GOCACHE=$folder/gocache
export GO111MODULE=off GOPROXY=off GOSUMDB=off GOFLAGS='' CGO_ENABLED=0
tree=$GOPATH/src/k8s.io/kubernetes
mkdir -p "$(dirname "$tree")"
ln -sfn "$folder/source" "$tree"
cd "$tree"

# One generated file is not in the source package: the table of OpenAPI definitions that the API server is linked with.
described() {
  find -L pkg cmd vendor/k8s.io -name '*.go' -not -path '*/_examples/*' -not -path '*/testdata/*' \
    -not -path 'vendor/k8s.io/code-generator/*' -not -path 'vendor/k8s.io/sample-*' \
    -not -path 'vendor/k8s.io/kube-openapi/*' -not -path 'vendor/k8s.io/gengo/*' -print0 |
    xargs -0 grep -l '+k8s:openapi-gen=' | xargs -n1 dirname | sort -u | sed 's|^|k8s.io/kubernetes/|' | paste -sd,
}
go build -o "$folder/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
"$folder/openapi-gen" --logtostderr -i "$(described)" -p k8s.io/kubernetes/pkg/generated/openapi \
  -O zz_generated.openapi -h /dev/null -r "$folder/openapi.report"

stamp='-s -w'
for package in component-base client-go/pkg; do
  at=k8s.io/kubernetes/vendor/k8s.io/$package/version
  stamp+=" -X $at.gitVersion=$version -X $at.gitMajor=1 -X $at.gitMinor=20 -X $at.gitTreeState=clean"
done
for name in "${programs[@]}"; do
  go build -p "$(nproc)" -trimpath -ldflags "$stamp" -o "$folder/bin/$name.new" "k8s.io/kubernetes/cmd/$name"
  mv "$folder/bin/$name.new" "$folder/bin/$name"
done
cd "$folder"
rm -rf gocache gopath source apt openapi-gen openapi.report kubernetes_1.20*
