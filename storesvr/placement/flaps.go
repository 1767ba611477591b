package placement

import "time"

const (
	// holdOffFirst is how long a node is held off after its second loss within
	// flapWindow; it doubles with each further one, up to holdOffMax.
	holdOffFirst = 10 * time.Second
	holdOffMax   = 5 * time.Minute
	flapWindow   = 10 * time.Minute
	// flapNodesMax bounds the list; past it the node lost longest ago is forgotten.
	flapNodesMax = 1024
)

// Flaps remembers which nodes were lost of late, so that one that comes and
// goes does not make sections come and go with it. A loss is an expired lease;
// a planned stop is none. The first loss is forgiven: a node that crashed once
// is welcome at once.
type Flaps struct{ nodes map[string]flap }

type flap struct {
	losses int
	last   time.Duration
}

// Lost notes that the lease of a node ran out at now.
func (f *Flaps) Lost(node string, now time.Duration) {
	if f.nodes == nil {
		f.nodes = map[string]flap{}
	}
	n, known := f.nodes[node]
	if known && now-n.last > flapWindow {
		n.losses = 0
	}
	if !known && len(f.nodes) >= flapNodesMax {
		delete(f.nodes, f.oldest())
	}
	f.nodes[node] = flap{losses: n.losses + 1, last: now}
}

// HoldOff: the node should not get sections at now if others can take them.
func (f *Flaps) HoldOff(node string, now time.Duration) bool {
	n := f.nodes[node]
	if n.losses < 2 {
		return false
	}
	wait := holdOffMax
	if doublings := n.losses - 2; doublings < 8 {
		wait = min(holdOffFirst<<doublings, holdOffMax)
	}
	return now < n.last+wait
}

func (f *Flaps) oldest() string {
	var oldest string
	for node, n := range f.nodes {
		if o, ok := f.nodes[oldest]; !ok || n.last < o.last || n.last == o.last && node < oldest {
			oldest = node
		}
	}
	return oldest
}
