// seqsvr runs a whole cluster in one process.
package main

import (
	"github.com/spf13/cobra"

	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/cli"
)

func main() {
	root := &cobra.Command{
		Use:     "seqsvr",
		Short:   "A two-tier, per-key sequence service in one process",
		Example: "  seqsvr dev\n  seqsvr dev --data ./seq-data",
		Version: buildinfo.Get().String(),
	}
	root.AddCommand(devCommand())
	cli.Main(root)
}
