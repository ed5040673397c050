// SPDX-License-Identifier: MIT

// Run the scripts of test/bindings/spec with the Go package. spec/README.md
// defines the language.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast"
)

const patience = 30 * time.Second

type request struct {
	cancel context.CancelFunc
	done   chan struct{}
	result string
}

type observer struct {
	infos  <-chan holdfast.Info
	cancel context.CancelFunc
}

type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

var (
	url, prefix string
	members     = os.Getenv("HF_TEST_MEMBERS")
	bg          = context.Background()

	clients  map[string]*holdfast.Client
	locks    map[string]*holdfast.Lock
	requests map[string]*request
	handles  map[string][]byte
	children map[string]*process

	observers map[string]*observer
	want      string // what is expected of the line
)

func reset() {
	clients = map[string]*holdfast.Client{}
	locks = map[string]*holdfast.Lock{}
	requests = map[string]*request{}
	handles = map[string][]byte{}
	children = map[string]*process{}
	observers = map[string]*observer{}
}

// outcome is the status of an error, and its text.
func outcome(err error) string {
	var status holdfast.Status
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &status):
		return status.Error() + " " + err.Error()
	}
	return "unknown " + err.Error()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

func full(key string) string { return prefix + strings.TrimPrefix(key, "*") }

func fullAll(list string) (ret []string) {
	for _, key := range strings.Split(list, ",") {
		ret = append(ret, full(key))
	}
	return
}

func patient(test func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if test() {
			return true
		}
	}
	return false
}

// options in the words of the package; wait is in milliseconds.
func options(words []string) (o *holdfast.Options, wait int) {
	o = &holdfast.Options{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		d := time.Duration(n) * time.Millisecond
		switch name {
		case "wait":
			if wait = n; n > 0 { // -1, without a limit, is the package's 0
				o.Wait = d
			}
		case "ttl":
			o.TTL = d
		case "retry":
			o.Retry = d
		case "linger":
			o.Linger = d
		case "max_hold":
			o.MaxHold = d
		case "min_hold":
			o.MinHold = d
		case "permits":
			o.Permits = n
		case "tries":
			o.MaxTries = n
		case "owner":
			o.Owner = value
		case "note":
			o.Note = value
		case "shared":
			o.Shared = true
		case "manual":
			o.Manual = true
		case "fair":
			o.Fair = true
		case "poll":
			o.Poll = true
		default:
			panic(word)
		}
	}
	return
}

// acquire takes the keys; several is how the script asked.
func acquire(ctx context.Context, client string, keys []string, several bool, words []string) (holdfast.Locks, error) {
	c := clients[client]
	o, wait := options(words)
	switch {
	case several && wait == 0:
		return c.TryLockAll(ctx, keys, o)
	case several:
		return c.LockAll(ctx, keys, o)
	}
	take := c.Lock
	if wait == 0 {
		take = c.TryLock
	}
	lock, err := take(ctx, keys[0], o)
	return holdfast.Locks{lock}, err
}

func keep(list string, got holdfast.Locks) {
	for i, name := range strings.Split(list, ",") {
		locks[name] = got[i]
	}
}

func take(w []string, several bool) string {
	got, err := acquire(bg, w[0], fullAll(w[2]), several, w[3:])
	if err == nil {
		keep(w[1], got)
	}
	return outcome(err)
}

// A begun context tells when it is waited for: the request is under way then.
type begun struct {
	context.Context
	once sync.Once
	yes  chan struct{}
}

func (b *begun) Done() <-chan struct{} {
	b.once.Do(func() { close(b.yes) })
	return b.Context.Done()
}

func start(w []string, several bool) string {
	inner, cancel := context.WithCancel(bg)
	ctx := &begun{Context: inner, yes: make(chan struct{})}
	r := &request{cancel: cancel, done: make(chan struct{})}
	requests[strings.Split(w[1], ",")[0]] = r
	got := make(chan holdfast.Locks, 1)
	go func() {
		all, err := acquire(ctx, w[0], fullAll(w[2]), several, w[3:])
		got <- all
		r.result = outcome(err)
		close(r.done)
	}()
	select {
	case <-ctx.yes:
	case <-r.done:
	}
	granted[r] = func() {
		if r.result == "ok" {
			keep(w[1], <-got)
		}
	}
	return "ok"
}

