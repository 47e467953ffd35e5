#!/bin/sh
# stopped-units.sh UNIT...: prints the units that are installed and do not run.
for u; do [ ! -e "/etc/systemd/system/$u" ] || systemctl is-active --quiet "$u" || echo "$u"; done
