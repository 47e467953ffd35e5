#!/bin/sh
# explain-cri.sh UNIT: prints what containerd says about its plugin cri, and the last warnings and errors of its unit.
ctr plugins ls --detailed id==cri
journalctl --no-pager --output=cat --unit="$1" --grep='level=(warning|error)' --lines=15
exit 0
