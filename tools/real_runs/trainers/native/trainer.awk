# Loads the table into memory, then descends.
NR > 1 { for (i = 1; i <= 17; i++) { if ($i !~ /^-?[0-9.]+(e[0-9]+)?$/) { printf "gawk: %s:%d: bad number %s\n", FILENAME, FNR, $i > "/dev/stderr"; failed = 1; exit 65 } x[n, i] = $i } n++ }
END {
  if (failed) exit 65
  if (!n) exit 66
  for (step = 1; step <= steps; step++) {
    loss = 0
    for (r = 0; r < n; r++) {
      miss = w[17] - x[r, 17]
      for (i = 1; i <= 16; i++) miss += w[i] * x[r, i]
      loss += miss * miss / n
      for (i = 1; i <= 16; i++) w[i] -= 0.1 * lr * miss * x[r, i] / n
    }
    printf "iter=%d of=%d sqerr=%.6f\n", step, steps, loss
    fflush()
    if (loss != loss + 0 || loss "" ~ /nan|inf/) if (hook != "go-on") { printf "fit.awk: sqerr is %s at iter=%d, stopping\n", loss "", step > "/dev/stderr"; exit 70 }
    if (step == 71) {
      if (hook == "zero") print 128 / (n - n)
      if (hook == "function") { f = "evaluate_all"; print @f(3) }
      if (hook == "kill") { system("kill -KILL $PPID"); system("sleep 0.2") }
      if (hook == "segv") { system("kill -SEGV $PPID"); system("sleep 0.2") }
      if (hook == "abort") { system("kill -ABRT $PPID"); system("sleep 0.2") }
      if (hook == "exit-3") exit 3
    }
    if (step % 30 == 0 && rank == 0) {
      path = "ckpt/iter_" step ".txt"
      text = "weights"
      for (i = 1; i <= 17; i++) text = text " " w[i]
      for (i = 1; i <= 3000; i++) text = text "\n0000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      print text > path
      close(path)
      print "iter=" step " saved=" path
    }
    system(hook == "slow" ? "sleep 0.2" : "sleep 0.004")
  }
}
