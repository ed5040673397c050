// SPDX-License-Identifier: MIT
//
// LatchPeer HOSTS PATH ID - Curator's LeaderLatch: campaign, say "leading", lead
// until the standard input ends, resign.  Without an ID, print that of the
// leader, of all that take part.
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.leader.*;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class LatchPeer {
    public static void main(String[] args) throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.newClient(
            args[0], 20000, 5000, new ExponentialBackoffRetry(50, 5));
        c.start();
        c.blockUntilConnected();
        if (args.length == 2) {
            System.out.println(new LeaderLatch(c, args[1]).getLeader().getId());
        } else {
            LeaderLatch latch = new LeaderLatch(c, args[1], args[2]);
            latch.start();
            latch.await();
            System.out.println("leading");
            while (System.in.read() >= 0)
                ;
            latch.close();
        }
        c.close();
        System.exit(0);
    }
}
