// Command seqchaos checks what clients saw of a cluster against the guarantees.
package main

import (
	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/cli"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:     "seqchaos",
		Short:   "Check what clients saw of a cluster against the guarantees",
		Version: buildinfo.Get().String(),
	}
	root.AddCommand(checkCommand())
	return root
}
