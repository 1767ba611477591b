package storesvr

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// routesKnown are the versions of the Set map and of this Set's routes that
// somebody has; zero for nothing.
type routesKnown struct{ mapVersion, set uint64 }

// routesSince is what somebody lacks who knows earlier versions, and what is known
// then; nil if nothing. A newer map comes whole, with where the other Sets' stores are.
func routesSince(m *state.Meta, known routesKnown) (*seqpb.RouteTable, routesKnown) {
	p := &m.Published
	now := routesKnown{mapVersion: p.Map.Version, set: m.RouteVersion}
	// A Set that is not in the map, because it is yet to be put there or has been
	// retired, has no routes to tell of. It is told whole once it is there.
	listed := p.Map.Has(m.Genesis.Set)
	if !listed {
		now.set = 0
	}
	if m.Genesis.Sections == 0 || now.mapVersion == 0 || known.mapVersion >= now.mapVersion && known.set >= now.set {
		return nil, known
	}
	g := &m.Genesis
	d := router.Delta{Cluster: g.Cluster, ClusterID: g.ClusterID, MapVersion: now.mapVersion}
	withMap := known.mapVersion < now.mapVersion
	if listed {
		set := setRoutes(m, known.set)
		if withMap {
			set.Ranges = p.Map.Owned(g.Set)
		}
		d.Sets = append(d.Sets, set)
	}
	if withMap {
		d.Spaces = g.Spaces
		for _, info := range p.Sets {
			if info.Name != g.Set {
				d.Sets = append(d.Sets, router.SetDelta{Name: info.Name, Ranges: p.Map.Owned(info.Name), Stores: info.Stores})
			}
		}
	}
	return wire.Routes(d), now
}

func setRoutes(m *state.Meta, known uint64) router.SetDelta {
	set := router.SetDelta{
		Name: m.Genesis.Set, Version: m.RouteVersion, Since: known, SectionCount: m.Genesis.Sections,
		Nodes: routeNodes(m), Stores: routeStores(m),
	}
	for i := range m.Sections {
		if s := &m.Sections[i]; known == 0 || s.Changed > known {
			set.Changes = append(set.Changes, router.Change{Section: ids.Section(i), Owner: s.Owner, Epoch: s.Epoch})
		}
	}
	return set
}

func routeNodes(m *state.Meta) []router.Node {
	nodes := make([]router.Node, 0, len(m.Sessions))
	for _, s := range m.Sessions {
		nodes = append(nodes, router.Node{Session: s.ID, ID: s.Node, Addr: s.Addr, RedisAddr: s.RedisAddr, HTTPAddr: s.HTTPAddr})
	}
	router.SortNodes(nodes)
	return nodes
}

func routeStores(m *state.Meta) []string {
	var out []string
	for _, id := range sortedKeys(m.Stores) {
		if a := m.Stores[id].RPCAddr; a != "" {
			out = append(out, a)
		}
	}
	return out
}