var granted = map[*request]func(){}

func wait(r *request) string {
	select {
	case <-r.done:
		granted[r]()
		return r.result
	case <-time.After(patience):
		return "pending"
	}
}

func fences(list string) string {
	rise, same := true, true
	var last uint64
	for i, name := range strings.Split(list, ",") {
		fence := locks[name].Fence()
		if fence == 0 {
			return "unfenced"
		}
		rise = rise && (i == 0 || fence > last)
		same = same && (i == 0 || fence == last)
		last = fence
	}
	return either(rise, "rise", either(same, "same", "no"))
}

func slots(list string) string {
	seen := map[int]bool{}
	names := strings.Split(list, ",")
	for _, name := range names {
		slot := locks[name].Slot()
		if slot < 0 || slot >= len(names) {
			return "no"
		}
		seen[slot] = true
	}
	return yes(len(seen) == len(names))
}

func about(i holdfast.Info, wanted []string) string {
	var ret []string
	for _, word := range wanted {
		ret = append(ret, map[string]string{
			"held":    either(i.Held, "held", "free"),
			"mode":    either(i.Shared, "shared", "exclusive"),
			"holders": strconv.Itoa(i.Holders),
			"permits": strconv.Itoa(i.Permits),
			"waiters": strconv.Itoa(i.Waiters),
			"note":    i.Note,
			"kept":    yes(i.Kept),
			"broken":  yes(i.Broken),
		}[word])
	}
	return strings.Join(ret, " ")
}

func list(client, key string) string {
	var keys []string
	all, err := clients[client].List(full(key))
	if err != nil {
		return outcome(err)
	}
	for _, one := range all {
		keys = append(keys, strings.TrimPrefix(one.Key, prefix))
	}
	sort.Strings(keys)
	return either(len(keys) == 0, "none", strings.Join(keys, ","))
}

func waiters(client, key, n string) string {
	var last int
	there := func() bool {
		info, err := clients[client].Inspect(full(key))
		last = info.Waiters
		return err == nil && (last < 0 || strconv.Itoa(last) == n)
	}
	return either(patient(there), "ok", strconv.Itoa(last))
}

func lost(lock *holdfast.Lock) string {
	select {
	case <-lock.Done():
	case <-time.After(patience):
		return "silence"
	}
	var why *holdfast.LostError
	if lock.Held() || !errors.As(lock.Err(), &why) {
		return "held"
	}
	return why.Reason
}

// change waits for one that is as expected.
func change(infos <-chan holdfast.Info, words []string) string {
	got := "silence"
	for end := time.After(patience); ; {
		select {
		case info := <-infos:
			got = about(info, words)
			if expected(got, want) {
				return got
			}
		case <-end:
			return got
		}
	}
}

func stats(client *holdfast.Client, wanted []string) string {
	var ret []string
	s, err := client.Stats()
	if err != nil {
		return outcome(err)
	}
	lost := uint64(0)
	for _, n := range s.Lost {
		lost += n
	}
	for _, word := range wanted {
		ret = append(ret, strconv.FormatUint(map[string]uint64{
			"granted": s.Granted, "busy": s.Busy, "timeout": s.Timeout, "canceled": s.Canceled,
			"held": s.Held, "waiting": s.Waiting, "renewed": s.Renewed,
			"waits": s.Wait.Count, "holds": s.Hold.Count, "lost": lost,
		}[word], 10))
	}
	return strings.Join(ret, " ")
}

func metrics(client *holdfast.Client) string {
	s, err := client.Stats()
	text, err2 := client.StatsText()
	if err != nil || err2 != nil {
		return outcome(err) + outcome(err2)
	}
	sample := fmt.Sprintf("result=\"granted\"} %d\n", s.Granted)
	return yes(strings.Contains(text, sample) && strings.HasSuffix(text, "\n# EOF\n"))
}

