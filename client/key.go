package client

import (
	"strconv"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/router"
)

// DefaultSpace is the space of UID keys.
const DefaultSpace = "uid"

// Key names a stream: a uid or a name in a space. The zero Key is invalid.
// Keys can be compared.
type Key struct {
	space string
	// text is the name, or the text of a uid that is still to be parsed.
	text string
	uid  uint64
	form form
}

type form uint8

const (
	formNone form = iota
	formUID       // uid is set
	formName      // text is a name
	formText      // text is what the kind of the space says
)

// UID is the key of a uid in the default space.
func UID(uid uint64) Key { return Key{space: DefaultSpace, uid: uid, form: formUID} }

// Name is the key of a name in a name space.
func Name(space, name string) Key { return Key{space: space, text: name, form: formName} }

// In is a key by its text: a decimal uid or a name, by the kind of the space.
func In(space, text string) Key { return Key{space: space, text: text, form: formText} }

// Space is the name of the key's space.
func (k Key) Space() string { return k.space }

// Text is the uid in decimal, or the name.
func (k Key) Text() string {
	if k.form == formUID {
		return strconv.FormatUint(k.uid, 10)
	}
	return k.text
}

// String is SPACE/TEXT.
func (k Key) String() string { return k.space + "/" + k.Text() }

// resolve validates the key against the spaces of a table, and finds its identity.
func (k *Key) resolve(t *router.Table) (ids.Key, *ids.Space, error) {
	var space *ids.Space
	for i := range t.Spaces {
		if t.Spaces[i].Name == k.space {
			space = &t.Spaces[i]
			break
		}
	}
	if space == nil {
		return ids.Key{}, nil, invalid(*k, "the cluster has no space %q, only %s", k.space, spaceNames(t))
	}
	var id ids.Key
	var err error
	switch k.form {
	case formUID:
		id, err = space.UID(k.uid)
	case formName:
		id, err = space.NameKey(k.text)
	case formText:
		id, err = space.Parse(k.text)
	default:
		return id, space, invalid(*k, "an empty key: make one with UID, Name or In")
	}
	if err != nil {
		return id, space, &Error{Kind: KindInvalidArgument, Key: *k, Err: err}
	}
	return id, space, nil
}

func spaceNames(t *router.Table) string {
	s := ""
	for i, space := range t.Spaces {
		if i > 0 {
			s += ", "
		}
		s += strconv.Quote(space.Name)
	}
	return s
}
