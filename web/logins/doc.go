// Package logins knows how registries ask for a login, and where a machine keeps logins of registries: docker's
// configuration, podman's auth.json and the credential helpers that these name. A helper is another program: it gets
// a time limit, and is never needed for content that a registry gives to everybody.
package logins
