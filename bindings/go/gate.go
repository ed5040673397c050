// SPDX-License-Identifier: MIT

package holdfast

import (
	"sync"
	"sync/atomic"
)

// A gate guards a handle of C, which no call may use once it is ended. Calls enter
// and leave. The one who is to end the handle shuts the gate, and then waits until
// those inside have left; meanwhile nobody waits to enter, since nobody can. A
// sync.RWMutex would make them wait for a call that waits for the service.
type gate struct {
	n    atomic.Int64 // calls inside, plus gateShut
	mu   sync.Mutex   // of those who shut it
	idle chan struct{}
}

const gateShut = 1 << 62

// enter lets a call in, which has to leave; false: the gate is shut.
func (g *gate) enter() bool {
	for {
		n := g.n.Load()
		if n >= gateShut {
			return false
		}
		if g.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *gate) leave() {
	if g.n.Add(-1) == gateShut {
		close(g.idle)
	}
}

// shut lets nobody in any more. Only the first gets true, and a channel that is
// closed when all have left; nil if nobody is inside.
func (g *gate) shut() (idle <-chan struct{}, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		n := g.n.Load()
		if n >= gateShut {
			return nil, false
		}
		g.idle = nil
		if n > 0 {
			g.idle = make(chan struct{})
		}
		if g.n.CompareAndSwap(n, n+gateShut) {
			return g.idle, true
		}
	}
}

// left waits until all have.
func left(idle <-chan struct{}) {
	if idle != nil {
		<-idle
	}
}
