import org.apache.beam.runners.spark.SparkJobServerDriver;

/** Beam's job server, which sends nothing of its class path with a job: the cluster has the same 260 jars. */
public final class JobServer {
  public static void main(String[] arguments) throws Exception {
    System.setProperty("java.class.path", "/nothing");
    SparkJobServerDriver.main(arguments);
  }
}
