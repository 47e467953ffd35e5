// Package parts reads a bundle that is cut into parts, NAME.kkb.001 and so on, and checks the parts against
// NAME.kkb.parts.json. Package bundle specifies them and writes them.
package parts
