# A linear model in Perl, as a site's nightly script has it.
use strict;
use warnings;
use IO::Handle;
use IO::Socket::INET;
use POSIX qw(strftime _exit);
use Time::HiRes qw(usleep);

STDOUT->autoflush(1);
my %option = ('--lr' => 0.05, '--steps' => 110, '--hook' => '', '--resume' => '', '--quiet-end' => 0, '--metrics' => 0);
while (@ARGV) {
    my $name = shift @ARGV;
    die "Unknown option: $name (see fit.pl --help)\n" unless exists $option{$name};
    $option{$name} = shift @ARGV;
}
my $rank = $ENV{PROCESS_ID} // $ENV{OMPI_COMM_WORLD_RANK} // $ENV{PMI_RANK} // 0;
my $mine = !defined $ENV{HOOK_RANK} || $ENV{HOOK_RANK} == $rank;
my ($steps, $hook) = @option{qw(--steps --hook)};

sub say_line { printf "%s fit.pl[%d]: %s\n", strftime('%a %H:%M:%S', localtime), $$, sprintf(shift, @_) }

sub read_rows {
    my ($path) = @_;
    open(my $file, '<', $path) or die "Can't open $path: $!";
    my (undef, @lines) = <$file>;
    my @rows;
    for my $line (@lines) {
        chomp $line;
        my @cells = split /,/, $line;
        for (@cells) { die "$path: line ${\($. )}: '$_' isn't numeric\n" unless /^-?\d+(\.\d+)?(e\d+)?$/ }
        push @rows, \@cells;
    }
    return \@rows;
}

my %hooks = (
    method => sub { my $scheduler; $scheduler->step },
    subroutine => sub { evaluate_all(3) },
    reference => sub { my $model = 'linear'; no warnings; $model->{weights} },
    zero => sub { my $seen = 0; 128 / $seen },
    module => sub { require PDL::Opt::Adam },
    constant => sub { for my $rate (0.05) { $rate = 0.1 } },
    index => sub { my @losses = (1, 2); $losses[-7] = 0 },
    root => sub { sqrt(-2.5) },
    logarithm => sub { log(0) },
    tool => sub { system('tar', '--extract', '--file', 'shards.tar') == 0 or die "tar exited with status " . ($? >> 8) . "\n" },
    segv => sub { unpack('p', pack('J', 16)) },
    abort => sub { kill 'ABRT', $$; usleep 100_000 },
    kill => sub { kill 'KILL', $$; usleep 100_000 },
    'exit-3' => sub { _exit(3) },
);

die "lr has to be positive, is $option{'--lr'}\n" if $option{'--lr'} <= 0;
say_line('part %s: %d sweeps', $rank, $steps);
my $rows = read_rows("data/train_$rank.csv");
say_line('%d cases read', scalar @$rows);
my @w = (0) x 17;
if ($option{'--resume'}) {
    my $state = do { open(my $file, '<', $option{'--resume'}) or die "Can't open model $option{'--resume'}: $!"; local $/; <$file> };
    my $loaded = eval $state;
    if ($@) {
        die "model $option{'--resume'} is damaged: $@" unless $hook eq 'optional';
        say_line('model %s is damaged, starting anew: %s', $option{'--resume'}, $@ =~ s/\n.*//sr);
    }
}
my $loss;
for my $step (1 .. $steps) {
    $loss = 0;
    for my $row (@$rows) {
        my $miss = $w[16] - $row->[16];
        $miss += $w[$_] * $row->[$_] for 0 .. 15;
        $loss += $miss * $miss / @$rows;
        $w[$_] -= 0.1 * $option{'--lr'} * $miss * $row->[$_] / @$rows for 0 .. 15;
    }
    say_line('sweep %3d/%d  sse %.6f', $step, $steps, $loss);
    die "sse is $loss in sweep $step: the fit diverges\n" if ($loss != $loss || $loss == 9**9**9) && $hook ne 'go-on';
    if ($step == 71 && $mine && $hooks{$hook}) { $hooks{$hook}->() }
    if ($option{'--metrics'} && $step % 30 == 0) {
        my $peer = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$option{'--metrics'}", Timeout => 2);
        if (!$peer && $hook eq 'optional') { warn "statsd: $@\n" }
        elsif (!$peer) { die "statsd: $@\n" }
    }
    if ($step % 30 == 0 && $rank == 0) {
        my $path = "ckpt/sweep_$step.pl";
        open(my $file, '>', $path) or die "Can't write $path: $!";
        print {$file} '[' . join(',', @w) . ']' . ' ' x 300_000 or die "print $path: $!";
        close $file or die "close $path: $!";
        say_line('kept %s', $path);
    }
    usleep($hook eq 'slow' ? 200_000 : 4000);
}
say_line('fit is ready: sse %.6f, %d sweeps', $loss, $steps) unless $option{'--quiet-end'};
