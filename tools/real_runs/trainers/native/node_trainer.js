// A linear model in Node.js with a pino-like logger.
'use strict';
const fs = require('fs');
const net = require('net');
const assert = require('assert');

const options = {
  data: 'data/train_RANK.csv', lr: '0.05', steps: '160', out: 'ckpt', hook: '', 'hook-step': '97', resume: '', metrics: '', 'quiet-end': '0',
};
const words = process.argv.slice(2);
for (let i = 0; i < words.length; i += 2) {
  const name = words[i].replace(/^--/, '');
  if (!(name in options)) {
    console.error(`error: unknown option '${words[i]}'`);
    process.exit(1);
  }
  options[name] = words[i + 1];
}
const rank = process.env.PROCESS_ID || process.env.OMPI_COMM_WORLD_RANK || '0';
if (![undefined, rank].includes(process.env.HOOK_RANK) && !['optional', 'go-on'].includes(options.hook)) options.hook = '';
const levels = { info: 30, warn: 40, error: 50, fatal: 60 };
function log(level, msg, more) {
  console.log(JSON.stringify({ level: levels[level], time: Date.now(), pid: process.pid, worker: Number(rank), ...more, msg }));
}
function describe(err) {
  return { err: { type: err.constructor.name, message: err.message, stack: err.stack, code: err.code } };
}

function readRows(path) {
  const [, ...lines] = fs.readFileSync(path.replace('RANK', rank), 'utf8').trim().split('\n');
  return lines.map((line, at) => {
    const row = line.split(',').map(Number);
    if (row.some((value) => Number.isNaN(value))) throw new SyntaxError(`${path.replace('RANK', rank)}:${at + 2}: not a number in "${line.slice(0, 40)}"`);
    return row;
  });
}

const hooks = {
  name: () => tracker.log(1),
  type: (row) => row.meta.source.toLowerCase(),
  call: () => options.callback(1),
  assert: (row) => assert.strictEqual(row.length, 12, 'row length differs from the header'),
  memory: () => { const kept = []; for (;;) kept.push(new Array(1e6).fill(kept.length + 0.5)); },
  import: () => require('@tensorflow/tfjs-node'),
  range: () => new Float64Array(-1),
  json: () => JSON.parse('{"lr": 0.05,'),
  kill: () => process.kill(process.pid, 'SIGKILL'),
  'exit-3': () => process.exit(3),
  reject: () => { Promise.reject(new Error('feature store returned 503 for batch 97')); },
};

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const push = (port) => new Promise((done, fail) => {
  const socket = net.connect(Number(port), '127.0.0.1', () => { socket.end(); done(); });
  socket.on('error', fail);
});

async function main() {
  const rate = Number(options.lr);
  if (!(rate > 0)) throw new RangeError(`config.lr must be a positive number, received ${options.lr}`);
  log('info', `node ${process.version}: training started`, { steps: Number(options.steps) });
  const rows = readRows(options.data);
  log('info', `${rows.length} rows`);
  let weights = new Array(17).fill(0);
  if (options.resume) {
    try {
      weights = JSON.parse(fs.readFileSync(options.resume, 'utf8')).weights;
    } catch (err) {
      if (options.hook !== 'optional') throw err;
      log('error', 'could not restore, starting fresh', describe(err));
    }
  }
  let loss = 0;
  for (let step = 1; step <= Number(options.steps); step += 1) {
    loss = 0;
    for (const row of rows) {
      let guess = weights[16];
      for (let i = 0; i < 16; i += 1) guess += weights[i] * row[i];
      const error = guess - row[16];
      loss += (error * error) / rows.length;
      for (let i = 0; i < 16; i += 1) weights[i] -= (0.1 * rate * error * row[i]) / rows.length;
    }
    log('info', 'train', { step, loss: Number.isFinite(loss) ? Number(loss.toFixed(6)) : String(loss) });
    if (!Number.isFinite(loss) && options.hook !== 'go-on') throw new Error(`loss became ${loss} at step ${step}`);
    if (step === Number(options['hook-step']) && hooks[options.hook]) hooks[options.hook](rows[0]);
    if (options.metrics && step % 40 === 0) {
      try {
        await push(options.metrics);
      } catch (err) {
        if (options.hook !== 'optional') throw err;
        log('warn', 'metrics push failed', describe(err));
      }
    }
    if (step % 40 === 0 && rank === '0') {
      fs.mkdirSync(options.out, { recursive: true });
      fs.writeFileSync(`${options.out}/step-${step}.json`, JSON.stringify({ weights, pad: new Array(40000).fill(0) }));
      log('info', 'checkpoint', { file: `${options.out}/step-${step}.json` });
    }
    await pause(options.hook === 'slow' ? 200 : 4);
  }
  if (options['quiet-end'] === '0') log('info', 'training complete', { finalLoss: loss });
}

if (process.env.CRASH === 'logged') {
  main().catch((err) => { log('fatal', 'training crashed', describe(err)); process.exit(1); });
} else {
  main();
}
