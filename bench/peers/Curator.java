// SPDX-License-Identifier: MIT
//
// Curator - Curator's InterProcessMutex as a candidate (bench/cand/cand.h), and
// its InterProcessReadWriteLock and InterProcessSemaphoreV2 for bench/sharing.c.
import java.util.*;
import java.util.concurrent.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Curator {
    static CuratorFramework client;
    static final Map<String, InterProcessMutex> kept = new HashMap<>();
    static List<InterProcessMutex> held = new ArrayList<>();

    static CuratorFramework connect(int sessionMs) throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.newClient(
            System.getenv("HF_ZK_HOSTS"), sessionMs, 5000,
            new ExponentialBackoffRetry(50, 5));
        c.start();
        c.blockUntilConnected();
        return c;
    }

    static InterProcessMutex mutex(String key) {
        return new InterProcessMutex(client, "/curator/" + key);
    }

    static String pairs(int n, String key) throws Exception {
        StringBuilder text = new StringBuilder("ok");
        InterProcessMutex m = mutex(key);
        long last = System.nanoTime();
        for (int i = 0; i < n; i++) {
            m.acquire();
            m.release();
            long at = System.nanoTime();
            text.append(' ').append(at - last);
            last = at;
        }
        return text.toString();
    }

    interface Turn {
        void take() throws Exception;
    }

    // Each of them in a thread of its own, again and again.
    static String crowd(List<Turn> turns, long ms) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(turns.size());
        List<Callable<Long>> work = new ArrayList<>();
        long begin = System.nanoTime(), sum = 0;
        for (Turn turn : turns)
            work.add(() -> {
                long n = 0;
                for (; System.nanoTime() < begin + ms * 1000000; n++)
                    turn.take();
                return n;
            });
        for (Future<Long> one : pool.invokeAll(work))
            sum += one.get();
        pool.shutdown();
        return "ok " + sum + " " + (System.nanoTime() - begin);
    }

    static Turn turn(InterProcessMutex m) {
        return () -> {
            m.acquire();
            m.release();
        };
    }

    static String many(int threads, long ms) throws Exception {
        List<Turn> turns = new ArrayList<>();
        for (int i = 0; i < threads; i++)
            turns.add(turn(mutex("many-" + i)));
        return crowd(turns, ms);
    }

    static String readers(int threads, long ms) throws Exception {
        List<Turn> turns = new ArrayList<>();
        for (int i = 0; i < threads; i++)
            turns.add(turn(
                new InterProcessReadWriteLock(client, "/curator/readers").readLock()));
        return crowd(turns, ms);
    }

    // A client for each, so that all of them meet in the service.
    static final List<CuratorFramework> others = new ArrayList<>();

    static String among(int n, long ms, int permits) throws Exception {
        List<Turn> turns = new ArrayList<>();
        while (others.size() < n)
            others.add(connect(20000));
        for (int i = 0; i < n; i++) {
            CuratorFramework c = others.get(i);
            if (permits == 0) {
                turns.add(turn(new InterProcessMutex(c, "/curator/among")));
                continue;
            }
            InterProcessSemaphoreV2 s =
                new InterProcessSemaphoreV2(c, "/curator/permits", permits);
            turns.add(() -> s.returnLease(s.acquire()));
        }
        return crowd(turns, ms);
    }

    static String contend(long at, long ms, String key) throws Exception {
        StringBuilder text = new StringBuilder("ok");
        InterProcessMutex m = mutex(key);
        Thread.sleep(Math.max(0, (at - System.nanoTime()) / 1000000));
        while (System.nanoTime() < at + ms * 1000000) {
            long asked = System.nanoTime();
            m.acquire();
            text.append(' ').append(asked).append(' ').append(System.nanoTime());
            text.append(' ').append(System.nanoTime());
            m.release();
        }
        return text.toString();
    }

    // One session keeps all locks of a client; only one thread may release
    // what it has taken.
    static String hold(int n, long ms) throws Exception {
        long begin = System.nanoTime();
        while (held.size() < n && System.nanoTime() < begin + ms * 1000000) {
            InterProcessMutex m = mutex("held-" + held.size());
            m.acquire();
            held.add(m);
        }
        return "ok " + held.size() + " " + (System.nanoTime() - begin) + " 0";
    }

    static String drop() throws Exception {
        for (InterProcessMutex m : held)
            m.release();
        held = new ArrayList<>();
        return "ok 0";
    }

    // SUSPENDED is the state in which a holder must stop to rely on it.
    static String watch(String key, int ttl) throws Exception {
        CuratorFramework c = connect(ttl);
        new InterProcessMutex(c, "/curator/" + key).acquire();
        c.getConnectionStateListenable().addListener((who, state) -> {
            if (state == ConnectionState.SUSPENDED || state == ConnectionState.LOST)
                System.out.println("lost " + System.nanoTime());
        });
        return "ok";
    }

    static String answer(String[] words) throws Exception {
        switch (words[0]) {
        case "pairs":
            return pairs(Integer.parseInt(words[1]), words[2]);
        case "many":
            return many(Integer.parseInt(words[1]), Long.parseLong(words[2]));
        case "readers":
            return readers(Integer.parseInt(words[1]), Long.parseLong(words[2]));
        case "among":
            return among(Integer.parseInt(words[1]), Long.parseLong(words[2]),
                         Integer.parseInt(words[3]));
        case "contend":
            return contend(Long.parseLong(words[1]), Long.parseLong(words[2]),
                           words[3]);
        case "take":
        case "wait":
            kept.put(words[1], mutex(words[1]));
            kept.get(words[1]).acquire();
            return "ok";
        case "give":
            kept.remove(words[1]).release();
            return "ok";
        case "hold":
            return hold(Integer.parseInt(words[1]), Long.parseLong(words[3]));
        case "drop":
            return drop();
        case "watch":
            return watch(words[1], Integer.parseInt(words[2]));
        case "found":
            return "ok";
        default:
            return "no " + words[0];
        }
    }

    public static void main(String[] args) throws Exception {
        client = connect(20000);
        Scanner in = new Scanner(System.in);
        String version = CuratorFramework.class.getPackage().getImplementationVersion();
        System.out.println("ready " + (version == null ? "" : version));
        while (in.hasNextLine())
            System.out.println(answer(in.nextLine().trim().split(" ")));
        client.close();
        System.exit(0);
    }
}
