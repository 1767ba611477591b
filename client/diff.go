package client

import "context"

// Mark says how far a reader is: it has everything of a key up to Last, 0 for nothing.
type Mark struct {
	Key  Key
	Last int64
}

// Difference is what a Mark's reader lacks.
type Difference struct {
	Mark
	// Current is the last number issued for the key.
	Current int64
	// Missing is Current-Last: how many numbers came after Last. Numbers of a
	// declared hole are among them (see Gaps).
	Missing int64
	// Ahead is Last-Current where the reader claims to have what was never
	// issued: it has confused two keys, or two clusters. Then Missing is 0.
	Ahead int64
	// Err is why the key could not be read.
	Err error
}

// Diff tells for each mark how much its reader has missed; see CurrentMany, also for errors.
func (c *Client) Diff(ctx context.Context, marks []Mark) ([]Difference, error) {
	keys := make([]Key, len(marks))
	for i, m := range marks {
		if m.Last < 0 {
			return nil, ofRead(invalid(m.Key, "a mark at %d: want the last number that the reader has, 0 for none", m.Last))
		}
		keys[i] = m.Key
	}
	readings, err := c.CurrentMany(ctx, keys)
	if readings == nil {
		return nil, err
	}
	out := make([]Difference, len(marks))
	for i, r := range readings {
		d := &out[i]
		d.Mark, d.Current, d.Err = marks[i], r.Current, r.Err
		if r.Err == nil {
			d.Missing, d.Ahead = max(0, d.Current-d.Last), max(0, d.Last-d.Current)
		}
	}
	return out, err
}
