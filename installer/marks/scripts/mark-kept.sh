#!/bin/sh
# mark-kept.sh KEPT FROM TO: renames the mark FROM of copies below KEPT to TO, if there are any.
for f in "$1"/*/"$2"; do [ ! -e "$f" ] || mv -f "$f" "${f%/*}/$3"; done
