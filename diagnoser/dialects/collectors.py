"""Container runtimes, system logs and loggers that stand in front of every line of another program."""

from diagnoser.dialects.dialect import HOST, ISO, Dialect, Example, PrefixStripping

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE)"
_STAMP = r"\d{3,4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"
_SYSLOG_TAG = r"(?!kernel)[\w./@-]{1,60}+(?:\(\w{1,20}\))?\[\d{1,8}\]: "
CLOCK = rf"[\[\d]{_STAMP}\]?"
"""A time as loggers write it."""
_LOGGER = (
    rf"{CLOCK}(?: ?[-|:])? {{1,3}}(?:\[?[\w.]{{1,40}}+\]?(?: [-|]|:)? {{1,3}})?"
    rf"[\[(<]?{_LEVEL}[\])>]?(?: (?:\[[\w./:<>-]{{1,80}}\] |[a-z_][a-z0-9_.]{{0,60}}: )|: | [-|] | )"
)
"""Stamp, name and level as loggers write them, up to the message."""
_BLURRED_CLOCK = r"[\[]?0[ /]0[ /]0[T ]0:0:0(?:[.,]0)?Z?\]?"
_BLURRED_LOGGER = (
    rf"{_BLURRED_CLOCK}[|:]? (?:\[?[\w.]{{1,40}}+\]?[|:]? )?"
    rf"[\[(<]?{_LEVEL}[\])>]?:? (?:\| |\[[\w./:<> ]{{1,80}}\] |[a-z_][a-z0-9_.]{{0,60}}+: )?"
)

