package sets

import (
	"slices"
	"strings"
)

// Bounds of what a directory may hold.
const (
	// SetsMax is the most Sets of a cluster.
	SetsMax = 256
	// StoresMax is the most StoreSvrs that a Set is known by.
	StoresMax = 16
	// NameBytesMax is the longest name of a Set.
	NameBytesMax = 64
	// AddressBytesMax is the longest address of a StoreSvr.
	AddressBytesMax = 256
	// EntriesMax is the most entries of a map.
	EntriesMax = 1 << 16
)

// SetInfo is how a Set is reached.
type SetInfo struct {
	Name string
	// Stores are the RPC addresses of its StoreSvrs, as the operator gave them.
	// The directory's own Set may have none: whoever asks has reached it already.
	Stores []string
}

// Published is what everyone may know of the directory. It is not changed once
// made; Map.Version grows with every change of any part of it.
type Published struct {
	Map Map
	// Home is the Set that has the directory; "" in the zero Published of a node that knows none.
	Home string
	// Sets are sorted by name and the same as Map.Sets.
	Sets []SetInfo
}

// Info is how a Set is reached; false if there is no such Set.
func (p *Published) Info(name string) (SetInfo, bool) {
	i, ok := slices.BinarySearchFunc(p.Sets, name, func(s SetInfo, name string) int { return strings.Compare(s.Name, name) })
	if !ok {
		return SetInfo{}, false
	}
	return p.Sets[i], true
}

// Validate tells whether the parts agree with each other and cover exactly the
// spaces that they speak of. A zero Published is valid.
func (p *Published) Validate() error {
	if p.Map.Version == 0 {
		if p.Home != "" || len(p.Sets)+len(p.Map.Sets)+len(p.Map.Entries) > 0 {
			return &FormError{Reason: "a map of version 0 says something"}
		}
		return nil
	}
	if err := p.Map.Validate(p.Map.spaces()); err != nil {
		return err
	}
	switch {
	case len(p.Sets) > SetsMax:
		return &FormError{Reason: "too many sets"}
	case len(p.Map.Entries) > EntriesMax:
		return &FormError{Reason: "too many entries"}
	case len(p.Sets) != len(p.Map.Sets):
		return &FormError{Reason: "the map and the list of sets have not the same sets"}
	case !p.Map.Has(p.Home):
		return &FormError{Reason: "the directory's set is not in the map"}
	}
	for i, s := range p.Sets {
		if s.Name != p.Map.Sets[i] {
			return &FormError{Reason: "the map and the list of sets have not the same sets"}
		}
		// The Set that was founded with the directory has the name it was founded with.
		if err := checkName(s.Name); err != nil && s.Name != p.Home {
			return err
		}
		if err := checkStores(s.Name, s.Stores, s.Name == p.Home); err != nil {
			return err
		}
	}
	return nil
}
