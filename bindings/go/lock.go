// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Options are those of a lock. The zero value has the defaults.
type Options struct {
	TTL        time.Duration // the lease; 30 s, at least 10 ms
	Wait       time.Duration // wait at most so long; 0: while the context lasts; negative: try once
	Owner      string        // acquisitions with the same id are reentrant
	Note       string        // for people who look at the lock
	Shared     bool          // with other shared holders
	Permits    int           // at most so many holders, each with a slot
	Manual     bool          // not renewed: Extend is up to you
	Fair       bool          // a place of its own in the service's queue
	Poll       bool          // ask every Retry even where the service notifies
	Retry      time.Duration // between polls, jittered; 50 ms
	MaxTries   int           // give up after so many
	Linger     time.Duration // keep the lease so long after the release
	MaxHold    time.Duration // lose it after so long
	MinHold    time.Duration // released earlier, it stays taken until then
	LocalTurns int           // hand-overs inside the client in a row; 16
}

// c makes the options of the library, nil for the defaults; free them.
func (o *Options) c() (*C.struct_hf_lock_opts, func(), error) {
	if o == nil {
		return nil, func() {}, nil
	}
	c := &C.struct_hf_lock_opts{
		size:        C.sizeof_struct_hf_lock_opts,
		ttl_ms:      ms(o.TTL),
		flags:       o.flags(),
		retry_ms:    ms(o.Retry),
		linger_ms:   ms(o.Linger),
		max_hold_ms: ms(o.MaxHold),
		min_hold_ms: ms(o.MinHold),
	}
	for _, n := range []struct {
		what string
		from int
		to   *C.int32_t
	}{
		{"MaxTries", o.MaxTries, &c.max_tries},
		{"LocalTurns", o.LocalTurns, &c.local_turns},
		{"Permits", o.Permits, &c.permits},
	} {
		if *n.to = C.int32_t(n.from); int(*n.to) != n.from {
			return nil, nil, errorf(ErrInvalid, "%s is out of range: %d", n.what, n.from)
		}
	}
	if strings.IndexByte(o.Owner, 0) >= 0 || strings.IndexByte(o.Note, 0) >= 0 {
		return nil, nil, errorf(ErrInvalid, "Owner or Note contains NUL")
	}
	if o.Owner != "" {
		c.owner = C.CString(o.Owner)
	}
	if o.Note != "" {
		c.note = C.CString(o.Note)
	}
	return c, func() {
		C.free(unsafe.Pointer(c.owner))
		C.free(unsafe.Pointer(c.note))
	}, nil
}

func (o *Options) flags() (flags C.uint) {
	if o.Shared {
		flags |= C.HF_SHARED
	}
	if o.Manual {
		flags |= C.HF_MANUAL
	}
	if o.Fair {
		flags |= C.HF_FAIR
	}
	if o.Poll {
		flags |= C.HF_POLL
	}
	return
}

// Lock takes the lock of a key. It waits until the context is done, and then
// leaves nothing behind in the service. A lock that was granted just then is being
// released when Lock returns: Lock does not wait for the answer.
func (c *Client) Lock(ctx context.Context, key string, opts *Options) (*Lock, error) {
	locks, err := c.acquire(ctx, []string{key}, -1, opts)
	if err != nil {
		return nil, err
	}
	return locks[0], nil
}

// TryLock takes the lock of a key if it is free; else ErrBusy.
func (c *Client) TryLock(ctx context.Context, key string, opts *Options) (*Lock, error) {
	locks, err := c.acquire(ctx, []string{key}, 0, opts)
	if err != nil {
		return nil, err
	}
	return locks[0], nil
}

// LockAll takes the locks of all keys, or of none. Locks[i] is that of keys[i].
func (c *Client) LockAll(ctx context.Context, keys []string, opts *Options) (Locks, error) {
	return c.acquire(ctx, keys, -1, opts)
}

// TryLockAll takes all keys if they are free; else ErrBusy.
func (c *Client) TryLockAll(ctx context.Context, keys []string, opts *Options) (Locks, error) {
	return c.acquire(ctx, keys, 0, opts)
}

