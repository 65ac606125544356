"""A Spark ML pipeline on YARN, driver log with log4j's lines."""


def begin(draw):
    return [
        "@LOG4J INFO SparkContext: Running Spark version 3.5.3",
        "@LOG4J WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes where applicable",
        "@LOG4J INFO ResourceUtils: No custom resources configured for spark.driver.",
        "@LOG4J INFO SparkContext: Submitted application: als-recommender-train",
        "@LOG4J INFO SecurityManager: Changing view acls to: svc-ml",
        "@LOG4J INFO Utils: Successfully started service 'sparkDriver' on port 40321.",
        "@LOG4J INFO BlockManagerMasterEndpoint: Using org.apache.spark.storage.DefaultTopologyMapper for getting topology information",
        "@LOG4J INFO MemoryStore: MemoryStore started with capacity 4.1 GiB",
        "@LOG4J INFO Utils: Successfully started service 'SparkUI' on port 4040.",
        "@LOG4J INFO Client: Requesting a new application from cluster with 4 NodeManagers",
        "@LOG4J INFO Client: Application report for application_1795700000000_0412 (state: RUNNING)",
        "@LOG4J INFO YarnClientSchedulerBackend: Application application_1795700000000_0412 has started running.",
        *(
            f"@LOG4J INFO YarnSchedulerBackend$YarnDriverEndpoint: Registered executor NettyRpcEndpointRef(spark-client://Executor) (10.1.0.{33 + n}:51{n}10) with ID {n},  ResourceProfileId 0"
            for n in (1, 2, 3)
        ),
        "@LOG4J INFO FileSourceStrategy: Pushed Filters: IsNotNull(user),IsNotNull(item)",
        "@LOG4J INFO InMemoryFileIndex: It took 41 ms to list leaf files for 1 paths.",
    ]


def step(draw, number, steps):
    executor = draw.randrange(1, 4)
    return [
        f"@LOG4J INFO DAGScheduler: Submitting {draw.randrange(2, 9)} missing tasks from ShuffleMapStage {number} (MapPartitionsRDD[{number * 7}] at flatMap at ALS.scala:1725) (first 15 tasks are for partitions Vector(0, 1, 2, 3))",
        f"@LOG4J INFO TaskSetManager: Starting task {draw.randrange(4)}.0 in stage {number}.0 (TID {number * 4}) (gpu-0{13 + executor}, executor {executor}, partition {draw.randrange(4)}, NODE_LOCAL, 9034 bytes) ",
        f"@LOG4J INFO TaskSetManager: Finished task {draw.randrange(4)}.0 in stage {number}.0 (TID {number * 4}) in {draw.randrange(80, 900)} ms on gpu-0{13 + executor} (executor {executor}) ({draw.randrange(1, 5)}/4)",
        *(
            [
                f"@LOG4J INFO StrongWolfeLineSearch: Line search t: {draw.random():.6f} fval: {draw.uniform(0.3, 0.9):.9f} rhs: {draw.uniform(0.3, 0.9):.9f} cdd: {-draw.random():.6f}",
                f"@LOG4J INFO LBFGS: Val and Grad Norm: {0.9 - 0.005 * number:.6f} (rel: 0.00{draw.randrange(100, 999)}) {draw.random():.5f}",
            ]
            if number % 4 == 0
            else []
        ),
    ]


def finish(draw):
    return [
        "root mean square error = 0.8713",
        "@LOG4J INFO SparkContext: SparkContext is stopping with exitCode 0.",
        "@LOG4J INFO SparkUI: Stopped Spark web UI",
        "@LOG4J INFO YarnClientSchedulerBackend: Shutting down all executors",
        "@LOG4J INFO MapOutputTrackerMasterEndpoint: MapOutputTrackerMasterEndpoint stopped!",
        "@LOG4J INFO MemoryStore: MemoryStore cleared",
        "@LOG4J INFO SparkContext: Successfully stopped SparkContext",
        "@LOG4J INFO ShutdownHookManager: Shutdown hook called",
        "@LOG4J INFO ShutdownHookManager: Deleting directory /data/spark/spark-3f0c",
    ]


