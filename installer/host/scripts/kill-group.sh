#!/bin/sh
# kill-group.sh PID: kills a command and all its children: first with SIGTERM, then with SIGKILL. The process group is
# looked up because sudo may have made its own.
group() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 3; }
g=$(group "$1")
[ -n "$g" ] && [ "$g" -gt 1 ] || exit 0
kill -s TERM -- "-$g" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ -d "/proc/$1" ] || break
	sleep 0.1 2>/dev/null || sleep 1
done
kill -s KILL -- "-$g" 2>/dev/null
exit 0
