package storesvr

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// mapVersion is of the Set map: a cluster of one Set has one, for ever.
const mapVersion = 1

// routesSince is what somebody lacks who knows the routes of an earlier version
// of this Set; the whole table, with the Set map, for known 0; nil if nothing.
func routesSince(m *state.Meta, known uint64) *seqpb.RouteTable {
	if m.Genesis.Sections == 0 || known >= m.RouteVersion {
		return nil
	}
	g := &m.Genesis
	set := router.SetDelta{
		Name: g.Set, Version: m.RouteVersion, Since: known, SectionCount: g.Sections,
		Nodes: routeNodes(m), Stores: routeStores(m),
	}
	for i := range m.Sections {
		if s := &m.Sections[i]; known == 0 || s.Changed > known {
			set.Changes = append(set.Changes, router.Change{Section: ids.Section(i), Owner: s.Owner, Epoch: s.Epoch})
		}
	}
	d := router.Delta{Cluster: g.Cluster, ClusterID: g.ClusterID, MapVersion: mapVersion}
	if known == 0 {
		d.Spaces = g.Spaces
		for _, sp := range g.Spaces {
			set.Ranges = append(set.Ranges, sets.Whole(sp))
		}
	}
	d.Sets = []router.SetDelta{set}
	return wire.Routes(d)
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
