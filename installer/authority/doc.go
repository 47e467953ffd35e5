// Package authority puts the operator's own certificate authorities where kubeadm looks for them.
package authority
