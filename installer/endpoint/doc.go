// Package endpoint makes the address of the API server: kube-vip, haproxy on nodes, an external balancer, or the name
// of the first control plane.
package endpoint
