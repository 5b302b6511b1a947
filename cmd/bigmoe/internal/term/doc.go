// Package term writes to terminals without making a mess: text whose control characters do nothing, and a status line
// that disappears again.
//
//	text := term.NewText(term.Safe(os.Stdout))
//	text.WriteString("Once upon a time")
//	text.EndLine()
//
// Writers that are no terminal get text unchanged and no status at all.
//
// # Concurrency
//
// A [Status] may be used from several goroutines, a [Text] from one.
package term
