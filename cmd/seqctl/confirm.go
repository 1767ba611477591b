package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/cli"
)

func yesFlag(c *cobra.Command, yes *bool) {
	c.Flags().BoolVar(yes, "yes", false, "do not ask")
}

// errDeclined: the operator did not say yes.
var errDeclined = errors.New("not confirmed: nothing was done")

// confirm asks the operator on a terminal. Elsewhere nobody can answer, so the
// flag is needed.
func (a *app) confirm(c *cobra.Command, yes bool, what string) error {
	if yes {
		return nil
	}
	if !isTerminalReader(c.InOrStdin()) {
		return cli.Usagef("about to %s: pass --yes to do it without being asked", what)
	}
	fmt.Fprintf(a.err, "About to %s. Go on? [y/N] ", what)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}
