// SPDX-License-Identifier: MIT

// Package holdfast is a distributed lock over the service you already run: Redis,
// etcd, ZooKeeper, Consul, PostgreSQL, MySQL, SQLite, or files on one machine.
//
//	client, err := holdfast.Open(ctx, "redis://127.0.0.1", nil)
//	...
//	defer client.Close()
//
//	lock, err := client.Lock(ctx, "nightly", nil)
//	...
//	defer lock.Release(ctx)
//	work(lock.Context(), lock.Fence())
//
// A lock is renewed as long as it is held. When it is lost all the same, because
// the service is silent for longer than its lease or an operator breaks it,
// Done() is closed and Context() is canceled before anybody else can get it.
//
// Waiting costs no thread: all requests of a client that wait are events behind
// one descriptor, which the runtime's poller watches. A request to the service is
// made by a thread of the runtime, which waits for that one answer.
package holdfast

// #cgo pkg-config: libholdfast
// #include "bridge.h"
import "C"

import (
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Version is that of the library.
func Version() string { return C.GoString(C.hf_version()) }

// ClientOptions are those of Open. The zero value has the defaults.
type ClientOptions struct {
	Timeout time.Duration // limit of one request to the service; 5 s
	Note    string        // note of locks that bring none; host:pid

	// Connect lets Open return at once: the client connects in the background,
	// again and again for so long; -1: without limit. Calls wait for it as part
	// of their own limit.
	Connect time.Duration

	// Log is told of reconnects, failed renewals, what is taken back, and so on,
	// up to LogLevel (LogWarning if that is 0), in a goroutine of its own.
	Log      func(level LogLevel, text string)
	LogLevel LogLevel
}

// A Client is a connection to a service. All its methods may be called from any
// goroutine at any time.
type Client struct {
	events *os.File      // a copy of the descriptor, in the runtime's poller
	done   chan struct{} // closed when no event is taken any more
	over   chan struct{} // closed when Close is
	unlog  func()

	use gate // of c
	c   *C.hf_client

	// Events are taken under this mutex, so that a request is not canceled
	// after its end was taken, and a lock not told of after its release.
	mu       sync.Mutex
	taken    *C.struct_hfg_event // room for HFG_EVENTS
	last     uintptr
	waits    map[uintptr]*request
	locks    map[*C.hf_lock]*Lock
	changes  map[uintptr]chan struct{} // of observers
	releases sync.WaitGroup            // that are under way
	closing  bool                      // nothing begins any more
	closed   bool                      // no event is taken any more

	helpers atomic.Int32 // goroutines in C.hf_work
}

// Open connects to the service that the URL names: holdfast-url(7). An empty URL
// is refused; "file:" needs no service at all. The context limits connecting.
func Open(ctx context.Context, url string, opts *ClientOptions) (*Client, error) {
	type result struct {
		client *Client
		err    error
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &ClientOptions{}
	}
	ready := make(chan result, 1)
	go func() {
		client, err := open(url, opts)
		ready <- result{client, err}
	}()
	select {
	case r := <-ready:
		return r.client, r.err
	case <-ctx.Done():
		go func() {
			if r := <-ready; r.client != nil {
				r.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func open(url string, opts *ClientOptions) (*Client, error) {
	var cerr C.struct_hf_error
	var copts C.struct_hf_client_opts
	at, err := text("the URL", url)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(at))
	copts.size = C.sizeof_struct_hf_client_opts
	copts.timeout_ms = ms(opts.Timeout)
	copts.connect_ms = ms(opts.Connect)
	if opts.Connect < 0 {
		copts.connect_ms = -1
	}
	copts.log_level = C.hf_log_level(opts.LogLevel)
	if opts.Note != "" {
		if copts.note, err = text("Note", opts.Note); err != nil {
			return nil, err
		}
		defer C.free(unsafe.Pointer(copts.note))
	}

	c := &Client{
		done:  make(chan struct{}),
		over:  make(chan struct{}),
		waits: map[uintptr]*request{},
		locks: map[*C.hf_lock]*Lock{},

		changes: map[uintptr]chan struct{}{},
	}
	c.taken = (*C.struct_hfg_event)(C.calloc(C.HFG_EVENTS, C.sizeof_struct_hfg_event))
	if c.taken == nil {
		return nil, ErrNoMemory
	}
	log, unlog := startLog(opts.Log)
	c.unlog = unlog
	err = failure(C.hfg_open(at, &copts, C.uintptr_t(log), &c.c, &cerr), &cerr)
	if err != nil {
		unlog()
		C.free(unsafe.Pointer(c.taken))
		return nil, err
	}
	fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL,
		uintptr(C.hf_events_fd(c.c)), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		C.hf_close(c.c)
		unlog()
		C.free(unsafe.Pointer(c.taken))
		return nil, &Error{ErrSystem, "events: " + errno.Error(), errno}
	}
	syscall.SetNonblock(int(fd), true)
	c.events = os.NewFile(fd, "holdfast")
	go c.dispatch()
	return c, nil
}

// Close cancels every request, releases every lock and disconnects. Locks that
// were not released are lost.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.over
		return nil
	}
	c.closing = true
	c.mu.Unlock()
	defer close(c.over)
	c.releases.Wait()

	c.mu.Lock()
	c.closed = true
	waits, locks := c.waits, c.locks
	c.waits, c.locks = nil, nil
	c.mu.Unlock()
	for _, r := range waits {
		r.end <- outcome{err: errorf(ErrCanceled, "the client was closed")}
	}

	idle, _ := c.use.shut()
	c.events.Close()
	left(idle)
	<-c.done
	C.hf_close(c.c)
	C.free(unsafe.Pointer(c.taken))
	c.unlog()
	for _, r := range waits {
		C.free(unsafe.Pointer(r.locks))
	}
	for _, l := range locks {
		l.end("closed")
		if p, idle, err := l.take(); err == nil {
			left(idle)
			C.hf_release(p, nil)
		}
	}
	return nil
}

// with calls the library, unless the client is closed.
func (c *Client) with(f func(*C.hf_client) error) error {
	if !c.use.enter() {
		return errorf(ErrInvalid, "the client was closed")
	}
	defer c.use.leave()
	return f(c.c)
}

// withKey does the same for the calls that return a status and take a key.
func (c *Client) withKey(key string, f func(*C.hf_client, *C.char, *C.struct_hf_error) C.hf_status) error {
	k, err := text("the key", key)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(k))
	return c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		return failure(f(client, k, &cerr), &cerr)
	})
}

