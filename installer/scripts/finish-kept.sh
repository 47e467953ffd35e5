#!/bin/sh
# finish-kept.sh KEPT COMPLETE FINISHED: renames the mark of complete copies below KEPT, if there are any.
for f in "$1"/*/"$2"; do [ ! -e "$f" ] || mv -f "$f" "${f%/*}/$3"; done
