"""Messages of the Linux kernel with fields that any process can choose: its name, its files, its mounts and labels.

``{name}``: the 15 bytes of a process's name (prctl PR_SET_NAME, or the file it was started from). ``{path}``: a file, a
control group, a label: as long as its owner likes. A soft lockup is not among them: it proves a broken machine under
any name, to whoever has a failure that it explains.
"""

NAME_BYTES = 15

MESSAGES = (
    "{name}[4711]: segfault at 0 ip 00007f1c2b3d ip 00007ffd error 4 in libc.so.6[7f1c2b000000+1c5000]",
    "traps: {name}[4711] trap invalid opcode ip:55d0c0 sp:7ffc20 error:0 in python3.11[55d0c0+2c000]",
    "traps: {name}[4711] general protection fault ip:7f12 sp:7ffc20 error:0 in libc.so.6[7f12+1c5000]",
    "traps: {name}[4711] trap divide error ip:7f12 sp:7ffc20 error:0 in libm.so.6[7f12+c5000]",
    "Out of memory: Killed process 4711 ({name}) total-vm:81kB, anon-rss:7kB, file-rss:0kB, UID:1000 pgtables:7kB",
    "Memory cgroup out of memory: Killed process 4711 ({name}) total-vm:81kB, anon-rss:7kB, UID:1000 pgtables:7kB",
    "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={path},mems_allowed=0-1,oom_memcg=/slurm/uid_1000,"
    "task_memcg=/slurm/uid_1000/job_7,task={name},pid=4711,uid=1000",
    "[   4711]  1000  4711   204800   102400  1064960        0             0 {name}",
    "oom_reaper: reaped process 4711 ({name}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "INFO: task {name}:4711 blocked for more than 120 seconds.",
    "task:{name}      state:D stack:    0 pid: 4711 ppid:  4700 flags:0x00004002",
    "process '{path}' started with executable stack",
    "CPU: 3 PID: 4711 Comm: {name} Tainted: P           OE     5.15.0-91-generic #101-Ubuntu",
    'audit: type=1701 audit(1790000000.123:45): auid=1000 uid=1000 gid=1000 ses=2 pid=4711 comm="{name}" exe="{path}" '
    "sig=4 res=1",
    'audit: type=1400 audit(1790000000.123:46): apparmor="DENIED" operation="open" profile="{path}" name="{path}" '
    'pid=4711 comm="{name}" requested_mask="r" denied_mask="r" fsuid=1000 ouid=0',
    'audit: type=1326 audit(1790000000.123:47): auid=1000 uid=1000 pid=4711 comm="{name}" exe="{path}" sig=31 '
    "arch=c000003e syscall=101 compat=0 ip=0x7f12 code=0x0",
    "{name}: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null)",
    "{name} (4711): drop_caches: 3",
    "{name} (4711) used greatest stack depth: 11232 bytes left",
    "warning: `{name}' uses 32-bit capabilities (legacy support in use)",
    "{name} uses obsolete (PF_INET,SOCK_PACKET)",
    "{name}[4711] vsyscall attempted with vsyscall=none ip:7f12 cs:33 sp:7ffc20 ax:7f12 si:0 di:0",
    "{name}[4711]: unhandled signal 11 at 0000000000000000 nip 00007f12 lr 00007f10 code 30001",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name={name}, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name={name}, Graphics Exception: ESR 0x404490=0x80000001",
    "EXT4-fs warning (device loop3): ext4_dirblock_csum_verify:377: inode #2: comm {name}: No space for checksum",
    "overlayfs: failed to resolve '{path}': -2",
    "ISO 9660 Extensions: {path}",
    "BTRFS: device label {path} devid 1 transid 7 /dev/loop0 scanned by {name} (4711)",
    "cgroup: fork rejected by pids controller in {path}",
    'ptrace attach of "{path}"[4711] was attempted by "{path}"[4712]',
    "Process 4711({name}) has RLIMIT_CORE set to 1",
    "Pid 4711({name}) over core_pipe_limit",
    "mmap: {name} (4711): VmData 1234 exceed data ulimit 10. Update limits or use boot option ignore_rlimit_data.",
    "{name} (4711): /proc/4711/oom_adj is deprecated, please use /proc/4711/oom_score_adj instead.",
    "futex_wake_op: {name} tries to shift op by -1; fix this program",
    "sock: process `{name}' is using obsolete setsockopt SO_BSDCOMPAT",
    "x86/split lock detection: #AC: {name}/4711 took a split_lock trap at address: 0x7f12",
    "umip: {name}[4711] ip:7f12 sp:7ffc20: SGDT instruction cannot be used by applications.",
    "usb 1-1: usbfs: process 4711 ({name}) did not claim interface 0 before use",
    "IPv6: ADDRCONF(NETDEV_CHANGE): {name}: link becomes ready",
    "device {name} entered promiscuous mode",
    "docker0: port 1({name}) entered disabled state",
    "fuse: Bad value for '{path}'",
)
