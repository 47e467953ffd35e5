module github.com/Masterminds/squirrel

go 1.26.0
