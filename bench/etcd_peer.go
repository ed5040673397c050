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

// So many contenders for two seconds; pairs per second.
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
			for time.Since(began) < 2*time.Second {
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
	m := concurrency.NewMutex(session(), "go/k")
	pair(m)
	began := time.Now()
	for i := 0; i < 2000; i++ {
		pair(m)
	}
	fmt.Printf("single %.1f\n", float64(time.Since(began).Microseconds())/2000)
	fmt.Printf("spread64 %.0f\n", many(64, func(i int) string { return fmt.Sprintf("go/%d", i) }))
	fmt.Printf("contended8 %.0f\n", many(8, func(int) string { return "go/one" }))
}
