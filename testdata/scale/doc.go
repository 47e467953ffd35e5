// Package scale has only tests: they hold kkbundle, the program, to what it promises about memory, time and being
// killed. They start it as a process of its own and count what the kernel counts. KKBUNDLE_BIG=1 makes them large and
// lets them print the figures of docs/reference/performance.md; without it they are quick and keep to what does not
// depend on the machine.
package scale
