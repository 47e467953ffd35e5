#!/bin/sh
# list-foreign.sh MARK STAMPS UNIT UNIT PATH...: prints which of the paths exist, unless this cluster is kkbundle's: the directory
# STAMPS has a stamp that kubeadm or k3s was started, or the first line of a UNIT is MARK.
mark=$1
cd "$2" 2>/dev/null && for s in member kubeadm-begun k3s*; do [ ! -e "$s" ] || exit 0; done
for u in "$3" "$4"; do [ ! -e "$u" ] || [ "$(head -n 1 "$u")" != "$mark" ] || exit 0; done
shift 4
for p; do [ ! -e "$p" ] || printf '%s\n' "$p"; done
