package wire

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

// What a route message may hold at most.
const (
	setsMax   = 4096
	rangesMax = 1 << 16 // of one Set
	nodesMax  = 1 << 16 // of one Set
	storesMax = 64      // of one Set
	// textBytesMax bounds each name, id and address.
	textBytesMax = 512
)

// Routes is the message of a delta or whole table.
func Routes(d router.Delta) *seqpb.RouteTable {
	pb := &seqpb.RouteTable{Cluster: d.Cluster, ClusterId: d.ClusterID, MapVersion: d.MapVersion, Spaces: Spaces(d.Spaces)}
	for i := range d.Sets {
		pb.Sets = append(pb.Sets, setRoutes(&d.Sets[i]))
	}
	return pb
}

// Behind is what a caller lacks who has these versions of the map and of the
// named Set; nil if nothing.
func Behind(t *router.Table, set string, mapVersion, setVersion uint64) *seqpb.RouteTable {
	if s := t.Set(set); mapVersion >= t.Map.Version && (s == nil || setVersion >= s.Version) {
		return nil // the usual case, without looking at sections
	}
	d, news := t.SinceOf(set, mapVersion, setVersion)
	if !news {
		return nil
	}
	return Routes(d)
}

func setRoutes(s *router.SetDelta) *seqpb.SetRoutes {
	pb := &seqpb.SetRoutes{Name: s.Name, Version: s.Version, Since: s.Since, Sections: s.SectionCount, Stores: s.Stores}
	for _, r := range s.Ranges {
		pb.Ranges = append(pb.Ranges, &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)})
	}
	for _, n := range s.Nodes {
		pb.Nodes = append(pb.Nodes, &seqpb.AllocNode{
			Session: uint64(n.Session), Id: n.ID, Addr: n.Addr, RedisAddr: n.RedisAddr, HttpAddr: n.HTTPAddr,
		})
	}
	if len(s.Changes) == 0 {
		return pb
	}
	pb.Owner = make([]uint64, len(s.Changes))
	pb.Epoch = make([]uint64, len(s.Changes))
	if s.Since > 0 {
		pb.Section = make([]uint32, len(s.Changes))
	}
	for i, c := range s.Changes {
		pb.Owner[i], pb.Epoch[i] = uint64(c.Owner), uint64(c.Epoch)
		if s.Since > 0 {
			pb.Section[i] = uint32(c.Section)
		}
	}
	return pb
}

// ParseRoutes reads a route message. The error is a *MalformedError.
func ParseRoutes(pb *seqpb.RouteTable) (router.Delta, error) {
	var none router.Delta
	if pb == nil {
		return none, malformed("routes", "missing")
	}
	if err := texts("cluster", pb.Cluster, pb.ClusterId); err != nil {
		return none, err
	}
	if pb.ClusterId == "" {
		return none, malformed("cluster_id", "empty")
	}
	spaces, err := ParseSpaces(pb.Spaces)
	if err != nil {
		return none, err
	}
	if len(pb.Sets) > setsMax {
		return none, malformed("sets", "%d, at most %d are read", len(pb.Sets), setsMax)
	}
	d := router.Delta{Cluster: pb.Cluster, ClusterID: pb.ClusterId, MapVersion: pb.MapVersion, Spaces: spaces}
	seen := make(map[string]bool, len(pb.Sets))
	for _, s := range pb.Sets {
		part, err := parseSet(s)
		if err != nil {
			return none, err
		}
		if seen[part.Name] {
			return none, malformed("sets", "%q is listed twice", part.Name)
		}
		seen[part.Name] = true
		if len(part.Ranges) > 0 && len(spaces) == 0 {
			return none, malformed("ranges", "set %q has some in a message without spaces", part.Name)
		}
		d.Sets = append(d.Sets, part)
	}
	return d, nil
}

func parseSet(pb *seqpb.SetRoutes) (router.SetDelta, error) {
	var none router.SetDelta
	if pb == nil || pb.Name == "" {
		return none, malformed("sets", "one has no name")
	}
	if err := texts("set name", pb.Name); err != nil {
		return none, err
	}
	s := router.SetDelta{Name: pb.Name, Version: pb.Version, Since: pb.Since, SectionCount: pb.Sections}
	var err error
	if s.Ranges, err = parseRanges(pb); err != nil {
		return none, err
	}
	if s.Version == 0 {
		if pb.Since != 0 || len(pb.Nodes)+len(pb.Section)+len(pb.Owner)+len(pb.Epoch) > 0 {
			return none, malformed("version", "set %q has owners without one", pb.Name)
		}
		s.SectionCount = 0
		s.Stores, err = parseStores(pb)
		return s, err
	}
	if s.Changes, err = parseChanges(pb); err != nil {
		return none, err
	}
	if s.Nodes, err = parseNodes(pb); err != nil {
		return none, err
	}
	s.Stores, err = parseStores(pb)
	return s, err
}

