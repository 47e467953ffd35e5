// Package manifest defines the files that people write for kkbundle, and the lock that kkbundle writes for them:
//
//   - Bundle: the content of a bundle,
//   - Cluster: the wanted cluster,
//   - Inventory: the hosts and their logins,
//   - Lock: a resolved Bundle, each item with its digest.
//
// The package is pure: it opens no file and no connection, and reads no clock. Callers pass in a name, which is only
// used in messages, and the bytes. Parsing is strict, and an error from a Parse function is always Problems: every
// problem of the file, in the order of the file, each with its line and column.
//
// Package document below this one reads the YAML: it has the decoder, Problems and the JSON Schemas. Package scalar has
// the values of one word, such as platforms and addresses.
package manifest
