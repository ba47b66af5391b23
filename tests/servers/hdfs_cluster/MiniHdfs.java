// A Hadoop file system for tests: a NameNode and two DataNodes in this process, on ports of 127.0.0.1, with their files
// in the folder that is its argument. It prints {"port", "rpc_port", "data_node_ports"} on stdout when it is ready, and
// again when it has done a line of its stdin: "kill N" and "start N" (a DataNode), "safemode on" and "safemode off". The
// first and the last are ports of WebHDFS; that of a killed DataNode is null. It stops at the end of stdin.

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Timer;
import java.util.TimerTask;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSCluster.DataNodeProperties;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

public class MiniHdfs {
    private static final int DATA_NODES = 2;
    private static final long NOTICE_MSEC = 3000;

    private final PrintStream answers;
    private final MiniDFSCluster cluster;
    private final List<DataNode> running; // null where one is killed
    private final DataNodeProperties[] killed = new DataNodeProperties[DATA_NODES];
    private final TimerTask[] notices = new TimerTask[DATA_NODES];
    private final Timer timer = new Timer(true);

    public static void main(String[] arguments) {
        int status = 1;
        try {
            PrintStream answers = System.out;
            System.setOut(System.err); // for what Hadoop prints
            new MiniHdfs(new File(arguments[0]), answers).serve();
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // the threads of the servers would go on
    }

    private MiniHdfs(File folder, PrintStream answers) throws Exception {
        this.answers = answers;
        Configuration settings = new Configuration();
        settings.set("hadoop.tmp.dir", folder + "/tmp");
        settings.set("dfs.datanode.hostname", "127.0.0.1"); // the host that redirects name
        settings.set("dfs.namenode.fs-limits.min-block-size", "512");
        settings.set("dfs.heartbeat.interval", "1"); // a DataNode that starts is there after 1 s, not 3
        // A writer that is ahead of the news of its last block asks again after 10 ms, not 400.
        settings.set("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "10");
        settings.set("dfs.client.block.write.locateFollowingBlock.retries", "10");
        String gateway = "hadoop.proxyuser." + System.getProperty("user.name"); // HttpFS acts for its users
        settings.set(gateway + ".hosts", "127.0.0.1");
        settings.set(gateway + ".groups", "*");
        cluster = new MiniDFSCluster.Builder(settings, folder).numDataNodes(DATA_NODES).build();
        cluster.waitActive();
        running = new ArrayList<>(cluster.getDataNodes());
        cluster.getFileSystem().setPermission(new Path("/"), new FsPermission("777"));
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        answer();
        for (String line; (line = commands.readLine()) != null; answer()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "kill" -> kill(Integer.parseInt(words[1]));
                case "start" -> start(Integer.parseInt(words[1]));
                case "safemode" -> cluster.getFileSystem()
                        .setSafeMode(words[1].equals("on") ? SafeModeAction.ENTER : SafeModeAction.LEAVE);
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private void answer() {
        List<Integer> ports = running.stream().map(node -> node == null ? null : node.getInfoPort()).toList();
        answers.printf(
                "{\"port\": %d, \"rpc_port\": %d, \"data_node_ports\": %s}%n",
                cluster.getNameNode().getHttpAddress().getPort(), cluster.getNameNodePort(), ports);
        answers.flush();
    }

    private void kill(int number) {
        DataNode node = running.get(number);
        DatanodeID id = node.getDatanodeId();
        killed[number] = cluster.stopDataNode(cluster.getDataNodes().indexOf(node)); // it changes with each kill
        running.set(number, null);
        notices[number] = new TimerTask() {
            @Override
            public void run() {
                try {
                    cluster.setDataNodeDead(id);
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
        };
        timer.schedule(notices[number], NOTICE_MSEC); // by its heartbeats alone it would take 12 s at least
    }

    /** Done when the NameNode knows the node's new ports and its blocks. */
    private void start(int number) throws Exception {
        notices[number].cancel();
        cluster.restartDataNode(killed[number]);
        DataNode node = cluster.getDataNodes().get(cluster.getDataNodes().size() - 1);
        while (!node.isDatanodeFullyStarted()) {
            Thread.sleep(20);
        }
        cluster.triggerBlockReports();
        running.set(number, node);
    }
}
