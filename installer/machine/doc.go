// Package machine prepares hosts below Kubernetes: names, kernel parameters and modules, swap, clocks, packages of the
// distribution, and the network interfaces and packet filter rules of pod networks.
package machine