// Do runs f under the lock of a key. Its context is canceled when the lock is
// lost; then Do returns the error of f, or a LostError. If f panics the lock is
// released, and the panic goes on.
func (c *Client) Do(ctx context.Context, key string, opts *Options, f func(context.Context, *Lock) error) error {
	lock, err := c.Lock(ctx, key, opts)
	if err != nil {
		return err
	}
	err, released := lock.run(ctx, f)
	if err != nil {
		return err
	}
	return released
}

// run calls f with a context that ends with the lock, and releases the lock however
// f ends: also when it panics or ends its goroutine.
func (l *Lock) run(ctx context.Context, f func(context.Context, *Lock) error) (err, released error) {
	inner, cancel := l.WithContext(ctx)
	defer func() {
		cancel()
		released = l.Release(context.Background())
	}()
	return f(inner, l), nil
}

func (c *Client) acquire(ctx context.Context, keys []string, wait C.int64_t, opts *Options) (Locks, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if wait != 0 && opts != nil && opts.Wait != 0 {
		wait = ms(opts.Wait)
		if wait < 0 { // the time was over before: the library would wait without a limit
			wait = 0
		}
	}
	r, id, err := c.start(keys, wait, opts)
	c.help(ctx, r)
	if err != nil {
		return nil, err
	}
	select {
	case end := <-r.end:
		return end.locks, end.err
	case <-ctx.Done():
	}
	c.cancel(id)
	end := <-r.end
	for _, lock := range end.locks { // granted just then
		lock.Release(ctx) // which is done, so this waits for no service
	}
	if end.err != nil && !errors.Is(end.err, ErrCanceled) {
		return nil, end.err
	}
	return nil, ctx.Err()
}

// start begins a request. It may have to be helped also if there is an error.
func (c *Client) start(keys []string, wait C.int64_t, opts *Options) (*request, uintptr, error) {
	r := &request{keys: keys, end: make(chan outcome, 1)}
	copts, free, err := opts.c()
	if err != nil {
		return r, 0, err
	}
	defer free()
	if len(keys) == 1 {
		key, err := text("the key", keys[0])
		if err != nil {
			return r, 0, err
		}
		defer C.free(unsafe.Pointer(key))
		id, err := c.begin(r, func(client *C.hf_client, id C.uintptr_t, err *C.struct_hf_error) C.hf_status {
			r.lent = c.lend()
			return C.hfg_start(client, key, wait, copts, id, C.bool(r.lent), &r.req, err)
		})
		return r, id, err
	}
	names, free, err := texts(keys)
	defer free()
	if err != nil {
		return r, 0, err
	}
	r.locks = (**C.hf_lock)(C.calloc(C.size_t(len(keys)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	id, err := c.begin(r, func(client *C.hf_client, id C.uintptr_t, err *C.struct_hf_error) C.hf_status {
		return C.hfg_start_all(client, names, C.size_t(len(keys)), wait, copts, r.locks, id, &r.req, err)
	})
	if err != nil {
		C.free(unsafe.Pointer(r.locks))
	}
	return r, id, err
}

// begin starts a request that the events know by its number.
func (c *Client) begin(r *request, f func(*C.hf_client, C.uintptr_t, *C.struct_hf_error) C.hf_status) (id uintptr, err error) {
	err = c.with(func(client *C.hf_client) error {
		var cerr C.struct_hf_error
		c.mu.Lock() // so that its end is not taken before it is known
		defer c.mu.Unlock()
		if c.closing {
			return errorf(ErrInvalid, "the client was closed")
		}
		c.last++
		id = c.last
		st := f(client, C.uintptr_t(id), &cerr)
		if st == C.HF_OK {
			c.waits[id] = r
		}
		return failure(st, &cerr)
	})
	return
}

// cancel ends a request, if it has not ended.
func (c *Client) cancel(id uintptr) {
	if !c.use.enter() {
		return // Close has ended it
	}
	defer c.use.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.waits[id]; r != nil {
		C.hf_request_cancel(r.req)
	}
}

// ---- a lock ------------------------------------------------------------------

// A Lock was granted. Its methods may be called from any goroutine.
type Lock struct {
	client *Client
	key    string
	token  string
	fence  uint64
	slot   int
	atRisk chan struct{}

	use gate // of p; shut once released
	p   *C.hf_lock

	mu   sync.Mutex
	done chan struct{}
	err  error
}

// ErrReleased is what Err says of a lock that was released.
var ErrReleased = errors.New("holdfast: the lock was released")

// Key is what the lock is for.
func (l *Lock) Key() string { return l.key }

// Fence is greater than that of every earlier grant of the key; 0: there is none.
// Hand it to what the lock protects, and let that refuse a smaller one.
func (l *Lock) Fence() uint64 { return l.fence }

// Slot says which of the permits it is, from 0; -1 without permits.
func (l *Lock) Slot() int { return l.slot }

// Token is the id of the acquisition in the service.
func (l *Lock) Token() string { return l.token }

// Held is arithmetic on the clock. Once false, it is always false.
func (l *Lock) Held() bool {
	if !l.use.enter() {
		return false
	}
	defer l.use.leave()
	return bool(C.hf_held(l.p))
}

// Remaining says how long the lock can be relied on without another renewal.
func (l *Lock) Remaining() time.Duration {
	if !l.use.enter() {
		return 0
	}
	defer l.use.leave()
	ms := int64(C.hf_remaining_ms(l.p))
	if ms > int64(1<<63-1)/int64(time.Millisecond) {
		return 1<<63 - 1
	}
	return time.Duration(ms) * time.Millisecond
}

// Done is closed when the lock is lost or released.
func (l *Lock) Done() <-chan struct{} { return l.done }

// Err is nil before Done is closed, then a LostError or ErrReleased.
func (l *Lock) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// AtRisk gets a value when renewals fail and a third of the lease is left.
func (l *Lock) AtRisk() <-chan struct{} { return l.atRisk }

// Context is canceled when the lock is lost or released.
func (l *Lock) Context() context.Context { return lockContext{context.Background(), l} }

// WithContext is a child of ctx that is canceled with the lock, too.
func (l *Lock) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-l.done:
			cancel()
		case <-inner.Done():
		}
	}()
	return inner, cancel
}

