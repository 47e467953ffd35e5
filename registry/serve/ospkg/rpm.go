package ospkg

import (
	"bytes"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
)

const (
	rpmLead       = 96
	rpmIntro      = 16
	maxSignature  = 1 << 20  // bytes of the signature header
	maxHeader     = 16 << 20 // bytes of the header: the largest known have a few
	maxEntries    = 1 << 10  // tags in a header
	maxStrings    = 1 << 20  // strings, files or dependencies of one tag
	maxChanges    = 10       // kept changelog entries, as in createrepo_c
	preRequire    = 1<<6 | 1<<9 | 1<<10
	typeInt16     = 3
	typeInt32     = 4
	typeInt64     = 5
	typeString    = 6
	typeArray     = 8
	typeI18N      = 9
	fileDirectory = 0o040000
	fileTypes     = 0o170000
	fileGhost     = 1 << 6
)

// Tags of headers, from rpm's rpmtag.h.
const (
	tagName, tagVersion, tagRelease, tagEpoch          = 1000, 1001, 1002, 1003
	tagSummary, tagDescription, tagBuildTime           = 1004, 1005, 1006
	tagBuildHost, tagSize, tagVendor                   = 1007, 1009, 1011
	tagLicense, tagPackager, tagGroup, tagURL          = 1014, 1015, 1016, 1020
	tagArch, tagFileModes, tagFileFlags, tagSourceRPM  = 1022, 1030, 1037, 1044
	tagArchiveSize                                     = 1046
	tagProvideName, tagProvideFlags, tagProvideVersion = 1047, 1112, 1113
	tagRequireFlags, tagRequireName, tagRequireVersion = 1048, 1049, 1050
	tagConflictFlags, tagConflictName                  = 1053, 1054
	tagConflictVersion                                 = 1055
	tagChangeTime, tagChangeName, tagChangeText        = 1080, 1081, 1082
	tagObsoleteName, tagObsoleteFlags                  = 1090, 1114
	tagObsoleteVersion                                 = 1115
	tagDirIndexes, tagBaseNames, tagDirNames           = 1116, 1117, 1118
	tagLongSize                                        = 5009
	tagRecommendName, tagRecommendVersion              = 5046, 5047
	tagRecommendFlags                                  = 5048
	tagSuggestName, tagSuggestVersion, tagSuggestFlags = 5049, 5050, 5051
	tagSupplementName, tagSupplementVersion            = 5052, 5053
	tagSupplementFlags                                 = 5054
	tagEnhanceName, tagEnhanceVersion, tagEnhanceFlags = 5055, 5056, 5057
	tagSigPayloadSize, tagSigLongArchiveSize           = 1007, 271 // of the signature header
)

// An RPM is a package of the RPM format, version 3 or 4.
type RPM struct {
	Name, Version, Release, Epoch, Arch string // Epoch is "0" if the package has none; Arch is "src" for sources
	Summary, Description, Packager, URL string
	License, Vendor, Group, BuildHost   string
	SourceRPM                           string
	BuildTime                           uint64 // seconds since 1970
	Installed, Archive                  uint64 // bytes of the files, and of the payload before compression
	HeaderStart, HeaderEnd              int64  // the header's place in the file
	Provides, Requires, Conflicts       []Relation
	Obsoletes, Recommends, Suggests     []Relation
	Supplements, Enhances               []Relation
	Files                               []File
	Changes                             []Change // newest first, ten at most
}

// A Relation is a provided or required capability.
type Relation struct {
	Name, Op                string // Op is "", "LT", "GT", "EQ", "LE" or "GE"
	Epoch, Version, Release string // "" for none
	Pre                     bool   // required before the package's scripts run
}

// A File is a path in a package.
type File struct {
	Path, Type string // Type is "", "dir" or "ghost"
}

// A Change is an entry of a changelog.
type Change struct {
	Author, Text string
	Time         uint64 // seconds since 1970
}

