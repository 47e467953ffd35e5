// Package diagnose explains failures of kubeadm and of charts: it collects logs from a host, keeps them in the work
// directory, and searches them for known causes.
package diagnose
