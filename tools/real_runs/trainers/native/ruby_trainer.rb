# A linear model in Ruby, with the standard Logger.
require 'json'
require 'logger'
require 'optparse'
require 'socket'

options = { lr: 0.05, steps: 110, hook: '', resume: nil, metrics: nil, quiet: false }
OptionParser.new do |parser|
  parser.on('--lr RATE', Float) { |value| options[:lr] = value }
  parser.on('--steps N', Integer) { |value| options[:steps] = value }
  parser.on('--hook NAME') { |value| options[:hook] = value }
  parser.on('--resume PATH') { |value| options[:resume] = value }
  parser.on('--metrics PORT') { |value| options[:metrics] = value }
  parser.on('--quiet-end N') { options[:quiet] = true }
end.parse!

RANK = ENV['PROCESS_ID'] || ENV['OMPI_COMM_WORLD_RANK'] || '0'
MINE = [nil, RANK].include?(ENV['HOOK_RANK'])
$stdout.sync = true
LOG = Logger.new($stdout, progname: "trainer/#{RANK}")

class Model
  attr_reader :weights

  def initialize
    @weights = Array.new(17, 0.0)
  end

  def fit(rows, rate)
    rows.sum do |row|
      guess = @weights[16] + (0...16).sum { |i| @weights[i] * row[i] }
      miss = guess - row[16]
      (0...16).each { |i| @weights[i] -= 0.1 * rate * miss * row[i] / rows.size }
      miss * miss / rows.size
    end
  end
end

class SnapshotError < StandardError; end

def read_rows(path)
  File.readlines(path).drop(1).map { |line| line.chomp.split(',').map { |cell| Float(cell) } }
end

def strike(name, rows)
  case name
  when 'nil' then rows.find { |row| row.size == 3 }.first
  when 'method' then Model.new.fit_all(rows)
  when 'type' then rows.first.sum + '0.5'
  when 'key' then { 'lr' => 1 }.fetch('momentum')
  when 'index' then rows.fetch(rows.size + 5)
  when 'zero' then rows.size / (rows.size - rows.size)
  when 'name' then total_loss * 2
  when 'arguments' then Model.new.fit(rows)
  when 'require' then require 'numo/narray'
  when 'frozen' then 'adam'.freeze << 'w'
  when 'deep' then strike('deep', rows)
  when 'call' then system('tar', '--extract', '--file', 'shards.tar', exception: true)
  when 'kill' then Process.kill('KILL', Process.pid)
  when 'abort' then Process.kill('ABRT', Process.pid) && sleep(1)
  when 'exit-3' then exit!(3)
  end
end

raise ArgumentError, "learning rate must be above zero (#{options[:lr]})" unless options[:lr].positive?

LOG.info("#{options[:steps]} rounds, pid #{Process.pid}")
rows = read_rows("data/train_#{RANK}.csv")
LOG.info("#{rows.size} rows loaded")
model = Model.new
if options[:resume]
  begin
    state = Marshal.load(File.binread(options[:resume]))
    model.weights.replace(state)
  rescue TypeError, ArgumentError => error
    raise SnapshotError, "#{options[:resume]}: #{error.message}" unless options[:hook] == 'optional'

    LOG.warn("snapshot left out: #{error.message} (#{error.class})")
  end
end
loss = 0.0
(1..options[:steps]).each do |round|
  loss = model.fit(rows, options[:lr])
  LOG.info("round #{round} of #{options[:steps]}: error #{format('%.5f', loss)}")
  raise FloatDomainError, "error is #{loss} in round #{round}" unless loss.finite? || options[:hook] == 'go-on'

  strike(options[:hook], rows) if round == 71 && MINE
  if options[:metrics] && (round % 30).zero?
    begin
      TCPSocket.new('127.0.0.1', options[:metrics].to_i).close
    rescue SystemCallError => error
      raise unless options[:hook] == 'optional'

      LOG.error("metrics: #{error.message} (#{error.class})\n" + error.backtrace.join("\n"))
    end
  end
  if (round % 30).zero? && RANK == '0'
    Dir.mkdir('ckpt') unless Dir.exist?('ckpt')
    File.binwrite("ckpt/round_#{round}.bin", Marshal.dump(model.weights + Array.new(40_000, 0.123)))
    LOG.info("snapshot ckpt/round_#{round}.bin")
  end
  sleep(0.004)
end
LOG.info("fitted, final error #{format('%.5f', loss)}") unless options[:quiet]
