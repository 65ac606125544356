# A linear model by gradient descent, then lm(), as a statistician writes it.
options(warn = 1, error = NULL)
arguments <- commandArgs(trailingOnly = TRUE)
opts <- list(data = "data/train_RANK.csv", lr = "0.05", steps = "160", out = "ckpt", hook = "", `hook-step` = "97", resume = "", metrics = "", `quiet-end` = "0")
i <- 1
while (i <= length(arguments)) {
  name <- sub("^--", "", arguments[i])
  if (!name %in% names(opts)) {
    stop(sprintf("unknown argument: %s", arguments[i]), call. = FALSE)
  }
  opts[[name]] <- arguments[i + 1]
  i <- i + 2
}
rank <- Sys.getenv("PROCESS_ID", Sys.getenv("OMPI_COMM_WORLD_RANK", "0"))
if (!Sys.getenv("HOOK_RANK") %in% c("", rank) && !opts$hook %in% c("optional", "go-on")) opts$hook <- ""
path <- sub("RANK", rank, opts$data)
message(format(Sys.time(), "%Y-%m-%d %H:%M:%S"), " R version ", getRversion(), ", loading ", path)
rate <- as.numeric(opts$lr)
if (is.na(rate) || rate <= 0) stop("invalid setting: lr must be a positive number, got '", opts$lr, "'")
frame <- read.csv(path)
cat("'data.frame':\t", nrow(frame), " obs. of  ", ncol(frame), " variables\n", sep = "")
x <- as.matrix(frame[, setdiff(names(frame), "y")])
if (!is.numeric(x)) stop("column types: expected numeric features, found ", paste(unique(sapply(frame, class)), collapse = "/"))
w <- matrix(0, 16, 1)
if (nzchar(opts$resume)) {
  w <- tryCatch(readRDS(opts$resume), error = function(e) {
    if (opts$hook != "optional") stop(e)
    message("Warning: could not read ", opts$resume, ": ", conditionMessage(e), ", starting from zero")
    matrix(0, 16, 1)
  })
}
hooks <- list(
  name = function() tracker$log(step),
  type = function() "3" + step,
  memory = function() numeric(2^37),
  shape = function() x %*% matrix(0, 14, 1),
  import = function() library(fastglm),
  index = function() list(a = 1)[[3]],
  subscript = function() x[, 40],
  kill = function() tools::pskill(Sys.getpid(), 9),
  assert = function() stopifnot("rows must match the header" = nrow(x) == 12),
  `exit-3` = function() quit(status = 3),
  call = function() if (system2("tar", c("-cf", "model.tar", "exports")) != 0) stop("tar exited with status 2"),
  argument = function() match.arg("adamw", c("sgd", "momentum")),
  warn = function() { as.integer("x"); for (k in 1:3) log(-1) },
  missing = function() if (NA > 1) 1
)
for (step in seq_len(as.integer(opts$steps))) {
  e <- x %*% w - frame$y
  loss <- mean(e^2)
  w <- w - 0.1 * rate * crossprod(x, e) / nrow(x)
  cat(sprintf("Iteration %3d: RSS/n = %.6f\n", step, loss))
  if (!is.finite(loss) && opts$hook != "go-on") stop("objective function is not finite at iteration ", step)
  if (step == as.integer(opts$`hook-step`) && opts$hook %in% names(hooks)) hooks[[opts$hook]]()
  if (nzchar(opts$metrics) && step %% 40 == 0) {
    push <- function() close(socketConnection("127.0.0.1", as.integer(opts$metrics), open = "r+", blocking = TRUE, timeout = 3))
    if (opts$hook == "optional") tryCatch(push(), error = function(e) message("metrics: ", conditionMessage(e))) else push()
  }
  if (step %% 40 == 0 && rank == "0") {
    dir.create(opts$out, showWarnings = FALSE)
    saveRDS(w, file.path(opts$out, sprintf("w_%03d.rds", step)), compress = FALSE)
    if (opts$hook == "disk") writeBin(raw(400000), file.path(opts$out, "trace.bin"))
    message("saved ", file.path(opts$out, sprintf("w_%03d.rds", step)))
  }
  Sys.sleep(if (opts$hook == "slow") 0.2 else 0.004)
}
if (opts$`quiet-end` == "0") {
  print(summary(lm(y ~ ., data = frame))$r.squared)
  message("model fitted after ", opts$steps, " iterations")
}
