// Package squirrel is a stub: see ../README.md.
package squirrel

import "errors"

// StatementBuilder is the start of each statement.
var StatementBuilder StatementBuilderType

// A StatementBuilderType is a statement of any kind, without its text.
type StatementBuilderType struct{}

// ToSql fails.
func (StatementBuilderType) ToSql() (string, []any, error) {
	return "", nil, errors.New("statements of SQL are not supported: this program is built without their builder")
}

// The methods below return their receiver.

func (b StatementBuilderType) PlaceholderFormat(any) StatementBuilderType { return b }
func (b StatementBuilderType) Select(...string) StatementBuilderType      { return b }
func (b StatementBuilderType) Insert(string) StatementBuilderType         { return b }
func (b StatementBuilderType) Update(string) StatementBuilderType         { return b }
func (b StatementBuilderType) Delete(string) StatementBuilderType         { return b }
func (b StatementBuilderType) From(string) StatementBuilderType           { return b }
func (b StatementBuilderType) Where(Eq) StatementBuilderType              { return b }
func (b StatementBuilderType) Columns(...string) StatementBuilderType     { return b }
func (b StatementBuilderType) Values(...any) StatementBuilderType         { return b }
func (b StatementBuilderType) Set(string, any) StatementBuilderType       { return b }

// Dollar has no meaning here.
var Dollar any

// An Eq is a condition.
type Eq map[string]any