// ReadRPM reads the headers of an .rpm of size bytes, without the payload. The parser is ours: it bounds every claim of
// a hostile header, and reads from an io.ReaderAt inside a bundle.
func ReadRPM(r io.ReaderAt, size int64) (*RPM, error) {
	lead := make([]byte, rpmLead)
	if _, err := r.ReadAt(lead, 0); err != nil || !bytes.HasPrefix(lead, []byte("\xed\xab\xee\xdb")) {
		return nil, notRead("not an RPM package", err)
	}
	signature, end, err := readHeader(r, rpmLead, size, maxSignature)
	if err != nil {
		return nil, err
	}
	start := (end + 7) &^ 7
	h, end, err := readHeader(r, start, size, maxHeader)
	if err != nil {
		return nil, err
	}
	p := &RPM{
		Name: h.text(tagName), Version: h.text(tagVersion), Release: h.text(tagRelease), Epoch: "0",
		Arch:    h.text(tagArch),
		Summary: h.text(tagSummary), Description: h.text(tagDescription), Packager: h.text(tagPackager),
		URL:     h.text(tagURL),
		License: h.text(tagLicense), Vendor: h.text(tagVendor), Group: h.text(tagGroup),
		BuildHost: h.text(tagBuildHost),
		SourceRPM: h.text(tagSourceRPM), BuildTime: h.number(tagBuildTime),
		Installed: max(h.number(tagLongSize), h.number(tagSize)), HeaderStart: start, HeaderEnd: end,
		Archive: max(signature.number(tagSigLongArchiveSize), signature.number(tagSigPayloadSize),
			h.number(tagArchiveSize)),
	}
	if epoch := h.numbers(tagEpoch); len(epoch) > 0 {
		p.Epoch = strconv.FormatUint(epoch[0], 10)
	}
	if p.SourceRPM == "" {
		p.Arch = "src"
	}
	for _, word := range []string{p.Name, p.Version, p.Release, p.Arch} {
		if word == "" || strings.ContainsAny(word, " \t\n/<>\"'&") {
			return nil, invalid("%.60q is not a valid name, version, release or architecture of a package", word)
		}
	}
	h.relate(p)
	p.Files, err = h.files()
	p.Changes = h.changes()
	if h.left < 0 || signature.left < 0 {
		return nil, invalid("overlapping tags in the header")
	}
	return p, err
}

// A header is a list of tags, whose offsets in the store have been checked.
type header struct {
	entries map[uint32]entry
	store   []byte
	left    int // unread bytes of the store: tags sharing their bytes would blow up a small header
}

type entry struct{ kind, offset, count uint32 }

// readHeader reads the header at start, and returns its end.
func readHeader(r io.ReaderAt, start, size, most int64) (*header, int64, error) {
	intro := make([]byte, rpmIntro)
	if start > size-rpmIntro {
		return nil, 0, invalid("truncated before its header")
	}
	if _, err := r.ReadAt(intro, start); err != nil || !bytes.HasPrefix(intro, []byte("\x8e\xad\xe8\x01")) {
		return nil, 0, notRead("the header does not have version 1", err)
	}
	entries, store := int64(binary.BigEndian.Uint32(intro[8:])), int64(binary.BigEndian.Uint32(intro[12:]))
	length := entries*rpmIntro + store
	if entries > maxEntries || length > most || length > size-start-rpmIntro {
		return nil, 0, invalid("the header has %d tags and %d bytes", entries, store)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(io.NewSectionReader(r, start+rpmIntro, length), data); err != nil {
		return nil, 0, notRead("truncated in its header", err)
	}
	h := &header{entries: make(map[uint32]entry, entries), store: data[entries*rpmIntro:], left: int(store)}
	for i := range entries {
		e := data[i*rpmIntro:]
		one := entry{binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[8:]), binary.BigEndian.Uint32(e[12:])}
		if int64(one.offset) > store || one.count > maxStrings {
			return nil, 0, invalid("a tag of the header lies outside")
		}
		h.entries[binary.BigEndian.Uint32(e)] = one
	}
	return h, start + rpmIntro + length, nil
}

// texts returns a tag's strings, without those beyond the end of the store.
func (h *header) texts(tag uint32) []string {
	e, ok := h.entries[tag]
	if !ok || e.kind != typeString && e.kind != typeArray && e.kind != typeI18N {
		return nil
	}
	if e.kind == typeString {
		e.count = 1
	}
	var all []string
	rest := h.store[e.offset:]
	for range e.count {
		text, after, ended := bytes.Cut(rest, []byte{0})
		if h.left -= len(text) + 1; !ended || h.left < 0 {
			break
		}
		all, rest = append(all, string(text)), after
	}
	return all
}

// text returns the tag's only string, or its first, which is not localized.
func (h *header) text(tag uint32) string { return at(h.texts(tag), 0) }

