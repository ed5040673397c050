// SPDX-License-Identifier: MIT
//
// etcd_peer - the figures of bench/etcd.c for etcd's own Go package: one client,
// and a session for each contender, as concurrency.Mutex wants it.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

var client *clientv3.Client

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd_peer:", err)
		os.Exit(1)
	}
}

func pair(m *concurrency.Mutex) {
	must(m.Lock(context.TODO()))
	must(m.Unlock(context.TODO()))
}

func session() *concurrency.Session {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	must(err)
	return s
}

// So many contenders for a second; pairs per second.
func many(n int, name func(int) string) float64 {
	var done int64
	var all sync.WaitGroup
	locks := make([]*concurrency.Mutex, n)
	for i := range locks {
		locks[i] = concurrency.NewMutex(session(), name(i))
	}
	began := time.Now()
	for _, m := range locks {
		all.Add(1)
		go func(m *concurrency.Mutex) {
			defer all.Done()
			for time.Since(began) < time.Second {
				pair(m)
				atomic.AddInt64(&done, 1)
			}
		}(m)
	}
	all.Wait()
	return float64(done) / time.Since(began).Seconds()
}

func main() {
	var err error
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCDCTL_ENDPOINTS")}})
	must(err)
	var pairs float64
	switch os.Args[1] {
	case "single":
		m := concurrency.NewMutex(session(), "go/k")
		pair(m)
		began := time.Now()
		for i := 0; i < 1000; i++ {
			pair(m)
		}
		pairs = 1000 / time.Since(began).Seconds()
	case "spread64":
		pairs = many(64, func(i int) string { return fmt.Sprintf("go/%d", i) })
	case "contended8":
		pairs = many(8, func(int) string { return "go/one" })
	}
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	cpu := float64(used.Utime.Sec+used.Stime.Sec) + float64(used.Utime.Usec+used.Stime.Usec)/1e6
	fmt.Printf("pairs %.1f\ncpu %.3f\n", pairs, cpu)
}