DIALECTS = (
    Dialect(
        "container runtime",  # CRI; docker's JSON is rewritten to it; collectors that write tabs
        rf"{ISO}[ \t]std(?:out|err)[ \t](?:[FP](?: |$))?",
        (
            Example("2026-01-02T03:04:05.123456789Z stdout F hello", "hello"),
            Example("2026-01-02T03:04:05.123Z\tstderr\thello", "hello"),
        ),
    ),
    Dialect(
        "time stamp",  # kubectl logs --timestamps, ts; a program's own logger goes on with a level
        rf"{ISO}:?[ \t](?![\[(<]?{_LEVEL}\b|\S{{1,80}}+ kernel: )",
        (
            Example(
                "2026-01-02T03:04:05.123Z Traceback (most recent call last):", "Traceback (most recent call last):"
            ),
            Example("2026-01-02T03:04:05Z: [rank3]: boom", "boom", {"rank": "3"}),
            Example("2026-01-02T03:04:05 [rank3]: boom", "boom", {"rank": "3"}),
            Example("2026-01-02T03:04:05 INFO train: hello", "2026-01-02T03:04:05 INFO train: hello"),
        ),
    ),
    Dialect(
        "syslog priority",
        r"<\d{1,3}>(?! )",  # a blank behind it makes it the name of a stream
        (
            Example("<11>2026-01-02T03:04:05Z gpu-7 train[812]: hello", "hello", {"host": "gpu-7", "pid": "812"}),
            Example("<11>KeyError: 'x'", "KeyError: 'x'"),
        ),
    ),
    Dialect(
        "syslog of RFC 5424",
        rf"1 {ISO} (?P<host>{HOST}) (?!kernel )[\w./@-]{{1,60}}+ (?:(?P<pid>\d{{1,8}})|-) (?:-|[\w.-]{{1,32}}+)"
        r" (?:-|\[[^\]\n]{1,300}\])(?: |$)",
        (
            Example(
                "<14>1 2026-01-02T03:04:05Z gpu-7 train 812 - -   File",
                "  File",
                {"host": "gpu-7", "pid": "812"},
            ),
            Example('<11>1 2026-01-02T03:04:05Z gpu-7 train - ID1 [a@1 b="c"] hello', "hello", {"host": "gpu-7"}),
        ),
        after=">",
        blurred=r"0 0 0 0T0:0:0(?:[.,]0)?(?:Z|[+-]?0:0)? [A-Za-z][\w.]{0,80}+(?: 0)? [\w./@]{1,60}+(?: 0)? "
        r"(?:[A-Z]{1,16}0 )?(?:\[[^\]\n]{1,300}\] )?",
    ),
    Dialect(
        "Loki's labels",  # as logcli and exports print them, before the line
        r"\{(?=\w{1,40}=\")(?:(?=[^{}\n]{0,400}\b(?:rank=\"|file(?:name)?=\"[^\"]{0,80}\brank[._-]?)(?P<rank>\d{1,6})[\"._/]))?"
        r"(?:(?=[^{}\n]{0,400}\b(?:host|hostname|node|node_name|instance)=\"(?P<host>[A-Za-z][\w.-]{1,80})\"))?"
        r"(?:(?=[^{}\n]{0,400}\bpod(?:_name)?=\"(?P<pod>[a-z][\w.-]{1,80})\"))?"
        r"[^{}\n]{3,600}\"\}[ \t]",
        (
            Example(
                '2026-01-02T03:04:05Z {host="gpu-7", rank="3"}   File',
                "  File",
                {"host": "gpu-7", "rank": "3"},
            ),
            Example('{app="fit", node="gpu-7"} hello', "hello", {"host": "gpu-7"}),
            Example('{filename="/logs/rank_3.log"}\thello', "hello", {"rank": "3"}),
            Example('{app="fit", pod="fit-worker-3"} hello', "hello", {"pod": "fit-worker-3"}),
        ),
    ),
    Dialect(
        "fluentd",  # its standard output and files: time, tag, record
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} [+-]\d{4} (?P<pod>[A-Za-z][\w.-]{0,80}): ",
        (Example('2026-01-02 03:04:05.123456789 +0000 fit.w3: {"log":"hello"}', '{"log":"hello"}', {"pod": "fit.w3"}),),
        blurred=r"0[ ]?0[ ]?0 0:0:0\.0 [+ ]?0 [A-Za-z][\w. ]{0,80}: ",
    ),
    Dialect(
        "time stamp of multilog",
        r"@[0-9a-f]{24} ",
        (Example("@400000006b08d845264c9a84 [rank3]: boom", "boom", {"rank": "3"}),),
        blurred=r"@[0-9a-f]{1,24}+ ",
    ),
    Dialect(
        "time stamp of s6-log",
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9}  ",
        (Example("2026-01-02 03:04:05.123456789  [rank3]: boom", "boom", {"rank": "3"}),),
    ),
    Dialect(
        "syslog stamp",
        r"[JFMASOND](?:an|eb|ar|pr|ay|un|ul|ug|ep|ct|ov|ec) [ \d]\d \d\d:\d\d:\d\d "
        rf"(?=[A-Za-z][\w.-]{{0,80}} (?:{_SYSLOG_TAG}|CEF:))",
        (Example("Jan  2 03:04:05 gpu-7 kernel: NVRM: Xid", "Jan  2 03:04:05 gpu-7 kernel: NVRM: Xid"),),
    ),
    Dialect(
        "Common Event Format",  # up to its message; a label names the number beside it
        r"(?:[A-Za-z][\w.-]{1,80}+ )?CEF:\d{1,2}\|[^\n=]{1,200}\|[\w-]{1,10}\|"
        r"(?=(?:(?! msg=)[^\n]){0,400}? ?shost=(?P<host>[A-Za-z][\w.-]{1,80}) )?"
        r"(?=(?:(?! msg=)[^\n]){0,400}? ?c[ns]\dLabel=rank c[ns]\d=(?P<rank>\d{1,6}) )?"
        r"(?:(?!msg=)[^\n]){0,400}msg=",
        (
            Example(
                "Jan  2 03:04:05 gpu-7 CEF:0|Corp|agent|1.2|7|job output|3|shost=gpu-7 cs2Label=rank cs2=3 msg=  File",
                "  File",
                {"host": "gpu-7", "rank": "3"},
            ),
            Example("CEF:0|Corp|agent|1.2|7|job|High|cnt=2 msg=shost=gpu-9 hello", "shost=gpu-9 hello"),
        ),
        blurred=r"(?:[A-Za-z][\w. ]{1,80} )?CEF:0\|[^\n=]{1,200}\|[\w ]{1,10}\|(?:(?!msg=)[^\n]){0,400}msg=",
    ),
    Dialect(
        "syslog",
        rf"(?P<host>{HOST}) (?!kernel)(?:(?P<pod>[\w./-]{{1,40}}@[\w.-]{{1,20}}"
        r"|(?i:rank|worker|trainer)[._-]?\d{1,5}(?=\[))|[\w./-]{1,40}+)(?:\(\w{1,20}\))?"
        r"\[(?P<pid>\d{1,8})\]: ",
        (
            Example(
                "Jan  2 03:04:05 gpu-7 train@3[812]: hello",
                "hello",
                {"host": "gpu-7", "pid": "812", "pod": "train@3"},
            ),
            Example(
                "Jan  2 03:04:05 gpu-7 rank3[812]: hello", "hello", {"host": "gpu-7", "pid": "812", "pod": "rank3"}
            ),
            Example("Jan  2 03:04:05 gpu-7 train[812]: hello", "hello", {"host": "gpu-7", "pid": "812"}),
            Example(
                "2026-01-02T03:04:05.123456+00:00 gpu-7 train[812]:   File", "  File", {"host": "gpu-7", "pid": "812"}
            ),
        ),
        after=r"[\dZ] ",
    ),
    Dialect(
        "time in front of a rank",  # a logger's own line goes on with a level
        rf"{CLOCK}(?: ?[-|:])? {{0,3}}(?=\[(?:default|rank ?)\d)(?![^\n]{{0,80}}?\b{_LEVEL}\b)",
        (
            Example("[2026-01-02 03:04:05] [rank3] step 7", "step 7", {"rank": "3"}),
            Example("[2026-01-02 03:04:05,123][rank3]: boom", "boom", {"rank": "3"}),
            Example("2026-01-02 03:04:05 | [default1]:[rank9]: boom", "boom", {"local": "1", "rank": "9"}),
            Example("2026-01-02 03:04:05 [rank 3] fit INFO: boom", "2026-01-02 03:04:05 [rank 3] fit INFO: boom"),
        ),
        blurred=rf"{_BLURRED_CLOCK} ?[|:]? ?(?=\[(?:default|rank ?)0)(?![^\n]{{0,80}}?\b{_LEVEL}\b)",
    ),
    Dialect(
        "logger in front of a rank",
        rf"{_LOGGER}(?= {{0,4}}\d{{1,5}}: |\[default\d|\[rank ?\d|\[\d{{1,3}},\d{{1,5}}\]<)",
        (Example("2026-01-02 03:04:05,123 INFO launcher: 3: boom", "boom", {"task": "3"}),),
        blurred=rf"{_BLURRED_LOGGER}(?=0: |\[default0|\[rank ?0|\[0,0\]<)",
    ),
    Dialect(
        "logger",  # Python's logging and its like, where one carries the output of another program
        _LOGGER,
        (
            Example('2026-01-02 03:04:05,123 - launcher - INFO -   File "a.py", line 3', '  File "a.py", line 3'),
            Example("2026-01-02 03:04:05,123 INFO launcher: KeyError: 'x'", "KeyError: 'x'"),
            Example("2026-01-02 03:04:05,123 - launcher - ERROR - KeyError: 'x'", "KeyError: 'x'"),
            Example("[2026-01-02 03:04:05,123] [INFO] [runner.py:571:main] KeyError: 'x'", "KeyError: 'x'"),
        ),
        blurred=_BLURRED_LOGGER,
        peeled=PrefixStripping.CARRIED,
    ),
)
