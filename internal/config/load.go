package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Keys are the declared settings of a program and where each value came from.
type Keys struct {
	fs     *pflag.FlagSet
	source map[string]string // by flag name; absent: the default
}

const secretAnnotation = "secret"

// NewKeys declares keys as flags on fs. Flags of fs that are no keys (--help,
// --config) must be named in not.
func NewKeys(fs *pflag.FlagSet, declare func(*pflag.FlagSet)) *Keys {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	declare(own)
	fs.AddFlagSet(own)
	return &Keys{fs: own, source: map[string]string{}}
}

// Secret marks a key whose value is never shown.
func Secret(fs *pflag.FlagSet, name string) {
	if err := fs.SetAnnotation(name, secretAnnotation, []string{"true"}); err != nil {
		panic(err) // not declared: a mistake of the program
	}
}

func isSecret(f *pflag.Flag) bool { return len(f.Annotations[secretAnnotation]) > 0 }

func fileKey(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// flagOf is the flag of a file's key.
func flagOf(key string) string { return strings.ReplaceAll(key, "_", "-") }

// EnvName is the environment variable of a key.
func EnvName(flag string) string {
	return "SEQ_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// given tells whether a key was set, by whatever.
func (k *Keys) given(flag string) bool { return k.source[flag] != "" }

// Load fills what flags left open from the environment, then from the file ("" for none).
func (k *Keys) Load(file string, lookupEnv func(string) (string, bool)) error {
	var problems []error
	k.fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			k.source[f.Name] = "--" + f.Name
			return
		}
		name := EnvName(f.Name)
		v, ok := lookupEnv(name)
		if !ok {
			return
		}
		k.source[f.Name] = name
		if err := set(f, []string{v}); err != nil {
			problems = append(problems, k.Problem(f.Name, "%v", reason(f, v, err)))
		}
	})
	if file != "" {
		problems = append(problems, k.loadFile(file)...)
	}
	return errors.Join(problems...)
}

func (k *Keys) loadFile(file string) []error {
	b, err := os.ReadFile(file)
	if err != nil {
		return []error{fmt.Errorf("configuration file: %w", err)}
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // an empty file sets nothing
		}
		return []error{fmt.Errorf("%s: %w", file, err)}
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return []error{fmt.Errorf("%s: more than one YAML document", file)}
	}
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		return []error{fmt.Errorf("%s:%d: want lines of KEY: VALUE", file, root.Line)}
	}
	var problems []error
	lines := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d", file, key.Line)
		f := k.fs.Lookup(flagOf(key.Value))
		if f == nil || fileKey(f.Name) != key.Value {
			problems = append(problems, fmt.Errorf("%s: unknown key %q%s", at, key.Value, k.suggest(key.Value)))
			continue
		}
		if before := lines[f.Name]; before != 0 {
			problems = append(problems, fmt.Errorf("%s: %s is set a second time, first at line %d", at, key.Value, before))
			continue
		}
		lines[f.Name] = key.Line
		values, err := scalars(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", at, key.Value, err))
			continue
		}
		if _, ok := k.source[f.Name]; ok {
			continue // beaten by a flag or the environment
		}
		k.source[f.Name] = at
		if err := set(f, values); err != nil {
			problems = append(problems, k.Problem(f.Name, "%v", reason(f, strings.Join(values, ","), err)))
		}
	}
	return problems
}

// scalars are the texts of a value: one, or those of a list.
func scalars(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return nil, errors.New("no value")
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		values := []string{}
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: want a list of plain values", e.Line)
			}
			values = append(values, e.Value)
		}
		return values, nil
	}
	return nil, errors.New("want a value or a list of values")
}

func set(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		if len(values) == 1 {
			values = splitList(values[0])
		}
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("want one value, got %d", len(values))
	}
	return f.Value.Set(values[0])
}

func splitList(s string) []string {
	values := []string{}
	for _, v := range strings.Split(s, ",") {
		if v = strings.TrimSpace(v); v != "" {
			values = append(values, v)
		}
	}
	return values
}

func reason(f *pflag.Flag, value string, err error) error {
	if isSecret(f) {
		return errors.New("a value that cannot be read")
	}
	switch f.Value.Type() {
	case "duration":
		return fmt.Errorf("%q is no duration: want one like 300ms or 2s", value)
	case "bool":
		return fmt.Errorf("%q is neither true nor false", value)
	case "int", "uint32", "uint64", "int64":
		return fmt.Errorf("%q is no whole number in range", value)
	}
	return err
}

// Problem is an error about a key, naming where it was set.
func (k *Keys) Problem(flag, format string, a ...any) error {
	at, ok := k.source[flag]
	if !ok {
		at = "not set"
	}
	return fmt.Errorf("%s: %s: %s", at, fileKey(flag), fmt.Sprintf(format, a...))
}

// suggest finds a key that was probably meant.
func (k *Keys) suggest(key string) string {
	best, bestDistance := "", 3
	k.fs.VisitAll(func(f *pflag.Flag) {
		if d := distance(fileKey(f.Name), key); d < bestDistance {
			best, bestDistance = fileKey(f.Name), d
		}
	})
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// distance counts the edits between two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// Effective is the configuration in force as a file would have it, secrets masked,
// with a note of where each value came from.
func (k *Keys) Effective() string {
	var names []string
	k.fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	sort.Strings(names)
	var b strings.Builder
	for _, name := range names {
		f := k.fs.Lookup(name)
		at, ok := k.source[name]
		if !ok {
			at = "default"
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", fileKey(name), effectiveValue(f), at)
	}
	return b.String()
}

func effectiveValue(f *pflag.Flag) string {
	if isSecret(f) {
		if f.Value.String() == "" {
			return `""`
		}
		return `"***"`
	}
	var v any = f.Value.String()
	if list, ok := f.Value.(pflag.SliceValue); ok {
		v = list.GetSlice()
		n := yaml.Node{}
		_ = n.Encode(v)
		n.Style = yaml.FlowStyle
		return marshal(&n)
	}
	switch f.Value.Type() {
	case "string":
		return marshal(v)
	}
	return f.Value.String()
}

func marshal(v any) string {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%q", fmt.Sprint(v))
	}
	return strings.TrimSuffix(string(b), "\n")
}
