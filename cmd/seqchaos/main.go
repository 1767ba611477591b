// Command seqchaos runs a cluster of processes, does harm to it, and checks what
// its clients saw against the guarantees.
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
		Short:   "Do harm to a cluster, and check what its clients saw",
		Version: buildinfo.Get().String(),
	}
	drive(root)
	root.AddCommand(checkCommand())
	return root
}