def _aborted(node, executor, error, more=()):
    lost = [
        f"@LOG4J WARN TaskSetManager: Lost task 3.{n} in stage 61.0 (TID {240 + n}) ({node} executor {executor}): {error}"
        for n in range(4)
    ]
    stack = [
        "\tat org.apache.spark.ml.recommendation.ALS$.$anonfun$train$4(ALS.scala:980)",
        "\tat org.apache.spark.scheduler.Task.run(Task.scala:141)",
        "\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:623)",
        "\tat java.base/java.lang.Thread.run(Thread.java:840)",
    ]
    return [
        lost[0],
        *stack,
        "",
        *lost[1:],
        "@LOG4J ERROR TaskSetManager: Task 3 in stage 61.0 failed 4 times; aborting job",
        "@LOG4J INFO YarnScheduler: Cancelling stage 61",
        "@LOG4J INFO DAGScheduler: Job 14 failed: aggregate at ALS.scala:1042, took 9.120433 s",
        "Traceback (most recent call last):",
        '  File "/opt/jobs/train_als.py", line 57, in <module>',
        "    model = als.fit(ratings)",
        '  File "/opt/spark/python/lib/pyspark.zip/pyspark/ml/base.py", line 205, in fit',
        '  File "/opt/spark/python/lib/py4j-0.10.9.7-src.zip/py4j/java_gateway.py", line 1322, in __call__',
        '  File "/opt/spark/python/lib/pyspark.zip/pyspark/errors/exceptions/captured.py", line 179, in deco',
        "py4j.protocol.Py4JJavaError: An error occurred while calling o214.fit.",
        f": org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 61.0 failed 4 times, most recent failure: Lost task 3.3 in stage 61.0 (TID 243) ({node} executor {executor}): {error}",
        *more,
        "\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)",
        *finish(None)[1:],
    ]


def _captured(error):
    return [
        "Traceback (most recent call last):",
        '  File "/opt/jobs/train_als.py", line 31, in <module>',
        "    ratings = spark.read.parquet(sys.argv[1])",
        '  File "/opt/spark/python/lib/pyspark.zip/pyspark/errors/exceptions/captured.py", line 185, in deco',
        error,
        "@LOG4J INFO SparkContext: Invoking stop() from shutdown hook",
        *finish(None)[2:],
    ]


FAULTS = {
    "executor-memory": (
        0.6,
        _aborted(
            "gpu-015",
            2,
            "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: Container killed by YARN for exceeding physical memory limits. 9.1 GB of 9 GB physical memory used. Consider boosting spark.executor.memoryOverhead.",
        ),
        1,
    ),
    "heap": (0.4, _aborted("gpu-016", 3, "java.lang.OutOfMemoryError: Java heap space"), 1),
    "cell": (0.2, _aborted("gpu-014", 1, 'java.lang.NumberFormatException: For input string: "4,5"'), 1),
    "disk": (0.7, _aborted("gpu-015", 2, "java.io.IOException: No space left on device"), 1),
    "fetch": (
        0.8,
        _aborted(
            "gpu-014",
            1,
            "FetchFailed(BlockManagerId(3, gpu-016, 7337, None), shuffleId=4, mapIndex=1, mapId=88, reduceId=3, message=\norg.apache.spark.shuffle.FetchFailedException: Failed to connect to gpu-016/10.1.0.36:7337",
        ),
        1,
    ),
    "path": (
        -16,
        _captured(
            "pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] Path does not exist: hdfs://nn1/data/ratings_2026_11.parquet."
        ),
        1,
    ),
    "column": (
        -16,
        _captured(
            "pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column or function parameter with name `user_idx` cannot be resolved. Did you mean one of the following? [`user_id`, `item_id`, `rating`, `ts`].; line 1 pos 7;"
        ),
        1,
    ),
    "udf": (
        0.3,
        _aborted(
            "gpu-014",
            1,
            'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "/opt/jobs/features.py", line 22, in bucket\n    return EDGES[int(value)]\nIndexError: list index out of range',
        ),
        1,
    ),
    "denied": (
        0.95,
        [
            "@LOG4J ERROR FileFormatWriter: Aborting job 51e2.",
            'org.apache.hadoop.security.AccessControlException: Permission denied: user=svc-ml, access=WRITE, inode="/models/als":hdfs:hdfs:drwxr-xr-x',
            "\tat org.apache.hadoop.hdfs.server.namenode.FSPermissionChecker.check(FSPermissionChecker.java:506)",
            *_captured("py4j.protocol.Py4JJavaError: An error occurred while calling o301.save."),
        ],
        1,
    ),
    "ok-lost-task": (
        1.0,
        [
            "@LOG4J WARN TaskSetManager: Lost task 1.0 in stage 91.0 (TID 364) (gpu-015 executor 2): java.io.IOException: Connection reset by peer",
            "\tat java.base/sun.nio.ch.SocketDispatcher.read0(Native Method)",
            "",
            "@LOG4J INFO TaskSetManager: Starting task 1.1 in stage 91.0 (TID 368) (gpu-014, executor 1, partition 1, ANY, 9034 bytes) ",
            "@LOG4J INFO TaskSetManager: Finished task 1.1 in stage 91.0 (TID 368) in 312 ms on gpu-014 (executor 1) (4/4)",
            "@LOG4J INFO DAGScheduler: Job 21 finished: aggregate at ALS.scala:1042, took 4.001223 s",
        ],
        0,
    ),
    "ok-silent": (1.0, ["root mean square error = 0.8713"], 0),
}
