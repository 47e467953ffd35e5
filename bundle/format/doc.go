// Package format reads and writes the pieces that a bundle is made of, as package bundle specifies them: frames and the
// seek table behind them, headers and order of the tar, kkbundle.json, canonical JSON. A Level chooses the encoder of
// frames. The package opens no files.
package format
