#!/bin/sh
# Stands in for sudo, systemd-run and systemctl on a machine without systemd, as far as the node e2e
# suite uses them: keeps the command line, log and process of each unit in a folder.
set -u
units=@UNITS@

file() { case $1 in *.service) echo "$units/$1" ;; *) echo "$units/$1.service" ;; esac; }
pid() { cat "$1/pid" 2>/dev/null; }
runs() { [ -n "$(pid "$1")" ] && kill -0 "$(pid "$1")" 2>/dev/null; }

start() {
  runs "$1" && return 0
  # The command line is one argument a line.
  set -- "$1" "$(cat "$1/log")"
  (
    unit=$1 log=$2
    set --
    while IFS= read -r word; do set -- "$@" "$word"; done <"$unit/command"
    cd "$(cat "$unit/folder")" || exit 1
    setsid "$@" >>"$log" 2>&1 </dev/null &
    echo $! >"$unit/pid"
  )
}

# Until it is gone: TERM, after 90 s KILL.
stop() {
  runs "$1" || return 0
  kill "$(pid "$1")"
  tries=0
  while runs "$1"; do
    tries=$((tries + 1))
    [ $tries -ne 900 ] || kill -KILL "$(pid "$1")"
    sleep 0.1
  done
}

systemd_run() {
  name= log=/dev/null
  while [ $# -gt 0 ]; do
    case $1 in
      --version) echo 'systemd 252 (stand-in)'; exit 0 ;;
      -p) case $2 in StandardError=*) log=${2#*:} ;; esac; shift 2 ;;
      --unit=*) name=${1#--unit=}; shift ;;
      --*) shift ;;
      *) break ;;
    esac
  done
  unit=$(file "$name")
  mkdir -p "$unit"
  printf '%s\n' "$@" | sed 's/%%/%/g; s/\$\$/$/g' >"$unit/command"
  echo "$log" >"$unit/log"
  pwd >"$unit/folder"
  start "$unit"
}

systemctl() {
  verb=$1; shift
  case $verb in
    list-units)
      for unit in "$units"/*.service; do
        state=exited
        runs "$unit" && state=running
        case " $* " in *' --state=running '*) [ $state = running ] || continue ;; esac
        echo "$(basename "$unit") loaded active $state stand-in"
      done ;;
    start) start "$(file "$1")" ;;
    stop) stop "$(file "$1")" ;;
    restart) stop "$(file "$1")"; start "$(file "$1")" ;;
    kill) unit=$(file "$1"); if runs "$unit"; then kill "$(pid "$unit")"; fi ;;
    reset-failed | mask) ;;
    *) echo "stand-in for systemctl: no verb $verb" >&2; exit 1 ;;
  esac
}

case ${0##*/} in
  sudo) exec "$@" ;;
  systemd-run) systemd_run "$@" ;;
  systemctl) systemctl "$@" ;;
esac