func parseStores(pb *seqpb.SetRoutes) ([]string, error) {
	if len(pb.Stores) > storesMax {
		return nil, malformed("stores", "set %q has %d, at most %d are read", pb.Name, len(pb.Stores), storesMax)
	}
	return pb.Stores, texts("stores", pb.Stores...)
}

func parseRanges(pb *seqpb.SetRoutes) ([]sets.Range, error) {
	if len(pb.Ranges) > rangesMax {
		return nil, malformed("ranges", "set %q has %d, at most %d are read", pb.Name, len(pb.Ranges), rangesMax)
	}
	var out []sets.Range
	for _, r := range pb.Ranges {
		if r == nil || r.Space == 0 || r.Space > maxSpaceID || r.Lo > r.Last {
			return nil, malformed("ranges", "set %q has %+v", pb.Name, r)
		}
		out = append(out, sets.Range{Space: ids.SpaceID(r.Space), Lo: ids.Position(r.Lo), Last: ids.Position(r.Last)})
	}
	return out, nil
}

func parseChanges(pb *seqpb.SetRoutes) ([]router.Change, error) {
	n := len(pb.Owner)
	switch {
	case pb.Sections == 0 || pb.Sections > router.SectionsMax:
		return nil, malformed("sections", "set %q has %d, want 1 to %d", pb.Name, pb.Sections, router.SectionsMax)
	case len(pb.Epoch) != n:
		return nil, malformed("epoch", "set %q has %d entries for %d owners", pb.Name, len(pb.Epoch), n)
	case pb.Since > 0 && len(pb.Section) != n:
		return nil, malformed("section", "set %q has %d entries for %d owners", pb.Name, len(pb.Section), n)
	case pb.Since == 0 && len(pb.Section) != 0:
		return nil, malformed("section", "set %q lists sections, but is not a delta", pb.Name)
	case pb.Since == 0 && n != int(pb.Sections):
		return nil, malformed("owner", "set %q has %d entries for %d sections", pb.Name, n, pb.Sections)
	case pb.Since >= pb.Version:
		return nil, malformed("since", "set %q goes from version %d to %d", pb.Name, pb.Since, pb.Version)
	case n > int(pb.Sections):
		return nil, malformed("owner", "set %q has %d entries for %d sections", pb.Name, n, pb.Sections)
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]router.Change, n)
	for i := range out {
		section := uint32(i)
		if pb.Since > 0 {
			section = pb.Section[i]
		}
		if section >= pb.Sections {
			return nil, malformed("section", "set %q has section %d of %d", pb.Name, section, pb.Sections)
		}
		out[i] = router.Change{Section: ids.Section(section), Owner: ids.SessionID(pb.Owner[i]), Epoch: ids.Epoch(pb.Epoch[i])}
	}
	return out, nil
}

func parseNodes(pb *seqpb.SetRoutes) ([]router.Node, error) {
	if len(pb.Nodes) > nodesMax {
		return nil, malformed("nodes", "set %q has %d, at most %d are read", pb.Name, len(pb.Nodes), nodesMax)
	}
	var out []router.Node
	for _, n := range pb.Nodes {
		if n == nil || n.Session == 0 || n.Addr == "" {
			return nil, malformed("nodes", "set %q has a node without session or address", pb.Name)
		}
		if err := texts("nodes", n.Id, n.Addr, n.RedisAddr, n.HttpAddr); err != nil {
			return nil, err
		}
		out = append(out, router.Node{
			Session: ids.SessionID(n.Session), ID: n.Id, Addr: n.Addr, RedisAddr: n.RedisAddr, HTTPAddr: n.HttpAddr,
		})
	}
	router.SortNodes(out)
	return out, nil
}

// texts refuses over-long strings.
func texts(field string, all ...string) error {
	for _, s := range all {
		if len(s) > textBytesMax {
			return malformed(field, "%d bytes of text, at most %d are read", len(s), textBytesMax)
		}
	}
	return nil
}
