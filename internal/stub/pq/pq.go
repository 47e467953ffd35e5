// Package pq is a stub: see ../README.md. It is imported for a driver that it registers; the stub of sqlx makes no
// connection with one.
package pq
