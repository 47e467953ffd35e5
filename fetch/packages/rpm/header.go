package rpm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

const (
	leadSize        = 96
	headMagic       = "\x8e\xad\xe8\x01"
	headSize        = 16       // magic, reserve, entries, bytes of values
	entrySize       = 16       // tag, type, offset, count
	maxPackageSigs  = 1 << 20  // bytes of a package's signatures
	maxHeader       = 64 << 20 // bytes of a package's header: rpm allows four times as many
	maxHeaderValues = 1 << 16  // bytes of one value in use
)

// Tags of a package's header and of its signatures (rpmtag.h). They are those of RPM 4 and 6.
const (
	tagName              = 1000
	tagVersion           = 1001
	tagRelease           = 1002
	tagEpoch             = 1003
	tagArch              = 1022
	tagPayloadDigest     = 5092
	tagPayloadDigestKind = 5093

	tagSignatureDSA  = 267 // and EdDSA
	tagSignatureRSA  = 268
	tagSignatureList = 278 // OpenPGP signatures in base64
)

// CheckSignature requires a package file that one of p.Keys signed, with the name, version and architecture of p. The
// signature covers the header, which has the digest of the rest.
func CheckSignature(file io.Reader, p *packages.Package, now time.Time) error {
	lead := make([]byte, leadSize)
	if _, err := io.ReadFull(file, lead); err != nil || !bytes.HasPrefix(lead, []byte("\xed\xab\xee\xdb")) {
		return errors.Join(errors.New("not an RPM package"), err)
	}
	sigs, err := readHeader(file, maxPackageSigs)
	if err != nil {
		return fmt.Errorf("signatures: %w", err)
	}
	if pad := len(sigs.raw) % 8; pad > 0 {
		if _, err := io.CopyN(io.Discard, file, int64(8-pad)); err != nil {
			return fmt.Errorf("signatures: %w", err)
		}
	}
	h, err := readHeader(file, maxHeader)
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if err := signedBy(sigs, h, p, now); err != nil {
		return err
	}
	if err := h.describes(p); err != nil {
		return err
	}
	return h.checkPayload(file)
}

// signedBy requires one valid signature of the header.
func signedBy(sigs, h *header, p *packages.Package, now time.Time) error {
	all := [][]byte{sigs.bytes(tagSignatureRSA), sigs.bytes(tagSignatureDSA)}
	for _, text := range sigs.strings(tagSignatureList) {
		sig, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return fmt.Errorf("signatures: %w", err)
		}
		all = append(all, sig)
	}
	var errs []error
	for _, sig := range all {
		if len(sig) == 0 {
			continue
		}
		err := p.Keys.Detached(h.raw, sig, now)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return errors.New("the package has no signature of its header")
	}
	return errors.Join(errs...)
}

// A header is a list of tagged values of a package file.
type header struct {
	raw     []byte // all of it, as signed
	entries int
}

// readHeader reads a header of at most limit bytes.
func readHeader(r io.Reader, limit int64) (*header, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	entries, values := int64(binary.BigEndian.Uint32(head[8:])), int64(binary.BigEndian.Uint32(head[12:]))
	size := entries*entrySize + values
	switch {
	case !bytes.HasPrefix(head, []byte(headMagic)):
		return nil, errors.New("not a header of RPM")
	case size > limit:
		return nil, fmt.Errorf("%d bytes; at most %d are read", size, limit)
	}
	// The buffer grows with the bytes that arrive, so that a false size costs nothing.
	var b bytes.Buffer
	b.Write(head)
	if n, err := io.CopyN(&b, r, size); err != nil {
		return nil, fmt.Errorf("%d bytes instead of %d: %w", n, size, err)
	}
	return &header{b.Bytes(), int(entries)}, nil
}

// value returns the bytes from a tag's value to the end, the value's type and count; nil for none.
func (h *header) value(tag uint32) (value []byte, kind, count uint32) {
	data := h.raw[headSize+h.entries*entrySize:]
	for i := range h.entries {
		e := h.raw[headSize+i*entrySize:]
		offset := binary.BigEndian.Uint32(e[8:])
		if binary.BigEndian.Uint32(e) == tag && int64(offset) <= int64(len(data)) {
			return data[offset:], binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[12:])
		}
	}
	return nil, 0, 0
}

// bytes returns a binary value, nil for none.
func (h *header) bytes(tag uint32) []byte {
	const binaryValue = 7
	value, kind, count := h.value(tag)
	if kind != binaryValue || int64(count) > min(int64(len(value)), maxHeaderValues) {
		return nil
	}
	return value[:count]
}

// strings returns a text, or the texts of a list, nil for none.
func (h *header) strings(tag uint32) []string {
	const text, list, translated = 6, 8, 9
	value, kind, count := h.value(tag)
	if kind != text && kind != list && kind != translated {
		return nil
	}
	var all []string
	for range min(count, maxSignatures) {
		end := bytes.IndexByte(value[:min(len(value), maxHeaderValues)], 0)
		if end < 0 {
			return nil
		}
		all, value = append(all, string(value[:end])), value[end+1:]
	}
	return all
}

const maxSignatures = 32 // of one package

func (h *header) text(tag uint32) string {
	if all := h.strings(tag); len(all) > 0 {
		return all[0]
	}
	return ""
}

// number returns a number, and false for none.
func (h *header) number(tag uint32) (uint32, bool) {
	const int32Value = 4
	value, kind, count := h.value(tag)
	if kind != int32Value || count < 1 || len(value) < 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(value), true
}

// describes requires the package that the list named: a signed package in the place of another is not accepted.
func (h *header) describes(p *packages.Package) error {
	epoch := ""
	if n, ok := h.number(tagEpoch); ok {
		epoch = strconv.FormatUint(uint64(n), 10)
	}
	version := evr(epoch, h.text(tagVersion), h.text(tagRelease))
	if name, arch := h.text(tagName), h.text(tagArch); name != p.Name || version != p.Version || arch != p.Arch {
		return fmt.Errorf("the file is package %.60q %.60q %.20q instead of %s %s %s", name, version, arch, p.Name,
			p.Version, p.Arch)
	}
	return nil
}

// checkPayload compares the rest of the file with the digest in the header.
func (h *header) checkPayload(rest io.Reader) error {
	const sha256Kind, sha512Kind = 8, 10
	kind, _ := h.number(tagPayloadDigestKind)
	var sum hash.Hash
	switch cmp.Or(kind, sha256Kind) {
	case sha256Kind:
		sum = sha256.New()
	case sha512Kind:
		sum = sha512.New()
	default:
		return fmt.Errorf("the payload's digest has kind %d; only SHA-256 and SHA-512 are accepted", kind)
	}
	want := h.text(tagPayloadDigest)
	if want == "" {
		return errors.New("the header has no digest of the payload, because an rpm before 4.14 built it")
	}
	if _, err := io.Copy(sum, rest); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("the payload's digest is %s instead of %.128s in the signed header", got, want)
	}
	return nil
}
