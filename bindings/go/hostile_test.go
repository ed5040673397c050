// SPDX-License-Identifier: MIT

package holdfast_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
)

// refused checks that an error is ErrInvalid.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestANULNeverCutsAText(t *testing.T) {
	c := open(t)
	cut := lock(t, c, "a", nil)
	_, err := c.TryLock(bg, "a\x00b", nil)
	refused(t, "key", err)
	_, err = c.TryLockAll(bg, []string{"x", "b\x00c"}, nil)
	refused(t, "keys", err)
	_, err = c.TryLock(bg, "k", &holdfast.Options{Note: "a\x00b"})
	refused(t, "note", err)
	_, err = c.TryLock(bg, "k", &holdfast.Options{Owner: "a\x00b"})
	refused(t, "owner", err)
	_, err = c.Inspect("a\x00b")
	refused(t, "inspect", err)
	_, err = c.Observe(bg, "a\x00b")
	refused(t, "observe", err)
	_, err = c.List("a\x00b")
	refused(t, "list", err)
	refused(t, "break", c.Break("a\x00b", cut.Fence()))
	refused(t, "heir", cut.Transfer("a\x00b"))
	_, err = holdfast.Open(bg, "mem:x\x00y", nil)
	refused(t, "url", err)
	_, err = holdfast.Open(bg, "mem:x", &holdfast.ClientOptions{Note: "a\x00b"})
	refused(t, "client's note", err)
	if info, err := c.Inspect("x"); err != nil || info.Held {
		t.Error("a key of a refused call is held", err)
	}
}

func TestATimeThatIsOverIsNoWait(t *testing.T) {
	c := open(t)
	lock(t, c, "k", nil)
	for _, wait := range []time.Duration{-1, -time.Hour, math.MinInt64} {
		ctx, cancel := context.WithTimeout(bg, 30*time.Second)
		_, err := c.Lock(ctx, "k", &holdfast.Options{Wait: wait})
		if !errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("Wait %v: %v", wait, err)
		}
		_, err = c.LockAll(ctx, []string{"x", "k"}, &holdfast.Options{Wait: wait})
		if !errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("Wait %v, several: %v", wait, err)
		}
		cancel()
	}
}

func TestNumbersAreNotCut(t *testing.T) {
	c := open(t)
	for _, o := range []holdfast.Options{
		{Permits: 1<<32 + 1}, {MaxTries: 1<<32 + 1}, {LocalTurns: math.MaxInt64}, {Permits: -1},
		{TTL: -time.Second}, {TTL: -1}, {Retry: -1}, {Linger: -1}, {MaxHold: -1}, {MinHold: -1},
	} {
		_, err := c.TryLock(bg, "k", &o)
		refused(t, "number", err)
	}
	_, err := holdfast.Open(bg, "mem:x", &holdfast.ClientOptions{Timeout: -1})
	refused(t, "Timeout", err)
	refused(t, "Extend", lock(t, c, "other", nil).Extend(-1))
	_, err = c.Collect(-1, true)
	refused(t, "Collect", err)
}

// ends lists the ways in which a function can end without returning.
var ends = map[string]func(){
	"panic":  func() { panic("on purpose") },
	"Goexit": runtime.Goexit,
}

// endsEarly runs a call in a goroutine of its own, which must not get past it.
func endsEarly(t *testing.T, name string, call func()) {
	t.Helper()
	end, returned, caught := make(chan struct{}), false, any(nil)
	go func() {
		defer close(end)
		defer func() { caught = recover() }()
		call()
		returned = true
	}()
	<-end
	if want := map[string]any{"panic": "on purpose"}[name]; returned || caught != want {
		t.Errorf("%s: returned %v, caught %v", name, returned, caught)
	}
}

func TestAFunctionThatDoesNotReturnHoldsNothing(t *testing.T) {
	c := open(t)
	runs := map[string]func(context.Context, string, *holdfast.Options, func(context.Context, *holdfast.Lock) error) error{
		"Do": c.Do, "Elect": c.Elect,
	}
	for what, run := range runs {
		for name, end := range ends {
			var inner context.Context
			var held *holdfast.Lock
			endsEarly(t, name, func() {
				run(bg, "k", nil, func(ctx context.Context, l *holdfast.Lock) error {
					inner, held = ctx, l
					end()
					return nil
				})
			})
			if inner.Err() == nil || held.Err() != holdfast.ErrReleased {
				t.Errorf("%s, %s: %v, %v", what, name, inner.Err(), held.Err())
			}
			if info, err := c.Inspect("k"); err != nil || info.Held {
				t.Errorf("%s, %s: held %v, %v", what, name, info.Held, err)
				held.Release(bg)
			}
		}
	}
}

func TestAHandleThatIsTooLongIsRefused(t *testing.T) {
	c := open(t)
	h, err := lock(t, c, "k", nil).Detach()
	if err != nil {
		t.Fatal(err)
	}
	long := h
	long.Token += strings.Repeat("x", 100)
	_, err = c.Attach("k", long, nil)
	refused(t, "token", err)
	long = h
	long.Ref = strings.Repeat("x", 100)
	refused(t, "ref", c.ExtendHandle("k", long, nil))
	long = h
	long.Token += "\x00"
	refused(t, "NUL", c.ReleaseHandle("k", long, nil))
	if err := c.ReleaseHandle("k", h, nil); err != nil {
		t.Fatal(err)
	}
}

