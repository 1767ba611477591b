package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
)

// bench is the whole of a run: open, prepare, measure, report.
func bench(ctx context.Context, c *config, open func(context.Context, *config) (target, error), stdout, stderr io.Writer) (err error) {
	var histogram *os.File
	if c.histogram != "" {
		// Before the run, so that a wrong path does not cost one.
		if histogram, err = os.Create(c.histogram); err != nil {
			return fmt.Errorf("--histogram: %w: name a file that can be written", err)
		}
		defer histogram.Close()
	}
	t, err := open(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	defer func() {
		if cerr := t.close(); err == nil && cerr != nil {
			err = fmt.Errorf("the target was not closed well: %s: the figures are good", oneLine(cerr))
		}
	}()
	m := newMeasurement(c, t)
	if err := m.prepare(ctx); err != nil {
		if errors.Is(err, client.ErrInvalidArgument) {
			return cli.Usage(err)
		}
		return err
	}
	measured, interrupted := m.run(ctx, liveLine(stderr))
	r := m.report(measured, interrupted)
	if err := r.print(stdout, c.output); err != nil {
		return fmt.Errorf("the report could not be written: %w: run it again", err)
	}
	if histogram != nil {
		if err := writeHistogram(histogram, m.latency.total); err != nil {
			return err
		}
	}
	return m.verdict(r, stderr)
}

// verdict is the error that the run ends with.
func (m *measurement) verdict(r *reportJSON, stderr io.Writer) error {
	if r.Violations > 0 {
		for _, text := range m.verify.found {
			fmt.Fprintf(stderr, "violation: %s\n", text)
		}
		return fmt.Errorf("%d violations of the guarantees, %d of them above: see that nobody else uses the keys (--first-key); if so, this is a fault of the target", r.Violations, len(m.verify.found))
	}
	switch {
	case r.Errors > 0 && r.Allocations == 0:
		return fmt.Errorf("all %d allocations failed, the first: %s: see that the target is well", r.Errors, r.FirstError)
	case r.Errors > 0:
		fmt.Fprintf(stderr, "warning: %d allocations failed, the first: %s\n", r.Errors, r.FirstError)
	}
	return nil
}
