// A Hadoop file system with logins for tests: a KDC, two NameNodes, of which one is in standby, and a DataNode in this
// process, on ports of localhost, with their files in the folder that is its first argument. Its second one is a
// PKCS12 store with the servers' certificate, of the password "secret". On stdout it prints
// {"http_ports", "https_ports", "krb5_conf", "keytab"} when it is ready, and {} when it has done a line of its stdin:
// "fail over" (the other NameNode becomes active), "kill" (ends the active one; the other becomes active), "start" (the
// one that was killed, in standby), "token FILE" (writes a delegation token of the user beam, as `hdfs fetchdt` does) and
// "cancel FILE" (makes the token of a file invalid). It stops at the end of stdin.

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.security.PrivilegedExceptionAction;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;

public class SecureHdfs {
    private static final String COOKIE_SEC = "5"; // lifetime of the cookie that a login by Kerberos gives

    private final PrintStream answers;
    private final File keytab;
    private final MiniKdc kdc;
    private final MiniDFSCluster cluster;
    private int active;

    public static void main(String[] arguments) {
        int status = 1;
        try {
            PrintStream answers = System.out;
            System.setOut(System.err); // for what Hadoop prints
            new SecureHdfs(new File(arguments[0]), arguments[1], answers).serve();
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // the threads of the servers would go on
    }

    private SecureHdfs(File folder, String store, PrintStream answers) throws Exception {
        this.answers = answers;
        Properties kdcSettings = MiniKdc.createConf();
        kdcSettings.setProperty(MiniKdc.KDC_BIND_ADDRESS, "127.0.0.1");
        kdc = new MiniKdc(kdcSettings, new File(folder, "kdc"));
        kdc.start();
        keytab = new File(folder, "beam.keytab");
        kdc.createPrincipal(keytab, "beam");
        File keys = new File(folder, "servers.keytab");
        kdc.createPrincipal(keys, "hdfs/localhost", "HTTP/localhost");

        String realm = "@" + kdc.getRealm();
        Configuration settings = new Configuration();
        settings.set("hadoop.security.authentication", "kerberos");
        for (String each : new String[] {"dfs.namenode", "dfs.datanode"}) {
            settings.set(each + ".kerberos.principal", "hdfs/localhost" + realm);
            settings.set(each + ".keytab.file", keys.getPath());
        }
        settings.set("dfs.web.authentication.kerberos.principal", "HTTP/localhost" + realm);
        settings.set("dfs.web.authentication.kerberos.keytab", keys.getPath());
        settings.set("hadoop.http.authentication.type", "kerberos");
        settings.set("hadoop.http.authentication.kerberos.principal", "HTTP/localhost" + realm);
        settings.set("hadoop.http.authentication.kerberos.keytab", keys.getPath());
        settings.set("hadoop.http.authentication.token.validity", COOKIE_SEC);
        settings.set("dfs.block.access.token.enable", "true");
        settings.set("ignore.secure.ports.for.testing", "true");
        settings.set("dfs.http.policy", "HTTP_AND_HTTPS");
        settings.set("dfs.namenode.https-address", "localhost:0");
        settings.set("dfs.datanode.https.address", "localhost:0");
        Configuration tls = new Configuration(false);
        for (String name : new String[] {"keystore", "truststore"}) {
            tls.set("ssl.server." + name + ".location", store);
            tls.set("ssl.server." + name + ".password", "secret");
            tls.set("ssl.server." + name + ".type", "pkcs12");
        }
        tls.set("ssl.server.keystore.keypassword", "secret");
        File tlsFile = new File(folder, "ssl-server.xml"); // in the class path
        try (var stream = Files.newOutputStream(tlsFile.toPath())) {
            tls.writeXml(stream);
        }

        settings.set("hadoop.tmp.dir", folder + "/tmp");
        settings.set("dfs.datanode.hostname", "localhost"); // the host that redirects name
        settings.set("dfs.namenode.fs-limits.min-block-size", "512");
        settings.set("dfs.heartbeat.interval", "1");
        settings.set("dfs.replication", "1");
        settings.set("dfs.ha.standby.checkpoints", "false");
        settings.set("dfs.ha.tail-edits.period", "1");
        settings.set("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "10");
        settings.set("dfs.client.block.write.locateFollowingBlock.retries", "10");
        UserGroupInformation.setConfiguration(settings);
        UserGroupInformation.loginUserFromKeytab("hdfs/localhost" + realm, keys.getPath());
        cluster = new MiniDFSCluster.Builder(settings, folder)
                .nnTopology(MiniDFSNNTopology.simpleHATopology())
                .numDataNodes(1)
                .build();
        cluster.waitActive();
        cluster.transitionToActive(0);
        cluster.getFileSystem(0).setPermission(new Path("/"), new FsPermission("777"));
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        answers.printf(
                "{\"http_ports\": [%d, %d], \"https_ports\": [%d, %d], \"krb5_conf\": \"%s\", \"keytab\": \"%s\"}%n",
                cluster.getNameNode(0).getHttpAddress().getPort(), cluster.getNameNode(1).getHttpAddress().getPort(),
                cluster.getNameNode(0).getHttpsAddress().getPort(), cluster.getNameNode(1).getHttpsAddress().getPort(),
                kdc.getKrb5conf(), keytab);
        answers.flush();
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "fail" -> {
                    cluster.transitionToStandby(active);
                    active = 1 - active;
                    cluster.transitionToActive(active);
                }
                case "kill" -> {
                    cluster.shutdownNameNode(active);
                    active = 1 - active;
                    cluster.transitionToActive(active);
                }
                case "start" -> cluster.restartNameNode(1 - active);
                case "token" -> asBeam(files -> {
                    Credentials tokens = new Credentials();
                    files.addDelegationTokens("beam", tokens);
                    tokens.writeTokenStorageFile(new Path("file://" + words[1]), files.getConf());
                });
                case "cancel" -> asBeam(files -> {
                    var tokens = Credentials.readTokenStorageFile(new File(words[1]), files.getConf());
                    for (var token : tokens.getAllTokens()) {
                        token.cancel(files.getConf());
                    }
                });
                default -> throw new IllegalArgumentException(line);
            }
            answers.println("{}");
            answers.flush();
        }
    }

    private interface Action {
        void run(FileSystem files) throws Exception;
    }

    private void asBeam(Action action) throws Exception {
        UserGroupInformation user =
                UserGroupInformation.loginUserFromKeytabAndReturnUGI("beam@" + kdc.getRealm(), keytab.getPath());
        user.doAs((PrivilegedExceptionAction<Void>) () -> {
            action.run(FileSystem.newInstance(cluster.getURI(active), cluster.getConfiguration(active)));
            return null;
        });
    }
}
