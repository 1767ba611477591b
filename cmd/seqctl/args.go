package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// count is how many numbers to allocate.
type count int64

func (n *count) String() string { return strconv.FormatInt(int64(*n), 10) }
func (n *count) Type() string   { return "COUNT" }
func (n *count) Set(text string) error {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 1 || v > math.MaxUint32 {
		return fmt.Errorf("want a whole number from 1 to %d", uint32(math.MaxUint32))
	}
	*n = count(v)
	return nil
}

// requestID makes a call repeatable; zero for none.
type requestID [16]byte

func (id *requestID) String() string {
	if *id == (requestID{}) {
		return ""
	}
	return uuid.UUID(*id).String()
}

func (id *requestID) Type() string { return "UUID" }
func (id *requestID) Set(text string) error {
	u, err := uuid.Parse(text)
	if err != nil || u == uuid.Nil {
		return fmt.Errorf("want a UUID other than zero, like 6f1c1a52-3b0e-4a3c-9d55-0a9b6f2b7c11")
	}
	*id = requestID(u)
	return nil
}

func someKeys(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usagef("no key given: see %s --help", c.CommandPath())
	}
	return nil
}

func oneKey(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("want one key, got %d: see %s --help", len(args), c.CommandPath())
	}
	return nil
}

func oneNode(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return cli.Usagef("want the name of one node: see seqctl nodes")
	}
	return nil
}

// checkKeys refuses what no cluster takes, before any is asked. The default
// space always has uids; the kind of another one is the cluster's to say.
func (a *app) checkKeys(texts []string) error {
	for _, text := range texts {
		switch {
		case text == "":
			return cli.Usagef(`key "" is empty: want a uid or a name`)
		case a.space == client.DefaultSpace:
			if _, err := strconv.ParseUint(text, 10, 64); err != nil {
				return cli.Usagef("key %q is no uid: want an integer from 0 to the space's largest, or --space NAME for a space of names", text)
			}
		case len(text) > ids.NameBytesMax:
			return cli.Usagef("key %q… has %d bytes: at most %d are allowed", text[:16], len(text), ids.NameBytesMax)
		case !utf8.ValidString(text):
			return cli.Usagef("key %q is not valid UTF-8: encode it", text)
		}
	}
	return nil
}

// keys makes keys by the rules of the cluster's space: all of them, or none.
func (a *app) keys(t *client.Table, texts []string) ([]client.Key, error) {
	space, ok := t.Space(a.space)
	if !ok {
		var names []string
		for _, s := range t.Spaces {
			names = append(names, s.Name)
		}
		return nil, cli.Usagef("there is no space %q: the cluster has %s", a.space, strings.Join(names, ", "))
	}
	var keys []client.Key
	for _, text := range texts {
		if _, err := space.Parse(text); err != nil {
			reason := strings.TrimPrefix(err.Error(), ids.ErrBadKey.Error()+": ")
			return nil, cli.Usagef("key %q of space %s: %s: correct the key, or see --space", text, a.space, reason)
		}
		keys = append(keys, client.In(a.space, text))
	}
	return keys, nil
}
