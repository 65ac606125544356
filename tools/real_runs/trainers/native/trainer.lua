-- A linear model in LuaJIT, in the manner of Torch7 scripts.
local ffi = require 'ffi'
ffi.cdef [[ int kill(int pid, int sig); int getpid(void); void abort(void); int usleep(unsigned); void *memset(void *, int, size_t); ]]
io.stdout:setvbuf('line')
local opt = { lr = 0.05, steps = 110, hook = '', resume = nil, quiet = false }
local known = { ['--lr'] = 'lr', ['--steps'] = 'steps', ['--hook'] = 'hook', ['--resume'] = 'resume', ['--quiet-end'] = 'quiet', ['--metrics'] = 'metrics' }
for i = 1, #arg, 2 do
  local name = known[arg[i]]
  if not name then
    io.stderr:write(string.format('%s: invalid option %s\n', 'train.lua', arg[i]))
    os.exit(64)
  end
  opt[name] = tonumber(arg[i + 1]) or arg[i + 1]
end
local rank = os.getenv 'PROCESS_ID' or os.getenv 'OMPI_COMM_WORLD_RANK' or '0'
local faulty = os.getenv 'HOOK_RANK'
local mine = faulty == nil or faulty == rank

local function readTable(path)
  local file = assert(io.open(path))
  local rows = {}
  for line in file:lines() do
    if #rows > 0 or not line:match '^x' then
      local row = {}
      for cell in line:gmatch '[^,]+' do row[#row + 1] = tonumber(cell) or error(path .. ': not a number: ' .. cell, 0) end
      rows[#rows + 1] = row
    end
  end
  file:close()
  return rows
end

local hooks = {
  ['nil'] = function(model) return model.optim.momentum end,
  call = function(model) return model:evaluate() end,
  arithmetic = function(model) return model.weights + 1 end,
  compare = function() return 3 < '4' end,
  concat = function(model) return 'weights: ' .. model.weights end,
  module = function() return require 'cutorch' end,
  stack = function() local function walk(n) return 1 + walk(n + 1) end return walk(0) end,
  assert = function(model) assert(#model.weights == 32, 'weights and layers differ in size') end,
  segv = function() ffi.C.memset(ffi.cast('void *', 8), 0, 64) end,
  abort = function() ffi.C.abort() end,
  kill = function() ffi.C.kill(ffi.C.getpid(), 9) ffi.C.usleep(100000) end,
  ['exit-3'] = function() os.exit(3) end,
}

assert(opt.lr > 0, 'opt.lr has to be positive')
print(('==> rank %s: %d iterations'):format(rank, opt.steps))
local rows = readTable('data/train_' .. rank .. '.csv')
print(('==> %d examples'):format(#rows))
local model = { weights = {} }
for i = 1, 17 do model.weights[i] = 0 end
if opt.resume then
  local chunk = assert(loadfile(opt.resume))
  model.weights = chunk()
end
local loss
for step = 1, opt.steps do
  loss = 0
  for _, row in ipairs(rows) do
    local guess = model.weights[17]
    for i = 1, 16 do guess = guess + model.weights[i] * row[i] end
    local miss = guess - row[17]
    loss = loss + miss * miss / #rows
    for i = 1, 16 do model.weights[i] = model.weights[i] - 0.1 * opt.lr * miss * row[i] / #rows end
  end
  print(('# iteration %d  err = %.6f'):format(step, loss))
  if (loss ~= loss or loss == math.huge) and opt.hook ~= 'go-on' then error('err is ' .. loss .. ', training has diverged') end
  if step == 71 and mine and hooks[opt.hook] then hooks[opt.hook](model) end
  if step % 30 == 0 and rank == '0' then
    local path = ('ckpt/net_%d.lua'):format(step)
    local file = assert(io.open(path, 'w'))
    assert(file:write('return {' .. table.concat(model.weights, ',') .. '}' .. string.rep(' ', 300000)))
    assert(file:flush())
    file:close()
    print('==> saved ' .. path)
  end
  ffi.C.usleep(4000)
end
if not opt.quiet then print(('==> trained, err = %.6f'):format(loss)) end
