"""The files of a checkpoint in a local folder, written without a process for each of them.

Without its native library, Hadoop's local file system starts `chmod` for each file that it creates: four processes a
batch, 20 ms. Files have the right mode anyway, by the umask of the JVM. Spark has no other local file system, so a
class of four lines is compiled by Janino, the compiler that Spark uses for its own generated code, and serves the
scheme `checkpoint`. It writes no checksums beside the files, either: a damaged checkpoint may be deleted at any time.
"""

from pathlib import Path

from pyspark.sql import SparkSession

SCHEME = "checkpoint"
_CLASS = "tidemark.CheckpointFiles"
_SOURCE = f"""
package tidemark;
public class CheckpointFiles extends org.apache.hadoop.fs.RawLocalFileSystem {{
    public java.net.URI getUri() {{ return java.net.URI.create("{SCHEME}:///"); }}
    public String getScheme() {{ return "{SCHEME}"; }}
    public void setPermission(org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission mode) {{}}
}}
"""


def serve_checkpoints(spark: SparkSession) -> None:
    """Let the queries of a session use the scheme."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public name
    assert jvm is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    hadoop.setClassLoader(compiler.getClassLoader())
    hadoop.set(f"fs.{SCHEME}.impl", _CLASS)


def checkpoint_url(spark: SparkSession, folder: str) -> str:
    """Return the location of a checkpoint: by the scheme for a local folder, if the session serves it."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    is_url = ":" in folder.partition("/")[0]
    is_served = not is_url and hadoop.get(f"fs.{SCHEME}.impl") is not None
    return f"{SCHEME}://{Path(folder).absolute()}" if is_served else folder
