// SPDX-License-Identifier: MIT
//
// CuratorPeer HOSTS PATH - Curator's InterProcessMutex at the end of a pipe, and
// its InterProcessReadWriteLock and InterProcessSemaphoreV2.
//
// Commands, one a line: lock, try, unlock, turns FILE N (add one to the number
// in FILE, N times, under the lock), pairs MS (acquire and release for so long,
// and tell how often), keys MS N (N threads on N paths), contend MS N (N clients
// on one path).  Each is answered with one line.  The first three with "read" or
// "write" before them are those of the read-write lock; "permits N" says how
// many there are for "permit lock" and its like.
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class CuratorPeer {
    static String hosts, path;

    static CuratorFramework client() throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.newClient(
            hosts, 20000, 5000, new ExponentialBackoffRetry(50, 5));
        c.start();
        c.blockUntilConnected();
        return c;
    }

    static void turns(InterProcessMutex mutex, String file, int n)
        throws Exception {
        Path at = Paths.get(file);
        for (int i = 0; i < n; i++) {
            mutex.acquire();
            long seen = Long.parseLong(Files.readString(at).trim());
            Thread.sleep(1);
            Files.writeString(at, (seen + 1) + "\n");
            mutex.release();
        }
    }

    static long pairs(InterProcessMutex mutex, long ms) throws Exception {
        long end = System.nanoTime() + ms * 1000000, n = 0;
        while (System.nanoTime() < end) {
            mutex.acquire();
            mutex.release();
            n++;
        }
        return n;
    }

    // Threads that acquire and release for so long; how often, all together.
    static long crowd(List<InterProcessMutex> mutexes, long ms)
        throws Exception {
        ExecutorService pool = Executors.newCachedThreadPool();
        List<Future<Long>> results = new ArrayList<>();
        long sum = 0;
        for (InterProcessMutex m : mutexes)
            results.add(pool.submit(() -> pairs(m, ms)));
        for (Future<Long> f : results)
            sum += f.get();
        pool.shutdown();
        return sum;
    }

    static long keys(CuratorFramework c, long ms, int n) throws Exception {
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int i = 0; i < n; i++)
            mutexes.add(new InterProcessMutex(c, path + "-" + i));
        return crowd(mutexes, ms);
    }

    static long contend(long ms, int n) throws Exception {
        List<InterProcessMutex> mutexes = new ArrayList<>();
        List<CuratorFramework> clients = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            clients.add(client());
            mutexes.add(new InterProcessMutex(clients.get(i), path));
        }
        long sum = crowd(mutexes, ms);
        for (CuratorFramework c : clients)
            c.close();
        return sum;
    }

    static InterProcessReadWriteLock both;
    static InterProcessSemaphoreV2 semaphore;
    static Deque<Lease> leases = new ArrayDeque<>();

    // What one of several may hold: get it, try to, or give it back.
    static String permit(String what) throws Exception {
        Lease lease;
        switch (what) {
        case "lock":
            leases.add(semaphore.acquire());
            return "locked";
        case "try":
            lease = semaphore.acquire(300, TimeUnit.MILLISECONDS);
            if (lease != null)
                leases.add(lease);
            return lease != null ? "locked" : "busy";
        default:
            semaphore.returnLease(leases.remove());
            return "unlocked";
        }
    }

    static String answer(CuratorFramework c, InterProcessMutex mutex,
                         String[] words) throws Exception {
        switch (words[0]) {
        case "read":
        case "write":
            return answer(c, words[0].equals("read") ? both.readLock()
                                                     : both.writeLock(),
                          Arrays.copyOfRange(words, 1, words.length));
        case "permits":
            semaphore = new InterProcessSemaphoreV2(
                c, path, Integer.parseInt(words[1]));
            return "ready";
        case "permit":
            return permit(words[1]);
        case "lock":
            mutex.acquire();
            return "locked";
        case "try":
            return mutex.acquire(0, TimeUnit.SECONDS) ? "locked" : "busy";
        case "unlock":
            mutex.release();
            return "unlocked";
        case "turns":
            turns(mutex, words[1], Integer.parseInt(words[2]));
            return "done";
        case "pairs":
            return "" + pairs(mutex, Long.parseLong(words[1]));
        case "keys":
            return "" + keys(c, Long.parseLong(words[1]),
                             Integer.parseInt(words[2]));
        case "contend":
            return "" + contend(Long.parseLong(words[1]),
                                Integer.parseInt(words[2]));
        default:
            return "what";
        }
    }

    public static void main(String[] args) throws Exception {
        hosts = args[0];
        path = args[1];
        CuratorFramework c = client();
        InterProcessMutex mutex = new InterProcessMutex(c, path);
        both = new InterProcessReadWriteLock(c, path);
        Scanner in = new Scanner(System.in);
        System.out.println("ready");
        while (in.hasNextLine())
            System.out.println(answer(c, mutex, in.nextLine().split(" ")));
        c.close();
        System.exit(0);
    }
}
