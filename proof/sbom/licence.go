package sbom

import (
	"regexp"
	"strings"
	"sync"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// maxLicence is the maximal length of a licence name in bytes; longer texts are ignored.
const maxLicence = 500

// licences converts licence metadata to CycloneDX.
func licences(text string) *cdx.Licenses {
	text = strings.TrimSpace(text)
	switch {
	case text == "" || len(text) > maxLicence:
		return nil
	case isExpression(text):
		return &cdx.Licenses{{Expression: text}}
	}
	return &cdx.Licenses{{License: &cdx.License{Name: text}}}
}

// expression is the grammar of SPDX licence expressions without its nesting
// (https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/); names are not looked up.
//
//nolint:gochecknoglobals // it does not change
var expression = sync.OnceValue(func() *regexp.Regexp {
	const id = `\(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*`
	return regexp.MustCompile(`^` + id + `( (AND|OR|WITH) ` + id + `)*$`)
})

func isExpression(text string) bool {
	return expression().MatchString(text) && strings.Count(text, "(") == strings.Count(text, ")")
}