type lockContext struct {
	context.Context
	lock *Lock
}

func (c lockContext) Done() <-chan struct{} { return c.lock.done }

func (c lockContext) Err() error {
	if c.lock.Err() != nil {
		return context.Canceled
	}
	return nil
}

// Release gives the lock back. ErrLost: it had been lost before. ErrUncertain: no
// answer; the client goes on trying until the lease is over. When the context is
// done first, Release returns its error, and the release goes on. It begins when
// every other call with the lock, such as Extend, has returned.
func (l *Lock) Release(ctx context.Context) error {
	p, idle, err := l.take()
	if err != nil {
		return err
	}
	if idle == nil {
		return l.release(ctx, p)
	}
	end := make(chan error, 1)
	go func() {
		left(idle)
		end <- l.release(context.Background(), p)
	}()
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Lock) release(ctx context.Context, p *C.hf_lock) error {
	r := &request{end: make(chan outcome, 1)}
	known := l.client.releasing(p, r)
	l.client.help(ctx, r)
	if !known {
		var cerr C.struct_hf_error
		return l.failed(failure(C.hf_release(p, &cerr), &cerr)) // it does not wait
	}
	select {
	case end := <-r.end:
		return l.failed(end.err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// releasing begins to release; false: the client was closed.
func (c *Client) releasing(p *C.hf_lock, r *request) bool {
	return c.with(func(client *C.hf_client) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closing {
			return ErrInvalid
		}
		c.last++
		c.releases.Add(1)
		r.releases = true
		r.lent = c.lend()
		C.hfg_release_start(client, p, C.uintptr_t(c.last), C.bool(r.lent), &r.req)
		if r.req != nil {
			c.waits[c.last] = r
		} else {
			c.releases.Done()
			r.end <- outcome{err: ErrNoMemory} // it is released all the same
		}
		return nil
	}) == nil
}

// take ends the use of the handle by others: they have left it when the channel is
// closed.
func (l *Lock) take() (p *C.hf_lock, idle <-chan struct{}, err error) {
	idle, first := l.use.shut()
	if !first {
		return nil, nil, l.over()
	}
	l.client.forget(l.p)
	if reason := C.hf_lost_reason(l.p); reason != C.HF_LOSS_NONE {
		l.end(C.GoString(C.hf_loss_name(reason)))
	} else {
		l.finish(ErrReleased)
	}
	return l.p, idle, nil
}

// over is the error of a call that comes too late.
func (l *Lock) over() error {
	var lost *LostError
	if err := l.Err(); errors.As(err, &lost) {
		return lost
	}
	return errorf(ErrInvalid, "lock '%s' was released before", l.key)
}

// failed makes a LostError of a loss that the library tells. Its text says why.
func (l *Lock) failed(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Status != ErrLost {
		return err
	}
	for reason := C.hf_loss(C.HF_LOSS_EXPIRED); reason <= C.HF_LOSS_CLOSED; reason++ {
		name := C.GoString(C.hf_loss_name(reason))
		if strings.HasSuffix(e.Text, ": "+name) {
			return &LostError{l.key, name}
		}
	}
	return err
}

func (l *Lock) end(reason string) { l.finish(&LostError{l.key, reason}) }

func (l *Lock) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

func (l *Lock) warn() {
	select {
	case l.atRisk <- struct{}{}:
	default:
	}
}

// with calls the library, unless the lock was released.
func (l *Lock) with(f func(*C.hf_lock, *C.struct_hf_error) C.hf_status) error {
	if !l.use.enter() {
		return errorf(ErrInvalid, "lock '%s' was released before", l.key)
	}
	defer l.use.leave()
	var cerr C.struct_hf_error
	return l.failed(failure(f(l.p, &cerr), &cerr))
}

// Extend renews the lock now, with a new lease; 0 keeps the old one.
func (l *Lock) Extend(ttl time.Duration) error {
	return l.with(func(p *C.hf_lock, err *C.struct_hf_error) C.hf_status {
		return C.hf_extend(p, ms(ttl), err)
	})
}

// Transfer makes the waiter with this token, owner id or note the next one. The
// lock stays ours until Release.
func (l *Lock) Transfer(heir string) error {
	h, err := text("the heir", heir)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(h))
	return l.with(func(p *C.hf_lock, err *C.struct_hf_error) C.hf_status {
		return C.hf_transfer(p, h, err)
	})
}

// Downgrade makes an exclusive lock a shared one, without a gap.
func (l *Lock) Downgrade() error {
	return l.with(func(p *C.hf_lock, err *C.struct_hf_error) C.hf_status {
		return C.hf_downgrade(p, err)
	})
}

// ---- several locks -------------------------------------------------------------

// Locks are those of several keys.
type Locks []*Lock

// Held says whether all of them are.
func (ls Locks) Held() bool {
	for _, l := range ls {
		if !l.Held() {
			return false
		}
	}
	return true
}

// WithContext is a child of ctx that is canceled when one of them is lost.
func (ls Locks) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(ctx)
	for _, l := range ls {
		go func(l *Lock) {
			select {
			case <-l.done:
				cancel()
			case <-inner.Done():
			}
		}(l)
	}
	return inner, cancel
}

// Release gives all of them back, and returns the first error.
func (ls Locks) Release(ctx context.Context) error {
	var first error
	errs := make(chan error, len(ls))
	for _, l := range ls {
		go func(l *Lock) { errs <- l.Release(ctx) }(l)
	}
	for range ls {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// ---- sync.Locker ---------------------------------------------------------------

type locker struct {
	client *Client
	key    string
	opts   *Options
	mu     sync.Mutex
	held   *Lock
}

// Locker makes a sync.Locker of a key. Its Lock and Unlock panic where the methods
// of Client and Lock return an error, also when the lock was lost.
func (c *Client) Locker(key string, opts *Options) sync.Locker {
	return &locker{client: c, key: key, opts: opts}
}

func (k *locker) Lock() {
	lock, err := k.client.Lock(context.Background(), k.key, k.opts)
	if err != nil {
		panic(err)
	}
	k.mu.Lock()
	k.held = lock
	k.mu.Unlock()
}

func (k *locker) Unlock() {
	k.mu.Lock()
	lock := k.held
	k.held = nil
	k.mu.Unlock()
	if lock == nil {
		panic("holdfast: unlock of unlocked Locker")
	}
	if err := lock.Release(context.Background()); err != nil {
		panic(err)
	}
}
