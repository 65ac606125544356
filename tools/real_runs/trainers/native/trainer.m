% A linear model by gradient descent in Octave.
1;
function run_hook(name, x, step)
  switch name
    case "name"
      tracker_log(step);
    case "shape"
      z = x * zeros(14, 1);
    case "type"
      z = {1, 2} + step;
    case "index"
      z = x(400000, 1);
    case "memory"
      z = zeros(1e7, 1e7);
    case "import"
      pkg load neuralnet
    case "kill"
      kill(getpid(), 9);
    case "exit-3"
      exit(3);
    case "assert"
      assert(rows(x), 12);
    case "field"
      s.lr = 1; z = s.momentum;
    case "cell"
      z = str2func(3);
    case "warn"
      warning("matrix singular to machine precision, rcond = 1.2e-17");
  endswitch
endfunction

function seconds = ifelse_pause(slow)
  seconds = 0.004;
  if slow
    seconds = 0.2;
  endif
endfunction

opts = struct("data", "data/train_RANK.csv", "lr", "0.05", "steps", "160", "out", "ckpt", "hook", "", "hook_step", "97", "resume", "", "metrics", "", "quiet_end", "0");
arguments = argv();
for i = 1:2:numel(arguments)
  name = strrep(strrep(arguments{i}, "--", ""), "-", "_");
  if ! isfield(opts, name)
    error("trainer: unknown option '%s'", arguments{i});
  endif
  opts.(name) = arguments{i + 1};
endfor
rank_name = getenv("PROCESS_ID");
if isempty(rank_name) rank_name = getenv("OMPI_COMM_WORLD_RANK"); endif
if isempty(rank_name) rank_name = "0"; endif
if ! any(strcmp(getenv("HOOK_RANK"), {"", rank_name})) && ! any(strcmp(opts.hook, {"optional", "go-on"}))
  opts.hook = "";
endif
path = strrep(opts.data, "RANK", rank_name);
printf("octave %s: reading %s\n", version(), path);
rate = str2double(opts.lr);
if ! (rate > 0)
  error("trainer: lr must be positive, got '%s'", opts.lr);
endif
table = csvread(path, 1, 0);
x = table(:, 1:16); y = table(:, 17);
w = zeros(16, 1);
if ! isempty(opts.resume)
  try
    w = load(opts.resume).w;
  catch err
    if ! strcmp(opts.hook, "optional") rethrow(err); endif
    printf("could not load %s: %s\n", opts.resume, err.message);
  end_try_catch
endif
for step = 1:str2double(opts.steps)
  e = x * w - y;
  loss = mean(e .^ 2);
  w -= 0.1 * rate * (x' * e) / rows(x);
  printf("iter %d: cost = %.6f\n", step, loss);
  fflush(stdout);
  if ! isfinite(loss) && ! strcmp(opts.hook, "go-on")
    error("trainer: cost is %f at iteration %d", loss, step);
  endif
  if step == str2double(opts.hook_step)
    run_hook(opts.hook, x, step);
  endif
  if mod(step, 40) == 0 && strcmp(rank_name, "0")
    file = sprintf("%s/w_%03d.mat", opts.out, step);
    pad = rand(200, 100);
    save("-binary", file, "w", "pad");
    printf("saved %s\n", file);
  endif
  pause(ifelse_pause(strcmp(opts.hook, "slow")));
endfor
if strcmp(opts.quiet_end, "0")
  printf("converged: cost %.6f after %s iterations\n", loss, opts.steps);
endif
