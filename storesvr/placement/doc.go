// Package placement decides who gets which section: Plan is a pure function of
// who is there, who owns what, and how much work each section is.
//
// It assigns unowned sections at once, moves those of nodes that are to be
// emptied, and otherwise balances with the fewest moves: only past a threshold
// (and then down to a finer one, so that it does not stop at the edge), a
// bounded number at a time, no section twice within its cool-down, and none to
// a node that was lost repeatedly of late (Flaps). A section that is served goes
// to nobody who is not heard of, and one that is not prefers those who are; when
// nobody is, it is given to whom it can be. A section's weight is what
// it costs to serve: one for being there, plus its keys and its rate in the
// units below, so a cold cluster is balanced by counting sections and a single
// busy key does not send everything else around.
//
// What it does not do: carry moves out, or remember them. The caller tells it
// of the moves that are still under way.
package placement