// text is a string for C, which NUL would end early: another key than was asked
// for would be locked. Free it.
func text(what, s string) (*C.char, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errorf(ErrInvalid, "%s contains NUL", what)
	}
	return C.CString(s), nil
}

// texts does the same with several keys; free them in any case.
func texts(keys []string) (**C.char, func(), error) {
	all := (**C.char)(C.calloc(C.size_t(len(keys)+1), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	free := func() {
		for _, one := range unsafe.Slice(all, len(keys)) {
			C.free(unsafe.Pointer(one))
		}
		C.free(unsafe.Pointer(all))
	}
	for i, key := range keys {
		var err error
		if unsafe.Slice(all, len(keys))[i], err = text("a key", key); err != nil {
			return all, free, err
		}
	}
	return all, free, nil
}

// ms is a duration in milliseconds; one that is shorter is 1, and one that is
// negative stays so: 0 would stand for the default.
func ms(d time.Duration) C.int64_t {
	if d > 0 && d < time.Millisecond {
		return 1
	}
	if d < 0 && d > -time.Millisecond {
		return -1
	}
	return C.int64_t(d.Milliseconds())
}

// ---- events ----------------------------------------------------------------

// An outcome is the end of a request.
type outcome struct {
	locks []*Lock
	err   error
}

// A request waits for its locks.
type request struct {
	keys  []string
	req   *C.hf_request
	locks **C.hf_lock // where the library puts several
	end   chan outcome

	releases bool
	lent     bool // work is called for it
}

// dispatch takes events until the client is closed. The poller wakes it; no
// thread waits.
func (c *Client) dispatch() {
	defer close(c.done)
	conn, err := c.events.SyscallConn()
	if err != nil {
		return
	}
	conn.Read(func(uintptr) bool {
		c.takeEvents()
		return false
	})
}

// takeEvents takes all that there are.
func (c *Client) takeEvents() {
	for c.next() {
	}
}

// maxHelpers is how many goroutines wait for the service in C at a time, each for
// one answer. What is begun beyond that is left to the threads of the library.
const maxHelpers = 64

// lend says whether help may be called for what is begun next.
func (c *Client) lend() bool {
	if c.helpers.Add(1) <= maxHelpers {
		return true
	}
	c.helpers.Add(-1)
	return false
}

// help makes one request to the service, if the start of r was lent a thread, and
// takes the events. A goroutine of its own does it if the context can end before
// the answer comes: nothing ends a call of C.
func (c *Client) help(ctx context.Context, r *request) {
	if !r.lent {
		return
	}
	if ctx.Done() != nil {
		go c.work()
	} else {
		c.work()
	}
}

func (c *Client) work() {
	c.with(func(client *C.hf_client) error { C.hf_work(client); return nil })
	c.helpers.Add(-1)
	c.takeEvents()
}

// next takes some events; false: there may be no more.
func (c *Client) next() bool {
	if !c.use.enter() {
		return false
	}
	defer c.use.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	n := int(C.hfg_next(c.c, c.taken))
	for i := range unsafe.Slice(c.taken, n) {
		c.handle(&unsafe.Slice(c.taken, n)[i])
	}
	return n == C.HFG_EVENTS
}

func (c *Client) handle(event *C.struct_hfg_event) {
	switch event._type {
	case C.HF_GRANTED, C.HF_FAILED, C.HF_ANSWERED:
		r := c.waits[uintptr(event.id)]
		delete(c.waits, uintptr(event.id))
		if r.releases {
			c.releases.Done()
		}
		r.end <- c.ended(r, event)
	case C.HF_CHANGED:
		select {
		case c.changes[uintptr(event.id)] <- struct{}{}:
		default:
		}
	case C.HF_AT_RISK:
		if l := c.locks[event.lock.lock]; l != nil {
			l.warn()
		}
	case C.HF_GONE:
		if l := c.locks[event.lock.lock]; l != nil {
			l.end(C.GoString(C.hf_loss_name(event.reason)))
		}
	}
}

// ended makes locks of what the library granted.
func (c *Client) ended(r *request, event *C.struct_hfg_event) outcome {
	if r.locks != nil {
		defer C.free(unsafe.Pointer(r.locks))
	}
	if event._type != C.HF_GRANTED {
		return outcome{err: failure(event.error.status, &event.error)}
	}
	if r.locks == nil {
		return outcome{locks: []*Lock{c.granted(r.keys[0], &event.lock)}}
	}
	var ret outcome
	for i, lock := range unsafe.Slice(r.locks, len(r.keys)) {
		ret.locks = append(ret.locks, c.grantedNow(r.keys[i], lock))
	}
	return ret
}

// granted is called with c.mu held. The loss of a lock that no event brought may
// have been told before it is known here.
func (c *Client) granted(key string, g *C.struct_hfg_lock) *Lock {
	l := &Lock{
		client: c, p: g.lock, key: key,
		fence: uint64(g.fence), slot: int(g.slot), token: C.GoString(g.token),
		done:   make(chan struct{}),
		atRisk: make(chan struct{}, 1),
	}
	if c.locks != nil {
		c.locks[l.p] = l
	}
	if g.reason != C.HF_LOSS_NONE {
		l.end(C.GoString(C.hf_loss_name(g.reason)))
	}
	return l
}

func (c *Client) grantedNow(key string, p *C.hf_lock) *Lock {
	var g C.struct_hfg_lock
	C.hfg_look(p, &g)
	return c.granted(key, &g)
}

// forget is called before a lock is released.
func (c *Client) forget(p *C.hf_lock) {
	c.mu.Lock()
	delete(c.locks, p)
	c.mu.Unlock()
}
