package main

const sysOpen, sysClose, sysRead, sysWrite, sysExit, sysExec = 56, 57, 63, 64, 94, 221