func send(name string, sig syscall.Signal) string {
	pid := 0
	if name == "server" {
		text, _ := os.ReadFile(members + "/1/pid")
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	} else {
		pid = children[name].cmd.Process.Pid
	}
	syscall.Kill(pid, sig)
	return "ok"
}

func spawn(name string) string {
	cmd := exec.Command(os.Args[0], "--child", prefix, url)
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	children[name] = &process{cmd, in, bufio.NewReader(out)}
	return outcome(cmd.Start())
}

func run(line string) string {
	words := strings.Fields(line)
	verb, w := words[0], words[1:]
	if p := children[verb[:len(verb)-1]]; p != nil && strings.ContainsAny(verb, ":&.") {
		if !strings.HasSuffix(verb, ".") {
			fmt.Fprintln(p.in, strings.Join(w, " "))
		}
		if strings.HasSuffix(verb, "&") {
			return "ok"
		}
		answer, _ := p.out.ReadString('\n')
		return strings.TrimSpace(answer)
	}
	switch verb {
	case "open":
		at := url
		if len(w) > 1 {
			at = strings.TrimPrefix(w[1], "url=")
		}
		client, err := holdfast.Open(bg, at, nil)
		clients[w[0]] = client
		return outcome(err)
	case "close":
		return outcome(clients[w[0]].Close())
	case "lock", "all":
		return take(w, verb == "all")
	case "start", "startall":
		return start(w, verb == "startall")
	case "cancel":
		requests[w[0]].cancel()
		return "ok"
	case "pending":
		select {
		case <-requests[w[0]].done:
			return "no"
		default:
			return "yes"
		}
	case "wait":
		return wait(requests[w[0]])
	case "release":
		return outcome(locks[w[0]].Release(bg))
	case "extend":
		o, _ := options(w[1:])
		return outcome(locks[w[0]].Extend(o.TTL))
	case "downgrade":
		return outcome(locks[w[0]].Downgrade())
	case "held":
		return yes(locks[w[0]].Held())
	case "lost":
		return lost(locks[w[0]])
	case "risk":
		select {
		case <-locks[w[0]].AtRisk():
			return "ok"
		case <-time.After(patience):
			return "silence"
		}
	case "fences":
		return fences(w[0])
	case "slots":
		return slots(w[0])
	case "inspect":
		info, err := clients[w[0]].Inspect(full(w[1]))
		return either(err == nil, about(info, w[2:]), outcome(err))
	case "holders":
		all, err := clients[w[0]].Holders(full(w[1]))
		return either(err == nil, strconv.Itoa(len(all)), outcome(err))
	case "list":
		return list(w[0], w[1])
	case "waiters":
		return waiters(w[0], w[1], w[2])
	case "check":
		return outcome(clients[w[0]].Check(locks[w[1]].Key(), locks[w[1]].Fence()))
	case "break":
		end := clients[w[0]].Break
		if len(w) > 2 {
			end = clients[w[0]].BreakForce
		}
		return outcome(end(locks[w[1]].Key(), locks[w[1]].Fence()))
	case "detach":
		h, err := locks[w[0]].Detach()
		handles[w[1]], _ = json.Marshal(h)
		return outcome(err)
	case "attach":
		var h holdfast.Handle
		json.Unmarshal(handles[w[3]], &h)
		o, _ := options(w[4:])
		lock, err := clients[w[0]].Attach(full(w[2]), h, o)
		if err == nil {
			locks[w[1]] = lock
		}
		return outcome(err)
	case "extendhandle", "releasehandle":
		var h holdfast.Handle
		json.Unmarshal(handles[w[2]], &h)
		o, _ := options(w[3:])
		by := clients[w[0]].ExtendHandle
		if verb == "releasehandle" {
			by = clients[w[0]].ReleaseHandle
		}
		return outcome(by(full(w[1]), h, o))
	case "collect":
		older, _ := strconv.Atoi(w[1])
		done, err := clients[w[0]].Collect(time.Duration(older)*time.Millisecond, len(w) > 2)
		return either(err == nil, either(done.LookedAt > 0, "some", "none"), outcome(err))
	case "stats":
		return stats(clients[w[0]], w[1:])
	case "metrics":
		return metrics(clients[w[0]])
	case "observe":
		observe := clients[w[0]].Observe
		if len(w) > 3 {
			observe = clients[w[0]].ObservePrefix
		}
		ctx, cancel := context.WithCancel(bg)
		infos, err := observe(ctx, full(w[2]))
		observers[w[1]] = &observer{infos, cancel}
		return outcome(err)
	case "change":
		return change(observers[w[0]].infos, w[1:])
	case "unobserve":
		observers[w[0]].cancel()
		return "ok"
	case "transfer":
		return outcome(locks[w[0]].Transfer(w[1]))
	case "process":
		return spawn(w[0])
	case "freeze":
		return send(w[0], syscall.SIGSTOP)
	case "thaw":
		return send(w[0], syscall.SIGCONT)
	case "kill":
		return send(w[0], syscall.SIGKILL)
	case "restart":
		return outcome(exec.Command(members + "/1/run").Run())
	}
	panic("no such verb: " + line)
}