func TestAnyBytesAreAKeyAndANote(t *testing.T) {
	c := open(t)
	key := "\xff\xfe/" + strings.Repeat("\xc3", 1000)
	l := lock(t, c, key, &holdfast.Options{Note: "\xff\x01"})
	infos, err := c.List("\xff")
	if err != nil || len(infos) != 1 || infos[0].Key != key || infos[0].Note != "\xff\x01" {
		t.Fatal(infos, err)
	}
	if err := l.Release(bg); err != nil {
		t.Fatal(err)
	}
	_, err = c.TryLock(bg, strings.Repeat("k", 1025), nil)
	refused(t, "long key", err)
	_, err = c.TryLock(bg, "", nil)
	refused(t, "empty key", err)
	_, err = c.LockAll(bg, nil, nil)
	refused(t, "no key", err)
}

// The context ends while the grant is on its way: nothing stays held, whoever
// was first.
func TestAContextThatEndsWithTheGrantLeavesNothing(t *testing.T) {
	a, b := open(t), open(t)
	for i := 0; i < 300; i++ {
		held := lock(t, a, "k", nil)
		ctx, cancel := context.WithCancel(bg)
		var both sync.WaitGroup
		both.Add(2)
		go func() {
			defer both.Done()
			if l, err := b.Lock(ctx, "k", nil); err == nil {
				l.Release(bg)
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		go func() {
			defer both.Done()
			for n := 0; n < i%30; n++ {
				runtime.Gosched()
			}
			cancel()
		}()
		if err := held.Release(bg); err != nil {
			t.Fatal(err)
		}
		both.Wait()
		until(t, "free", func() bool { i, err := a.Inspect("k"); return err == nil && !i.Held })
	}
}

func TestWaitersAreTold(t *testing.T) {
	a, b := open(t), open(t)
	lock(t, a, "k", nil)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	go b.Lock(ctx, "k", &holdfast.Options{Note: "next"})
	until(t, "a waiter", func() bool {
		all, err := a.Waiters("k")
		return err == nil && len(all) == 1 && all[0].Place == 1 && all[0].Note == "next"
	})
	_, err := a.Waiters("a\x00b")
	refused(t, "waiters", err)
}

func TestCloseMayComeAtAnyMoment(t *testing.T) {
	for i := 0; i < 50; i++ {
		c, err := holdfast.Open(bg, "mem:"+t.Name(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := 0; n < 8; n++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for {
					l, err := c.Lock(bg, "k", nil)
					if err != nil {
						return
					}
					l.Held()
					l.Extend(0)
					c.Inspect("k")
					c.Stats()
					l.Release(bg)
				}
			}()
		}
		time.Sleep(time.Duration(i%10) * 100 * time.Microsecond)
		c.Close()
		all.Wait()
	}
}

func TestACallOnAClosedClientSaysSo(t *testing.T) {
	c := open(t)
	l := lock(t, c, "k", nil)
	c.Close()
	c.Close()
	_, err := c.Stats()
	refused(t, "stats", err)
	_, err = c.StatsText()
	refused(t, "text", err)
	_, err = c.Observe(bg, "k")
	refused(t, "observe", err)
	if l.Held() || l.Remaining() != 0 {
		t.Error("held")
	}
	if err := l.Extend(0); err == nil {
		t.Error("extended")
	}
	if _, err := l.Detach(); err == nil {
		t.Error("detached")
	}
}

func TestTheCountersAreThoseOfTheClient(t *testing.T) {
	c := open(t)
	l := lock(t, c, "k", &holdfast.Options{MaxHold: 20 * time.Millisecond})
	<-l.Done()
	l.Release(bg)
	s, err := c.Stats()
	if err != nil || s.Granted != 1 || s.Lost["max-hold"] != 1 || len(s.Lost) != 1 || s.Wait.Count != 1 {
		t.Fatal(s, err)
	}
	sum := uint64(0)
	for _, n := range s.Wait.Buckets {
		sum += n
	}
	if sum != s.Wait.Count {
		t.Fatal(s.Wait)
	}
	kinds, err := holdfast.Services()
	if err != nil || len(kinds) < 2 {
		t.Fatal(kinds, err)
	}
	for _, kind := range kinds {
		if kind.Name == "mem" && (kind.Missing != "" || !kind.Traits.Has(holdfast.Fenced)) {
			t.Error(kind)
		}
	}
}

func TestEveryNumberHasAName(t *testing.T) {
	for level, want := range map[holdfast.LogLevel]string{
		holdfast.LogError: "error", holdfast.LogWarning: "warning", holdfast.LogInfo: "info",
		holdfast.LogDebug: "debug", 0: "LogLevel(0)", -7: "LogLevel(-7)", 1 << 40: "LogLevel(1099511627776)",
	} {
		if got := level.String(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	for _, status := range []holdfast.Status{-1, 0, 99, 1 << 40} {
		if status.Error() == "" {
			t.Error("no name", int(status))
		}
	}
}
