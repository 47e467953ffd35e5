#!/bin/sh
# process-arguments.sh PROGRAM: prints the arguments of the oldest process of a program, one on each line. The kernel knows 15
# characters of its name.
p=$(pgrep -o -x -- "$(printf %.15s "$1")") && tr '\000' '\n' </proc/"$p"/cmdline