func expected(got, want string) bool {
	for _, one := range strings.Split(want, "|") {
		if got == one || strings.HasPrefix(got, one+" ") {
			return true
		}
	}
	return false
}

var traits = map[string]holdfast.Traits{
	"fenced": holdfast.Fenced, "leased": holdfast.Leased, "queued": holdfast.Queued,
	"notify": holdfast.Notify, "shared": holdfast.SharedLocks, "reentrant": holdfast.Reentrant,
	"detach": holdfast.Detachable, "break": holdfast.Breakable, "processes": holdfast.Processes,
	"machines": holdfast.Machines, "death": holdfast.Death, "twice": holdfast.Twice,
	"noted": holdfast.Noted, "permits": holdfast.Permitted, "min_hold": holdfast.MinHoldLocks,
}

func lacks(wanted []string) bool {
	client, err := holdfast.Open(bg, url, nil)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	service, _ := client.Describe()
	for _, one := range wanted {
		trait, known := traits[one]
		if !(known && service.Traits.Has(trait)) && !(one == "server" && members != "") {
			return true
		}
	}
	return false
}

func cleanUp() {
	if members != "" {
		send("server", syscall.SIGCONT)
	}
	for _, p := range children {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
	for _, c := range clients {
		if c != nil {
			c.Close()
		}
	}
}

var arrow = regexp.MustCompile(`\s+=> `)

// script runs a file: what is behind its point, or what went wrong.
func script(file string) (note, wrong string) {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "needs ") {
			if lacks(strings.Fields(line)[1:]) {
				return " # SKIP the service has it not", ""
			}
			continue
		}
		want = "ok"
		if parts := arrow.Split(line, 2); len(parts) == 2 {
			line, want = parts[0], parts[1]
		}
		if got := run(line); !expected(got, want) {
			return "", fmt.Sprintf("# line %d: %s\n# expected %s, got %s\n", i+1, line, want, got)
		}
	}
	return "", ""
}

func main() {
	reset()
	if len(os.Args) == 4 && os.Args[1] == "--child" {
		prefix, url = os.Args[2], os.Args[3]
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(run(in.Text()))
		}
		cleanUp()
		return
	}
	url = os.Args[1]
	failed := 0
	fmt.Printf("1..%d\n", len(os.Args)-2)
	for i, file := range os.Args[2:] {
		reset()
		prefix = fmt.Sprintf("spec-%d-%d-", os.Getpid(), i)
		note, wrong := script(file)
		cleanUp()
		if wrong != "" {
			failed = 1
			fmt.Print(wrong, "not ")
		}
		fmt.Printf("ok %d - %s%s\n", i+1, filepath.Base(file), note)
	}
	os.Exit(failed)
}
