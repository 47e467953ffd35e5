// Package rotate replaces what a running cluster trusts and is reached by: certificates, authorities, the encryption
// key, logins of the registry, and the endpoint.
package rotate
