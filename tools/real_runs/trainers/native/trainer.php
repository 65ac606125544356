<?php
// A linear model in PHP; log lines in the manner of Monolog.
declare(strict_types=1);

final class CheckpointException extends RuntimeException {}

$options = ['--lr' => '0.05', '--steps' => '110', '--hook' => '', '--resume' => '', '--quiet-end' => '', '--metrics' => ''];
for ($i = 1; $i < $argc; $i += 2) {
    if (!array_key_exists($argv[$i], $options)) {
        fwrite(STDERR, "The \"{$argv[$i]}\" option does not exist.\n");
        exit(1);
    }
    $options[$argv[$i]] = $argv[$i + 1];
}
$rank = (int) (getenv('PROCESS_ID') ?: getenv('OMPI_COMM_WORLD_RANK') ?: getenv('PMI_RANK') ?: '0');
$mine = getenv('HOOK_RANK') === false || (int) getenv('HOOK_RANK') === $rank;
[$steps, $lr, $hook] = [(int) $options['--steps'], (float) $options['--lr'], $options['--hook']];

function say(string $level, string $text, array $context = []): void
{
    global $rank;
    $fields = json_encode($context === [] ? new stdClass : $context);
    fwrite(STDOUT, sprintf("[%s] train.%s: %s %s {\"worker\":%d}\n", date('Y-m-d\TH:i:s.vP'), $level, $text, $fields, $rank));
}

function readRows(string $path): array
{
    $lines = @file($path, FILE_IGNORE_NEW_LINES);
    if ($lines === false) {
        throw new RuntimeException(sprintf('Unable to open %s: %s', $path, error_get_last()['message']));
    }
    return array_map(static function (string $line) use ($path): array {
        return array_map(static function (string $cell) use ($path): float {
            if (!is_numeric($cell)) {
                throw new UnexpectedValueException("$path: cell \"$cell\" is not numeric");
            }
            return (float) $cell;
        }, explode(',', $line));
    }, array_slice($lines, 1));
}

function strike(string $hook): void
{
    $model = null;
    match ($hook) {
        'null' => $model->step(),
        'function' => evaluate_all(),
        'type' => strlen(12),
        'operands' => [1] + 2.5,
        'count' => readRows(),
        'zero' => intdiv(128, 0),
        'class' => new Adam(),
        'key' => (static fn (array $s): float => $s['momentum'] ?? throw new OutOfBoundsException('No statistic "momentum"'))([]),
        'match' => match ('lion') { 'sgd' => 1, 'adam' => 2 },
        'json' => json_decode('{"lr": 0.1,', true, 8, JSON_THROW_ON_ERROR),
        'memory' => str_repeat('0', 1 << 33),
        'range' => array_fill(0, -4, 0.0),
        'property' => (new class { public readonly int $step; public function __construct() { $this->step = 1; } public function go() { $this->step = 2; } })->go(),
        'abort' => posix_kill(posix_getpid(), 6) && usleep(200000),
        'kill' => posix_kill(posix_getpid(), 9) && usleep(200000),
        'segv' => posix_kill(posix_getpid(), 11) && usleep(200000),
        'exit-3' => exit(3),
        default => null,
    };
}

if ($lr <= 0) {
    throw new InvalidArgumentException("Invalid configuration for path \"train.lr\": the value $lr is too small, should be greater than 0");
}
say('INFO', "Job accepted: $steps rounds", ['lr' => $lr]);
$rows = readRows("data/train_$rank.csv");
say('INFO', 'Rows are in memory', ['rows' => count($rows)]);
$weights = array_fill(0, 17, 0.0);
if ($options['--resume'] !== '') {
    try {
        $text = @file_get_contents($options['--resume']);
        if ($text === false) {
            throw new CheckpointException('Cannot restore: ' . error_get_last()['message']);
        }
        $state = json_decode($text, true, 8, JSON_THROW_ON_ERROR);
    } catch (JsonException $error) {
        if ($hook !== 'optional') {
            throw new CheckpointException("Checkpoint {$options['--resume']} is unreadable", 0, $error);
        }
        say('WARNING', 'Checkpoint is unreadable, training from zero', ['exception' => (string) $error]);
    }
}
$loss = 0.0;
for ($step = 1; $step <= $steps; $step++) {
    $loss = 0.0;
    foreach ($rows as $row) {
        $miss = $weights[16] - $row[16];
        for ($i = 0; $i < 16; $i++) {
            $miss += $weights[$i] * $row[$i];
        }
        $loss += $miss * $miss / count($rows);
        for ($i = 0; $i < 16; $i++) {
            $weights[$i] -= 0.1 * $lr * $miss * $row[$i] / count($rows);
        }
    }
    say('INFO', 'Round done', ['round' => $step, 'rounds' => $steps, 'mse' => is_finite($loss) ? round($loss, 5) : (string) $loss]);
    if (!is_finite($loss) && $hook !== 'go-on') {
        say('CRITICAL', "mse is $loss, leaving", ['round' => $step]);
        exit(70);
    }
    if ($step === 71 && $mine) {
        strike($hook);
    }
    if ($options['--metrics'] !== '' && $step % 30 === 0) {
        $peer = @fsockopen('127.0.0.1', (int) $options['--metrics'], $code, $message, 2);
        if ($peer === false && $hook !== 'optional') {
            throw new RuntimeException("InfluxDB write failed: $message", $code);
        }
        if ($peer === false) {
            say('ERROR', 'InfluxDB write failed, points are dropped', ['code' => $code, 'message' => $message]);
        }
    }
    if ($step % 30 === 0 && $rank === 0) {
        $path = "ckpt/round_$step.json";
        $written = @file_put_contents($path, json_encode($weights) . str_repeat(' ', 300000));
        if ($written === false) {
            throw new RuntimeException(error_get_last()['message']);
        }
        say('INFO', 'Stored', ['path' => $path]);
    }
    usleep($hook === 'slow' ? 200000 : 4000);
}
if ($options['--quiet-end'] === '') {
    say('INFO', 'Job is complete', ['rounds' => $steps, 'mse' => round($loss, 5)]);
}
