#!/bin/sh
# memory.sh COMMAND...: runs a command whose temporary files are in memory, if that has room and runs programs; else they are where $TMPDIR says.
# The directory always has the same name, because go runs a test again whose environment has changed. What a killed run left in it, the
# next run removes.
set -eu
room=4000000 # kB
dir=/dev/shm/kkbundle-test-$(id -u)
usable() {
  [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt "$room" ] 2>/dev/null || return 1
  [ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null)" -gt $((2 * room)) ] 2>/dev/null || return 1
  mkdir -m 711 "$dir" 2>/dev/null || { [ -O "$dir" ] && [ ! -L "$dir" ]; } || return 1 # other users look for files in it
  printf '#!/bin/sh\n' >"$dir/try" && chmod +x "$dir/try" && "$dir/try" 2>/dev/null # mounted noexec?
}
usable || exec "$@"
empty() { if flock -n 9; then find "$dir" -mindepth 1 -delete; fi; } # unless another run uses it
exec 9<"$dir"
empty
flock -s 9
rc=0
TMPDIR=$dir "$@" || rc=$?
empty
exit "$rc"
