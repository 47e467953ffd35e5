package main

const sysRead, sysWrite, sysClose, sysExec, sysExit, sysOpen = 0, 1, 3, 59, 231, 257
