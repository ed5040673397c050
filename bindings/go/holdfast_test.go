// SPDX-License-Identifier: MIT

package holdfast_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast"
)

var bg = context.Background()

func open(t *testing.T) *holdfast.Client {
	t.Helper()
	client, err := holdfast.Open(bg, "mem:"+t.Name(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func lock(t *testing.T, c *holdfast.Client, key string, opts *holdfast.Options) *holdfast.Lock {
	t.Helper()
	l, err := c.Lock(bg, key, opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func until(t *testing.T, what string, test func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !test(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func TestTheEndOfTheContextEndsTheWaiting(t *testing.T) {
	a, b := open(t), open(t)
	held := lock(t, a, "k", nil)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	if _, err := b.Lock(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(bg)
	cancel()
	if _, err := b.Lock(ctx, "free", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := held.Release(bg); err != nil {
		t.Fatal(err)
	}
	if info, err := a.Inspect("k"); err != nil || info.Held || info.Waiters > 0 {
		t.Fatal(info, err)
	}
}

func TestALossClosesDoneAndCancelsTheContext(t *testing.T) {
	c := open(t)
	l := lock(t, c, "k", &holdfast.Options{TTL: 50 * time.Millisecond, Manual: true})
	ctx, cancel := l.WithContext(bg)
	defer cancel()
	<-l.Done()
	<-l.Context().Done()
	<-ctx.Done()
	var lost *holdfast.LostError
	if !errors.As(l.Err(), &lost) || lost.Reason != "expired" || lost.Key != "k" || l.Held() {
		t.Fatal(l.Err())
	}
	if l.Context().Err() != context.Canceled {
		t.Fatal(l.Context().Err())
	}
	lostWith(t, "Extend", "expired", l.Extend(0))
	lostWith(t, "Release", "expired", l.Release(bg))
}

// lostWith wants a LostError of "k" that is an Error, too.
func lostWith(t *testing.T, what, reason string, err error) {
	t.Helper()
	var lost *holdfast.LostError
	if !errors.As(err, &lost) || lost.Reason != reason || lost.Key != "k" {
		t.Errorf("%s: %#v", what, err)
	}
	var plain *holdfast.Error
	if !errors.Is(err, holdfast.ErrLost) || !errors.As(err, &plain) || plain.Status != holdfast.ErrLost || plain.Text == "" {
		t.Errorf("%s: %#v", what, plain)
	}
}

func TestALossThatOnlyTheServiceKnowsIsALoss(t *testing.T) {
	a, b := open(t), open(t)
	for what, end := range map[string]func(*holdfast.Lock) error{
		"Release": func(l *holdfast.Lock) error { return l.Release(bg) },
		"Detach":  func(l *holdfast.Lock) error { _, err := l.Detach(); return err },
	} {
		l := lock(t, a, "k", nil)
		if err := b.BreakForce("k", l.Fence()); err != nil {
			t.Fatal(err)
		}
		lostWith(t, what, "broken", end(l))
	}
}

func TestAReleaseEndsTheContextToo(t *testing.T) {
	l := lock(t, open(t), "k", nil)
	if l.Context().Err() != nil || l.Err() != nil || l.Remaining() <= 0 {
		t.Fatal("not held")
	}
	if err := l.Release(bg); err != nil {
		t.Fatal(err)
	}
	<-l.Context().Done()
	if l.Err() != holdfast.ErrReleased || l.Held() || l.Remaining() != 0 {
		t.Fatal(l.Err())
	}
	if err := l.Release(bg); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
	if err := l.Extend(time.Second); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestALockerKeepsGoroutinesApart(t *testing.T) {
	c := open(t)
	var wait sync.WaitGroup
	inside, sum := 0, 0
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			locker := c.Locker("k", nil)
			for n := 0; n < 50; n++ {
				locker.Lock()
				inside++
				if inside != 1 {
					t.Error("not alone")
				}
				sum++
				inside--
				locker.Unlock()
			}
		}()
	}
	wait.Wait()
	if sum != 400 {
		t.Fatal(sum)
	}
}

func threads(t *testing.T) int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	return len(tasks)
}

func TestAWaiterCostsNoThread(t *testing.T) {
	const waiters = 2000
	a, b := open(t), open(t)
	held := lock(t, a, "k", nil)
	before := threads(t)
	ctx, cancel := context.WithCancel(bg)
	var ended, got atomic.Int32
	for i := 0; i < waiters; i++ {
		go func() {
			defer ended.Add(1)
			if l, err := b.Lock(ctx, "k", nil); err == nil {
				got.Add(1)
				l.Release(bg)
			}
		}()
	}
	until(t, "a waiter", func() bool { i, _ := a.Inspect("k"); return i.Waiters > 0 })
	until(t, "all goroutines wait", func() bool { return runtime.NumGoroutine() > waiters })
	if n := threads(t); n > before+40 {
		t.Fatalf("%d threads more", n-before)
	}
	held.Release(bg)
	until(t, "ten of them", func() bool { return got.Load() >= 10 })
	cancel()
	until(t, "the end of all", func() bool { return ended.Load() == waiters })
	if _, err := a.TryLock(bg, "k", nil); err != nil {
		t.Fatal(err)
	}
}

func TestCloseEndsWhatWaitsAndWhatIsHeld(t *testing.T) {
	a, b := open(t), open(t)
	held := lock(t, a, "k", nil)
	end := make(chan error)
	go func() {
		_, err := b.Lock(bg, "k", nil)
		end <- err
	}()
	until(t, "a waiter", func() bool { i, _ := a.Inspect("k"); return i.Waiters > 0 })
	b.Close()
	if err := <-end; !errors.Is(err, holdfast.ErrCanceled) {
		t.Fatal(err)
	}
	a.Close()
	<-held.Done()
	if err := held.Release(bg); !errors.Is(err, holdfast.ErrLost) {
		t.Fatal(err)
	}
	if _, err := a.Lock(bg, "k", nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestALeaderThatResignsIsFollowed(t *testing.T) {
	a, b := open(t), open(t)
	leads := make(chan string, 2)
	resign := make(chan struct{})
	end := make(chan error, 2)
	campaign := func(c *holdfast.Client, name string) {
		end <- c.Elect(bg, "boss", &holdfast.Options{Note: name}, func(ctx context.Context, l *holdfast.Lock) error {
			leads <- name
			select {
			case <-resign:
			case <-ctx.Done():
			}
			return nil
		})
	}
	go campaign(a, "a")
	first := <-leads
	go campaign(b, "b")
	if info, err := a.Leader("boss"); err != nil || info == nil || info.Note != first {
		t.Fatal(info, err)
	}
	resign <- struct{}{}
	if second := <-leads; second != "b" {
		t.Fatal(second)
	}
	close(resign)
	for i := 0; i < 2; i++ {
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	}
	if info, err := b.Leader("boss"); err != nil || info != nil {
		t.Fatal(info, err)
	}
}

func TestALeaderThatLosesCampaignsAgain(t *testing.T) {
	c := open(t)
	times := 0
	err := c.Elect(bg, "boss", &holdfast.Options{TTL: time.Second}, func(ctx context.Context, l *holdfast.Lock) error {
		if times++; times == 2 {
			return nil
		}
		if err := c.BreakForce("boss", l.Fence()); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil || times != 2 {
		t.Fatal(err, times)
	}
}

func TestDoTellsOfALoss(t *testing.T) {
	c := open(t)
	err := c.Do(bg, "k", &holdfast.Options{MaxHold: 20 * time.Millisecond}, func(ctx context.Context, l *holdfast.Lock) error {
		<-ctx.Done()
		return nil
	})
	lostWith(t, "Do", "max-hold", err)
	wrong := errors.New("wrong")
	if err := c.Do(bg, "k", nil, func(context.Context, *holdfast.Lock) error { return wrong }); err != wrong {
		t.Fatal(err)
	}
}

func TestErrorsHaveAStatusAndAText(t *testing.T) {
	if _, err := holdfast.Open(bg, "", nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := holdfast.Open(ctx, "mem:", nil); err != context.Canceled {
		t.Fatal(err)
	}
	c := open(t)
	lock(t, c, "k", nil)
	_, err := c.TryLock(bg, "k", nil)
	if !errors.Is(err, holdfast.ErrBusy) || !strings.Contains(err.Error(), "'k'") {
		t.Fatal(err)
	}
	if _, err := c.LockAll(bg, nil, nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAClientConnectsInTheBackgroundAndSaysSo(t *testing.T) {
	lines := make(chan string, 100)
	opts := &holdfast.ClientOptions{
		Connect: time.Millisecond, LogLevel: holdfast.LogDebug,
		Log: func(level holdfast.LogLevel, text string) { lines <- level.String() + " " + text },
	}
	c, err := holdfast.Open(bg, "redis://127.0.0.1:1", opts)
	if errors.Is(err, holdfast.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lock(bg, "k", nil); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatal(err)
	}
	c.Close()
	if line := <-lines; !strings.Contains(line, " ") {
		t.Fatal(line)
	}
	if _, err := holdfast.Open(bg, "redis://127.0.0.1:1", &holdfast.ClientOptions{Log: opts.Log}); err == nil {
		t.Fatal("open")
	}
}

func TestAHolderNamesItsHeir(t *testing.T) {
	a, b, c := open(t), open(t), open(t)
	held := lock(t, a, "k", nil)
	order := make(chan string, 2)
	wait := func(client *holdfast.Client, note string, n int) {
		go func() {
			l, err := client.Lock(bg, "k", &holdfast.Options{Note: note})
			if err != nil {
				t.Error(err)
				return
			}
			order <- note
			l.Release(bg)
		}()
		until(t, "waiters", func() bool { i, _ := a.Inspect("k"); return i.Waiters == n })
	}
	wait(b, "first", 1)
	wait(c, "heir", 2)
	if err := held.Transfer("nobody"); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
	if err := held.Transfer("heir"); err != nil {
		t.Fatal(err)
	}
	held.Release(bg)
	if one, two := <-order, <-order; one != "heir" || two != "first" {
		t.Fatal(one, two)
	}
	if _, err := a.Collect(0, true); err != nil && !errors.Is(err, holdfast.ErrUnsupported) {
		t.Fatal(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	count := func() (fds, goroutines int) {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(all), runtime.NumGoroutine()
	}
	once := func() {
		c, err := holdfast.Open(bg, "mem:"+t.Name(), nil)
		if err != nil {
			t.Fatal(err)
		}
		l := lock(t, c, "k", nil)
		lock(t, c, "other", nil)
		ctx, cancel := context.WithCancel(bg)
		end := make(chan error)
		go func() {
			_, err := c.Lock(ctx, "k", nil)
			end <- err
		}()
		cancel()
		<-end
		l.Release(bg)
		c.Close()
	}
	once()
	fds, goroutines := count()
	for i := 0; i < 50; i++ {
		once()
	}
	until(t, "as many as before", func() bool {
		f, g := count()
		return f <= fds && g <= goroutines
	})
}

// build compiles a program with the package as it is here.
func build(t *testing.T, source string) string {
	t.Helper()
	program := t.TempDir() + "/program"
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func TestTheExampleOfTheREADMERuns(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(text)[1]
	code = regexp.MustCompile(`redis:[^"]*`).ReplaceAll(code, []byte("mem:readme"))
	source := t.TempDir() + "/main.go"
	if err := os.WriteFile(source, code, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(build(t, source)).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "fence ") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestTheExampleLeaderStopsWhenItsLockIsLost(t *testing.T) {
	url := "file:" + t.TempDir()
	cmd := exec.Command(build(t, "./examples/leader"), url)
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	c, err := holdfast.Open(bg, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	until(t, "a leader", func() bool { return out.count("leads") == 1 })
	leader, err := c.Leader("leader")
	if err != nil || leader == nil {
		t.Fatal(leader, err)
	}
	if err := c.Break("leader", leader.Fence); err != nil {
		t.Fatal(err)
	}
	until(t, "the next term", func() bool { return out.count("lost") == 1 && out.count("leads") == 2 })
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if leader, err := c.Leader("leader"); err != nil || leader != nil {
		t.Fatal(leader, err)
	}
}

// output keeps what a program prints.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) count(word string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.text.String(), word)
}

func TestObserversHearOfEveryChange(t *testing.T) {
	c := open(t)
	ctx, cancel := context.WithCancel(bg)
	infos, err := c.Observe(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if info := <-infos; info.Held || info.Key != "k" {
		t.Fatal(info)
	}
	l := lock(t, c, "k", nil)
	if info := <-infos; !info.Held || info.Fence != l.Fence() {
		t.Fatal(info)
	}
	cancel()
	for range infos {
	}
	infos, err = c.ObservePrefix(bg, "")
	if err != nil {
		t.Fatal(err)
	}
	if info := <-infos; info.Key != "k" {
		t.Fatal(info)
	}
	c.Close()
	for range infos {
	}
	if _, err := c.Observe(bg, "k"); !errors.Is(err, holdfast.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestEveryServiceHasAPage(t *testing.T) {
	all, err := holdfast.Services()
	if err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Missing == "" && !strings.HasPrefix(one.Page, "holdfast-") {
			t.Error(one)
		}
	}
}