func (h *header) numbers(tag uint32) []uint64 {
	e, ok := h.entries[tag]
	width := map[uint32]int{typeInt16: 2, typeInt32: 4, typeInt64: 8}[e.kind]
	if !ok || width == 0 {
		return nil
	}
	rest := h.store[e.offset:]
	all := make([]uint64, min(int(e.count), len(rest)/width))
	if h.left -= len(all) * width; h.left < 0 {
		return nil
	}
	for i := range all {
		switch word := rest[i*width:]; width {
		case 2:
			all[i] = uint64(binary.BigEndian.Uint16(word))
		case 4:
			all[i] = uint64(binary.BigEndian.Uint32(word))
		default:
			all[i] = binary.BigEndian.Uint64(word)
		}
	}
	return all
}

func (h *header) number(tag uint32) uint64 { return at(h.numbers(tag), 0) }

// at returns an element, or the zero value if there is none.
func at[T any](all []T, i int) (v T) {
	if i >= 0 && i < len(all) {
		v = all[i]
	}
	return v
}

func (h *header) relate(p *RPM) {
	p.Provides = h.relations(tagProvideName, tagProvideVersion, tagProvideFlags)
	p.Requires = h.relations(tagRequireName, tagRequireVersion, tagRequireFlags)
	p.Conflicts = h.relations(tagConflictName, tagConflictVersion, tagConflictFlags)
	p.Obsoletes = h.relations(tagObsoleteName, tagObsoleteVersion, tagObsoleteFlags)
	p.Recommends = h.relations(tagRecommendName, tagRecommendVersion, tagRecommendFlags)
	p.Suggests = h.relations(tagSuggestName, tagSuggestVersion, tagSuggestFlags)
	p.Supplements = h.relations(tagSupplementName, tagSupplementVersion, tagSupplementFlags)
	p.Enhances = h.relations(tagEnhanceName, tagEnhanceVersion, tagEnhanceFlags)
}

// relations reads capabilities without duplicates. Features of rpm itself are left out.
func (h *header) relations(names, versions, flags uint32) []Relation {
	version, flag := h.texts(versions), h.numbers(flags)
	var all []Relation
	seen := make(map[Relation]bool)
	for i, name := range h.texts(names) {
		if name == "" || strings.HasPrefix(name, "rpmlib(") {
			continue
		}
		f := at(flag, i)
		r := Relation{Name: name, Pre: names == tagRequireName && f&preRequire != 0}
		if op := at([]string{"", "", "LT", "", "GT", "", "", "", "EQ", "", "LE", "", "GE"}, int(f&0xe)); op != "" {
			r.Op = op
			r.Epoch, r.Version, r.Release = splitVersion(at(version, i))
		}
		if !seen[r] {
			seen[r] = true
			all = append(all, r)
		}
	}
	return all
}

// splitVersion splits [epoch:]version[-release]. A version without an epoch has epoch 0.
func splitVersion(text string) (epoch, version, release string) {
	epoch, version, found := strings.Cut(text, ":")
	if !found || strings.Trim(epoch, "0123456789") != "" {
		epoch, version = "0", text
	}
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version, release = version[:i], version[i+1:]
	}
	return epoch, version, release
}

func (h *header) files() ([]File, error) {
	names, dirs := h.texts(tagBaseNames), h.texts(tagDirNames)
	indexes, modes, flags := h.numbers(tagDirIndexes), h.numbers(tagFileModes), h.numbers(tagFileFlags)
	total := 0
	all := make([]File, 0, len(names))
	for i, name := range names {
		f := File{Path: at(dirs, int(min(at(indexes, i), maxStrings))) + name}
		if total += len(f.Path); total > maxHeader { // a long directory times many names
			return nil, invalid("the paths of its files exceed %d MiB", maxHeader>>20)
		}
		switch {
		case at(modes, i)&fileTypes == fileDirectory:
			f.Type = "dir"
		case at(flags, i)&fileGhost != 0:
			f.Type = "ghost"
		}
		all = append(all, f)
	}
	return all, nil
}

func (h *header) changes() []Change {
	authors, texts, times := h.texts(tagChangeName), h.texts(tagChangeText), h.numbers(tagChangeTime)
	var all []Change
	for i := range min(len(authors), len(texts), len(times), maxChanges) {
		all = append(all, Change{authors[i], texts[i], times[i]})
	}
	return all
}

// Primary reports whether a path is among the few that every client knows, by createrepo_c's rule: they satisfy
// dependencies on paths without the list of all files.
func (f File) Primary() bool {
	return strings.HasPrefix(f.Path, "/etc/") || strings.Contains(f.Path, "bin/") || f.Path == "/usr/lib/sendmail"
}
