#!/bin/sh
# Installs the real parts that some tests use: a browser, PostgreSQL, Redis, curl, Slurm, iproute2, nginx, Prometheus, Alertmanager,
# docker-compose (checks a file), rsyslog, syslog-ng.
# Where it cannot, those tests skip and say so.
set -u
missing=""
# The browser without a window takes a third of the CPU of the other; not every distribution has it.
light_browser() { apt-cache show chromium-headless-shell >/dev/null 2>&1; }
command -v chromium-headless-shell >/dev/null 2>&1 || { command -v chromium >/dev/null 2>&1 && ! light_browser; } ||
    missing="$missing chromium-headless-shell fonts-dejavu-core"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v nginx >/dev/null 2>&1 || missing="$missing nginx-light"
command -v prometheus-alertmanager >/dev/null 2>&1 || missing="$missing prometheus-alertmanager"
(command -v promtool && command -v prometheus) >/dev/null 2>&1 || missing="$missing prometheus"
command -v docker-compose >/dev/null 2>&1 || missing="$missing docker-compose"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
(command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch) >/dev/null 2>&1 || missing="$missing slurmctld slurmd slurm-client munge"
(command -v slurmrestd && ls /usr/lib/*/slurm*/auth_jwt.so) >/dev/null 2>&1 || missing="$missing slurmrestd slurm-wlm-jwt-plugin"
# rsyslog and syslog-ng replace each other when installed: both are only unpacked, with the libraries that the machine lacks.
shippers="${SHIPPERS_FOLDER:-$HOME/.cache/diagnoser-test-shippers}"
unpacked=""
[ -e "$shippers/rsyslog/usr/sbin/rsyslogd" ] || unpacked="$unpacked rsyslog"
[ -e "$shippers/syslog-ng/usr/sbin/syslog-ng" ] || unpacked="$unpacked syslog-ng"
[ -z "$missing$unpacked" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing:$missing$unpacked (the tests that use them will skip)"
    exit 0
fi
echo "installing:$missing$unpacked"
export DEBIAN_FRONTEND=noninteractive
# The packages' own servers are not wanted: tests start theirs, on folders of their own. (RUNLEVEL=1: start nothing.)
export RUNLEVEL=1
mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
apt-get update -qq >/dev/null 2>&1
light_browser || missing=$(echo "$missing" | sed "s/chromium-headless-shell/chromium/")
[ -z "$missing" ] || apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || echo "not all of it could be installed"
for name in $unpacked; do
    packages="rsyslog rsyslog-elasticsearch"
    [ "$name" = rsyslog ] || packages="syslog-ng-core syslog-ng-mod-http"
    archives=$(mktemp -d) && mkdir -p "$archives/partial" "$shippers/$name"
    apt-get install -y -qq --no-install-recommends --download-only -o Dir::Cache::archives="$archives" $packages >/dev/null 2>&1 || echo "no $name"
    for archive in "$archives"/*.deb; do
        [ ! -e "$archive" ] || dpkg -x "$archive" "$shippers/$name"
    done
    rm -rf "$archives"
done
exit 0
