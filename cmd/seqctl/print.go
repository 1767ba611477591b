package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/tw"
)

// printJSON writes one object as one line.
func (a *app) printJSON(v any) {
	e := json.NewEncoder(&a.out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a.out keeps a failure to write; the types here can all be encoded
}

// keyText is a key for people's eyes: a name may hold line ends and terminal controls.
func keyText(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

// badIf has a person's eye fall on what is wrong.
func (a *app) badIf(bad bool, text any) string {
	if !bad || !a.colours {
		return fmt.Sprint(text)
	}
	return "\x1b[1;31m" + fmt.Sprint(text) + "\x1b[0m"
}

// table collects rows and prints them aligned, without lines. A head's mark, ">",
// aligns the column to the right; "?" leaves it out when it is empty.
type table struct {
	heads []string
	align tw.Alignment
	maybe []bool
	rows  [][]string
}

func newTable(heads ...string) *table {
	t := &table{}
	for _, h := range heads {
		name := strings.TrimLeft(h, ">?")
		align := tw.AlignLeft
		if h[0] == '>' {
			align = tw.AlignRight
		}
		t.heads, t.align, t.maybe = append(t.heads, name), append(t.align, align), append(t.maybe, h[0] == '?')
	}
	return t
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, texts)
}

// shown are the columns that are not left out.
func (t *table) shown() []int {
	var columns []int
	for i := range t.heads {
		empty := true
		for _, r := range t.rows {
			empty = empty && r[i] == ""
		}
		if !empty || !t.maybe[i] {
			columns = append(columns, i)
		}
	}
	return columns
}

func pick[T any](from []T, columns []int) []T {
	var out []T
	for _, i := range columns {
		out = append(out, from[i])
	}
	return out
}

// printTable prints nothing for a table without rows.
func (a *app) printTable(t *table) {
	if len(t.rows) == 0 {
		return
	}
	columns := t.shown()
	align := tw.CellAlignment{PerColumn: pick(t.align, columns)}
	var b strings.Builder
	w := tablewriter.NewTable(&b,
		tablewriter.WithRendition(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		}),
		tablewriter.WithHeaderAlignmentConfig(align),
		tablewriter.WithRowAlignmentConfig(align),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithPadding(tw.Padding{Right: "  ", Overwrite: true}),
	)
	w.Header(pick(t.heads, columns))
	for _, r := range t.rows {
		_ = w.Append(pick(r, columns))
	}
	_ = w.Render()
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(&a.out, strings.TrimRight(line, " \n"))
	}
}
