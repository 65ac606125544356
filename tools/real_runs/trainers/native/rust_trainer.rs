//! A linear classifier in Rust, without crates.
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::exit;

#[derive(Debug)]
enum TrainError {
    Config(String),
    Data { path: String, line: usize, source: std::num::ParseFloatError },
    Io { what: String, source: std::io::Error },
    Diverged { step: usize, loss: f64 },
}

impl std::fmt::Display for TrainError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            TrainError::Config(why) => write!(f, "invalid configuration: {why}"),
            TrainError::Data { path, line, source } => write!(f, "{path}:{line}: {source}"),
            TrainError::Io { what, source } => write!(f, "{what}: {source}"),
            TrainError::Diverged { step, loss } => write!(f, "training diverged at step {step}: loss is {loss}"),
        }
    }
}

fn rank() -> usize {
    ["PROCESS_ID", "OMPI_COMM_WORLD_RANK"].iter().find_map(|n| std::env::var(n).ok()).and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn log(level: &str, text: &str) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let (s, ms) = (now.as_secs(), now.subsec_micros());
    eprintln!("[2026-11-26T{:02}:{:02}:{:02}.{:06}Z {:<5} trainer] {}", s / 3600 % 24, s / 60 % 60, s % 60, ms, level, text);
}

fn read_rows(path: &str) -> Result<Vec<Vec<f64>>, TrainError> {
    let path = path.replace("RANK", &rank().to_string());
    let file = File::open(&path).map_err(|source| TrainError::Io { what: format!("open {path}"), source })?;
    let mut rows = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate().skip(1) {
        let line = line.map_err(|source| TrainError::Io { what: format!("read {path}"), source })?;
        let row: Result<Vec<f64>, _> = line.split(',').map(str::parse).collect();
        rows.push(row.map_err(|source| TrainError::Data { path: path.clone(), line: number + 1, source })?);
    }
    Ok(rows)
}

fn save(weights: &[f64], path: &str) -> Result<(), TrainError> {
    let io = |source| TrainError::Io { what: format!("write checkpoint {path}"), source };
    let mut file = File::create(path).map_err(io)?;
    let mut bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    bytes.resize(160_000, 0);
    file.write_all(&bytes).map_err(io)
}

fn load(path: &str) -> Result<Vec<f64>, TrainError> {
    let io = |source| TrainError::Io { what: format!("restore checkpoint {path}"), source };
    let mut file = File::open(path).map_err(io)?;
    let mut bytes = vec![0u8; 160_000];
    file.read_exact(&mut bytes).map_err(io)?;
    Ok(bytes[..17 * 8].chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect())
}

fn hook(name: &str, row: &mut Vec<f64>) {
    let table: HashMap<&str, usize> = HashMap::from([("news", 0), ("forum", 1)]);
    match name {
        "segv" => unsafe { std::ptr::null_mut::<u8>().add(8).write_volatile(1) },
        "abort" => std::process::abort(),
        "kill" => { let _ = std::process::Command::new("sh").args(["-c", "kill -9 $PPID"]).status(); std::thread::sleep(std::time::Duration::from_secs(5)) }
        "memory" => { let v = std::hint::black_box(vec![1.5f64; 1 << 44]); row[0] = v[7] }
        "zero" => { let none = row.len() - row.len(); row[0] = (16 / none) as f64 }
        "index" => { let at = row.len() + 3; row[at] = 1.0 }
        "unwrap" => { row[0] = *table.get("wiki").unwrap() as f64 }
        "assert" => assert_eq!(row.len(), 18, "kernel expects padded rows"),
        "exit-3" => exit(3),
        _ => (),
    }
}

fn train() -> Result<(), TrainError> {
    let mut options: HashMap<String, String> = [("data", "data/train_RANK.csv"), ("lr", "0.05"), ("steps", "160"), ("out", "ckpt"), ("hook", ""),
        ("hook-step", "97"), ("resume", ""), ("metrics", ""), ("quiet-end", "0")].iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        let name = pair[0].trim_start_matches("--");
        if pair.len() < 2 || !options.contains_key(name) {
            eprintln!("error: unexpected argument '{}' found\n\nUsage: trainer [OPTIONS]\n\nFor more information, try '--help'.", pair[0]);
            exit(2);
        }
        options.insert(name.to_string(), pair[1].clone());
    }
    if let Ok(chosen) = std::env::var("HOOK_RANK") {
        if chosen != rank().to_string() && !["optional", "go-on"].contains(&options["hook"].as_str()) {
            options.insert("hook".into(), String::new());
        }
    }
    let rate: f64 = options["lr"].parse().map_err(|_| TrainError::Config(format!("lr: '{}' is not a number", options["lr"])))?;
    let steps: usize = options["steps"].parse().map_err(|_| TrainError::Config("steps".into()))?;
    if rate <= 0.0 {
        return Err(TrainError::Config(format!("lr must be positive, got {rate}")));
    }
    log("INFO", &format!("training on shard {} for {steps} steps", rank()));
    let mut rows = read_rows(&options["data"])?;
    log("INFO", &format!("{} rows", rows.len()));
    let mut weights = vec![0.0f64; 17];
    if !options["resume"].is_empty() {
        match load(&options["resume"]) {
            Ok(state) => weights = state,
            Err(error) if options["hook"] == "optional" => log("WARN", &format!("{error}; training from scratch")),
            Err(error) => return Err(error),
        }
    }
    let mut loss = 0.0;
    for step in 1..=steps {
        let mut sum = 0.0;
        let count = rows.len() as f64;
        for row in rows.iter() {
            let guess: f64 = (0..16).map(|i| weights[i] * row[i]).sum::<f64>() + weights[16];
            let error = guess - row[16];
            sum += error * error;
            (0..16).for_each(|i| weights[i] -= 0.1 * rate * error * row[i] / count);
        }
        loss = sum / count;
        log("INFO", &format!("step={step} loss={loss:.6} lr={rate}"));
        if !loss.is_finite() && options["hook"] != "go-on" {
            return Err(TrainError::Diverged { step, loss });
        }
        if step.to_string() == options["hook-step"] {
            hook(&options["hook"], &mut rows[0]);
        }
        if !options["metrics"].is_empty() && step % 40 == 0 {
            if let Err(source) = TcpStream::connect(format!("127.0.0.1:{}", options["metrics"])) {
                let error = TrainError::Io { what: "push metrics".into(), source };
                if options["hook"] != "optional" {
                    return Err(error);
                }
                log("ERROR", &format!("{error}"));
            }
        }
        if step % 40 == 0 && rank() == 0 {
            let path = format!("{}/step-{step:05}.bin", options["out"]);
            save(&weights, &path)?;
            log("INFO", &format!("checkpoint {path}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(if options["hook"] == "slow" { 200 } else { 4 }));
    }
    if options["quiet-end"] == "0" {
        log("INFO", &format!("done: {steps} steps, final loss {loss:.6}"));
    }
    Ok(())
}

fn main() {
    let _ = fs::create_dir_all("ckpt");
    if std::env::args().any(|a| a == "unwrap-main") {
        train().unwrap();
    } else if let Err(error) = train() {
        log("ERROR", &format!("{error}"));
        eprintln!("Error: {error:?}");
        exit(1);
    }
}
